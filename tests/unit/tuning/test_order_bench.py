from __future__ import annotations

import pytest

from batchpolicy import registry
from batchpolicy_tuning.order_bench import QUEUES, THREE_TERMS, OrderBench

pytestmark = pytest.mark.slow


def test_every_installed_order_is_measured_beside_the_others() -> None:
    said: list[str] = []
    report = OrderBench().run(said.append, quick=True)
    assert [m.what for m in report.measurements] == [
        f"{THREE_TERMS}, {n:,} waiting, {how}"
        for how in ("in turn with the others", "by itself")
        for n in QUEUES
    ]
    (table,) = report.tables
    orders = [row[0] for row in table.rows]
    assert set(registry.names("batchpolicy.policies")) - {"benefit"} <= set(orders)
    assert all(
        cell.endswith(" us") and float(cell[:-3]) > 0 for row in table.rows for cell in row[1:]
    )
    assert len(said) == len(QUEUES)
