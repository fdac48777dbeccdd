from __future__ import annotations

import math

import numpy as np
import pytest

from batchpolicy.config import config_named
from batchpolicy.workload import Workload
from batchpolicy_tuning.pooled import GRID, Facts, distribution, pooled, tenants
from tests.support.comparisons import QUEUE
from tests.support.serial_engine import LIMITS, NoCost, SerialEngine, request


def _facts(*requests: object, policy: str | None = None) -> Facts:
    config = None if policy is None else config_named(policy)
    workload = Workload("w", requests or QUEUE)  # type: ignore[arg-type]
    return Facts.of(SerialEngine().replay(workload, config, LIMITS, NoCost()))


def test_quantiles_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).lognormal(size=357)
    found = distribution(np.append(values, math.nan))
    assert (found.requests, found.endless) == (357, 0)
    assert found.quantiles == pytest.approx(np.quantile(values, GRID))


def test_what_never_ended_is_counted_and_stays_without_end() -> None:
    found = distribution(np.array([1.0, 2.0, math.inf, math.nan]))
    assert (found.requests, found.endless) == (3, 1)
    assert found.quantiles[GRID.index(0.5)] == 2.0
    assert found.quantiles[GRID.index(0.51)] == math.inf
    assert not any(math.isnan(value) for value in found.quantiles)


def test_without_values_there_are_no_quantiles() -> None:
    assert distribution(np.array([math.nan])).quantiles == ()


def test_runs_are_taken_together_class_by_class() -> None:
    fcfs, priority = _facts(), _facts(policy="priority")
    both = pooled([fcfs, priority], "chat")["ttft"]
    assert both.requests == 2
    assert (both.quantiles[0], both.quantiles[-1]) == (pytest.approx(0.6), pytest.approx(1.6))
    assert pooled([fcfs, priority], None)["ttft"].requests == 6
    assert pooled([fcfs], "no such class")["ttft"].requests == 0


def test_a_tenant_has_its_own_latencies_and_its_part_of_the_work() -> None:
    first, second = tenants([_facts(), _facts()])
    assert (first.name, first.requests) == ("t0", 4)
    # Prompt tokens and twice the output token: 1002 and 1002 of t0, 102 of t1.
    assert first.demand_share == pytest.approx(2004 / 2106)
    assert (first.attainment, second.attainment) == (1.0, 0.0)
    assert second.ttft_p50_s == pytest.approx(1.6)


def test_service_counts_while_tenants_compete_and_without_their_weights() -> None:
    # In the first second only t0 asks; in the second a1 starts and b waits; in the third b
    # and then late start.
    requests = (
        request("a0", 0.0, 1000, tenant="t0", weight=4.0),
        request("a1", 0.0, 1000, tenant="t0", weight=4.0),
        request("b", 0.5, 100, tenant="t1"),
        request("late", 2.9, 10, tenant="t0", weight=4.0),
    )
    first, second = tenants([_facts(*requests)])
    assert (first.name, first.service_share) == ("t0", pytest.approx(1014 / (1014 + 102)))
    assert second.service_share == pytest.approx(102 / (1014 + 102))


def test_a_single_tenant_competes_with_nobody() -> None:
    (only,) = tenants([_facts(request("a", 0.0, 10), request("b", 0.0, 10))])
    assert math.isnan(only.service_share)
    assert only.demand_share == 1.0
