from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.policies.highest_response_ratio import HighestResponseRatio
from batchpolicy.policy import Work
from batchpolicy.requests import Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from tests.support.rig import Rig


def work(prefill: list[int], output: list[int]) -> Work:
    return Work(np.array(prefill), np.array(output), steps=1, elapsed_s=0.1)


def test_the_wait_is_what_was_computed_meanwhile_and_the_service_what_is_left() -> None:
    table, step = RequestTable(), make_step()
    table.add("plain", prompt_tokens=100, max_tokens=9000)
    table.add("cached", prompt_tokens=100, cached_tokens=60)
    table.add("predicted", prompt_tokens=20, predicted_output_tokens=50.0)
    policy, rows = HighestResponseRatio(output_weight=2.0), table.view()
    policy.on_arrived(rows, step)
    assert policy.benefit(rows, step).tolist() == [1.0, 1.0, 1.0]
    # 50 prompt tokens, and 5 of output that count double.
    policy.on_computed(rows.take(np.array([0, 1])), work([40, 10], [0, 5]), step)
    assert policy.benefit(rows, step).tolist() == [1 + 60 / 100, 1 + 60 / 40, 1 + 60 / 120]


def test_who_comes_later_has_waited_for_less() -> None:
    table, step = RequestTable(), make_step()
    policy = HighestResponseRatio()
    table.add("early", prompt_tokens=100)
    policy.on_arrived(table.view(), step)
    policy.on_computed(table.view(), work([200], [0]), step)
    table.add("late", prompt_tokens=100)
    policy.on_arrived(table.view().take(np.array([1])), step)
    assert policy.benefit(table.view(), step).tolist() == [3.0, 1.0]


def test_a_short_one_passes_a_long_one_until_that_has_waited_as_long_for_its_size() -> None:
    rig = Rig(HighestResponseRatio())
    rig.running("runs")
    rig.arrive("long", prompt=80)
    rig.arrive("short", prompt=10)
    # Ten tokens later they are at 1 + 10/80 and 1 + 10/10.
    for _ in range(10):
        rig.decode("runs")
    assert rig.plan().admit == ["short", "long"]
    # Now the long one is at 1 + 50/80; who comes with ten tokens passes it seven tokens later.
    for _ in range(40):
        rig.decode("runs")
    rig.arrive("late", prompt=10)
    for _ in range(6):
        rig.decode("runs")
    # 1 + 56/80 = 1.7 and 1 + 6/10 = 1.6.
    assert rig.plan().admit == ["short", "long", "late"]
    for _ in range(2):
        rig.decode("runs")
    # 1 + 58/80 = 1.725 and 1 + 8/10.
    assert rig.plan().admit == ["short", "late", "long"]


@pytest.mark.parametrize(("arrivals", "starts"), [(1, True), (2, False)])
def test_the_longest_starts_if_the_engine_keeps_up_and_is_put_off_while_it_does_not(
    arrivals: int, starts: bool
) -> None:
    rig = Rig(HighestResponseRatio())
    rig.running("runs", prompt=50)
    rig.arrive("short", prompt=10)
    rig.arrive("long", prompt=90)
    served: list[str] = []
    for i in range(40):
        rig.arrive(*(f"{i}-{j}" for j in range(arrivals)), prompt=10)
        rig.decode("runs")
        served.append(rig.plan(seats=1).admit[0])
        rig.start(served[-1])
        rig.runner.finished(served[-1], Status.FINISHED)
    # A short one is there at any time. Where one comes for each that is served, it has waited
    # for a step; where two come, those served have waited for half of the time, and the long
    # one for 1/90 a token against 1/20.
    assert ("long" in served) == starts, served
