"""One step of an engine, and who decides what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from batchpolicy.policy import Limits
from batchpolicy.step_cost import StepShape
from batchpolicy_sim.job import Job


class Step:
    """What one step computes."""

    __slots__ = (
        "admitted",
        "attention",
        "decode_context",
        "decodes",
        "preempted",
        "prefill_context",
        "prefill_tokens",
        "steady",
        "stuck",
        "tokens",
        "worked",
    )  # fmt: skip

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tokens
        """By id, in the engine's order; valid until the results are in."""
        self.steady = 0
        """Steady decodes, which all get their token."""
        self.worked: list[tuple[Job, int]] = []
        """The other jobs with their tokens, in the engine's order."""
        self.admitted: dict[str, int] = {}
        """Who got a seat, with the tokens found in the prefix cache."""
        self.preempted: list[Job] = []
        self.stuck = False
        """Nobody else could start until a job ends or arrives."""
        self.prefill_tokens = self.prefill_context = self.decodes = self.decode_context = 0
        self.attention = 0.0

    def add(self, job: Job, tokens: int) -> None:
        """A job that is no steady decode computes so many tokens."""
        before = job.computed
        if tokens == 1 and before >= job.prompt and before + 1 == job.prompt + job.out:
            self.decodes += 1
            self.decode_context += before
        else:
            self.prefill_tokens += tokens
            self.prefill_context += before
            self.attention += tokens * (before + tokens / 2)
        self.worked.append((job, tokens))

    def shape(self) -> StepShape:
        """The step as a cost sees it."""
        return StepShape(
            self.prefill_tokens,
            self.attention,
            self.prefill_context,
            self.decodes,
            self.decode_context,
            self.steady + len(self.worked),
        )


class Semantics(Protocol):
    """Fills steps as one engine does, with all that a batch needs to stay true to it."""

    seats: int
    """Jobs that may run at once."""

    def schedule(self) -> Step:
        """The next step: who computes how much, who starts, who loses its KV."""
        ...

    def set_limits(self, limits: Limits) -> None:
        """Limits from the next step on; None leaves one as it is."""
        ...

    @property
    def kept_blocks(self) -> int:
        """Free blocks that only running requests may take."""
        ...
