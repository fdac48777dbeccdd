from __future__ import annotations

import math

import numpy as np
import pytest

from batchpolicy.policies.highest_response_ratio import HighestResponseRatio
from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.policy import Policy, Step
from batchpolicy.requests import Requests
from batchpolicy.runner.table import RequestTable
from batchpolicy.terms import Shortness
from batchpolicy.testing import make_step
from batchpolicy.work_left import output_to_come, typical_output, work_left

NAN = math.nan


def scene(*waiting: tuple[int, float], running: tuple[float, ...] = ()) -> tuple[Requests, Step]:
    """Waiting requests by ceiling and prediction, with prompts of 10; running ones by theirs."""
    table = RequestTable()
    for i, (ceiling, predicted) in enumerate(waiting):
        table.add(f"w{i}", prompt_tokens=10, max_tokens=ceiling, predicted_output_tokens=predicted)
    for i, predicted in enumerate(running):
        table.add(f"r{i}", prompt_tokens=10, max_tokens=1000, predicted_output_tokens=predicted)
    rows = table.view()
    number = np.arange(len(rows))
    shown = rows.take(number < len(waiting))
    return shown, make_step(waiting=shown, running=rows.take(number >= len(waiting)))


def test_who_is_not_predicted_counts_as_others_are_on_average() -> None:
    rows, step = scene((1000, 100.0), (1000, NAN), (1000, 300.0))
    assert output_to_come(rows, step).tolist() == [100.0, 200.0, 300.0]
    assert work_left(rows, step, 2.0).tolist() == [210.0, 410.0, 610.0]


def test_at_most_as_its_ceiling() -> None:
    rows, step = scene((1000, 100.0), (7, NAN), (1000, 300.0))
    assert output_to_come(rows, step).tolist() == [100.0, 7.0, 300.0]


def test_running_requests_tell_what_is_typical_as_well() -> None:
    rows, step = scene((1000, 100.0), (1000, NAN), running=(400.0, NAN))
    assert typical_output(step) == 250.0
    assert output_to_come(rows, step).tolist() == [100.0, 250.0]
    rows, step = scene((1000, NAN), running=(400.0,))
    assert output_to_come(rows, step).tolist() == [400.0]


def test_a_prediction_counts_up_to_the_ceiling_in_what_is_typical() -> None:
    # A client may bring any number.
    rows, step = scene((1000, 1e9), (1000, 100.0), (2000, NAN))
    assert typical_output(step) == (1000 + 100) / 2
    assert output_to_come(rows, step).tolist()[2] == 550.0


def test_it_is_in_whole_tokens() -> None:
    assert typical_output(scene((1000, 100.0), (1000, 101.0))[1]) == 101.0
    assert typical_output(scene((1000, 100.0), (1000, 100.0))[1]) == 100.0


def test_where_nobody_is_predicted_output_does_not_count() -> None:
    rows, step = scene((1000, NAN), (5, NAN), running=(NAN,))
    assert typical_output(step) == 0.0
    assert output_to_come(rows, step).tolist() == [0.0, 0.0]
    # And so if some were predicted that have ended.
    table = RequestTable()
    table.add("gone", max_tokens=9, predicted_output_tokens=5.0)
    table.remove("gone")
    table.add("a", prompt_tokens=10, max_tokens=1000)
    left = table.view()
    assert not left.at_default("predicted_output_tokens")
    step = make_step(waiting=left, running=left.take(np.empty(0, np.intp)))
    assert work_left(left, step, 1.0).tolist() == [10.0]


@pytest.mark.parametrize("policy", [ShortestFirst(), HighestResponseRatio()])
def test_an_arrival_passes_nobody_for_want_of_a_prediction(policy: Policy) -> None:
    rows, step = scene((1000, 20.0), (1000, NAN), (1000, 900.0))
    if isinstance(policy, HighestResponseRatio):
        policy.on_arrived(rows, step)
        policy._computed = 1000.0  # pyright: ignore[reportPrivateUsage]
    benefit = policy.benefit(rows, step)
    assert np.argsort(-benefit).tolist() == [0, 1, 2]


def test_those_that_are_not_predicted_keep_their_order_without_predictions() -> None:
    """As of a class for which a predictor has failed, beside one for which it has not."""
    table = RequestTable()
    for i, (prompt, predicted) in enumerate([(70, NAN), (10, 50.0), (30, NAN), (50, NAN)]):
        table.add(f"{i}", prompt_tokens=prompt, max_tokens=900, predicted_output_tokens=predicted)
    rows = table.view()
    step = make_step(waiting=rows, running=rows.take(np.empty(0, np.intp)))
    order = np.argsort(-ShortestFirst().benefit(rows, step)).tolist()
    assert [i for i in order if i != 1] == [2, 3, 0]
    assert order[0] == 1


def test_nor_does_it_by_the_term() -> None:
    rows, step = scene((1000, 20.0), (1000, NAN), (1000, 900.0))
    score = Shortness(scale_tokens=100.0).score(rows, step)
    # 10 tokens of prompt, and 20, 460 and 900 to put out.
    assert score == pytest.approx([100 / 130, 100 / 570, 100 / 1010])
