from __future__ import annotations

import math

import pytest

from batchpolicy.engine import Run
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.fairness import tenant_fairness
from tests.support.serial_engine import LIMITS, NoCost, SerialEngine, request


def _served(*requests: WorkloadRequest) -> Run:
    return SerialEngine().replay(Workload("w", requests), None, LIMITS, NoCost())


def _block(tenant: str, i: int, arrival_s: float, **more: object) -> WorkloadRequest:
    # 5 s of service, all of it prompt but for the last millisecond.
    return request(f"{tenant}{i}", arrival_s, 5000, tenant=tenant, **more)


def test_tenants_that_take_turns_are_served_evenly() -> None:
    # In the only window, 0 to 10 s, each gets one of its two blocks.
    run = _served(*(_block(t, i, 0.0) for i in range(2) for t in "ab"), _block("a", 9, 10.0))
    assert tenant_fairness(run) == pytest.approx(1.0, abs=1e-3)


def test_a_tenant_kept_waiting_by_a_flood_lowers_the_index() -> None:
    # a has the first 10 s for itself; b asks for as much and gets nothing: (1 + 0)^2 / 2.
    run = _served(
        _block("a", 0, 0.0), _block("a", 1, 0.0), _block("b", 0, 0.0), _block("a", 2, 10.0)
    )
    assert tenant_fairness(run) == pytest.approx(0.5, abs=1e-3)


def test_who_gets_all_it_asks_for_is_satisfied_however_little_that_is() -> None:
    small = request("b0", 0.0, 1, tenant="b")
    run = _served(small, _block("a", 0, 0.0), _block("a", 1, 0.0), _block("a", 2, 10.0))
    assert tenant_fairness(run) == pytest.approx(1.0, abs=1e-3)


def test_service_is_counted_by_weight() -> None:
    # a, of weight 2, gets two blocks where b gets one.
    blocks = [_block("a", 0, 0.0), _block("b", 0, 0.0), _block("a", 1, 0.0), _block("b", 1, 0.0)]
    last = _block("b", 9, 15.0)
    assert tenant_fairness(_served(*blocks, last)) < 0.95
    weighted = [
        request(r.id, r.arrival_s, 5000, tenant=r.tenant, weight=2.0 if r.tenant == "a" else 1.0)
        for r in (*blocks, last)
    ]
    assert tenant_fairness(_served(*weighted)) == pytest.approx(1.0, abs=1e-3)


def test_without_competitors_there_is_no_index() -> None:
    assert math.isnan(tenant_fairness(_served(_block("a", 0, 0.0), _block("a", 1, 9.0))))
    apart = _served(_block("a", 0, 0.0), _block("b", 0, 20.0))
    assert math.isnan(tenant_fairness(apart))
