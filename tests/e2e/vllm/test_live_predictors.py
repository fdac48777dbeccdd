"""Predictors beside vLLM's scheduler as it is in a server: on a thread that no step waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from batchpolicy.config import PolicyConfig, PolicySpec, PredictorSpec
from batchpolicy_vllm import seams
from tests.support.staged import LONG_S, STAGE, Waits
from tests.support.vllm_bench import Bench
from tests.support.vllm_replays import AMPLE

pytestmark = pytest.mark.engine

CONFIG = PolicyConfig(
    policy=PolicySpec(name="shortest-first"),
    predictor=PredictorSpec(name=f"{Waits.__module__}:{Waits.__qualname__}"),
)
both = pytest.mark.parametrize(
    ("base", "in_flight"),
    [(seams.Scheduler, 1), (seams.AsyncScheduler, 2)],
    ids=["sync", "async"],
)


@pytest.fixture(autouse=True)
def _stage() -> Iterator[None]:
    STAGE.reset()
    yield
    STAGE.let_go()


def served(base: type = seams.Scheduler, in_flight: int = 1) -> Bench:
    return Bench(AMPLE, CONFIG, base=base, in_flight=in_flight, live=True)


def thread_of(bench: Bench) -> threading.Thread:
    thread = bench.driver.runner._foresight._desk._thread
    assert isinstance(thread, threading.Thread)
    return thread


@both
def test_a_predictor_that_hangs_holds_up_no_step_and_no_shutdown(
    base: type, in_flight: int
) -> None:
    bench = served(base, in_flight)
    bench.add("r0", prompt=20, output=3)
    bench.step()
    STAGE.wait()
    for i in range(1, 12):
        bench.add(f"r{i}", prompt=20, output=3 + i)
        bench.step()
    bench.abort("r11")
    bench.drain()
    assert len(bench.ended) == 11
    assert [what for what, _ in STAGE.calls()] == ["predict"]
    thread = thread_of(bench)
    bench.scheduler.shutdown()
    assert thread.is_alive(), "hangs, and keeps nobody from going on"
    assert thread.daemon
    STAGE.go.release()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert "adapter_faults" not in bench.counters


@both
def test_predictions_come_with_a_later_step_and_answers_are_told_in_order(
    base: type, in_flight: int
) -> None:
    bench = served(base, in_flight)
    bench.add("a", prompt=20, output=12, tenant="acme", session_id="talk")
    bench.step(2)
    STAGE.wait()
    bench.add("b", output=3)
    bench.step()
    assert np.isnan(bench.row("a").predicted_output_tokens[0])
    STAGE.go.release()
    STAGE.wait()
    bench.step()
    assert bench.row("a").output_quantiles.tolist() == [[7.0] * 9]
    assert np.isnan(bench.row("b").predicted_output_tokens[0])
    first = STAGE.batches[0]
    assert first.prompt_ids is not None
    assert first.prompt_ids[0] is bench.scheduler.requests["a"].prompt_token_ids
    assert first.tenant == ["acme"]
    assert first.turn is not None and first.turn.tolist() == [0]
    assert first.temperature is not None and first.temperature.tolist() == [0.0]
    assert first.hour is not None and 0.0 <= first.hour[0] < 24.0
    STAGE.go.release()
    bench.drain()
    bench.add("c")
    bench.step()
    STAGE.wait()
    told = [ids for what, ids in STAGE.calls() if what == "observe"]
    assert [i for ids in told for i in ids] == ["b", "a"]
    assert len({thread for _, _, thread in STAGE.log}) == 1
    assert bench.counters["predictor_calls"] >= 1


@both
def test_a_predictor_that_raises_is_counted_and_everything_is_served(
    base: type, in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = served(base, in_flight)
    STAGE.let_go()
    for name in ("bad", "a", "b"):
        bench.add(name, output=4)
        bench.step()
        STAGE.wait()  # what was asked before is answered
    bench.drain()
    assert len(bench.ended) == 3
    assert bench.counters["predictor_faults"] == 1
    assert [bool(record.exc_info) for record in caplog.records if "predictor" in record.msg] == [
        True
    ]
    assert "adapter_faults" not in bench.counters


def test_an_id_that_comes_again_waits_for_a_prediction_of_its_own() -> None:
    bench = served()
    bench.add("a", output=30)
    bench.step()
    STAGE.wait()
    bench.abort("a")
    bench.add("a", output=30)
    STAGE.go.release()
    bench.step()
    STAGE.wait()
    bench.step()
    assert np.isnan(bench.row("a").predicted_output_tokens[0])
    bench.add("b", output=30)
    STAGE.go.release()
    bench.step()
    STAGE.wait()
    bench.step()
    assert bench.row("a").output_quantiles[0, 0] == 7.0
