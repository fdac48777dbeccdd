"""The tables behind ``Requests``: columns by slot, and the sets of slots that views show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from batchpolicy.requests import COLUMNS, NEVER_STARTED, QUANTILES, Column, Requests

Slots = npt.NDArray[np.intp]

_SELDOM_SET = (
    "priority", "weight", "ttft_slo_s", "deadline_s", "preemptions", "predicted_output_tokens",
)  # fmt: skip
"""Columns that policies look at, and that many servers never see a value in."""


class SlotSet:
    """A set of slots as one contiguous array; O(1) add and discard, order arbitrary.

    Also counts its members by class, so that the most and the least urgent one are
    known without a look at the queue.
    """

    __slots__ = ("_classes", "_count", "_members", "_places")

    def __init__(self) -> None:
        self._members: Slots = np.empty(64, dtype=np.intp)
        self._places: dict[int, tuple[int, int]] = {}
        self._classes: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, slot: object) -> bool:
        return slot in self._places

    @property
    def most_urgent(self) -> int:
        """The least priority among the members, of which there must be one."""
        return min(self._classes)

    @property
    def least_urgent(self) -> int:
        """The greatest priority among the members, of which there must be one."""
        return max(self._classes)

    def add(self, slot: int, priority: int) -> None:
        """Add one slot; nothing happens if it is there."""
        if slot in self._places:
            return
        if self._count == len(self._members):
            self._members = np.concatenate([self._members, np.empty_like(self._members)])
        self._members[self._count] = slot
        self._places[slot] = self._count, priority
        self._classes[priority] = self._classes.get(priority, 0) + 1
        self._count += 1

    def discard(self, slot: int) -> bool:
        """Remove one slot, the last taking its place; tells whether it was there."""
        found = self._places.pop(slot, None)
        if found is None:
            return False
        place, priority = found
        self._classes[priority] -= 1
        if not self._classes[priority]:
            del self._classes[priority]
        self._count -= 1
        if place != self._count:
            last = int(self._members[self._count])
            self._members[place] = last
            self._places[last] = place, self._places[last][1]
        return True

    def array(self) -> Slots:
        """The slots; a view, valid until the next change."""
        return self._members[: self._count]


class RequestTable:
    """Columns indexed by slot, with O(1) add, look-up and removal by request id.

    A slot is kept for the life of a request and reused afterwards, the slot
    freed last going first, so that columns stay as short as the longest queue.
    """

    def __init__(self, capacity: int = 256) -> None:
        self.columns: dict[str, Column] = {
            name: np.full(capacity, default, dtype=dtype)
            for name, (dtype, default) in COLUMNS.items()
        }
        self.columns[QUANTILES] = np.full((capacity, 9), np.nan)
        self._defaults = frozenset(_SELDOM_SET)
        """Of those columns, the ones that no request ever had another value in."""
        self._fresh = NEVER_STARTED
        """Columns at their default in rows that have never run."""
        self._never_started = self._defaults | self._fresh
        self.ids: list[str] = [""] * capacity
        self.slots: dict[str, int] = {}
        self.now_s = 0.0
        self.passed: list[int] = []
        """Ascending submission numbers of admitted requests, as far as others may wait longer."""
        self._free = list(range(capacity - 1, -1, -1))
        self.next_seq = 0
        """Submission number of the next request."""

    def __len__(self) -> int:
        return len(self.slots)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.slots

    def add(self, request_id: str, **values: float) -> int:
        """A slot for a new request, columns not named taking their defaults.

        Raises
        ------
        KeyError
            When the request is in the table already.
        TypeError
            When a value names no column.
        """
        if request_id in self.slots:
            raise KeyError(f"request {request_id!r} is already in the table")
        unknown = sorted(set(values) - set(COLUMNS))
        if unknown:
            raise TypeError(f"unknown columns: {', '.join(unknown)}")
        if not self._free:
            self._grow()
        slot = self._free.pop()
        columns = self.columns
        for name, (_, default) in COLUMNS.items():
            columns[name][slot] = values.get(name, default)
        self.differ(values)
        columns[QUANTILES][slot] = np.nan
        columns["slot"][slot] = slot
        columns["seq"][slot] = self.next_seq
        self.next_seq += 1
        self.ids[slot] = request_id
        self.slots[request_id] = slot
        return slot

    def forget(self, request_id: str) -> int:
        """End the look-up by id; the row stays readable until its slot is released."""
        return self.slots.pop(request_id)

    def release(self, slot: int) -> None:
        """Let a slot be used again."""
        self._free.append(slot)

    def remove(self, request_id: str) -> None:
        """Forget a request and release its slot at once."""
        self.release(self.forget(request_id))

    def set(self, request_id: str, **values: float) -> None:
        """Write some columns of one row."""
        slot = self.slots[request_id]
        for name, value in values.items():
            self.columns[name][slot] = value
        self.differ(values)

    def differ(self, values: Mapping[str, float]) -> None:
        """Some row has these values, so that columns are not all at their defaults any more."""
        for name in self._defaults:
            value, default = values.get(name, np.nan), COLUMNS[name][1]
            if value == value and value != default:
                self._defaults -= {name}
                self._never_started = self._defaults | self._fresh

    def may_hit_before_it_runs(self) -> None:
        """Prefix hits are known of rows that have never run."""
        self._fresh = NEVER_STARTED - {"cached_tokens"}
        self._never_started = self._defaults | self._fresh

    def at_default(self, name: str) -> bool:
        """Whether no request ever had another value than the default in this column."""
        return name in self._defaults

    def rows(self, slots: Slots, *, never_started: bool = False) -> Requests:
        """A view of the given slots, of which it may be known that none has ever run."""
        defaults = self._never_started if never_started else self._defaults
        return Requests(self.columns, slots, self.ids, self.now_s, self.passed, defaults)

    def view(self) -> Requests:
        """A view of every request in the table, in order of submission."""
        found = np.fromiter(self.slots.values(), dtype=np.intp, count=len(self.slots))
        return self.rows(found[np.argsort(self.columns["seq"][found], kind="stable")])

    def _grow(self) -> None:
        old = len(self.ids)
        for name, (dtype, default) in COLUMNS.items():
            self.columns[name] = np.concatenate(
                [self.columns[name], np.full(old, default, dtype=dtype)]
            )
        quantiles = self.columns[QUANTILES]
        self.columns[QUANTILES] = np.concatenate([quantiles, np.full_like(quantiles, np.nan)])
        self.ids.extend([""] * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))
