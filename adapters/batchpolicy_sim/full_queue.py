"""A limit on how many requests wait."""

from __future__ import annotations

from batchpolicy_sim.batch import Batch
from batchpolicy_sim.job import WAITING, Job


class FullQueue:
    """Refuses requests when too many wait: the least urgent first, of those the latest.

    Who could start at once never counts, since it is looked at after a step was filled.
    """

    def __init__(self, batch: Batch, most: int | None) -> None:
        self._batch = batch
        self._most = most

    def refused(self) -> list[Job]:
        """Waiting jobs that have to go now."""
        batch, most = self._batch, self._most
        if most is None or batch.waiting <= most:
            return []
        # Who has started is not turned away any more.
        waiting = [j for j in batch.jobs.values() if j.state == WAITING and not j.started]
        waiting.sort(key=_least_urgent_last)
        return waiting[len(waiting) - min(batch.waiting - most, len(waiting)) :][::-1]


def _least_urgent_last(job: Job) -> tuple[int, float, int]:
    return job.priority, job.arrival_s, job.place
