from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.errors import ConfigError
from batchpolicy.metrics import METRICS, Measure
from batchpolicy.target_grammar import parse_gates, parse_measurands, parse_target, parse_targets
from batchpolicy.targets import Gate, Target

STATISTICS = st.one_of(
    st.sampled_from(["mean", "min", "max"]),
    st.integers(10, 999).map(lambda n: f"p{n // 10}.{n % 10}" if n % 10 else f"p{n // 10}"),
)
NAMES = (
    st.text(min_size=1)
    .map(str.strip)
    .filter(lambda name: name and "@class=" not in name and "@tenant=" not in name)
)


@st.composite
def targets(draw: st.DrawFn) -> Target:
    name = draw(st.sampled_from(list(METRICS)))
    metric = METRICS[name]
    timed = metric.measure is Measure.SECONDS
    highest = 1.0 if metric.measure is Measure.SHARE else 1e12
    bound = draw(st.floats(0.0, highest, exclude_min=timed))
    kinds = ["class"] if metric.compares_tenants else ["class", "tenant"]
    kind = draw(st.sampled_from([None, *kinds]))
    return Target(
        metric=name,
        statistic=draw(STATISTICS) if timed else None,
        bound=bound,
        at_most=metric.low_is_good,
        scope_kind=kind,  # type: ignore[arg-type]
        scope_name=draw(NAMES) if kind else "",
    )


@given(targets())
def test_a_target_reads_back_from_its_text(target: Target) -> None:
    assert parse_target(str(target)) == target


def test_a_target_has_metric_statistic_bound_and_scope() -> None:
    assert parse_target("ttft.p99<=500ms@class=chat") == Target(
        metric="ttft",
        statistic="p99",
        bound=0.5,
        at_most=True,
        scope_kind="class",
        scope_name="chat",
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("p99_ttft<=500ms", "ttft.p99<=500ms"),
        ("mean_itl <= 0.05 s", "itl.mean<=50ms"),
        ("TTFT.P99.0<=1000ms", "ttft.p99<=1s"),
        ("e2el.p99.9<=600s@tenant=a@b.c", "e2el.p99.9<=10min@tenant=a@b.c"),
        ("queue.max<=90s", "queue.max<=90s"),
        ("attainment>=0.99", "attainment>=99%"),
        ("attainment>=99.9%@class=x", "attainment>=99.9%@class=x"),
        ("jain>=0.95", "jain>=95%"),
        ("throughput>=5000 tokens/s", "throughput>=5000"),
        ("goodput>=2.5req/s", "goodput>=2.5"),
        ("service_gap<=40000tokens", "service_gap<=40000"),
        ("preemptions<=0", "preemptions<=0"),
        ("recompute<=1e4", "recompute<=10000"),
    ],
)
def test_spellings_of_one_target_read_the_same(text: str, canonical: str) -> None:
    assert str(parse_target(text)) == canonical
    assert parse_target(text) == parse_target(canonical)


def test_a_bare_number_of_time_is_refused_with_both_readings() -> None:
    with pytest.raises(ConfigError) as e:
        parse_target("ttft.p99<=500")
    assert "ttft.p99<=500s for seconds" in str(e.value)
    assert "ttft.p99<=500ms for milliseconds" in str(e.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tfft.p99<=1s", "unknown metric 'tfft', did you mean 'ttft'?"),
        ("p99_ttft_ms<=500", "unknown metric 'ttft_ms', did you mean 'ttft'?"),
        ("ttft.meen<=1s", "unknown statistic 'meen', did you mean 'mean'?"),
        ("ttft.median<=1s", "unknown statistic 'median', did you mean 'p50'?"),
        ("ttft.p100<=1s", "unknown statistic 'p100', did you mean 'max'?"),
        ("ttft.p0.5<=1s", "unknown statistic 'p0.5'"),
        ("ttft.p99.95<=1s", "unknown statistic 'p99.95'"),
        ("ttft<=1s", "ttft needs a statistic, such as ttft.p99"),
        ("throughput.p99>=5", "one number for a run"),
        ("ttft.p99<=500mss", "unknown unit 'mss' in '500mss'. Did you mean 'ms'?"),
        ("throughput>=5 tokens/min", "unknown unit 'tokens/min', did you mean 'tokens/s'?"),
        ("recompute<=1%", "unknown unit '%'"),
        ("attainment>=99ms", "unknown unit 'ms', a share is written 0.99 or 99%"),
        ("attainment>=99", "write attainment>=99% for percent"),
        ("attainment>=101%", "the bound is 101%, expected 0 to 1"),
        ("ttft.p99<=0s", "the bound is 0s, expected a finite time over 0"),
        ("ttft.p99<=-1s", "the bound is -1s, expected a finite time over 0"),
        ("ttft.p99<=inf", "'inf' is no bound"),
        ("ttft.p99<=1e999s", "expected a finite time over 0"),
        ("ttft.p99<=", "'' is no bound"),
        ("ttft.p99<=+5%", "relative to another run"),
        ("ttft.p99>=500ms", "ttft is good when it is low, write <= instead of >="),
        ("attainment<=99%", "attainment is good when it is high, write >= instead of <="),
        ("ttft.p99<1s", "'<' is no direction, write <= or >="),
        ("ttft.p99<=1s@clas=x", "unknown scope 'clas', did you mean 'class'?"),
        ("ttft.p99<=1s@chat", "write @class=chat or @tenant=chat"),
        ("ttft.p99<=1s@class=", "lacks the name of a class"),
        ("ttft.p99<=1s@class=a@tenant=b", "one scope, class or tenant"),
        ("jain>=0.9@tenant=a", "jain compares tenants"),
        ("fast please", "expected metric.statistic<=bound"),
        ("", "expected metric.statistic<=bound"),
    ],
)
def test_a_mistake_is_named_with_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_target(text)
    assert said in str(e.value)


def test_all_mistakes_of_all_targets_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as e:
        parse_targets(["tfft.p99<1s@clas=x", "ttft.p99<=1s", "itl.p50<=50"])
    for said in ("'tfft'", "'<'", "'clas'", "itl.p50<=50ms"):
        assert said in str(e.value)
    assert "'ttft.p99<=1s'" not in str(e.value)


def test_targets_keep_their_order() -> None:
    texts = ["ttft.p99<=1s", "itl.p99<=50ms", "attainment>=99%"]
    assert [str(target) for target in parse_targets(texts)] == texts


def test_a_value_at_the_bound_meets_it_and_nothing_measured_does_not() -> None:
    low, high = parse_target("ttft.p99<=500ms"), parse_target("throughput>=100")
    assert low.met_by(0.5) and not low.met_by(0.501) and not low.met_by(math.nan)
    assert high.met_by(100.0) and not high.met_by(99.0) and not high.met_by(math.nan)


def test_a_statistic_is_a_quantile_unless_it_is_the_mean() -> None:
    texts = ["ttft.p99.9<=1s", "ttft.min<=1s", "ttft.max<=1s", "ttft.mean<=1s", "jain>=0.9"]
    assert [parse_target(text).quantile for text in texts] == [0.999, 0.0, 1.0, None, None]


def test_a_gate_has_a_change_against_the_baseline_as_its_bound() -> None:
    texts = ["ttft.p99<=+5%", "attainment>=-1%@class=chat", "p50_tpot <= -2.5 %"]
    assert parse_gates(texts) == [
        Gate("ttft", "p99", 0.05, at_most=True),
        Gate("attainment", None, -0.01, False, "class", "chat"),
        Gate("tpot", "p50", -0.025, at_most=True),
    ]
    assert [gate.key for gate in parse_gates(texts)] == ["ttft.p99", "attainment", "tpot.p50"]
    assert [gate.is_relative for gate in parse_gates(texts)] == [True, False, True]


@given(st.sampled_from(list(METRICS)), STATISTICS, st.decimals(-99, 99, places=3), st.booleans())
def test_a_gate_reads_back_from_its_text(
    name: str, statistic: str, percent: object, scoped: bool
) -> None:
    metric = METRICS[name]
    head = f"{name}.{statistic}" if metric.measure is Measure.SECONDS else name
    sign = "<=" if metric.low_is_good else ">="
    (gate,) = parse_gates([f"{head}{sign}{percent:+f}%{'@class=a' if scoped else ''}"])
    assert parse_gates([str(gate)]) == [gate]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft.p99<=5%", "write ttft.p99<=+5% or ttft.p99<=-5%"),
        ("ttft.p99<=+5", "'+5' is no change against the baseline"),
        ("ttft.p99<=500ms", "write ttft.p99<=+5%"),
        ("attainment>=99", "write attainment>=-5%"),
        ("ttft.p99<=", "'' is no change"),
        ("ttft.p99<=-100%", "the change is -100%, expected over -100%"),
        ("jain>=-100%", "over -100% and under +100%"),
        ("ttft.p99>=+5%", "ttft is good when it is low"),
        ("tfft.p99<=+5%", "did you mean 'ttft'?"),
        ("fast", "such as ttft.p99<=+5%@class=chat"),
    ],
)
def test_a_mistake_in_a_gate_is_named_with_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_gates(["jain>=-1%", text])
    assert "gates that cannot be read" in str(e.value)
    assert said in str(e.value)
    assert "'jain>=-1%'" not in str(e.value)


@given(targets())
def test_what_a_target_bounds_reads_back_from_its_text(target: Target) -> None:
    measurand = target.measurand
    assert parse_measurands([str(measurand)]) == [measurand]
    assert str(target).startswith(str(measurand).partition("@")[0])
    assert measurand.low_is_good == target.at_most
    assert measurand.quantile == target.quantile


def test_all_mistakes_in_objectives_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        parse_measurands(["goodput", "ttft", "p99_tpot<=50ms", "jain@tenant=x", "e2el.p99@chat"])
    lines = str(told.value).splitlines()
    assert lines[0] == "objectives that cannot be read:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        *("'ttft'", "'p99_tpot<=50ms'", "'jain@tenant=x'", "'e2el.p99@chat'")
    ]
    assert "ttft needs a statistic" in lines[1]
    assert "an objective has no bound" in lines[2]
