"""The mix, one request after another or all lanes at once."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.engine.client import Answer, Ask
from tests.engine.mix import Lane
from tests.engine.proof import Explainer, Prediction, prediction
from tests.engine.services import Services


@dataclass
class Sequential:
    """Takes the lanes in turns; each request waits until all is known of what came before.

    Fails at the first prediction that is not what the engine reports, with its explanation.
    """

    services: Services
    explainer: Explainer
    lanes: Mapping[str, Lane]
    say: Callable[[str], None] = print
    predictions: list[Prediction] = field(default_factory=list)
    # Beside each prediction: the answer, and the last batch that was applied when it was asked for.
    answers: list[tuple[Answer, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._turns = deque((name, lane, None) for name, lane in self.lanes.items())

    def run(self, requests: int | None = None) -> None:
        """So many, or all that are left."""
        while self._turns and (requests is None or requests > 0):
            name, lane, answer = self._turns.popleft()
            try:
                ask = lane.send(answer)
            except StopIteration:
                continue
            seqs = {name: replica["seq"] for name, replica in self.services.settled().items()}
            answer, line = self.services.send_logged(ask)
            self._judge(prediction(len(self.predictions), name, answer, line), answer, seqs)
            self._turns.append((name, lane, answer))
            requests = None if requests is None else requests - 1

    def _judge(self, found: Prediction, answer: Answer, seqs: dict[str, int | None]) -> None:
        seq = seqs[found.replica] if seqs[found.replica] is not None else -1
        self.predictions.append(found)
        self.answers.append((answer, seq))
        self.say(str(found))
        assert answer.status == 200 or found.excused, f"{answer.ask.body}: {answer.error}"
        parity = self.explainer.parity(answer)
        if parity or not (found.exact or found.excused):
            raise AssertionError(self.explainer.explain(found, answer, seq))


def at_once(send: Callable[[Ask], Answer], lanes: Mapping[str, Lane]) -> list[tuple[str, Answer]]:
    """Every lane a client of its own, all at the same time; the answers with their lanes."""

    def client(item: tuple[str, Lane]) -> list[tuple[str, Answer]]:
        name, lane = item
        answers: list[tuple[str, Answer]] = []
        answer = None
        while True:
            try:
                ask = lane.send(answer)
            except StopIteration:
                return answers
            answer = send(ask)
            answers.append((name, answer))

    with ThreadPoolExecutor(len(lanes)) as pool:
        return [pair for pairs in pool.map(client, lanes.items()) for pair in pairs]
