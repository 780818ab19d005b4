"""How long a step takes: by a plain pace, or by the cost model of a real system.

The cost model is linear in what a step does. With n new tokens of a prompt behind p tokens that are
computed already, b decoding sequences and kv tokens of context under them:

    prefill_ms = a + b1 * n + c * n * (p + n / 2)        itl_ms = d + e * b + f * kv

Rules it keeps:

* A step of prefill alone takes prefill_ms with one ``a``, however many prompts share the step; a
  step of decoding alone takes itl_ms.
* A step that does both reads the weights once: it takes the larger of ``a`` and ``d``, and the rest
  of both formulas.
* Chunks add up: the attention of a prompt in pieces is that of the whole prompt, and each further
  step costs one more ``a``.
"""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.sim.steps import Step


class Pacing(Protocol):
    """What decides how long a simulator waits for a step."""

    def seconds(self, step: Step) -> float: ...


@dataclass(frozen=True)
class Pace:
    """A base for each step, and more for each token it computes. Nothing computed costs nothing."""

    step_seconds: float = 0.0
    token_seconds: float = 0.0

    def seconds(self, step: Step) -> float:
        if not step.scheduled_tokens:
            return 0.0
        return self.step_seconds + self.token_seconds * step.scheduled_tokens


@dataclass(frozen=True)
class CostModel:
    """The six coefficients of one model on one system, in milliseconds."""

    prefill_base_ms: float  # a
    prefill_token_ms: float  # b1
    attended_pair_ms: float  # c, for each pair of a new token and a token it attends to
    decode_base_ms: float  # d
    decode_sequence_ms: float  # e
    context_token_ms: float  # f

    def prefill_ms(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """A prompt computed in one step."""
        pairs = new_tokens * (cached_tokens + new_tokens / 2)
        return self.prefill_base_ms + self._prefill_rest_ms(new_tokens, pairs)

    def decode_ms(self, sequences: int, context_tokens: int) -> float:
        """One token for each of the sequences, which have so much context together."""
        return self.decode_base_ms + self._decode_rest_ms(sequences, context_tokens)

    def step_ms(self, step: Step) -> float:
        """Whatever a step did; nothing costs nothing."""
        base = 0.0
        if step.prefill_tokens:
            base = self.prefill_base_ms
        if step.decoding_sequences:
            base = max(base, self.decode_base_ms)
        return (
            base
            + self._prefill_rest_ms(step.prefill_tokens, step.attended_pairs)
            + self._decode_rest_ms(step.decoding_sequences, step.context_tokens)
        )

    def _prefill_rest_ms(self, new_tokens: int, pairs: float) -> float:
        return self.prefill_token_ms * new_tokens + self.attended_pair_ms * pairs

    def _decode_rest_ms(self, sequences: int, context_tokens: int) -> float:
        return self.decode_sequence_ms * sequences + self.context_token_ms * context_tokens


# Fitted to AIConfigurator 0.12.0's tables of operations; Qwen3-32B on one or two devices.
COST_MODELS = {
    "qwen3-32b-h100-fp8": CostModel(16.8, 0.05474, 3.321e-6, 22.28, 0.1010, 4.748e-5),
    "qwen3-32b-2xh100-bf16": CostModel(3.7, 0.05007, 1.600e-6, 13.64, 0.0267, 4.250e-5),
    "qwen3-32b-a100-bf16": CostModel(20.4, 0.22526, 1.162e-5, 44.60, 0.0740, 1.628e-4),
}


@dataclass(frozen=True)
class CostPace:
    """A cost model, so many times faster. Raises ValueError where that is not above 0."""

    model: CostModel
    speedup: float = 1.0

    def __post_init__(self) -> None:
        if not self.speedup > 0:
            raise ValueError(f"speed-up {self.speedup}: must be above 0")

    def seconds(self, step: Step) -> float:
        return self.model.step_ms(step) / 1e3 / self.speedup
