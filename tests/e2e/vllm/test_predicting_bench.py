from __future__ import annotations

import pytest

from batchpolicy.config import PredictorSpec, config_named
from batchpolicy_vllm.predicting import bench, sides
from batchpolicy_vllm.predicting.sides import FORWARD_S, SEATS, WAITING, Side, StepTime

pytestmark = pytest.mark.engine

CONSTANT = PredictorSpec(name="constant", params={"output_tokens": 300})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_answers_end_and_requests_come_in_each_step(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "FORWARD_S", 0.0)
    config = config_named("benefit").model_copy(update={"predictor": CONSTANT})
    side = Side(config, asynchronous=asynchronous)
    scheduler = side._scheduler  # pyright: ignore[reportPrivateUsage]
    before = set(scheduler.requests)
    if asynchronous:
        apart_s = side.overlapped(8, 5)
        assert len(apart_s) == 5
        # The device is never done before the host, which it waits for.
        assert min(apart_s) > 0.0
        steps = 7
    else:
        assert all(side.step(8).seconds > 0.0 for _ in range(5))
        steps = 5
    assert len(scheduler.requests) == SEATS + WAITING
    assert len(set(scheduler.requests) - before) == 8 * steps
    side.close()


def test_a_device_that_takes_longer_than_the_host_never_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s = 0.0

    def now_s() -> float:
        nonlocal clock_s
        clock_s += 1e-5
        return clock_s

    def sleep(seconds: float) -> None:
        nonlocal clock_s
        clock_s += seconds

    monkeypatch.setattr(sides.time, "perf_counter", now_s)
    monkeypatch.setattr(sides.time, "sleep", sleep)
    side = Side(config_named("fcfs"), asynchronous=True)
    assert side.overlapped(1, 4) == pytest.approx([FORWARD_S] * 4)


def test_a_gap_is_the_median_of_pairs_and_leaves_out_the_disturbed_where_asked() -> None:
    ours = [StepTime(0.002 + 1e-6 * k, False) for k in range(20)] + [StepTime(0.9, True)] * 19
    none = [StepTime(0.001, False)] * 39
    took = {"ours": ours, "none": none}
    everything, middle, _ = bench._gap(took, "ours", "none", alone=False)  # pyright: ignore[reportPrivateUsage]
    assert middle == pytest.approx(1019.0)
    assert everything.startswith("+1019 ± ")
    _, middle, _ = bench._gap(took, "ours", "none", alone=True)  # pyright: ignore[reportPrivateUsage]
    assert middle == pytest.approx(1009.5)


def test_steps_that_the_device_waited_for_are_late() -> None:
    row = bench._apart_row("ours", 1, [FORWARD_S] * 9 + [2 * FORWARD_S])  # pyright: ignore[reportPrivateUsage]
    assert row[:3] == ("ours", "1", "5.500")
    assert row[4] == "10.0%"
    found = bench._apart("ours", 1, {"ours": [0.006], "none": [0.005]})  # pyright: ignore[reportPrivateUsage]
    assert not found.met
