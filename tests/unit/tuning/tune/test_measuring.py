from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from batchpolicy.target_grammar import parse_measurands
from batchpolicy.targets import Measurand
from batchpolicy_tuning.tune.measuring import Sample, cannot_measure, value_of


def _sample(
    ttft_s: Sequence[float],
    *,
    met: Sequence[bool],
    classes: Sequence[str] | None = None,
    arrivals_s: float = 10.0,
    tokens: float = 500.0,
    span_s: float = 20.0,
    jain: float = 0.9,
    service_gap: float = 100.0,
    targeted: Sequence[bool] | None = None,
) -> Sample:
    n = len(ttft_s)
    column = np.array(ttft_s, dtype=np.float64)
    return Sample(
        class_names=np.array(classes or ["chat"] * n),
        tenant_names=np.array(["t"] * n),
        ttft_s=column,
        tpot_s=column / 10.0,
        itl_s=column / 5.0,
        e2el_s=column * 2.0,
        queue_s=column / 2.0,
        waited_s=np.where(np.isinf(column), 33.0, column / 2.0),
        targeted=np.ones(n, dtype=np.bool_) if targeted is None else np.array(targeted),
        met=np.array(met),
        preemptions=np.arange(n, dtype=np.float64),
        arrivals_s=arrivals_s,
        output_tokens=tokens,
        span_s=span_s,
        recompute=7.0,
        jain=jain,
        service_gap=service_gap,
        requests=n,
        unfinished=0,
        faults=0,
        peak_waiting=1,
        steps=1,
        digest="",
    )


ONE = _sample([1.0, 2.0], met=[True, True], classes=["chat", "batch"])
OTHER = _sample(
    [3.0, 4.0, math.inf],
    met=[True, False, False],
    classes=["chat", "chat", "batch"],
    arrivals_s=30.0,
    tokens=1500.0,
    span_s=30.0,
    jain=0.7,
    service_gap=300.0,
)


def _value(text: str, *samples: Sample, price: float | None = None) -> float:
    return value_of(parse_measurands([text])[0], samples or (ONE, OTHER), price)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft.p50", 3.0),
        ("ttft.min", 1.0),
        ("ttft.max", math.inf),
        ("ttft.mean", math.inf),
        ("ttft.p50@class=chat", 3.0),
        ("ttft.max@class=chat", 4.0),
        ("ttft.mean@class=chat", 8.0 / 3.0),
        ("tpot.max@class=chat", 0.4),
        ("itl.max@class=chat", 0.8),
        ("e2el.p50", 6.0),
        ("queue.max", 33.0),
        ("goodput", 3.0 / 40.0),
        ("goodput@class=batch", 1.0 / 40.0),
        ("attainment", 0.6),
        ("attainment@class=chat", 2.0 / 3.0),
        ("throughput", 2000.0 / 50.0),
        ("jain", 0.8),
        ("service_gap", 300.0),
        ("preemptions", (1.0 + 3.0) / 2.0),
        ("recompute", 7.0),
    ],
)
def test_values_are_pooled_over_runs(text: str, expected: float) -> None:
    assert _value(text) == pytest.approx(expected)


def test_the_price_of_a_million_tokens_follows_from_the_throughput() -> None:
    # 40 tokens/s are 144,000 an hour.
    assert _value("cost", price=1.44) == pytest.approx(10.0)
    assert math.isnan(_value("cost"))


@pytest.mark.parametrize(
    "text", ["ttft.p99@class=none", "attainment@class=none", "goodput@tenant=x"]
)
def test_what_no_request_tells_has_no_value(text: str) -> None:
    assert math.isnan(_value(text))


def test_requests_without_targets_are_not_good() -> None:
    some = _sample([1.0, 2.0], met=[True, True], targeted=[True, False])
    assert _value("goodput", some) == pytest.approx(0.1)
    none = _sample([1.0], met=[True], targeted=[False])
    assert math.isnan(_value("goodput", none))


def test_runs_without_competition_say_nothing_of_fairness() -> None:
    alone = _sample([1.0], met=[True], jain=math.nan, service_gap=math.nan)
    assert _value("jain", alone, ONE) == pytest.approx(0.9)
    assert math.isnan(_value("jain", alone))
    assert math.isnan(_value("service_gap", alone))


@pytest.mark.parametrize(
    ("measurand", "said"),
    [
        (Measurand("itl", "p99"), "not measured in a replay"),
        (Measurand("throughput", None, "class", "x"), "over all requests only"),
        (Measurand("cost", None), "needs price_per_hour"),
        (Measurand("itl", "max"), ""),
        (Measurand("ttft", "p99.9", "tenant", "x"), ""),
    ],
)
def test_what_cannot_be_measured_says_why(measurand: Measurand, said: str) -> None:
    found = cannot_measure(measurand, priced=False)
    assert (said in found) if said else not found
