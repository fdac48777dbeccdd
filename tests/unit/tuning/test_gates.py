from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy.target_grammar import parse_gates
from batchpolicy_tuning import document, table
from batchpolicy_tuning.ab import AtLoad, Results
from batchpolicy_tuning.gates import (
    Judged,
    Outcome,
    check_gates,
    invalid,
    is_failed,
    is_invalid,
    judge,
)
from batchpolicy_tuning.metrics import Measured
from tests.support import turned
from tests.support.comparisons import compared

BASELINE = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]


def _made_up(
    values: dict[str, tuple[Sequence[float], Sequence[float]]], *gates: str
) -> tuple[Results, AtLoad]:
    """A comparison of 8 pairs whose runs gave these values in the class chat and overall."""
    results = compared(pairs=8)
    (at,) = results.loads
    runs = [
        [
            replace(
                run,
                measured=Measured(
                    {key: arms[arm][k] for key, arms in values.items()},
                    {"chat": {key: arms[arm][k] for key, arms in values.items()}},
                ),
            )
            for k, run in enumerate(at.runs[arm])
        ]
        for arm in range(2)
    ]
    made = replace(at, runs=runs)
    plan = replace(results.plan, gates=parse_gates(gates))
    return replace(results, plan=plan, loads=[made]), made


def _outcomes(
    values: dict[str, tuple[Sequence[float], Sequence[float]]], *gates: str
) -> list[Outcome]:
    results, at = _made_up(values, *gates)
    return [judged.outcome for judged in judge(results, at, 1)]


@pytest.mark.parametrize(
    ("factors", "gate", "outcome"),
    [
        # 8 pairs on one side: p is 1/256.
        ([1.04] * 8, "ttft.p99<=+5%", Outcome.PASSED),
        ([1.06] * 8, "ttft.p99<=+5%", Outcome.VIOLATED),
        ([0.89] * 8, "ttft.p99<=-10%", Outcome.PASSED),
        ([0.91] * 8, "ttft.p99<=-10%", Outcome.VIOLATED),
        ([1.0] * 8, "ttft.p99<=+0%", Outcome.PASSED),
        # On average below the bound, and not shown to be.
        ([1.0, 1.2, 0.9, 1.1, 0.95, 1.15, 0.8, 1.2], "ttft.p99<=+5%", Outcome.NOT_SHOWN),
    ],
)
def test_a_gate_passes_only_when_the_data_show_it(
    factors: list[float], gate: str, outcome: Outcome
) -> None:
    policy = [f * b for f, b in zip(factors, BASELINE, strict=True)]
    assert _outcomes({"ttft.p99": (BASELINE, policy)}, gate) == [outcome]


def test_a_gate_on_a_share_counts_in_points() -> None:
    shares = [0.90 + 0.01 * k for k in range(8)]
    lower = [share - 0.008 - 0.0005 * (k % 3) for k, share in enumerate(shares)]
    values = {"attainment": (shares, lower)}
    assert _outcomes(values, "attainment>=-1%") == [Outcome.PASSED]
    assert _outcomes(values, "attainment>=-0.5%@class=chat") == [Outcome.VIOLATED]
    (judged,) = judge(*_made_up(values, "attainment>=-1%"), 1)
    assert "passed, changed by -0.8 points, at least -0.9 points at 95%" in str(judged)


def test_more_is_better_where_the_metric_says_so() -> None:
    values = {"throughput": (BASELINE, [1.1 * b for b in BASELINE])}
    assert _outcomes(values, "throughput>=+9%") == [Outcome.PASSED]
    assert _outcomes(values, "throughput>=+11%") == [Outcome.VIOLATED]


def test_p_values_are_those_of_all_signs_adjusted_over_the_gates() -> None:
    factors = [1.0, 1.02, 0.97, 1.04, 0.99, 1.06, 1.0, 0.95]
    policy = [f * b for f, b in zip(factors, BASELINE, strict=True)]
    over = [p - 1.05 * b for p, b in zip(policy, BASELINE, strict=True)]
    p = turned.p_negative(over)
    values = {"ttft.p99": (BASELINE, policy), "e2el.p99": (BASELINE, [0.5 * b for b in BASELINE])}
    results, at = _made_up(values, "ttft.p99<=+5%")
    (alone,) = judge(results, at, 1)
    assert alone.p == pytest.approx(p)
    results, at = _made_up(values, "ttft.p99<=+5%", "e2el.p99<=+5%", "e2el.p99<=+1%")
    # Holm: the two smallest are half of 1/256 each, times 3 and 2 and raised; the largest stays.
    assert [one.p for one in judge(results, at, 1)] == pytest.approx(
        [max(p, 1.5 / 256), *[1.5 / 256] * 2]
    )


def test_holm_can_turn_a_gate_that_would_pass_alone() -> None:
    # Two pairs beyond the bound, one of them just: p is below 5% alone.
    factors = [1.051, 1.05, 1.02, 1.03, 1.03, 1.06, 1.01, 1.03]
    policy = [f * b for f, b in zip(factors, BASELINE, strict=True)]
    values = {key: (BASELINE, policy) for key in ("ttft.p50", "ttft.p99", "e2el.p50", "e2el.p99")}
    assert _outcomes(values, "ttft.p99<=+5%") == [Outcome.PASSED]
    four = _outcomes(values, *(f"{key}<=+5%" for key in values))
    assert four == [Outcome.NOT_SHOWN] * 4


def test_change_and_limit_are_told() -> None:
    policy = [b * (1.0 + 0.01 * (k % 2)) for k, b in enumerate(BASELINE)]
    results, at = _made_up({"ttft.p99": (BASELINE, policy)}, "ttft.p99<=+5%")
    (judged,) = judge(results, at, 1)
    assert judged.change == pytest.approx(sum(policy) / sum(BASELINE) - 1.0)
    assert judged.change < judged.limit < 0.0100001
    assert str(judged) == (
        f"gate ttft.p99<=+5%: passed, changed by {judged.change:+.1%}, at most "
        f"{judged.limit:+.1%} at 95%, p 0.002"
    )
    (line,) = table.gate_lines(results, at, 1)
    assert (line.text, line.mood) == (f"priority, {judged}", "better")


def test_a_policy_that_never_ends_requests_violates_and_one_that_does_passes() -> None:
    endless = [math.inf] * 8
    (first,) = _outcomes({"ttft.p99": (BASELINE, endless)}, "ttft.p99<=+5%")
    (second,) = _outcomes({"ttft.p99": (endless, BASELINE)}, "ttft.p99<=+5%")
    (third,) = _outcomes({"ttft.p99": (endless, endless)}, "ttft.p99<=+5%")
    assert (first, second, third) == (Outcome.VIOLATED, Outcome.PASSED, Outcome.NOT_SHOWN)


def test_a_metric_without_value_in_enough_pairs_is_not_measured() -> None:
    values = {"ttft.p99": (BASELINE, [*BASELINE[:7], math.nan])}
    results, at = _made_up(values, "ttft.p99<=+5%")
    (judged,) = judge(results, at, 1)
    assert (judged.outcome, judged.reason) == (Outcome.INVALID, "7 pairs have a value, 8 needed")


def test_requests_left_over_and_faults_make_a_measurement_invalid() -> None:
    results, at = _made_up({"ttft.p99": (BASELINE, BASELINE)}, "ttft.p99<=+5%")
    assert invalid(results, at, 1) == []
    # 24 requests: one is 4.2%.
    left = replace(at.runs[1][0], ends={"finished": 2, "running": 1})
    refused = replace(at.runs[1][0], ends={"finished": 2, "refused": 1})
    failed = replace(at.runs[0][0], counters={"policy_faults": 3, "hook_faults": 1, "other": 9})
    for arm, run, said in (
        (1, left, ["4.2% of the requests of priority never ended"]),
        (1, refused, []),
        (0, failed, ["fcfs failed 4 times"]),
    ):
        runs = [[*at.runs[0]], [*at.runs[1]]]
        runs[arm][0] = run
        changed = replace(at, runs=runs)
        assert invalid(results, changed, 1) == said
        (judged,) = judge(results, changed, 1)
        assert (judged.outcome is Outcome.INVALID) == bool(said)


def test_gates_on_what_is_not_measured_are_all_named_before_any_run() -> None:
    gates = ["itl.p99<=+5%", "ttft.p95<=+5%", "ttft.p99<=+5%@class=chta", "ttft.p99<=+5%@tenant=a"]
    gates += ["throughput>=-1%@class=chat", "ttft.p99<=+5%@class=chat"]
    with pytest.raises(ConfigError) as e:
        compared(gates=gates)
    lines = str(e.value).splitlines()[1:]
    assert len(lines) == 5
    for line, said in zip(
        lines,
        (
            "not measured here",
            "Measured: ttft.p50",
            "Classes: chat, batch",
            "not by tenant",
            "leave",
        ),
        strict=True,
    ):
        assert said in line
    check_gates(parse_gates(gates[-1:]), ["chat"])


def test_a_failure_and_an_invalid_measurement_are_told_apart() -> None:
    (gate,) = parse_gates(["ttft.p99<=+5%"])
    judged = {outcome: Judged(gate, outcome) for outcome in Outcome}
    failed = {outcome for outcome, one in judged.items() if is_failed([one])}
    assert failed == {Outcome.VIOLATED, Outcome.NOT_SHOWN}
    assert [outcome for outcome, one in judged.items() if is_invalid([one])] == [Outcome.INVALID]


def test_the_document_carries_gates_queues_and_ends() -> None:
    told = document.document(compared(gates=["ttft.p99<=+5%@class=batch"]))
    assert (told["gates"], told["margin"]) == (["ttft.p99<=+5%@class=batch"], 0.05)
    policy = told["loads"][0]["policies"][1]
    (gate,) = policy["gates"]
    # Serial: fcfs ends b1 at 2 s, priority at 2.1 s, the 99th percentile of it and 1 s.
    assert gate["change"] == pytest.approx(0.099 / 1.99)
    assert (gate["outcome"], policy["invalid"]) == ("passed", [])
    assert policy["runs"][0]["ends"] == {"finished": 3}
    assert policy["queue"]["state"] in {"stable", "backlogged", "overloaded"}
