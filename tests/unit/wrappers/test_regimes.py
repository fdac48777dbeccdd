from __future__ import annotations

import logging
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchpolicy.config import load_config
from batchpolicy.errors import ConfigError
from batchpolicy.policy import Limits, Step
from batchpolicy.requests import Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from batchpolicy.wrappers.regimes import Regimes
from tests.support.policies import Recorder
from tests.support.rig import Rig

ROWS: list[dict[str, Any]] = [
    {"name": "normal", "above": 0.3, "inner": "edf", "max_num_seqs": 8},
    {"name": "peak", "above": 0.9, "inner": "shortest-first", "max_num_batched_tokens": 64},
]


class Course:
    """A table of regimes before whom requests come and go, ten seats, one second a step."""

    def __init__(self, **parameters: Any) -> None:
        plain = {"rows": ROWS, "average_s": 0.01, "hold_s": 0.0, "guard": None}
        self.policy = Regimes.model_validate(plain | parameters)
        self.counters: Counter[str] = Counter()
        self.policy.count_in(self.counters)
        self.table = RequestTable()
        self.live: list[str] = []
        self.came = 0
        self.now_s = 0.0

    def at(self) -> Step:
        self.table.now_s = self.now_s
        return make_step(now_s=self.now_s, max_running=10, waiting=self.table.view())

    def come(self, n: int, **facts: Any) -> None:
        names = [f"r{self.came + i}" for i in range(n)]
        self.came += n
        for name in names:
            self.table.add(name, **({"arrival_s": self.now_s, "prompt_tokens": 10} | facts))
        rows = self.table.rows(np.array([self.table.slots[name] for name in names]))
        self.policy.on_arrived(rows, self.at())
        self.live += names

    def go(self, n: int) -> None:
        gone, self.live = self.live[:n], self.live[n:]
        for name in gone:
            self.table.set(name, status=int(Status.ABORTED))
        rows = self.table.rows(np.array([self.table.slots[name] for name in gone]))
        self.policy.on_finished(rows, self.at())
        for name in gone:
            self.table.release(self.table.forget(name))

    def live_at(self, n: int, passed_s: float = 1.0, **facts: Any) -> str:
        """The row that serves when so many have lived for some time."""
        change = n - len(self.live)
        if change > 0:
            self.come(change, **facts)
        elif change < 0:
            self.go(-change)
        self.now_s += passed_s
        self.come(1)  # what is told makes it look
        self.now_s += 1e-9
        self.go(1)
        return self.policy.present


def test_rows_are_entered_above_and_left_well_below() -> None:
    course = Course()
    loads = [2, 3, 8, 9, 8, 7, 3, 2, 3]
    # Left below 0.8 * 0.9 = 0.72 and 0.8 * 0.3 = 0.24 live requests a seat.
    assert [course.live_at(n) for n in loads] == [
        "safe", "normal", "normal", "peak", "peak", "normal", "normal", "safe", "normal",
    ]  # fmt: skip
    assert course.counters["regime_changes"] == 5


def test_a_load_that_jumps_skips_the_rows_between() -> None:
    course = Course()
    assert course.live_at(20) == "peak"
    assert course.live_at(1) == "safe"


def test_who_is_asked_and_what_limits_hold_follow_the_row() -> None:
    course = Course(safe={"prefill_chunk": 32}, inner="priority")
    table = course.table
    table.add("long", arrival_s=0.0, prompt_tokens=90, max_tokens=90, ttft_slo_s=60.0)
    table.add("short", arrival_s=0.0, prompt_tokens=9, max_tokens=9, ttft_slo_s=90.0, priority=5)
    found: dict[str, tuple[bool, Limits]] = {}
    for n in (0, 3, 9):
        name = course.live_at(n)
        at = course.at()
        two = at.waiting.take(np.array([0, 1]))
        long, short = course.policy.rank(two, at).benefit
        found[name] = (bool(long > short), course.policy.limits(at))
    assert found == {
        "safe": (True, Limits(None, None, 32)),
        "normal": (True, Limits(8, None, None)),
        "peak": (False, Limits(None, 64, None)),
    }


def test_no_setting_is_left_before_its_time() -> None:
    course = Course(hold_s=10.0)
    seen = [course.live_at(n) for n in [20, 0] * 12]
    changes = [i for i in range(1, 24) if seen[i] != seen[i - 1]]
    assert changes
    assert min(b - a for a, b in pairwise(changes)) >= 10


def test_rows_may_ask_for_a_mix() -> None:
    rows = [
        {"name": "urgent", "above": 0.1, "urgent_above": 0.5, "inner": "priority"},
        {"name": "busy", "above": 0.9, "inner": "edf"},
    ]
    course = Course(rows=rows, urgent_up_to=-1)
    assert course.live_at(4) == "safe"
    assert course.live_at(9, priority=-1) == "busy"
    course.go(4)
    assert course.live_at(5) == "urgent"


def test_all_policies_hear_of_everything() -> None:
    row = {"name": "all", "above": 0.01, "inner": Recorder()}
    policy = Regimes.model_validate({"inner": Recorder(), "rows": [row]})
    rig = Rig(policy)
    rig.running("a", "b")
    rig.decode("a", "b")
    rig.runner.finished("a", Status.FINISHED)
    rig.arrive("c")
    rig.plan()
    one, two = policy.inside()
    assert isinstance(one, Recorder)
    assert isinstance(two, Recorder)
    told = [[c for c in each.calls if c[0] != "benefit"] for each in (one, two)]
    assert told[0] == told[1]
    assert {name for name, _ in told[0]} == {"arrived", "admitted", "computed", "finished"}


def test_a_row_that_serves_worse_is_left_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [{"name": "bad", "inner": "edf"}]
    guard = {"window_s": 10.0, "back_off_s": 1000.0}
    course = Course(rows=rows, guard=guard, hold_s=5.0)
    used: list[str] = []
    with caplog.at_level(logging.INFO, "batchpolicy"):
        for _ in range(60):
            # Under the row the first token is late.
            late = course.policy.present == "bad"
            used.append(course.policy.present)
            for i in range(4):
                course.come(
                    10, ttft_slo_s=1.0, first_token_s=course.now_s + (2.0 if late else 0.5)
                )
                course.now_s += 2.6
                if i == 2:
                    course.go(len(course.live) - 5)
    assert course.counters["regime_alarms"] == 1
    assert set(used[-20:]) == {"safe"}
    assert any("'bad' served worse than the safe setting" in line for line in caplog.messages)


def mistakes(folder: Path, text: str) -> list[str]:
    path = folder / "p.yaml"
    head = "apiVersion: batchpolicy/v1\nkind: Policy\npolicy:\n  name: regimes\n"
    path.write_text(head + text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_all_mistakes_in_a_table_are_told_with_their_lines(tmp_path: Path) -> None:
    text = """\
  rows:
    - {name: a, inner: egf}
    - {name: b, inner: {name: edf, lots: refuse}, max_num_seqs: 0}
    - {name: c, abov: 1}
"""
    found = mistakes(tmp_path, text)
    assert [line.partition(": ")[0] for line in found] == [f"p.yaml:{n}" for n in (6, 7, 7, 8)]
    assert "Did you mean 'edf'?" in found[0]
    assert "policy.rows[1].max_num_seqs is 0" in "".join(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  rows: [{name: a, above: 1}, {name: b, above: 0.5}]\n", "'a' would never hold"),
        ("  rows: [{name: a, above: 1}, {name: a, above: 2}]\n", "'a' is there twice"),
        ("  guard: {window_s: 5}\n", "guard.window_s 5 is below hold_s 10"),
        (
            "  inner: {name: corridor, fairness: {weights: {gold: 4}}}\n"
            "  rows: [{name: a, inner: {name: corridor, fairness: {weights: {gold: 2}}}}]\n",
            "tenant 'gold' has weight 4 and 2",
        ),
    ],
)
def test_a_table_that_cannot_work_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in "\n".join(mistakes(tmp_path, text))


def test_tags_are_those_of_all_policies_inside() -> None:
    row = {"name": "peak", "above": 0.5, "inner": "shortest-remaining"}
    policy = Regimes.model_validate({"rows": [row]})
    assert Regimes().tags.preempts == "class"
    assert policy.tags.may_starve
    assert policy.tags.preempts == "benefit"
    assert policy.native_order() is None


def test_limits_are_asked_for_only_where_there_are_some() -> None:
    row = {"name": "peak", "above": 0.5, "inner": "edf"}
    assert not Regimes.model_validate({"rows": [row]}).overrides("limits")
    assert Regimes.model_validate({"rows": [row | {"prefill_chunk": 64}]}).overrides("limits")
    assert Regimes.model_validate({"safe": {"max_num_seqs": 4}}).overrides("limits")
