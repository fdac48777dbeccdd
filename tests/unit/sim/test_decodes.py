from __future__ import annotations

import random
from itertools import pairwise

import pytest

from batchpolicy_sim.decodes import Decodes
from batchpolicy_sim.job import Job
from tests.unit.sim.light import request


def decoding(name: str, prompt: int, wanted: int, end_s: float, pos: int) -> Job:
    """A job that has just emitted its first token, at ``end_s``."""
    job = Job(request(name, prompt, wanted), 0, 0.0)
    job.computed, job.out, job.last_token_s, job.pos = prompt, 1, end_s, pos
    return job


@pytest.mark.parametrize("seed", range(20))
def test_the_sums_are_those_of_the_jobs_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([1, 3, 16])
    decodes = Decodes(size, by_name=True)
    inside: dict[Job, list[float]] = {}
    now_s = 0.0
    for step in range(300):
        assert decodes.count == len(inside)
        assert decodes.context == sum(job.prompt + len(ends) - 1 for job, ends in inside.items())
        entering = [j for j, ends in inside.items() if (j.prompt + len(ends) - 1) % size == 0]
        assert decodes.entering[decodes.beat % size] == len(entering)
        filling = [j for j, ends in inside.items() if (j.prompt + len(ends)) % size == 0]
        assert decodes.filling_now() == sorted(filling, key=lambda job: job.pos)
        now_s += rng.choice([0.5, 0.25, 1.0])
        ended = decodes.ending.pop(decodes.beat, [])
        decodes.advance(now_s)
        for ends in inside.values():
            ends.append(now_s)
        assert {job.id for job in ended} == {
            job.id for job, ends in inside.items() if len(ends) == job.wanted
        }
        leaving = [(job, True) for job in ended]
        stay = [job for job in inside if job not in ended]
        leaving += [(job, False) for job in stay if rng.random() < 0.02]
        for job, over in leaving:
            decodes.leave(job, ended=over)
            ends = inside.pop(job)
            assert job.out == len(ends)
            assert job.computed == job.prompt + job.out - 1
            assert job.held == -(-job.computed // size)
            assert job.last_token_s == ends[-1]
            gaps = [b - a for a, b in pairwise(ends)]
            assert job.gap_s == max(gaps, default=0.0)
        if rng.random() < 0.2:
            job = decoding(f"r{step}", rng.randint(1, 40), rng.randint(2, 60), now_s, step)
            decodes.join(job)
            inside[job] = [now_s]
