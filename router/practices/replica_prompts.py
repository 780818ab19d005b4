"""A shell: bodies to prompts by asking a replica, for who has no copy of the tokenizer.

Rules:

* ``/v1/.../render`` gives the very ids that the engine would use. Where a replica has no such
  endpoint, or not enabled, its ``/tokenize`` is asked, and what that one ignores is refused where a
  body has it: other ids than the engine's would be compared.
* A prompt's text is what ``/detokenize`` makes of its ids; without that there are only ids.
* Answers are untrusted: their size, their time and their types are checked.
"""

import asyncio
import json
from array import array
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from router.openai import BadRequest, parse_request
from router.practices.prompt import TokenizedBody, starts_by_decoding
from router.prompts import CHAT_PATH, OpaquePrompt, Prompt, TokenPrompt
from router.render import NotRendered
from router.tokens import NotReported

ANSWER_S_MAX = 60.0
# A million ids with their text, and room.
_ANSWER_BYTES_MAX = 64 * 2**20
_SHOWN_CHARS_MAX = 300
# No such endpoint, not enabled, or not for this model.
_NO_ENDPOINT = frozenset({403, 404, 405, 501})
# Fields that /tokenize does not know.
_IGNORED = ("reasoning_effort", "documents", "truncate_prompt_tokens")


class _Refused(Exception):
    """The replica answered with another status than 200; the text says what."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {' '.join(text.split())}"[:_SHOWN_CHARS_MAX])
        self.status = status


class ReplicaPrompts:
    """``url``: the replica's root. To be entered, and used from one thread."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url, self._runner = url, asyncio.Runner()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None
        # Until a replica says that it has none.
        self._renders, self._detokenizes = True, True

    def __enter__(self) -> "ReplicaPrompts":
        self._runner.__enter__()
        self._session = self._runner.run(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.__exit__(kind, error, trace)

    @property
    def described(self) -> str:
        return f"by {self._url}, {'/render' if self._renders else '/tokenize'}"

    def tokenized(self, name: str, path: str, body: bytes) -> TokenizedBody:
        """Raises NotReported."""
        prompt, fields = _checked(path, body)
        token_ids = prompt.token_ids if isinstance(prompt, TokenPrompt) else self._ids(path, fields)
        text = self._text(token_ids)
        start = starts_by_decoding(token_ids, text or "", self._decoded)
        return TokenizedBody(name, path, fields, token_ids, text, start)

    def render(self, body: dict[str, Any]) -> str:
        """Raises NotRendered."""
        try:
            text = self._text(self._ids(CHAT_PATH, body))
        except NotReported as error:
            raise NotRendered(str(error)) from None
        if text is None:
            raise NotRendered("the replica has no /detokenize")
        return text

    def token_ids(self, text: str) -> "array[int]":
        """Raises NotReported."""
        return self._tokenize({"prompt": text, "add_special_tokens": False})

    def _ids(self, path: str, fields: Mapping[str, Any]) -> "array[int]":
        if self._renders:
            try:
                return self._rendered(path, fields)
            except _Refused as error:
                if error.status not in _NO_ENDPOINT:
                    raise NotReported(f"{self._url}{path}/render: {error}") from None
                self._renders = False
        return self._tokenize(_for_tokenize(path, fields))

    def _rendered(self, path: str, fields: Mapping[str, Any]) -> "array[int]":
        """Raises _Refused and NotReported."""
        answer = self._asked(f"{path}/render", {**fields, "stream": False})
        one = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
        return self._ids_in(one, "token_ids", f"{path}/render")

    def _tokenize(self, fields: Mapping[str, Any]) -> "array[int]":
        try:
            return self._ids_in(self._asked("/tokenize", fields), "tokens", "/tokenize")
        except _Refused as error:
            raise NotReported(f"{self._url}/tokenize: {error}") from None

    def _ids_in(self, answer: Any, key: str, path: str) -> "array[int]":
        ids = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(ids, list) or not all(type(token_id) is int for token_id in ids):
            raise NotReported(f"{self._url}{path} answered without {key}")
        try:
            return array("I", ids)
        except OverflowError:
            raise NotReported(f"{self._url}{path}: a token id is out of range") from None

    def _text(self, token_ids: "array[int]") -> str | None:
        """None where the replica does not tell. Raises NotReported."""
        if not self._detokenizes:
            return None
        try:
            answer = self._asked("/detokenize", {"tokens": token_ids.tolist()})
        except _Refused as error:
            if error.status not in _NO_ENDPOINT:
                raise NotReported(f"{self._url}/detokenize: {error}") from None
            self._detokenizes = False
            return None
        text = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise NotReported(f"{self._url}/detokenize answered without a prompt")
        return text

    def _decoded(self, token_ids: "array[int]") -> str:
        return self._text(token_ids) or ""

    def _asked(self, path: str, fields: Mapping[str, Any]) -> Any:
        """The JSON of the answer. Raises _Refused, and NotReported where there is none."""
        return self._runner.run(self._ask(self._url + path, json.dumps(fields).encode()))

    async def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(headers=self._headers)

    async def _ask(self, url: str, body: bytes) -> Any:
        assert self._session is not None
        sent = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(ANSWER_S_MAX),
                self._session.post(url, data=body, headers=sent, allow_redirects=False) as response,
            ):
                answer = await _read(response)
                if response.status != 200:
                    raise _Refused(response.status, _message(answer))
            return msgspec.json.decode(answer)
        except TimeoutError:
            raise NotReported(f"{url}: no answer within {ANSWER_S_MAX:g} s") from None
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, RecursionError) as error:
            raise NotReported(f"{url}: {error or type(error).__name__}") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > _ANSWER_BYTES_MAX:
            raise NotReported(f"{response.url}: more than {_ANSWER_BYTES_MAX:,} bytes")
    return b"".join(pieces)


def _message(answer: bytes) -> str:
    """The engine's own words where it has some."""
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return answer[:_SHOWN_CHARS_MAX].decode(errors="replace")


def _checked(path: str, body: bytes) -> tuple[Prompt, dict[str, Any]]:
    """The one prompt of a body, and its fields. Raises NotReported."""
    try:
        request = parse_request(path, body, {})
    except BadRequest as error:
        raise NotReported(error.message) from None
    if len(request.prompts) != 1:
        raise NotReported(f"has {len(request.prompts)} prompts: give a body for each")
    (prompt,) = request.prompts
    if isinstance(prompt, OpaquePrompt):
        raise NotReported(f"not tokenized: {prompt.reason}")
    return prompt, msgspec.json.decode(body, type=dict[str, Any])


def _for_tokenize(path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What /tokenize makes the same ids of. Raises NotReported where it would make others."""
    for key in _IGNORED:
        if fields.get(key) is not None:
            raise NotReported(
                f"/tokenize ignores {key}: start the replica with --enable-scale-out, so that it"
                " has /render, or give --model"
            )
    kept = {key: value for key, value in fields.items() if key not in ("stream", "prompt")}
    if path != CHAT_PATH:
        prompt = fields["prompt"]
        return {**kept, "prompt": prompt[0] if isinstance(prompt, list) else prompt}
    return {**kept, "messages": [_with_reasoning(message) for message in fields["messages"]]}


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """/tokenize knows only the newer of the two names."""
    old = message.get("reasoning_content")
    return message if old is None else {"reasoning": old, **message}
