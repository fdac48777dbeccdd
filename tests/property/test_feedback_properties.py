"""Levels as one would work them out by hand, and what follows for orders that move by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits
from batchpolicy.policies.boosted_arrival import BoostedArrival
from batchpolicy.policies.feedback import Feedback
from batchpolicy.policies.least_attained_service import LeastAttainedService
from batchpolicy.policies.multilevel_feedback import MultilevelFeedback
from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.policy import Work
from batchpolicy.requests import Status
from batchpolicy.runner.order import best_first
from batchpolicy.runner.table import RequestTable
from batchpolicy.step_cost import FormulaCost
from batchpolicy.testing import make_requests, make_step
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine


@dataclass
class ByHand:
    """One request that goes down quantum by quantum."""

    quantum: float
    ratio: int
    levels: int
    level: int = 0
    left: float = 0.0

    def join(self, prompt: int) -> None:
        while self.level < self.levels - 1 and self._of_level() < prompt:
            self.level += 1
        self.left = self._of_level()

    def serve(self, tokens: int) -> None:
        for _ in range(tokens):
            self.left -= 1
            if self.left == 0 and self.level < self.levels - 1:
                self.level += 1
                self.left = self._of_level()

    def _of_level(self) -> float:
        return self.quantum * self.ratio**self.level


@given(
    st.integers(1, 50), st.integers(1, 4), st.integers(1, 6), st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=12),
)  # fmt: skip
def test_levels_are_those_of_going_down_quantum_by_quantum(
    quantum: int, ratio: int, levels: int, prompt: int, work: list[tuple[int, int]]
) -> None:
    hand = ByHand(quantum, ratio, levels)
    hand.join(prompt)
    policy = MultilevelFeedback(
        quantum_tokens=quantum, quantum_ratio=ratio, levels=levels, output_weight=3.0
    )
    table, step = RequestTable(), make_step()
    table.add("r", arrival_s=100.0, prompt_tokens=prompt)
    rows = table.view()
    policy.on_arrived(rows, step)
    policy.on_admitted(rows, step)
    for prefill, output in work:
        assert policy.benefit(rows, step).tolist() == [-hand.level]
        policy.on_computed(rows, Work(np.array([prefill]), np.array([output]), 1, 0.1), step)
        hand.serve(prefill + 3 * output)
    assert policy.benefit(rows, step).tolist() == [-hand.level]


@pytest.mark.parametrize("cls", [MultilevelFeedback, LeastAttainedService])
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 20.0))
def test_who_waited_long_enough_is_passed_by_no_later_arrival(
    cls: type[Feedback], seed: int, promote_s: float
) -> None:
    rows = make_requests(60, seed=seed)
    policy, step = cls(promote_s=promote_s), make_step(waiting=rows)
    policy.on_arrived(rows, step)
    some = rows.take(np.arange(0, 60, 3))
    policy.on_computed(some, Work(some.slot * 40, some.slot, 1, 0.1), step)
    ranking = policy.rank(rows, step)
    order = best_first(ranking.benefit, ranking.tier, rows.seq, len(rows))
    waited_s = step.now_s - rows.arrival_s
    for row in np.flatnonzero(waited_s >= promote_s):
        ahead = order[: int(np.flatnonzero(order == row)[0])]
        assert (rows.seq[ahead] < rows.seq[row]).all()


SIZES = st.tuples(st.floats(0, 0.3), st.integers(1, 80), st.integers(1, 30), st.integers(-1, 3))


@pytest.mark.parametrize(
    "spec",
    [
        PolicySpec(name="multilevel-feedback", params={"quantum_tokens": 20, "promote_s": 1.0}),
        PolicySpec(name="least-attained-service", params={"quantum_tokens": 20, "promote_s": 1.0}),
        PolicySpec(name="boosted-arrival", params={"boost_tokens": 100.0}),
    ],
    ids=lambda spec: spec.name,
)
@given(st.lists(SIZES, min_size=1, max_size=40))
@settings(max_examples=25, deadline=None)
def test_all_finish_on_an_engine_that_has_room_for_few(
    spec: PolicySpec, sizes: list[tuple[float, int, int, int]]
) -> None:
    at_s, requests = 0.0, list[WorkloadRequest]()
    for i, (gap_s, prompt, output, session) in enumerate(sizes):
        at_s += gap_s
        requests.append(
            WorkloadRequest(
                id=f"r{i}",
                arrival_s=at_s,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output,
                session=f"s{session}" if session >= 0 else "",
            )
        )
    run = LightEngine().replay(
        Workload("few", tuple(requests)),
        PolicyConfig(policy=spec),
        EngineLimits(max_num_seqs=2, max_num_batched_tokens=64, kv_blocks=16),
        FormulaCost(base_s=0.05),
    )
    assert (run.status == int(Status.FINISHED)).all()
    assert not any(count for name, count in run.counters.items() if name.endswith("_faults"))


@given(st.integers(0, 2**32 - 1))
def test_a_boost_is_shortest_first_at_one_end_and_arrival_at_the_other(seed: int) -> None:
    rows = make_requests(60, seed=seed)
    step = make_step(waiting=rows)
    shortest = ShortestFirst(output_weight=2.0).benefit(rows, step)
    tokens = np.arange(60) + 1

    def order_of(boost: float) -> list[int]:
        policy = BoostedArrival(boost_tokens=boost, output_weight=2.0)
        for row in range(60):
            one = rows.take(np.array([row]))
            policy.on_arrived(one, step)
            policy.on_computed(one, Work(tokens[:1] * 5, tokens[:1], 1, 0.1), step)
        return best_first(policy.benefit(rows, step), None, rows.seq, 60).tolist()

    assert order_of(1e-3) == list(range(60))
    # Sizes closer than a part in a hundred million are left to the order of arrival.
    by_size = shortest[order_of(1e11)]
    assert (np.diff(by_size) <= 1e-6).all()


@given(st.integers(0, 2**32 - 1), st.floats(10.0, 1e5))
def test_no_later_arrival_passes_by_more_than_its_boost(seed: int, boost: float) -> None:
    rows, rng = make_requests(40, seed=seed), np.random.default_rng(seed)
    step, policy = make_step(waiting=rows), BoostedArrival(boost_tokens=boost)
    clock, came = 0.0, list[float]()
    for row in range(40):
        one, tokens = rows.take(np.array([row])), int(rng.integers(0, 2000))
        policy.on_arrived(one, step)
        came.append(clock)
        policy.on_computed(one, Work(np.array([tokens]), np.array([0]), 1, 0.1), step)
        clock += tokens
    benefit = policy.benefit(rows, step)
    own = benefit - (clock - np.array(came))
    assert (own >= -1e-6).all()
    for late in range(40):
        for early in range(late):
            if benefit[late] > benefit[early]:
                assert came[late] - came[early] <= own[late] + 1e-6
