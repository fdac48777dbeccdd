from __future__ import annotations

from batchpolicy.config import Bounds
from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from tests.support.rig import Rig


def test_what_is_left_of_the_prompt_and_what_is_predicted_to_come_count() -> None:
    table = RequestTable()
    table.add("plain", prompt_tokens=100, max_tokens=9000)
    table.add("cached", prompt_tokens=100, cached_tokens=64)
    table.add("predicted", prompt_tokens=20, predicted_output_tokens=50.0)
    table.add("started", prompt_tokens=20, output_tokens=40, predicted_output_tokens=50.0)
    table.add("outlived", prompt_tokens=20, output_tokens=60, predicted_output_tokens=50.0)
    benefit = ShortestFirst(output_weight=2.0).benefit(table.view(), make_step())
    # Whoever starts again computes its answer so far again.
    assert benefit.tolist() == [-100.0, -36.0, -120.0, -80.0, -80.0]


def test_the_long_one_starts_once_it_is_overdue() -> None:
    rig = Rig(ShortestFirst(), parts={"bounds": Bounds(max_wait_s=2.5)})
    rig.arrive("long", prompt=50)
    rig.arrive("short", prompt=10)
    assert [rig.plan().admit[0] for _ in range(3)] == ["short", "short", "short"]
    assert rig.plan().admit[0] == "long"
