"""What the order by benefit keeps to, whatever the queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.picking import first_rows
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policy import Step
from batchpolicy.requests import Requests
from batchpolicy.runner.table import RequestTable
from batchpolicy.terms import Ageing, Fairness, PriorityTerm, Shortness, Urgency
from batchpolicy.testing import make_step

NOW_S = 128.0
TERMS = {
    "priority": PriorityTerm(),
    "urgency": Urgency(),
    "shortness": Shortness(weight=0.5),
    "ageing": Ageing(weight=0.5),
}


@st.composite
def queues(draw: st.DrawFn, *, at_s: float = 0.0) -> list[dict[str, Any]]:
    """Requests that differ in all that the terms read; times are multiples of 1/16 s."""
    sixteenths = st.integers(0, 16 * 100).map(lambda n: n / 16.0)
    rows = []
    for _ in range(draw(st.integers(1, 14))):
        rows.append(
            {
                "arrival_s": draw(sixteenths),
                "priority": draw(st.integers(-3, 12)),
                "tenant": draw(st.integers(-1, 3)),
                "prompt_tokens": draw(st.integers(1, 3000)),
                "max_tokens": 500,
                "ttft_slo_s": draw(st.sampled_from([0.5, 8.0, 60.0, 150.0, np.inf])),
                "deadline_s": draw(st.sampled_from([100.0, 140.0, np.inf])),
                "predicted_output_tokens": draw(st.sampled_from([20.0, 400.0, np.nan])),
                "need_kv_blocks": draw(st.integers(1, 200)),
            }
        )
    return sorted(rows, key=lambda row: float(row["arrival_s"]))


def table_of(rows: list[dict[str, Any]], shift_s: float = 0.0) -> RequestTable:
    table = RequestTable()
    table.now_s = NOW_S + shift_s
    for i, row in enumerate(rows):
        times = {k: row[k] + shift_s for k in ("arrival_s", "deadline_s")}
        table.add(f"r{i}", **(row | times))
    return table


def step_of(waiting: Requests, now_s: float = NOW_S, **changes: Any) -> Step:
    return make_step(now_s=now_s, waiting=waiting, **({"window": 64, "step_s": 1 / 64} | changes))


def lived(policy: Benefit, waiting: Requests, step: Step, served: list[int]) -> Benefit:
    """A copy that has seen all arrive, with tenants -1, 0, 1, ... served so many tokens."""
    policy = policy.model_copy(deep=True)
    policy.on_arrived(waiting, step)
    for tenant, tokens in enumerate(served, start=-1):
        policy.fairness._counters.served.put(tenant, float(tokens))
    return policy


def order(policy: Benefit, waiting: Requests, step: Step) -> list[str]:
    """Ids of the rows that may start, in the order that the ranking means."""
    ranking = policy.rank(waiting, step)
    return waiting.take(first_rows(ranking, step, len(waiting))).request_id


SERVED = st.lists(st.integers(0, 60_000), min_size=5, max_size=5)
POLICIES = [Benefit(), Benefit(**TERMS), Benefit(prices={}), Benefit(corridor_tokens=5000.0)]  # type: ignore[arg-type]


@given(queues(), SERVED)
def test_without_lambda_the_counters_do_not_matter(
    rows: list[dict[str, Any]], served: list[int]
) -> None:
    waiting = table_of(rows).view()
    step = step_of(waiting)
    policy = Benefit(lambda_=0.0, corridor_tokens=None)
    some, none = lived(policy, waiting, step, served), lived(policy, waiting, step, [0] * 5)
    assert order(some, waiting, step) == order(none, waiting, step)


@given(queues(), SERVED)
def test_a_large_lambda_orders_tenants_by_their_counters_and_the_rest_by_benefit(
    rows: list[dict[str, Any]], served: list[int]
) -> None:
    waiting = table_of(rows).view()
    step = step_of(waiting)
    large = Benefit(lambda_=1e9, fairness=Fairness(scale_tokens=100_000.0), corridor_tokens=None)
    policy = lived(large, waiting, step, served)
    plain = Benefit(lambda_=0.0).benefit(waiting, step)
    counters = np.array(served)[waiting.tenant + 1]
    expected = np.lexsort((waiting.seq, -plain.round(6), counters))
    got = policy.benefit(waiting, step)
    # Next to 1e9 a benefit is known to 1e-7.
    assert order(policy, waiting, step) == waiting.take(np.lexsort((waiting.seq, -got))).request_id
    assert counters[np.lexsort((waiting.seq, -got))].tolist() == counters[expected].tolist()


@pytest.mark.parametrize("policy", POLICIES)
@given(queues(), SERVED, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_rows_does_not_matter(
    policy: Benefit, rows: list[dict[str, Any]], served: list[int], random: Any
) -> None:
    waiting = table_of(rows).view()
    shuffled = list(range(len(waiting)))
    random.shuffle(shuffled)
    moved = waiting.take(np.array(shuffled))
    step = step_of(waiting)
    policy = lived(policy, waiting, step, served)
    assert order(policy, moved, step_of(moved)) == order(policy, waiting, step)


@pytest.mark.parametrize("policy", POLICIES)
@given(queues(), SERVED, st.sampled_from([-64.0, 2.0**20]))
@settings(max_examples=60, deadline=None)
def test_moving_all_times_does_not_matter(
    policy: Benefit, rows: list[dict[str, Any]], served: list[int], shift_s: float
) -> None:
    now, later = table_of(rows).view(), table_of(rows, shift_s).view()
    steps = step_of(now), step_of(later, NOW_S + shift_s)
    orders = [
        order(lived(policy, rows_, step, served), rows_, step)
        for rows_, step in zip((now, later), steps, strict=True)
    ]
    assert orders[0] == orders[1]


@pytest.mark.parametrize("prices", [None, {}])
@given(queues(), SERVED, st.sampled_from([0.25, 8.0]))
@settings(max_examples=60, deadline=None)
def test_only_the_proportion_of_the_weights_matters(
    prices: Any, rows: list[dict[str, Any]], served: list[int], c: float
) -> None:
    waiting = table_of(rows).view()
    step = step_of(waiting)
    plain = Benefit(lambda_=0.5, prices=prices, **TERMS)  # type: ignore[arg-type]
    scaled = Benefit(
        lambda_=0.5 * c,
        prices=prices,
        **{k: term.model_copy(update={"weight": term.weight * c}) for k, term in TERMS.items()},  # type: ignore[arg-type]
    )
    assert order(lived(scaled, waiting, step, served), waiting, step) == order(
        lived(plain, waiting, step, served), waiting, step
    )


# Where the corridor closes rows, other rows are the best of those that fit at their prices.
APART = [Benefit(), Benefit(**TERMS), Benefit(prices={}, corridor_tokens=None)]  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [*APART, Benefit(corridor_tokens=5000.0)])
@given(queues(), SERVED, st.data())
@settings(max_examples=150, deadline=None)
def test_a_better_priority_never_moves_a_request_back(
    policy: Benefit, rows: list[dict[str, Any]], served: list[int], data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    better = [dict(one) for one in rows]
    better[row]["priority"] -= data.draw(st.integers(1, 8))
    few = {"window": data.draw(st.integers(1, 14)), "free_kv_blocks": 150}
    places = []
    for queue in (rows, better):
        waiting = table_of(queue).view()
        step = step_of(waiting, **few)
        found = order(lived(policy, waiting, step, served), waiting, step)
        places.append(found.index(f"r{row}") if f"r{row}" in found else len(rows))
    assert places[1] <= places[0]


@given(queues(), st.lists(st.integers(0, 1600), min_size=1, max_size=30), st.integers(-1, 3))
def test_a_flood_raises_none_of_its_tenant_and_moves_no_others(
    rows: list[dict[str, Any]], arrivals: list[int], tenant: int
) -> None:
    flood = [rows[0] | {"tenant": tenant, "arrival_s": n / 16.0} for n in arrivals]
    policy = Benefit(lambda_=0.0, ageing=Ageing(weight=1.0))
    found = []
    for queue in (rows, rows + flood):
        waiting = table_of(queue).view()
        found.append(policy.benefit(waiting, step_of(waiting))[: len(rows)])
    own = np.array([row["tenant"] == tenant for row in rows])
    # Beside predicted requests one that is not counts as they do on average, a flood among them.
    predicted = ~np.isnan([row["predicted_output_tokens"] for row in rows])
    fixed = predicted if predicted.any() else ~predicted
    others, own = ~own & fixed, own & fixed
    assert found[0][others].tolist() == found[1][others].tolist()
    assert (found[0][own] >= found[1][own]).all()


@given(queues())
def test_the_oldest_of_every_tenant_is_aged_alike(rows: list[dict[str, Any]]) -> None:
    waiting = table_of(rows).view()
    score = Ageing().score(waiting, step_of(waiting))
    for tenant in np.unique(waiting.tenant):
        assert score[np.flatnonzero(waiting.tenant == tenant)[0]] == 1.0


@given(queues(), SERVED)
def test_within_a_tenant_the_older_of_two_that_are_equal_otherwise_goes_first(
    rows: list[dict[str, Any]], served: list[int]
) -> None:
    same = {"priority": 1, "ttft_slo_s": np.inf, "deadline_s": np.inf, "prompt_tokens": 100}
    same |= {"predicted_output_tokens": np.nan}
    waiting = table_of([row | same for row in rows]).view()
    step = step_of(waiting)
    policy = lived(Benefit(corridor_tokens=None), waiting, step, served)
    found = [int(i[1:]) for i in order(policy, waiting, step)]
    for tenant in np.unique(waiting.tenant):
        own = [i for i in found if waiting.tenant[i] == tenant]
        assert own == sorted(own)


@given(queues(), st.floats(0.0, 40.0), st.integers(1, 100_000))
def test_a_later_request_of_a_tenant_passes_only_soon_after_by_being_shorter(
    rows: list[dict[str, Any]], later_s: float, prompt: int
) -> None:
    """Shortness is worth 0.015 at most, and 10 s after the oldest ageing has lost as much."""
    head = {"arrival_s": 10.0, "tenant": 0, "prompt_tokens": prompt, "max_tokens": 10}
    table = RequestTable()
    table.now_s = NOW_S
    table.add("old", **head)
    table.add("new", **(head | {"arrival_s": 10.0 + later_s, "prompt_tokens": 1}))
    waiting = table.view()
    if order(Benefit(), waiting, step_of(waiting))[0] == "new":
        assert later_s < 10.0


@given(queues(), SERVED, st.lists(st.integers(4, 9), min_size=1, max_size=6))
def test_the_corridor_holds_nobody_back_for_a_worse_class(
    rows: list[dict[str, Any]], served: list[int], tenants: list[int]
) -> None:
    policy = Benefit(corridor_tokens=2000.0)
    worse = [rows[0] | {"priority": 99, "tenant": tenant} for tenant in tenants]
    open_ = []
    for queue in (rows, rows + worse):
        waiting = table_of(queue).view()
        step = step_of(waiting)
        ranking = lived(policy, waiting, step, served).rank(waiting, step)
        everyone = np.ones(len(waiting), dtype=np.bool_)
        mask = everyone if ranking.admissible is None else ranking.admissible
        open_.append(mask[: len(rows)].tolist())
    assert open_[0] == open_[1]
