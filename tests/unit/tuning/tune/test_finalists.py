from __future__ import annotations

from collections.abc import Sequence

from batchpolicy_tuning.tune.finalists import conclusion_of, ranked_for_finals
from batchpolicy_tuning.tune.judging import Goal
from batchpolicy_tuning.tune.records import Outcome, TrialRecord, Value
from batchpolicy_tuning.tune.result import ComparisonResult, Conclusion, FinalistResult

GOALS = [Goal("goodput", True)]


def _final(
    trial: int, goodput: float, verdict: str = "", *, p: float = 0.001, outcome: str = "feasible"
) -> FinalistResult:
    compared = ComparisonResult(
        objective="goodput",
        baseline=10.0,
        value=goodput,
        improvement=goodput - 10.0,
        low=None,
        high=None,
        relative_low=None,
        relative_high=None,
        pairs=12,
        verdict=verdict,
        p=p,
    )
    return FinalistResult(
        trial=trial,
        label="x",
        setting={},
        outcome=outcome,
        reason="" if outcome == "feasible" else "misses ttft.p99<=1s: 2 s, 2 times the bound",
        values={"goodput": goodput},
        comparisons=(compared,) if verdict else (),
    )


def _concluded(base: FinalistResult, *finalists: FinalistResult) -> tuple[Conclusion, int | None]:
    return conclusion_of(GOALS, base, finalists)[:2]


BASE = _final(0, 10.0)
BAD_BASE = _final(0, 10.0, outcome="infeasible")


def test_who_is_better_and_keeps_the_targets_wins() -> None:
    won = _concluded(BASE, _final(5, 11.0, "better"), _final(6, 12.0, "better"))
    assert won == (Conclusion.WINNER, 6)


def test_who_misses_a_target_held_out_never_wins() -> None:
    best = _final(5, 99.0, "better", outcome="infeasible")
    assert _concluded(BASE, best, _final(6, 12.0, "better")) == (Conclusion.WINNER, 6)
    assert _concluded(BAD_BASE, best) == (Conclusion.INCONCLUSIVE, None)
    assert _concluded(BASE, best) == (Conclusion.INCONCLUSIVE, None)
    failed = _final(5, 99.0, outcome="failed")
    assert _concluded(BASE, failed) == (Conclusion.INCONCLUSIVE, None)


def test_where_the_baseline_misses_a_target_keeping_them_decides() -> None:
    found = _concluded(BAD_BASE, _final(5, 9.0, "worse"), _final(6, 9.5, "not shown"))
    assert found == (Conclusion.WINNER, 6)


def test_a_gain_that_is_not_shown_is_no_winner_and_no_loser() -> None:
    some = (_final(5, 10.2, "not shown"), _final(6, 9.0, "worse"))
    assert _concluded(BASE, *some) == (Conclusion.INCONCLUSIVE, None)


def test_a_gain_that_the_number_of_finalists_explains_is_not_shown() -> None:
    assert _concluded(BASE, _final(5, 11.0, "better", p=0.03)) == (Conclusion.INCONCLUSIVE, None)
    assert _concluded(BASE, _final(5, 11.0, "better", p=0.02)) == (Conclusion.WINNER, 5)


def test_the_baseline_stays_where_all_others_are_worse_or_equivalent() -> None:
    some = (_final(5, 10.0, "equivalent"), _final(6, 9.0, "worse"))
    assert _concluded(BASE, *some) == (Conclusion.KEEP_BASELINE, 0)
    assert _concluded(BASE) == (Conclusion.KEEP_BASELINE, 0)
    assert _concluded(BAD_BASE) == (Conclusion.INCONCLUSIVE, None)


def _trial(
    number: int, goodput: float, setting: dict[str, Value], origin: str = "sampled"
) -> TrialRecord:
    return TrialRecord(
        number=number,
        origin=origin,  # type: ignore[arg-type]
        label="x",
        key=str(number),
        parameters={},
        setting=setting,
        outcome=Outcome.FEASIBLE,
        values={"goodput": goodput, "cost": 10.0 * number},
    )


def _numbers(trials: Sequence[TrialRecord]) -> list[int]:
    return [one.number for one in trials]


def test_of_equals_the_one_nearest_to_the_baseline_goes_first() -> None:
    base: dict[str, Value] = {"policy": "fcfs", "seats": 64}
    trials = [
        _trial(0, 99.0, base, "baseline"),
        _trial(1, 9.0, {"policy": "benefit", "seats": 32, "lambda": 1.0}),
        _trial(2, 9.0, {"policy": "benefit", "seats": 64, "lambda": 1.0}),
        _trial(3, 9.0, {"policy": "mine", "seats": 64, "lambda": 1.0, "more": 2.0}, "given"),
        _trial(4, 9.0, {"policy": "fcfs", "seats": 96}),
        _trial(5, 9.5, {"policy": "benefit", "seats": 32, "lambda": 2.0}),
    ]
    assert _numbers(ranked_for_finals(GOALS, trials)) == [5, 4, 2, 3, 1]


def test_with_several_objectives_the_front_goes_first() -> None:
    goals = [*GOALS, Goal("cost", False)]
    trials = [
        _trial(0, 1.0, {}, "baseline"),
        _trial(3, 9.0, {}),
        _trial(2, 8.0, {}),
        _trial(4, 8.5, {}),
        _trial(1, 7.0, {}),
    ]
    # Cost is ten times the number: 4 costs more than 3 and gives less.
    assert _numbers(ranked_for_finals(goals, trials)) == [3, 2, 1, 4]
