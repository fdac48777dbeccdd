from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpolicy.policy import Step
from batchpolicy.requests import Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from batchpolicy.testing.data import rows_with
from batchpolicy.wrappers.guardrail import Guardrail, Score, Watch, Window, lost, staked

RULE = Guardrail(window_s=10.0, free_windows=2, least_requests=10, back_off_s=100.0)
ENDED: dict[str, Any] = {"status": int(Status.FINISHED), "output_tokens": 11}


def share(met: int, judged: int = 100) -> Score:
    return Score(met, judged, 0.0, judged)


def table_of(**requests: dict[str, Any]) -> RequestTable:
    table = RequestTable()
    for name, facts in requests.items():
        base = {"arrival_s": 100.0, "ttft_slo_s": 2.0, "tpot_slo_s": 0.1, "prompt_tokens": 9}
        table.add(name, **(base | facts))
    return table


def step_of(table: RequestTable, now_s: float) -> Step:
    table.now_s = now_s
    return make_step(
        now_s=now_s,
        waiting=rows_with(table, Status.WAITING),
        running=rows_with(table, Status.RUNNING),
    )


def test_a_window_judges_who_came_in_it_by_what_is_known_at_its_end() -> None:
    runs = int(Status.RUNNING)
    table = table_of(
        before={**ENDED, "arrival_s": 99.0, "first_token_s": 101.0, "last_token_s": 102.0},
        met={**ENDED, "first_token_s": 101.0, "last_token_s": 102.0},
        late_first={**ENDED, "first_token_s": 103.0, "last_token_s": 104.0},
        slow={**ENDED, "first_token_s": 101.0, "last_token_s": 102.1},
        expired={"status": int(Status.EXPIRED)},
        given_up={"status": int(Status.ABORTED)},
        free={**ENDED, "ttft_slo_s": np.inf, "tpot_slo_s": np.inf, "first_token_s": 104.0,
              "last_token_s": 105.0},
        in_time={"status": runs, "first_token_s": 109.0, "arrival_s": 108.0, "output_tokens": 10},
        behind={"status": runs, "first_token_s": 109.0, "arrival_s": 108.0, "output_tokens": 9},
        overdue={"arrival_s": 107.5},
        undecided={"arrival_s": 109.0},
    )  # fmt: skip
    window = Window(100.0)
    rows = table.view()
    window.finished(rows.take(rows.status >= int(Status.FINISHED)))
    got = window.closed(step_of(table, 110.0))
    # Met: met, in_time. Missed: late_first, slow, expired, behind, overdue.
    assert (got.met, got.judged) == (2, 7)
    # All but those before, expired and given up: 1 + 3 + 1 + 4 + 1 + 1 + 2.5 + 1.
    assert (got.ttft_s, got.requests) == (14.5, 8)


@pytest.mark.parametrize(
    ("row", "safe", "expected"),
    [
        (share(90), share(95), True),
        (share(94), share(95), None),  # by less than 2 points
        (share(95), share(95), None),
        (share(96), share(95), False),
        (share(0, 9), share(9, 9), None),  # too few
        (Score(0, 0, 23.0, 10), Score(0, 0, 20.0, 10), True),  # mean TTFT 2.3 s against 2 s
        (Score(0, 0, 21.0, 10), Score(0, 0, 20.0, 10), None),
        (Score(0, 0, 19.0, 10), Score(0, 0, 20.0, 10), False),
    ],
)
def test_a_row_loses_by_attainment_or_without_targets_by_ttft(
    row: Score, safe: Score, expected: bool | None
) -> None:
    assert lost(row, safe, least=10, worse_by=0.02) is expected


class Course:
    """A watch over one row, window by window; the row serves badly when told to."""

    def __init__(self, rule: Guardrail = RULE) -> None:
        self.watch = Watch(rule, 1)
        self.now_s = 0.0
        self.length_s = rule.window_s
        self.watch.enter(0, 0.0)

    def window(self, met: int = 100, safe_met: int = 100) -> tuple[str, float]:
        """Who serves a window in which so many of 100 keep their targets, and the alarm."""
        row = self.watch.serves()
        good = met if row else safe_met
        table = RequestTable()
        for i in range(100):
            table.add(
                f"r{i}", arrival_s=self.now_s, ttft_slo_s=2.0, last_token_s=self.now_s + 4.0,
                first_token_s=self.now_s + (1.0 if i < good else 3.0), **ENDED,
            )  # fmt: skip
        self.watch.finished(table.view())
        self.now_s += self.length_s
        held_s = self.watch.advance(step_of(RequestTable(), self.now_s))
        return "R" if row else "S", held_s

    def run(self, windows: int, **shares: int) -> str:
        return "".join(self.window(**shares)[0] for _ in range(windows))


def test_pairs_change_their_order_and_between_them_the_row_serves() -> None:
    assert Course().run(12) == "SR" + "RR" + "RS" + "RR" + "SR" + "RR"


def test_after_a_lost_pair_the_next_comes_at_once() -> None:
    course = Course()
    assert course.run(6, met=50) == "SRRSSR"
    # Won, and so on as usual.
    assert course.run(4, met=100, safe_met=50) == "RS" + "RR"


def until_alarm(course: Course) -> tuple[int, float]:
    for n in range(1, 200):
        held_s = course.window(met=50)[1]
        if held_s:
            return n, held_s
    raise AssertionError("no alarm")


def test_a_row_that_always_loses_is_held_back_and_twice_as_long_the_next_time() -> None:
    course = Course()
    # 1.8**10 < 500 <= 1.8**11, two windows each.
    assert until_alarm(course) == (22, 100.0)
    assert course.run(10, met=50) == "S" * 10
    assert until_alarm(course)[1] == 200.0


def test_a_pair_that_another_load_breaks_off_is_void() -> None:
    course = Course()
    course.window(safe_met=100)
    course.watch.enter(-1, course.now_s)
    assert course.watch.serves()
    course.now_s += 1000.0
    course.watch.enter(0, course.now_s)
    assert course.run(3, met=50) == "SRR"


def test_false_alarms_are_no_closer_than_promised() -> None:
    rng = np.random.default_rng(0)
    for bound, alarms in ((20.0, 500), (500.0, 60)):
        pairs = 0
        for _ in range(alarms):
            stake = 1.0
            while stake < bound:
                stake = staked(stake, bool(rng.random() < 0.5))
                pairs += 1
        assert pairs / alarms >= bound


def test_a_load_that_rises_all_the_time_is_no_alarm() -> None:
    course = Course(RULE.model_copy(update={"free_windows": 0}))
    for i in range(400):
        good = 95 - i % 90
        assert not course.window(met=good, safe_met=good)[1]
