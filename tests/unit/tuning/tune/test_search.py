from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typing_extensions import override

from batchpolicy.errors import StepLimitReached
from batchpolicy_tuning.tune.judging import best_of
from batchpolicy_tuning.tune.landscape import Landscape
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.records import Outcome
from batchpolicy_tuning.tune.search import Candidate, Course
from batchpolicy_tuning.tune.storage import open_storage
from tests.support.tables import GOAL, hill, ledger, ok, search, table


@dataclass(frozen=True, slots=True)
class _Hooked(Landscape):
    """Calls something with the number of the look-up before it looks up."""

    hook: Callable[[int], None] = lambda _: None
    count: list[int] = field(default_factory=lambda: [0])

    @override
    def measure(self, candidate: Candidate, instance: int) -> Mapping[str, float]:
        self.count[0] += 1
        self.hook(self.count[0])
        return Landscape.measure(self, candidate, instance)


def _hooked(hook: Callable[[int], None], side: int = 8) -> _Hooked:
    plain = table(hill(side))
    return _Hooked(plain.space, plain.limits, plain.goals, plain.rows, plain.instances, hook=hook)


def _outcomes(kept: Ledger) -> list[Outcome]:
    return [one.outcome for one in kept.records()]


def test_the_baseline_comes_first_and_counts_as_a_trial() -> None:
    problem = table(hill(), baseline={"a": 7, "b": 7})
    kept = ledger(problem)
    search(problem, kept, 5).run()
    trials = kept.trials()
    assert len(trials) == 5
    assert trials[0].origin == "baseline"
    assert trials[0].outcome is Outcome.INFEASIBLE
    assert problem.asked[0] == (7, 7)
    assert problem.asked.count((7, 7)) == 1


def test_the_best_is_found_when_all_settings_are_tried_and_the_search_ends() -> None:
    problem = table(hill(4))
    kept = ledger(problem)
    search(problem, kept, 100).run()
    assert len(kept.trials()) == 16
    best = best_of([GOAL], kept.trials())
    assert best is not None
    assert best.parameters == {"a": 2, "b": 2}


def test_a_failed_setting_is_recorded_and_never_proposed_again() -> None:
    rows = hill(4)
    rows[2, 2] = ["out of memory at start"]
    rows[1, 1] = [{"ttft.p99": 0.1}]  # the objective is missing
    problem = table(rows)
    kept = ledger(problem)
    search(problem, kept, 100).run()
    failed = {tuple(o.parameters.values()): o for o in kept.trials() if o.outcome == "failed"}
    assert failed[2, 2].reason == "out of memory at start"
    assert failed[1, 1].reason == "goodput could not be measured"
    assert problem.asked.count((2, 2)) == problem.asked.count((1, 1)) == 1
    best = best_of([GOAL], kept.trials())
    assert best is not None
    assert best.values["goodput"] == 99.0


def test_a_step_limit_and_a_clock_are_told_from_failures() -> None:
    def endless(_: int) -> None:
        raise StepLimitReached("10 steps do not serve it")

    problem = _hooked(endless)
    kept = ledger(problem)
    search(problem, kept, 1).run()
    assert kept.trials()[0].outcome is Outcome.TIMED_OUT
    assert kept.trials()[0].reason == "10 steps do not serve it"

    def slow(_: int) -> None:
        try:
            while True:
                time.monotonic()
        except Exception:
            raise AssertionError("a guard against faults must not catch it") from None

    problem = _hooked(slow)
    kept = ledger(problem)
    search(problem, kept, 1, course=Course(1, timeout_s=0.01)).run()
    assert kept.trials()[0].outcome is Outcome.TIMED_OUT
    assert kept.trials()[0].reason == "not done after 0.01 s"


def test_a_setting_that_is_worse_on_every_slice_is_pruned_after_four() -> None:
    rows = {(a, 1): [ok(10.0 * a + k) for k in range(6)] for a in (1, 2)}
    problem = table(rows, baseline={"a": 2, "b": 1})
    kept = ledger(problem)
    search(problem, kept, 2).run()
    worse = kept.trials()[1]
    assert worse.outcome is Outcome.PRUNED
    assert worse.reason == "goodput is worse than in trial 0 in 4 of 4"
    assert len(worse.parts) == 4
    assert worse.planned == 6
    assert best_of([GOAL], kept.trials()) == kept.trials()[0]


def test_ctrl_c_gives_the_trial_back_and_the_study_goes_on_as_if_it_had_not_been() -> None:
    straight = table(hill())
    search(straight, ledger(straight), 20).run()

    def interrupt(number: int) -> None:
        if number in (5, 13):
            raise KeyboardInterrupt

    problem = _hooked(interrupt)
    kept = ledger(problem)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(problem, kept, 20).run()
    search(problem, kept, 20).run()
    assert _outcomes(kept).count(Outcome.LOST) == 2
    assert len(kept.trials()) == 20
    assert [tuple(one.parameters.values()) for one in kept.trials()] == straight.asked


def test_a_study_is_brought_to_more_trials() -> None:
    straight = table(hill())
    search(straight, ledger(straight), 15).run()
    problem = table(hill())
    kept = ledger(problem)
    search(problem, kept, 9).run()
    search(problem, kept, 9).run()
    assert len(kept.trials()) == 9
    search(problem, kept, 15).run()
    assert problem.asked == straight.asked


def test_a_setting_at_which_workers_die_is_failed_in_the_end() -> None:
    problem = table({(1, 1): [ok(1.0)]})
    kept = ledger(problem)
    for _ in range(2):
        record = problem.candidate({"a": 1, "b": 1})
        claim = kept.claim(_running(record.key), most=5)
        assert claim is not None
        kept.lose("worker x ended", claim)
    search(problem, kept, 5).run()
    assert _outcomes(kept) == [Outcome.LOST, Outcome.LOST, Outcome.FAILED]
    assert "2 workers died at it" in kept.trials()[0].reason
    assert not problem.asked


def _running(key: str):  # type: ignore[no-untyped-def]
    from batchpolicy_tuning.tune.records import TrialRecord

    return TrialRecord(
        number=-1,
        origin="sampled",
        label="",
        key=key,
        parameters={"a": 1, "b": 1},
        outcome=Outcome.RUNNING,
    )


def test_one_worker_waits_for_the_trials_of_another(tmp_path: Path) -> None:
    place = str(tmp_path / "journal.log")
    problem = table({(1, 1): [ok(1.0)], (2, 1): [ok(2.0)]})
    other = ledger(problem, open_storage(place))
    claim = other.claim(_running(problem.candidate({"a": 1, "b": 1}).key), most=5)
    assert claim is not None
    seen: list[int] = []

    class _Watched(Ledger):
        @override
        def sweep(self) -> int:
            seen.append(1)
            if len(seen) == 4:
                ended = {"outcome": Outcome.FEASIBLE, "values": {"goodput": 1.0}}
                other.end(claim, claim.record.model_copy(update=ended))
            # As of a worker on another machine, whose end cannot be seen at once.
            return 0

    mine = ledger(problem, open_storage(place))
    mine.__class__ = _Watched
    search(problem, mine, 2).run(wait_s=0.001)
    assert len(mine.trials()) == 2
    assert len(seen) >= 4
