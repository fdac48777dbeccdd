"""What a request computed from each of its starts to the next preemption."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from batchpolicy.engine import StepRecord


def inferred_hit(stint: Sequence[int], needed: int, block: int) -> int:
    """Tokens found in the prefix cache before a stint that another preemption ended.

    Whole blocks are found, and once the rest is computed each further step computes one
    token, so that few places are left where the prefill may have ended. 0 where none
    fits, as after a stint that ended before its prefill.
    """
    longest = [i for i, n in enumerate(stint) if n > 1]
    start = longest[-1] if longest else 0
    done = sum(stint[:start])
    for n in stint[start:]:
        done += n
        if 0 <= needed - done < needed and (needed - done) % block == 0:
            return needed - done
    return 0


def stints(records: Sequence[StepRecord]) -> dict[str, Stints]:
    """The stints of each request."""
    found: dict[str, Stints] = defaultdict(Stints)
    for record in records:
        for request_id in record.preempted:
            found[request_id].cut()
        for request_id, n in record.tokens.items():
            found[request_id].add(n, record.start_s + record.duration_s)
    return found


class Stints:
    """Tokens and end of each step of a request, from a start to the next preemption."""

    def __init__(self) -> None:
        self._lists: list[list[tuple[int, float]]] = [[]]
        self._taken = 0

    def cut(self) -> None:
        """A preemption ends the stint."""
        if self._lists[-1]:
            self._lists.append([])

    def add(self, n: int, end_s: float) -> None:
        """A step computes ``n`` tokens."""
        self._lists[-1].append((n, end_s))

    @property
    def is_last(self) -> bool:
        """Whether no stint is left behind the one that was taken last."""
        return not any(self._lists[self._taken :])

    def __next__(self) -> list[tuple[int, float]]:
        self._taken += 1
        return self._lists[min(self._taken, len(self._lists)) - 1]
