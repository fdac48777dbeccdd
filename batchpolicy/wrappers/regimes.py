"""A table of settings, one for each regime of load and mix."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    model_validator,
)
from typing_extensions import override

from batchpolicy.component import Component
from batchpolicy.policy import CodeKind, Limits, Policy, Step, Tags, Work
from batchpolicy.registry import build_policy, dump_policy
from batchpolicy.requests import BoolArray, IntArray, Requests
from batchpolicy.wrappers.guardrail import Guardrail, Watch
from batchpolicy.wrappers.load import Load, LoadMeter
from batchpolicy.wrappers.wrapper import Wrapper

logger = logging.getLogger(__name__)

SAFE = -1
"""In place of the number of a row."""

_Frac = Annotated[float, Field(ge=0.0, le=1.0)]


def _build(given: object) -> object:
    return None if given is None else build_policy(given)


def _dump(policy: Policy | None) -> dict[str, object] | None:
    return None if policy is None else dump_policy(policy)


class Ceilings(Component):
    """Limits below those that the engine was started with; an absent one stays as it is."""

    max_num_seqs: PositiveInt | None = None
    """Requests that run at once."""
    max_num_batched_tokens: PositiveInt | None = None
    """Tokens of one step."""
    prefill_chunk: PositiveInt | None = None
    """Most prompt tokens of one request in one step."""

    @property
    def limits_anything(self) -> bool:
        """Whether it says anything."""
        return self.below(Limits()) != Limits()

    def below(self, most: Limits) -> Limits:
        """The tighter one of each."""
        mine = (self.max_num_seqs, self.max_num_batched_tokens, self.prefill_chunk)
        both = zip(mine, most, strict=True)
        return Limits(*(b if a is None else a if b is None else min(a, b) for a, b in both))


class Row(Ceilings):
    """A setting, and when it holds: where all that it asks for is reached."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    """What it is called in logs."""
    above: NonNegativeFloat = 0.0
    """Live requests per seat from which on it holds, or, where they fill more of it, their
    tokens per token of KV cache."""
    prompt_above: _Frac = 0.0
    """Share of prompts in the tokens computed from which on it holds."""
    urgent_above: _Frac = 0.0
    """Share of urgent requests among those that live from which on it holds."""
    inner: Annotated[Policy | None, BeforeValidator(_build), PlainSerializer(_dump)] = None
    """The policy that decides there; without one, that of the safe setting."""

    @property
    def asks(self) -> tuple[float, float, float]:
        """What it asks for, in the order of ``Load``."""
        return self.above, self.prompt_above, self.urgent_above

    def holds(self, load: Load, part: float) -> bool:
        """Whether ``part`` of all that it asks for is reached."""
        return all(have >= part * asked for have, asked in zip(load, self.asks, strict=True))

    @property
    def differs(self) -> bool:
        """Whether it says anything that the safe setting does not."""
        return self.inner is not None or self.limits_anything


def _all_reachable(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    names = [row.name for row in rows]
    for i, row in enumerate(rows):
        if row.name in names[:i]:
            raise ValueError(f"row {row.name!r} is there twice; give each a name of its own")
        for later in rows[i + 1 :]:
            if all(a >= b for a, b in zip(row.asks, later.asks, strict=True)):
                raise ValueError(
                    f"row {row.name!r} would never hold, as {later.name!r} after it asks for no "
                    "more; expected rows that ask for more and more"
                )
    return rows


class Regimes(Wrapper):
    """Change policy and limits with the load and its mix.

    The last row holds whose ``above``, ``prompt_above`` and ``urgent_above`` are all reached;
    where there is none, ``inner`` and ``safe`` do: the safe setting. A row that holds, and
    those before it, are left only below ``leave_frac`` of what they ask for, and every setting
    stays for ``hold_s`` at least. All policies hear of everything all the time, so that
    accounts of tenants are right whichever is asked.

    A ``guard`` compares each row with the safe setting while it holds, and goes back to that
    where the row serves worse; see ``Guardrail``. All follows from the events and times that
    the policy is told, so that ranks of one server agree.
    """

    tags: ClassVar[Tags] = Tags()
    neutral: ClassVar[Mapping[str, Any] | None] = {"rows": (), "safe": {}}

    safe: Ceilings = Field(default_factory=Ceilings)
    """Limits of the safe setting, whose policy is ``inner``."""
    rows: Annotated[tuple[Row, ...], Field(max_length=16), AfterValidator(_all_reachable)] = ()
    """Settings by load and mix, the one that asks for most last."""
    average_s: PositiveFloat = 10.0
    """Time over which load and mix are averaged, in seconds."""
    leave_frac: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Part of what a row asks for below which it is left."""
    hold_s: NonNegativeFloat = 10.0
    """Shortest time between two changes, in seconds."""
    urgent_up_to: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """Highest priority number that counts as urgent."""
    guard: Guardrail | None = Field(default_factory=Guardrail)
    """How rows are held to be no worse than the safe setting; none to trust them."""

    _course: _Course = PrivateAttr()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.guard is not None and self.guard.window_s < self.hold_s:
            raise ValueError(
                f"guard.window_s {self.guard.window_s:g} is below hold_s {self.hold_s:g}; "
                "settings take turns window by window, so make it longer"
            )
        shares: dict[str, float] = {}
        for policy in self.inside():
            for tenant, weight in policy.tenant_weights().items():
                if shares.setdefault(tenant, weight) != weight:
                    raise ValueError(
                        f"tenant {tenant!r} has weight {shares[tenant]:g} and {weight:g}; a "
                        "request has one from its arrival on, so give it one everywhere"
                    )
        return self

    @override
    def model_post_init(self, context: Any, /) -> None:
        self._course = _Course(
            LoadMeter(),
            None if self.guard is None else Watch(self.guard, len(self.rows)),
        )

    @property
    def present(self) -> str:
        """Name of the row that serves now; ``safe`` for the safe setting."""
        used = self._course.used
        return "safe" if used == SAFE else self.rows[used].name

    @override
    def inside(self) -> tuple[Policy, ...]:
        return (self.inner, *(row.inner for row in self.rows if row.inner is not None))

    @override
    def asked(self) -> Policy:
        used = self._course.used
        return (None if used == SAFE else self.rows[used].inner) or self.inner

    @override
    def limits(self, step: Step) -> Limits:
        used = self._course.used
        ceilings = self.safe if used == SAFE else self.rows[used]
        return ceilings.below(super().limits(step))

    @override
    def overrides(self, method: str) -> bool:
        if method == "limits" and not any(one.limits_anything for one in (self.safe, *self.rows)):
            # Asking for limits takes time in each step.
            return any(one.overrides(method) for one in self.inside())
        return super().overrides(method)

    @override
    def count_in(self, counters: Counter[str]) -> None:
        super().count_in(counters)
        self._course.counters = counters

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._advance(rows, step)
        self._course.meter.arrived(rows, self.urgent_up_to)
        super().on_arrived(rows, step)

    @override
    def on_admitted(self, rows: Requests, step: Step) -> None:
        self._advance(rows, step)
        super().on_admitted(rows, step)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._advance(rows, step)
        self._course.meter.computed(rows, work)
        super().on_computed(rows, work, step)

    @override
    def on_finished(self, rows: Requests, step: Step) -> None:
        self._advance(rows, step)
        self._course.meter.finished(rows)
        if self._course.watch is not None:
            self._course.watch.finished(rows)
        super().on_finished(rows, step)

    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        # Its own state is about slots, not about tenants or sessions.
        return self.forget_inside(codes, kind)

    def _advance(self, rows: Requests, step: Step) -> None:
        """Before the first event of a step counts: choose by what was known until now."""
        course = self._course
        if not (self.rows and len(rows) and course.meter.advance(step.now_s, self.average_s)):
            return
        watch = course.watch
        if watch is not None:
            held_s = watch.advance(step)
            if held_s > 0.0:
                course.count("regime_alarms")
                logger.warning(
                    "regimes: %r served worse than the safe setting, which holds for %g s now",
                    self.rows[course.wanted].name,
                    held_s,
                )
        if math.isnan(course.changed_s):
            course.changed_s = step.now_s
        if step.now_s < course.changed_s + self.hold_s:
            return
        wanted = self._wanted(course.meter.load(step))
        if wanted != course.wanted:
            course.wanted = wanted
            if watch is not None:
                watched = wanted != SAFE and self.rows[wanted].differs
                watch.enter(wanted if watched else SAFE, step.now_s)
        used = wanted if watch is None or watch.serves() else SAFE
        if used != course.used:
            course.used, course.changed_s = used, step.now_s
            course.count("regime_changes")
            logger.info("regimes: %s from now on", self.present)

    def _wanted(self, load: Load) -> int:
        for i in reversed(range(len(self.rows))):
            # Those up to the present one were entered, and stay for less.
            part = self.leave_frac if i <= self._course.wanted else 1.0
            if self.rows[i].holds(load, part):
                return i
        return SAFE


@dataclass(slots=True)
class _Course:
    """What changes while a table stays the same."""

    meter: LoadMeter
    watch: Watch | None
    wanted: int = SAFE
    """The row that the load calls for."""
    used: int = SAFE
    """The row that serves."""
    changed_s: float = math.nan
    counters: Counter[str] = field(default_factory=Counter[str])

    def count(self, name: str) -> None:
        self.counters[name] += 1
