"""Requests that decode one token in each step, as numbers instead of one by one."""

from __future__ import annotations

from bisect import bisect_left

from batchpolicy_sim.job import Job


class Decodes:
    """Running requests that lack one token and get it in every step.

    Steps in which they do are *beats*. What a beat takes follows from sums: how many
    they are, their context, and how many of them enter a new KV block, which each does
    every ``block_tokens`` beats. So a beat costs the same for one request and for 256.
    """

    def __init__(self, block_tokens: int, *, by_name: bool) -> None:
        self.block_tokens = block_tokens
        self.beat = 0
        self.count = 0
        self.context = 0
        """Computed tokens of all of them."""
        self.entering = [0] * block_tokens
        """How many enter a new block in beats with that remainder."""
        self.filling: list[dict[str, Job]] | None = (
            [{} for _ in range(block_tokens)] if by_name else None
        )
        """Those that fill a block in beats with that remainder, where blocks have names."""
        self.ending: dict[int, list[Job]] = {}
        """Those that emit their last token in a beat."""
        self.last_pos = -1
        """No one of them is further back among the running requests."""
        self.end_s = 0.0
        """End of the latest step."""
        self._gap_beats: list[int] = []
        self._gaps_s: list[float] = []
        # The gaps that are the longest since their beat: both lists are sorted, so that the
        # longest since any beat is found by bisection.

    def join(self, job: Job) -> None:
        """A job has emitted a token and lacks one computed token."""
        computed, beat = job.computed, self.beat
        offset = computed - beat
        job.offset = offset
        job.since = beat
        job.steady = True
        self.count += 1
        self.context += computed
        self.entering[-offset % self.block_tokens] += 1
        if self.filling is not None:
            self.filling[(-1 - offset) % self.block_tokens][job.id] = job
        last = beat + job.wanted - job.out - 1
        if last in self.ending:
            self.ending[last].append(job)
        else:
            self.ending[last] = [job]
        if job.pos > self.last_pos:
            self.last_pos = job.pos

    def leave(self, job: Job, *, ended: bool = False) -> None:
        """Bring a job up to date; ``ended`` jobs are out of ``ending`` already."""
        beat, offset = self.beat, job.offset
        computed = offset + beat
        job.computed = computed
        job.out = computed - job.prompt + 1
        job.held = -(-computed // self.block_tokens)
        job.steady = False
        self.count -= 1
        self.context -= computed
        self.entering[-offset % self.block_tokens] -= 1
        if self.filling is not None:
            del self.filling[(-1 - offset) % self.block_tokens][job.id]
        if not ended:
            last = beat + job.wanted - job.out - 1
            same = self.ending[last]
            same.remove(job)
            if not same:
                del self.ending[last]
        if job.since < beat:
            job.last_token_s = self.end_s
            gap_s = self._gaps_s[bisect_left(self._gap_beats, job.since)]
            if gap_s > job.gap_s:
                job.gap_s = gap_s
        if not self.count:
            self.last_pos = -1
            self._gap_beats.clear()
            self._gaps_s.clear()

    def computed(self, job: Job) -> int:
        """Computed tokens of one of them."""
        return job.offset + self.beat

    def filling_now(self) -> list[Job]:
        """Those that fill a block in this beat, in the engine's order; only with names."""
        assert self.filling is not None
        jobs = list(self.filling[self.beat % self.block_tokens].values())
        if len(jobs) > 1:
            jobs.sort(key=_pos)
        return jobs

    def advance(self, end_s: float) -> None:
        """A step ended in which each of them got its token."""
        if self.count:
            self.context += self.count
            gap_s = end_s - self.end_s
            gaps_s, beats = self._gaps_s, self._gap_beats
            while gaps_s and gaps_s[-1] <= gap_s:
                gaps_s.pop()
                beats.pop()
            gaps_s.append(gap_s)
            beats.append(self.beat)
        self.beat += 1
        self.end_s = end_s


def _pos(job: Job) -> int:
    return job.pos
