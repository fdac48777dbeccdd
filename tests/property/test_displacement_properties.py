"""Whoever displaces stands above its victim, seldom, and never in turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.shortest_remaining import ShortestRemaining
from batchpolicy.policy import Policy, Step
from batchpolicy.preemption import Preemption
from batchpolicy.requests import FloatArray, IntArray, Requests
from tests.support.mini_engine import Job, MiniEngine

BLOCK = 4


class Given(Policy):
    """Benefits and tiers by number of submission; keeping costs what was computed."""

    _worth: list[float] = PrivateAttr(default_factory=list)
    _price: float = PrivateAttr(default=0.0)

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return np.array(self._worth)[requests.seq]

    @override
    def tier(self, requests: Requests, step: Step) -> IntArray | None:
        return requests.seq % 2

    @override
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray:
        return self.benefit(running, step) + self._price * running.computed_tokens


@dataclass
class Watched:
    """A run, and who was displaced when whom was offered."""

    engine: MiniEngine
    seq: dict[str, int]
    displaced: list[tuple[str, list[str]]] = field(default_factory=list)

    def run(self, jobs: list[Job]) -> None:
        engine = self.engine
        engine.coming = sorted(jobs, key=lambda job: job.arrives)
        self.seq.update({job.id: i for i, job in enumerate(engine.coming)})
        while engine.coming or engine.waiting or engine.running or engine.flight:
            assert engine.index < 20_000
            before = set(engine.waiting)
            engine.step()
            plan = engine.plans[-1]
            started = [
                i for i in plan.admit if i not in engine.waiting and i in before | set(self.seq)
            ]
            self.displaced += [(victim, started) for victim in plan.preempt if plan.admit]


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    return [
        Job(
            f"r{i}",
            prompt=draw(st.integers(1, 40)),
            outputs=draw(st.integers(1, 20)),
            priority=draw(st.integers(0, 2)),
            arrives=draw(st.integers(0, 25)),
        )
        for i in range(draw(st.integers(1, 12)))
    ]


@given(
    work=jobs(),
    worth=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    price=st.sampled_from([0.0, 0.1]),
    margin=st.sampled_from([0.0, 1.0]),
    max_each=st.integers(1, 3),
    seats=st.integers(1, 4),
    blocks=st.integers(16, 40),
)
@settings(max_examples=150, deadline=None)
def test_displacement_by_benefit_is_strict_bounded_and_never_in_turn(
    work: list[Job],
    worth: list[int],
    price: float,
    margin: float,
    max_each: int,
    seats: int,
    blocks: int,
) -> None:
    policy = Given()
    policy._worth, policy._price = [float(w) for w in worth], price
    rule = Preemption(by="benefit", margin=margin, max_each=max_each)
    engine = MiniEngine(policy, preempt=rule, seats=seats, blocks=blocks, block_tokens=BLOCK)
    watched = Watched(engine, {})
    watched.run(work)
    assert all(job.output == job.outputs for job in work)
    times = Counter(victim for victim, _ in watched.displaced)
    assert max(times.values(), default=0) <= max_each
    pairs: set[tuple[str, str]] = set()
    for victim, started in watched.displaced:
        v = watched.seq[victim]
        # At least one of those that started stands above it, by more than the margin.
        above = [
            i
            for i in started
            if (-(watched.seq[i] % 2), worth[watched.seq[i]]) > (-(v % 2), worth[v] + margin)
        ]
        assert above, f"{victim} went for {started}"
        if len(above) == 1:
            pairs.add((above[0], victim))
    assert not any((b, a) in pairs for a, b in pairs)


def served(jobs: list[Job], policy: ShortestRemaining, times: int) -> float:
    """Mean steps from arrival to end on one seat, where starting again costs no step."""
    engine = MiniEngine(
        policy,
        seats=1,
        budget=10_000,
        blocks=10_000,
        preempt=Preemption(by="benefit", max_each=times),
    )
    ends: dict[str, int] = {}
    engine.coming = sorted(jobs, key=lambda job: job.arrives)
    while engine.coming or engine.waiting or engine.running:
        engine.step()
        ends.update({job.id: engine.index for job in engine.done if job.id not in ends})
    return sum(ends[job.id] - job.arrives for job in jobs) / len(jobs)


def least_mean(sizes: list[int], arrives: list[int]) -> float:
    """The best that any schedule of one server reaches, unit by unit.

    With preemption at no cost some order by priority is optimal: try all of them.
    """
    best = float("inf")
    n = len(sizes)
    for order in permutations(range(n)):
        left, done, now = list(sizes), 0, 0
        total = 0
        while done < n:
            here = next((i for i in order if left[i] and arrives[i] <= now), None)
            now += 1
            if here is not None:
                left[here] -= 1
                if not left[here]:
                    done += 1
                    total += now - arrives[here]
        best = min(best, total / n)
    return best


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_shortest_remaining_with_right_predictions_has_the_least_mean_response_on_one_seat(
    drawn: list[tuple[int, int]],
) -> None:
    work = [
        Job(f"r{i}", prompt=1, outputs=n, predicted=float(n), arrives=at)
        for i, (n, at) in enumerate(sorted(drawn, key=lambda d: d[1]))
    ]
    # Prompts are computed in a step, together with the first token.
    plain = ShortestRemaining(output_weight=1000.0, recompute_weight=0.0, committed_frac=1.0)
    best = least_mean([job.outputs for job in work], [job.arrives for job in work])
    assert served(work, plain, times=1_000) == best
