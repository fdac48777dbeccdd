from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.engine import Run
from batchpolicy.workload import Workload
from batchpolicy_tuning.fairness import service_gap, tenant_fairness
from tests.support.serial_engine import LIMITS, NoCost, SerialEngine, request


def _ran(*requests: tuple[str, float, float], weights: dict[str, float] | None = None) -> Run:
    """A run in which each request, of 98 + 2 * 1 tokens, is a tenant, an arrival and a start."""
    workload = Workload(
        "w",
        tuple(
            request(f"r{i}", arrival_s, 98, tenant=tenant, weight=(weights or {}).get(tenant, 1.0))
            for i, (tenant, arrival_s, _) in enumerate(requests)
        ),
    )
    run = SerialEngine().replay(workload, None, LIMITS, NoCost())
    run.first_scheduled_s[:] = np.array([start_s for _, _, start_s in requests])
    return run


def test_tenants_that_get_all_they_ask_for_are_served_evenly_however_little_it_is() -> None:
    flood = [("a", 0.0, 0.1 * i) for i in range(5)]
    assert tenant_fairness(_ran(*flood, ("b", 0.2, 0.3))) == 1.0


def test_who_waits_while_another_gets_more_lowers_the_index() -> None:
    # One window that counts, 0 to 1 s: a gets 2, b and c get none of the one they ask for.
    run = _ran(("a", 0.0, 0.1), ("a", 0.0, 0.2), ("b", 0.0, 1.5), ("c", 0.0, 1.5), ("a", 1.0, 1.2))
    assert tenant_fairness(run) == pytest.approx(1.0**2 / (3 * 1.0))


def test_a_part_of_what_one_asks_for_counts_as_that_part() -> None:
    # a gets 2 of 2, b 1 of 2: x is 1 and 1/2, the index 1.5^2 / (2 * 1.25).
    run = _ran(*(("a", 0.0, 0.1),) * 2, ("b", 0.0, 0.1), ("b", 0.0, 1.5), ("a", 1.0, 1.2))
    assert tenant_fairness(run) == pytest.approx(2.25 / 2.5)


def test_a_flood_that_gets_as_much_as_anyone_is_served_evenly() -> None:
    # a asks for 5 and gets 1, as b does.
    run = _ran(("a", 0.0, 0.1), *(("a", 0.0, 1.5),) * 4, ("b", 0.0, 0.2), ("b", 1.0, 1.2))
    assert tenant_fairness(run) == 1.0


def test_windows_are_averaged() -> None:
    # 0 to 1 s: a gets 1 and b none: 1/2. From 1 s: b gets 1 and a, with none left, does not ask
    # until it arrives and starts at 1.5: both get all.
    run = _ran(("a", 0.0, 0.1), ("b", 0.0, 1.1), ("a", 1.4, 1.5))
    assert tenant_fairness(run) == pytest.approx((0.5 + 1.0) / 2)


def test_service_is_counted_by_weight() -> None:
    # a gets two of three where b gets one of two: even when a weighs twice as much.
    requests = [*(("a", 0.0, 0.1),) * 2, ("a", 0.0, 1.1), ("b", 0.0, 0.1), ("b", 0.0, 1.1)]
    requests.append(("b", 1.0, 1.2))
    assert tenant_fairness(_ran(*requests)) == pytest.approx(1.5**2 / (2 * 1.25))
    assert tenant_fairness(_ran(*requests, weights={"a": 2.0})) == 1.0


def test_without_competitors_there_is_no_index() -> None:
    assert math.isnan(tenant_fairness(_ran(("a", 0.0, 0.0), ("a", 1.0, 1.0))))
    assert math.isnan(tenant_fairness(_ran(("a", 0.0, 0.0), ("b", 5.0, 5.0))))


def test_who_never_starts_keeps_asking() -> None:
    run = _ran(("a", 0.0, 0.1), ("b", 0.0, math.nan), ("a", 1.5, 1.6))
    assert tenant_fairness(run) == pytest.approx(0.5)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.floats(0, 4), st.floats(0, 3)),
        min_size=2,
        max_size=30,
    ),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 4.0])),
)
@settings(max_examples=200, deadline=None)
def test_the_index_lies_between_one_in_n_and_one(
    requests: list[tuple[str, float, float]], weights: dict[str, float]
) -> None:
    rows = sorted(requests, key=lambda r: r[1])
    index = tenant_fairness(_ran(*((t, at, at + wait) for t, at, wait in rows), weights=weights))
    tenants = len({tenant for tenant, _, _ in rows})
    assert math.isnan(index) or 1.0 / tenants - 1e-9 <= index <= 1.0 + 1e-9


def test_the_service_gap_grows_while_two_are_kept_waiting() -> None:
    # In the first two windows a starts three and two of 100 tokens, b one in the second;
    # both still wait at the ends of these. In the third all is served, which counts no more.
    run = _ran(
        *(("a", 0.0, 0.5),) * 3,
        *(("a", 0.0, 1.5),) * 2,
        ("b", 0.0, 1.5),
        ("a", 0.0, 2.5),
        *(("b", 0.0, 2.5),) * 9,
        *(("a", 3.5, 3.6),) * 4,  # the last tenth is not measured
    )
    assert service_gap(run) == pytest.approx(300.0 + 200.0 - 100.0)


def test_the_service_gap_counts_by_weight_and_nobody_who_gets_all() -> None:
    waits = [("a", 0.0, 0.5), ("a", 0.0, 1.5), ("b", 0.0, 1.5)]
    assert service_gap(_ran(*waits, ("a", 2.5, 2.6))) == pytest.approx(100.0)
    weighted = _ran(*waits, ("a", 2.5, 2.6), weights={"a": 4.0})
    assert service_gap(weighted) == pytest.approx(25.0)
    assert service_gap(_ran(("a", 0.0, 0.1), ("b", 0.0, 0.2), ("a", 1.5, 1.6))) == 0.0
    assert math.isnan(service_gap(_ran(("a", 0.0, 0.1), ("a", 1.5, 1.6))))
