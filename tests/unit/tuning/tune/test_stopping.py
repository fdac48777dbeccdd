from __future__ import annotations

from collections.abc import Sequence

import pytest

from batchpolicy_tuning.tune.judging import Goal, Limit
from batchpolicy_tuning.tune.records import Outcome, Part, TargetResult, TrialRecord
from batchpolicy_tuning.tune.stopping import reason_to_stop

GOAL = Goal("goodput", True)
LIMIT = Limit("ttft.p99<=1s", "ttft.p99", 1.0, True)


def _parts(goodput: Sequence[float], ttft_s: Sequence[float]) -> list[dict[str, float]]:
    return [{"goodput": g, "ttft.p99": t} for g, t in zip(goodput, ttft_s, strict=True)]


def _trial(outcome: Outcome, parts: Sequence[dict[str, float]], miss: float = -0.5) -> TrialRecord:
    return TrialRecord(
        number=7,
        origin="sampled",
        label="x",
        key="7",
        parameters={},
        outcome=outcome,
        values={"goodput": sum(p["goodput"] for p in parts) / len(parts)},
        targets=(TargetResult(target="t", value=1.0, bound=1.0, met=miss <= 0, miss=miss),),
        parts=tuple(Part(instance=str(k), values=p) for k, p in enumerate(parts)),
    )


BEST = _trial(Outcome.FEASIBLE, _parts([10, 12, 8, 11, 9, 10], [0.5] * 6))


def _stops(goodput: Sequence[float], ttft_s: Sequence[float], level: float = 0.1) -> str:
    return reason_to_stop([LIMIT], [GOAL], _parts(goodput, ttft_s), [BEST], level)


def test_four_slices_that_are_all_worse_end_a_trial_and_three_do_not() -> None:
    # One-sided signed ranks: all of n on one side has p = 2^-n.
    assert not _stops([9, 11, 7], [0.5] * 3)
    assert _stops([9, 11, 7, 10.5], [0.5] * 4) == "goodput is worse than in trial 7 in 4 of 4"
    assert not _stops([9, 11, 7, 10.5], [0.5] * 4, level=0.06)
    assert not _stops([9, 11, 7, 10.5], [0.5] * 4, level=0.0)


def test_slices_are_compared_one_by_one_and_not_their_means() -> None:
    # The mean of the first four of the best is 10.25, and these are above it in two.
    assert _stops([9.9, 11.9, 7.9, 10.9], [0.5] * 4)


def test_one_large_gain_outweighs_small_losses() -> None:
    assert not _stops([9.99, 11.99, 7.99, 10.99, 8.99, 90.0], [0.5] * 6)


def test_a_target_that_is_missed_in_every_slice_ends_a_trial() -> None:
    said = _stops([20, 20, 20, 20], [1.1, 1.2, 1.3, 1.4])
    assert said == "ttft.p99<=1s is missed in 4 of 4"
    assert not _stops([20, 20, 20, 20], [1.1, 1.2, 0.7, 0.5])


def test_a_slice_without_a_value_says_nothing() -> None:
    parts = _parts([20] * 4, [1.1] * 4)
    del parts[3]["ttft.p99"]
    assert not reason_to_stop([LIMIT], [GOAL], parts, [BEST], 0.1)


def test_while_nothing_is_feasible_the_closest_setting_is_what_counts() -> None:
    closest = _trial(Outcome.INFEASIBLE, _parts([1] * 5, [1.5, 1.6, 1.4, 1.5, 1.6]), miss=0.6)
    farther = _parts([50] * 4, [2.0, 2.0, 2.0, 2.0])
    nearer = _parts([0.1] * 4, [1.2, 1.2, 1.2, 1.2])
    said = reason_to_stop([LIMIT], [GOAL], farther, [closest], 0.1)
    assert said == "farther from the targets than trial 7 in 4 of 4"
    assert not reason_to_stop([LIMIT], [GOAL], nearer, [closest], 0.1)
    assert not reason_to_stop([LIMIT], [GOAL], farther, [], 0.1)


def test_several_objectives_have_no_single_one_to_beat() -> None:
    goals = [GOAL, Goal("throughput", True)]
    assert not reason_to_stop([LIMIT], goals, _parts([1] * 4, [0.5] * 4), [BEST], 0.1)


@pytest.mark.parametrize("same", [[10, 12, 8, 11]])
def test_equal_results_end_nothing(same: list[float]) -> None:
    assert not _stops(same, [0.5] * 4)
