"""Predictions held against what engines report: request by request, and where they differ, why.

``Prediction`` is one request's pair. Where there can be none it has a name for the reason; any
other request without one is a failure.
"""

import json
from dataclasses import dataclass
from typing import Any

from proto.blockhash import RequestKeys
from router.pool_tokenizer import PoolTokenizer
from router.tokens import tokens_of
from tests.engine.client import Answer
from tests.engine.engine import BLOCK_TOKENS
from tests.engine.engine_log import EngineLog
from tests.engine.services import Services

_SECONDS_AROUND = 1.0


@dataclass(frozen=True)
class Prediction:
    """``excused``: why this request has no pair; None where it has to have one."""

    number: int
    lane: str
    replica: str
    predicted: int | None
    reported: int | None
    prompt_tokens: int | None
    evidence: str
    excused: str | None

    @property
    def exact(self) -> bool:
        return self.predicted is not None and self.predicted == self.reported

    def __str__(self) -> str:
        pair = f"predicted {self.predicted!s:>5}, reported {self.reported!s:>5}"
        why = f" ({self.excused})" if self.excused else ""
        return (
            f"{self.number:4} {self.lane:22} {self.replica:4} {pair} of {self.prompt_tokens!s:>5}"
            f" tokens, {self.evidence}{why}"
        )


def prediction(number: int, lane: str, answer: Answer, line: dict[str, Any]) -> Prediction:
    return Prediction(
        number,
        lane,
        line.get("replica", ""),
        line.get("predicted_cached_tokens"),
        line.get("cached_tokens"),
        line.get("prompt_tokens"),
        line.get("evidence", ""),
        excuse(answer, line),
    )


def told_to_client(answer: Answer) -> int | None:
    """The prediction as the response's headers have it, for requests that ran beside others.

    None where there is none, or nothing to hold it against.
    """
    headers, body = answer.headers, answer.ask.body
    if answer.cached_tokens is None or excuse(answer, {}):
        return None
    if headers["x-pointsman-evidence"].startswith("fallback"):
        return 0 if headers["x-pointsman-evidence"] == "fallback(nothing_stored)" else None
    if "prompt_logprobs" in body or (body.get("echo") and "logprobs" in body):
        return 0
    matched = int(headers["x-pointsman-matched-blocks"])
    return min(matched, ((answer.prompt_tokens or 0) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS


def excuse(answer: Answer, line: dict[str, Any]) -> str | None:
    body = answer.ask.body
    if answer.status == 400:
        return "the engine refused it"
    if answer.left:
        return "the client left"
    prompt = body.get("prompt")
    if body.get("n", 1) > 1 or (isinstance(prompt, list) and isinstance(prompt[0], list)):
        return "several sequences"
    return "the indexer is away" if line.get("without") == "indexer" else None


def keys_of(answer: Answer, lora_paths: dict[str, str]) -> RequestKeys:
    model, salt = answer.ask.body["model"], answer.ask.body.get("cache_salt")
    if model in lora_paths:
        return RequestKeys(lora_name=model, lora_path=lora_paths[model], cache_salt=salt)
    return RequestKeys(cache_salt=salt)


class Explainer:
    """Says why a prediction was wrong: ids, hashes, and what the engine's own log says of them."""

    def __init__(
        self, services: Services, tokenizer: PoolTokenizer, lora_paths: dict[str, str]
    ) -> None:
        self.services, self.tokenizer, self.lora_paths = services, tokenizer, lora_paths

    def parity(self, answer: Answer) -> str | None:
        """None where our token ids are the engine's, or the engine has told none."""
        if answer.prompt_ids is None:
            return None
        ask = answer.ask
        ours = list(tokens_of(ask.path, _encoded(ask.body), self.tokenizer)[0].token_ids)
        if ours == answer.prompt_ids:
            return None
        pairs = zip(ours, answer.prompt_ids, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(ours))
        return (
            f"token ids differ from {same} of {len(ours)}/{len(answer.prompt_ids)}:"
            f" ours {ours[same : same + 8]}, the engine's {answer.prompt_ids[same : same + 8]}"
        )

    def hashes(self, answer: Answer, replica: str) -> list[int]:
        """Of the engine's token ids, under the replica's scheme."""
        scheme = self.services.scheme(replica)
        if scheme is None or answer.prompt_ids is None:
            return []
        return scheme.block_hashes(answer.prompt_ids, keys_of(answer, self.lora_paths))

    def explain(self, prediction: Prediction, answer: Answer, seq: int) -> str:
        """``seq``: the last batch that the index had applied when the request was sent."""
        log = EngineLog.of(self.services.replay_endpoint(prediction.replica))
        hashes = self.hashes(answer, prediction.replica)
        return "\n".join(
            (
                f"{prediction}",
                f"body: {str(answer.ask.body)[:500]}",
                self.parity(answer) or "token ids are the engine's",
                f"the engine's log at seq {seq} holds"
                f" {log.matched(hashes, log.position_of(seq))} of {len(hashes)} blocks",
                log.table(hashes, seq),
            )
        )

    def reason(self, answer: Answer, predicted: int, log: EngineLog) -> str | None:
        """Why the figures of a request that did not run alone differ; None: nothing explains it.

        Both have to be what the engine held at some moment between sending and the answer.
        """
        hashes = self.hashes(answer, answer.headers["x-pointsman-replica"])
        readable = (len(answer.prompt_ids or ()) - 1) // BLOCK_TOKENS
        since, until = answer.sent_at - _SECONDS_AROUND, answer.done_at + _SECONDS_AROUND
        moments = log.matched_between(hashes, since, until)
        held = {min(blocks, readable) * BLOCK_TOKENS for _, blocks in moments}
        if answer.cached_tokens is None or not {predicted, answer.cached_tokens} <= held:
            return None
        return "stored meanwhile" if answer.cached_tokens > predicted else "evicted meanwhile"


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
