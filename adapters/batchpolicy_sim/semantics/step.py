"""One step of an engine, and who decides what is in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from batchpolicy.policy import Limits
from batchpolicy.runner import Plan
from batchpolicy.step_cost import StepShape
from batchpolicy_sim.job import Job

KeepOrder = Callable[[list[str]], list[str]]
"""Ids of running jobs, the one to keep longest first."""


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


class Semantics(ABC):
    """Fills steps as one engine does, with all that a batch needs to stay true to it."""

    joins: ClassVar[bool] = True
    """Who decodes gets a token in every step, and so may be one of ``Decodes``."""
    closes: ClassVar[bool] = True
    """One more step follows the last results, to tell the workers who ended."""
    requeues_last: ClassVar[bool] = False
    """A preempted job waits as if it had just come."""
    refuses_late: ClassVar[bool] = True
    """Clients hear with the results of a step whom its plan refused."""
    facts: ClassVar[Mapping[str, Any]] = {}
    """What a runner is told of the engine beside its limits."""

    seats: int
    """Jobs that may run at once."""
    looks_ahead: bool = True
    """A plan has seen to it that what it starts fits to the end."""

    def admits(self, job: Job) -> bool:
        """Whether a job that comes may wait; else the front end refuses it."""
        return True

    def never_fits(self, job: Job) -> bool | None:
        """Whether a job can never run; None to go by the limits alone."""
        return None

    def arrived(self, job: Job) -> None:  # noqa: B027 - most engines have nothing to do
        """A job waits from now on."""

    def cancel(self, job: Job) -> bool:
        """The client of a job has left; false if the engine ends it only later."""
        return True

    def begin(self) -> list[Job]:
        """A step begins; jobs that the engine ends now."""
        return []

    @abstractmethod
    def schedule(self) -> Step:
        """The next step: who computes how much, who starts, who loses its KV."""

    @abstractmethod
    def set_limits(self, limits: Limits) -> None:
        """Limits from the next step on; None leaves one as it is."""

    @property
    def kept_blocks(self) -> int:
        """Free blocks that only running requests may take."""
        return 0

    @abstractmethod
    def free_blocks(self) -> int:
        """Blocks that admission may take."""

    @abstractmethod
    def free_seats(self) -> int:
        """Jobs that may start in this step."""

    @abstractmethod
    def follow(self, plan: Plan, keep_order: KeepOrder) -> list[Job]:
        """Displace as a plan says, before its jobs are on offer; who was displaced."""

    def may_go(self, job: Job) -> bool:
        """Whether a running job could be displaced now."""
        return True
