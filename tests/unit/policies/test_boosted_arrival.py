from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.policies.boosted_arrival import BoostedArrival
from batchpolicy.policy import Work
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from tests.support.rig import Rig


def work(prefill: list[int], output: list[int]) -> Work:
    return Work(np.array(prefill), np.array(output), steps=1, elapsed_s=0.1)


def test_the_less_is_left_the_further_ahead_a_request_is_moved() -> None:
    table, step = RequestTable(), make_step()
    table.add("plain", prompt_tokens=100, max_tokens=9000)
    table.add("cached", prompt_tokens=100, cached_tokens=50)
    table.add("huge", prompt_tokens=100_000)
    policy, rows = BoostedArrival(boost_tokens=100.0, output_weight=2.0), table.view()
    policy.on_arrived(rows, step)
    # -100 ln(1 - 1/e) and -100 ln(1 - 1/sqrt(e)).
    boosts = [45.867514538708186, 93.27521295671886, 0.0]
    assert policy.benefit(rows, step).tolist() == pytest.approx(boosts, abs=1e-9)
    # 30 prompt tokens, and 5 of output that count double: all have waited for 40.
    policy.on_computed(rows.take(np.array([0])), work([30], [5]), step)
    waited = [boost + 40 for boost in boosts]
    assert policy.benefit(rows, step).tolist() == pytest.approx(waited, abs=1e-9)


def test_predicted_output_counts_by_its_weight() -> None:
    table, step = RequestTable(), make_step()
    table.add("both", prompt_tokens=20, predicted_output_tokens=40.0)
    table.add("started", prompt_tokens=0, output_tokens=10, predicted_output_tokens=60.0)
    policy = BoostedArrival(boost_tokens=100.0, output_weight=2.0)
    # 20 and twice 40; 10 to be computed again and twice 50.
    got = policy.benefit(table.view(), step).tolist()
    assert got[0] == pytest.approx(45.867514538708186)
    assert got[1] == pytest.approx(-100.0 * np.log(1.0 - np.exp(-1.1)))


def test_a_short_one_passes_those_that_came_by_its_boost_earlier_and_no_others() -> None:
    rig = Rig(BoostedArrival(boost_tokens=10.0, output_weight=1.0))
    rig.running("runs")
    rig.arrive("long", prompt=100)
    # A prompt of 2 is moved ahead by -10 ln(1 - exp(-0.2)) = 17.08 tokens.
    for _ in range(17):
        rig.decode("runs")
    rig.arrive("short", prompt=2)
    assert rig.plan().admit == ["short", "long"]
    rig.decode("runs")
    rig.arrive("too late", prompt=2)
    assert rig.plan().admit == ["short", "long", "too late"]
