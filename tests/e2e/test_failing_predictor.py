"""A predictor whose word loses its worth, and regains it: the order of the policy follows."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from typing_extensions import override

from batchpolicy.config import PolicyConfig, PolicySpec, PredictorSpec
from batchpolicy.predictor import Arrivals, LengthDist
from batchpolicy.workload import WorkloadRequest
from batchpolicy_predictors.oracles import NoisyOracle
from batchpolicy_predictors.rank_metrics import kendall_tau
from tests.unit.sim.light import Served, request

BURST = 12
BURSTS = ("good-1", "bad-2", "good-3")


class Fickle(NoisyOracle):
    """Nearly right of requests whose ids begin with good; of others it knows nothing."""

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        nothing = NoisyOracle(tau=0.0, typical_tokens=30, typical_log_sigma=0.7)
        good = np.array([i.startswith("good") for i in batch.request_id])[:, None]
        right, wrong = super().predict(batch).quantiles, nothing.predict(batch).quantiles
        return LengthDist(np.where(good, right, wrong))


def config(predictor: str | None) -> PolicyConfig:
    inner = f"{Fickle.__module__}:{Fickle.__qualname__}"
    tracked = {"inner": inner, "window": 64, "least_answers": 32}
    spec = PredictorSpec(name="tracked", params=tracked)
    return PolicyConfig(
        policy=PolicySpec(name="shortest-first"), predictor=spec if predictor else None
    )


def requests() -> list[WorkloadRequest]:
    """One at a time, long enough to be believed, then a burst; good, bad, and good again."""
    rng = np.random.default_rng(1)
    found: list[WorkloadRequest] = []
    now_s = 0.0
    for name, count in zip(BURSTS, (100, 160, 200), strict=True):
        for i in range(count):
            tokens = max(round(math.exp(rng.normal(math.log(30.0), 0.7))), 1)
            found.append(request(f"{name}-{i}", 10, tokens, now_s, max_tokens=1000))
            now_s += tokens + 5.0
        # Holds the seat until all of the burst are there, and predicted.
        found.append(request(f"{name}-plug", 10, 10, now_s, max_tokens=1000))
        for i in range(BURST):
            prompt, tokens = rng.integers(10, 60, 2).tolist()
            burst = request(f"{name}-burst-{i}", prompt, tokens, now_s + 1.0, max_tokens=1000)
            found.append(burst)
        now_s += 2000.0
    return found


def orders(served: Served) -> list[list[str]]:
    """Ids of each burst as they started."""
    started = served.of("first_scheduled_s")
    return [
        sorted((i for i in started if i.startswith(f"{name}-burst")), key=lambda i: started[i])
        for name in BURSTS
    ]


def by_prediction(served: Served, name: str) -> list[str]:
    """A burst by prompt and predicted output, which is what the policy goes by."""
    rows = [r for r in served.workload.requests if r.id.startswith(f"{name}-burst")]
    batch = Arrivals(
        [r.id for r in rows],
        np.array([r.prompt_tokens for r in rows]),
        np.array([r.max_tokens for r in rows]),
        [""] * len(rows),
        np.array([r.output_tokens for r in rows]),
    )
    work = batch.prompt_tokens + Fickle().predict(batch).quantile(0.5)
    return [rows[i].id for i in np.argsort(work, kind="stable")]


def test_the_order_is_that_without_predictions_while_the_predictor_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        with_it = Served(*requests(), config=config("fickle"), max_num_seqs=1)
    without = Served(*requests(), config=config(None), max_num_seqs=1)
    good, failed, again = orders(with_it)
    assert good == by_prediction(with_it, BURSTS[0])
    assert failed == orders(without)[1]
    assert failed != by_prediction(with_it, BURSTS[1])
    assert good != orders(without)[0]
    # Of 64 answers, some more or less within a quantile cost it a little of its say.
    expected = by_prediction(with_it, BURSTS[2])
    places = np.array([expected.index(i) for i in again])
    assert kendall_tau(places, np.arange(BURST)) > 0.8
    counters = with_it.run.counters
    assert counters["predictor_fallbacks"] == 1
    assert counters["predictor_recoveries"] == 1
    # The burst, its plug, and whoever came between.
    assert counters["predictor_silent"] > BURST
    said = [record.getMessage() for record in caplog.records]
    assert ["nothing is said for priority 0" in one for one in said] == [True, False]
    assert "is followed again for priority 0" in said[1]


def test_two_replays_of_it_are_equal() -> None:
    one, two = (Served(*requests()[:112], config=config("fickle"), max_num_seqs=2) for _ in "ab")
    assert one.plans == two.plans
    assert [step.start_s for step in one.steps] == [step.start_s for step in two.steps]
