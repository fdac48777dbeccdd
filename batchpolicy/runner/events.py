"""Events between two plans, merged and delivered to a policy's hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from batchpolicy.policy import Policy, Step, Work
from batchpolicy.requests import IntArray
from batchpolicy.runner.table import RequestTable, Slots

Kind = Literal["arrived", "admitted", "computed", "preempted", "finished"]


@dataclass(slots=True)
class _Event:
    kind: Kind
    slots: list[int] = field(default_factory=list[int])
    parts: list[tuple[Slots, IntArray, IntArray]] = field(
        default_factory=list[tuple[Slots, IntArray, IntArray]]
    )
    """Of computed work: slots, prefill tokens, output tokens."""
    steps: int = 0
    elapsed_s: float = 0.0

    def add_work(self, slots: Slots, prefill: IntArray, output: IntArray) -> None:
        if self.parts:
            same, prefill_sum, output_sum = self.parts[-1]
            # Between admissions the same rows decode step after step.
            if len(same) == len(slots) and bool((same == slots).all()):
                prefill_sum += prefill
                output_sum += output
                return
        self.parts.append((slots, prefill.copy(), output.copy()))

    def work(self) -> tuple[Slots, Work]:
        """Each slot once, with the sums of its work."""
        slots, prefill, output = self.parts[0]
        if len(self.parts) > 1:
            every = np.concatenate([part[0] for part in self.parts])
            slots, place = np.unique(every, return_inverse=True)
            prefill, output = (
                np.bincount(place, np.concatenate([part[i] for part in self.parts]))
                .round()
                .astype(np.int64)
                for i in (1, 2)
            )
        return slots, Work(prefill, output, self.steps, self.elapsed_s)


class EventLog:
    """Keeps events in the order in which they happened, neighbours of one kind as one.

    A hook that the policy does not override costs nothing. Slots of ended
    requests are handed back to the table once their end has been delivered, and
    ``released`` is told of each before.
    """

    def __init__(
        self,
        policy: Policy,
        table: RequestTable,
        released: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._policy = policy
        self._released = released
        self._table = table
        self._events: list[_Event] = []
        self._ended: list[int] = []
        self._wanted: dict[Kind, bool] = {
            "arrived": policy.overrides("on_arrived"),
            "admitted": policy.overrides("on_admitted"),
            "computed": policy.overrides("on_computed"),
            "preempted": policy.overrides("on_preempted"),
            "finished": policy.overrides("on_finished"),
        }

    def __bool__(self) -> bool:
        return bool(self._events or self._ended)

    def follow(self, policy: Policy) -> None:
        """Tell this policy from now on, which is of the same class."""
        self._policy = policy

    def silence(self) -> None:
        """Deliver nothing from now on: a hook has failed."""
        self._events.clear()
        self._wanted = dict.fromkeys(self._wanted, False)

    def add(self, kind: Kind, slot: int) -> None:
        """Something happened to one request."""
        if kind == "finished":
            self._ended.append(slot)
        if self._wanted[kind]:
            self._last(kind).slots.append(slot)

    def computed(
        self,
        slots: Slots,
        prefill: IntArray,
        output: IntArray,
        elapsed_s: float,
        *,
        steps: int = 1,
    ) -> None:
        """Results of ``steps`` steps came back; arrays of shape ``(n,)``, slots distinct."""
        if self._wanted["computed"] and len(slots):
            event = self._last("computed")
            event.steps += steps
            event.elapsed_s += elapsed_s
            event.add_work(slots, prefill, output)

    def deliver(self, step: Step) -> None:
        """Call the hooks, oldest event first; exceptions pass through."""
        # A hook that fails must not hold up the slots, so they go back in any case.
        try:
            for event in self._events:
                if event.kind == "computed":
                    slots, work = event.work()
                    self._policy.on_computed(self._table.rows(slots), work, step)
                else:
                    slots = np.array(event.slots, dtype=np.intp)
                    self._hook(event.kind)(self._table.rows(slots), step)
        finally:
            self._events.clear()
            for slot in self._ended:
                self._released(slot)
                self._table.release(slot)
            self._ended.clear()

    def _hook(self, kind: Kind) -> Callable[[object, Step], None]:
        hook: Callable[[object, Step], None] = getattr(self._policy, f"on_{kind}")
        return hook

    def _last(self, kind: Kind) -> _Event:
        if not self._events or self._events[-1].kind != kind:
            self._events.append(_Event(kind))
        return self._events[-1]
