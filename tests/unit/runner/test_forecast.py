from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from batchpolicy.config import Bounds, Memory, PolicyConfig, PolicySpec, PredictorSpec
from batchpolicy.errors import ConfigError
from batchpolicy.predictor import LEVELS, Arrivals, LengthDist, Predictor
from batchpolicy.requests import Requests, Status
from batchpolicy.runner import EngineFacts, PolicyRunner
from batchpolicy.runner.clearance import CLEAR_STEPS
from batchpolicy.runner.forecast import Forecast
from batchpolicy.runner.peak import PATH_LEVELS
from batchpolicy.runner.table import RequestTable
from batchpolicy.runner.triage import FRESH_STEPS
from batchpolicy_predictors.plain import Constant
from tests.support.policies import Arrival
from tests.support.rig import Rig
from tests.unit.sim.light import Served, request


def spec(cls: type[Predictor] | str, **params: Any) -> PredictorSpec:
    name = cls if isinstance(cls, str) else f"{cls.__module__}:{cls.__qualname__}"
    return PredictorSpec(name=name, params=params)


def rig(predictor: PredictorSpec | None, memory: Memory | None = None, **facts: Any) -> Rig:
    parts = {"predictor": predictor, "memory": memory or Memory()}
    return Rig(Arrival(), parts=parts, **facts)


class AtOnce(Predictor):
    """Takes no time."""

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 0.0


HEARD: list[tuple[str, int]] = []


class Spread(AtOnce):
    """Uniform up to 100 tokens, and hears how long answers became."""

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist(np.repeat(np.maximum(100.0 * LEVELS, 1.0)[None, :], len(batch), axis=0))

    @override
    def observe(self, batch: Arrivals, output_tokens: Any) -> None:
        HEARD.extend(zip(batch.request_id, output_tokens.tolist(), strict=True))


class Fails(AtOnce):
    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        raise RuntimeError("no model")


class Nonsense(AtOnce):
    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        return LengthDist(np.repeat([[1.0] * 8 + [np.nan]], len(batch), axis=0))


def test_predictions_reach_the_tables_with_the_next_tick_and_no_sooner() -> None:
    made = rig(spec(Spread))
    made.arrive("a")
    row = made.runner._ledger.table.view()
    assert np.isnan(row.predicted_output_tokens[0])
    tick = made.runner.tick()
    assert tick.predictions is not None
    assert tick.predictions.ids == ["a"]
    made.runner.begin(tick)
    row = made.runner._ledger.table.view()
    # Rig lets answers have 50 tokens at most.
    assert row.predicted_output_tokens.tolist() == [50.0]
    assert row.output_quantiles.shape == (1, 9)
    assert row.output_quantiles[0, :3].tolist() == [5.0, 10.0, 25.0]
    assert made.runner.tick().predictions is None


def test_a_request_that_says_its_length_itself_is_not_asked_about() -> None:
    made = rig(spec(Spread))
    made.arrive("a", predicted_output_tokens=7.0)
    assert made.runner.tick().predictions is None
    assert made.runner._ledger.table.view().predicted_output_tokens.tolist() == [7.0]


def test_a_follower_with_the_same_ticks_has_the_same_tables() -> None:
    leader, follower = rig(spec(Spread)), rig(spec(Spread))
    for made in (leader, follower):
        made.arrive("a", "b")
    tick = leader.runner.tick()
    leader.runner.begin(tick)
    follower.runner.begin(tick)
    one, two = (made.runner._ledger.table.view() for made in (leader, follower))
    assert np.array_equal(one.output_quantiles, two.output_quantiles)


def test_predictions_follow_what_is_out_once_admission_looks() -> None:
    made = rig(spec(Constant, output_tokens=20), total_kv_blocks=10)
    made.running("a", prompt=20)
    for _ in range(24):
        made.plan(blocks=5)
        made.decode("a")
    made.arrive("b", prompt=40)
    made.plan(blocks=5)
    made.plan(blocks=5)
    row = made.runner._ledger.table.view()
    # It outlived the 20 that were predicted: twice its 25 tokens, which is the ceiling too.
    assert row.predicted_output_tokens.tolist() == [50.0, 20.0]


def predicted(made: Rig) -> float:
    """What is predicted of the running request by now."""
    return float(made.runner._ledger.table.view().predicted_output_tokens[0])


def test_predictions_of_running_rows_are_not_worked_out_anew_by_each_plan() -> None:
    made = rig(spec(Constant, output_tokens=5), total_kv_blocks=100)
    made.running("a", prompt=20)
    seen: list[float] = []
    for k in range(FRESH_STEPS):
        made.decode("a")
        # Somebody waits, whom the engine does not take.
        made.arrive(f"b{k}")
        made.plan()
        seen.append(predicted(made))
    # It has outlived the 5, so that twice its tokens are expected: one at first, one each step.
    assert seen == [5.0] * (FRESH_STEPS - 1) + [2.0 * (1 + FRESH_STEPS)]


def test_they_are_where_victims_are_sought() -> None:
    made = rig(spec(Constant, output_tokens=5), total_kv_blocks=100)
    made.running("a", prompt=20)
    for _ in range(10):
        made.decode("a")
    made.arrive("b")
    made.plan()
    made.decode("a")
    assert predicted(made) == 5.0
    made.arrive("urgent", priority=-1)
    made.plan(seats=0)
    assert predicted(made) == 2.0 * 12


def test_whole_answers_are_told_to_the_predictor_and_cancelled_ones_are_not() -> None:
    HEARD.clear()
    made = rig(spec(Spread))
    made.running("a", "b", "c")
    made.decode("a", "b", "c")
    made.runner.finished("a", Status.FINISHED)
    made.runner.finished("b", Status.ABORTED)
    made.runner.tick()
    assert HEARD == [("a", 2)]


@pytest.mark.parametrize("broken", [Fails, Nonsense])
def test_a_predictor_that_fails_is_counted_and_logged_once_and_requests_go_without(
    broken: type[Predictor], caplog: pytest.LogCaptureFixture
) -> None:
    config = PolicyConfig(
        policy=PolicySpec(name="fcfs"), preempt="never", memory=Memory(), predictor=spec(broken)
    )
    engine = EngineFacts(
        max_running=4,
        max_token_budget=100,
        total_kv_blocks=10,
        kv_block_tokens=10,
        clock=lambda: 0.0,
    )
    runner = PolicyRunner(config, engine)
    from batchpolicy.runner import RequestFacts

    with caplog.at_level(logging.ERROR):
        for name in "ab":
            runner.arrived(name, RequestFacts(prompt_tokens=10, max_tokens=10))
            runner.begin(runner.tick())
            assert name in runner.plan(10, 4).admit
    assert runner.counters["predictor_faults"] == 2
    assert len(caplog.records) == 1


def test_who_knows_the_truth_is_refused_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match=r"'oracle' knows the true lengths.*only replays have"):
        rig(spec("oracle"))


def test_evictions_raise_the_safety_and_are_counted() -> None:
    made = rig(None)
    made.running("a", "b")
    made.plan(blocks=5)
    made.runner.scheduled({"a": 1}, {}, ["b"])
    made.runner.produced({"a": 1}, {}, 0.5)
    assert made.counters["short_of_kv"] == 1
    made.plan()
    made.start("b", tokens=11)
    made.runner.finished("b", Status.FINISHED)
    # 1.282 for the quantile of 0.9, and 0.099 for the eviction.
    assert made.counters["safety_milli"] == 1381


LENGTHS = st.tuples(st.integers(1, 40), st.integers(1, 40))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(LENGTHS, min_size=2, max_size=30),
    st.integers(6, 24),
    st.sampled_from([1, 4]),
    st.sampled_from(["oracle", "max-tokens"]),
    st.integers(0, 10),
    st.integers(8, 64),
)
def test_where_no_answer_is_longer_than_assumed_nobody_is_ever_evicted(
    lengths: list[tuple[int, int]], blocks: int, size: int, name: str, slack: int, budget: int
) -> None:
    most = blocks * size
    fitting = [(p, o) for p, o in lengths if p + o + slack + size <= most]
    if not fitting:
        return
    config = PolicyConfig(
        policy=PolicySpec(name="fcfs"),
        preempt="never",
        bounds=Bounds(max_bypass_s=1.0),
        memory=Memory(),
        predictor=spec(name),
    )
    served = Served(
        *[
            request(f"r{i}", p, o, 0.3 * (i // 2), max_tokens=o + slack)
            for i, (p, o) in enumerate(fitting)
        ],
        config=config,
        kv_blocks=blocks,
        kv_block_tokens=size,
        max_num_batched_tokens=budget,
    )
    assert int(served.run.preemptions.sum()) == 0
    assert (served.run.status == Status.FINISHED).all()


def forecast_of(blocks: int) -> tuple[Forecast, RequestTable, EngineFacts]:
    table = RequestTable()
    engine = EngineFacts(
        max_running=8,
        max_token_budget=512,
        total_kv_blocks=blocks,
        kv_block_tokens=16,
        clock=float,
    )
    memory = Memory(first_guess_tokens=100)
    return Forecast(table, memory, Counter(), "nothing"), table, engine


def test_kv_that_abounds_is_not_worked_out_again_for_a_while_and_then_it_is() -> None:
    forecast, table, engine = forecast_of(1000)
    slots = [table.add(f"r{i}", prompt_tokens=16, max_tokens=10**6) for i in range(3)]
    running, best = table.rows(np.array(slots[:2])), table.rows(np.array(slots[2:]))
    looks: list[int] = []
    look_at = forecast._look_at
    forecast._look_at = lambda *rows: looks.append(rows[-1]) or look_at(*rows)  # type: ignore[assignment,func-returns-value]
    for index in range(CLEAR_STEPS + 1):
        assert forecast.peak(running, best, 900, engine, index) is None
    assert looks == [0, CLEAR_STEPS]
    # As soon as the blocks could be too few it is, whenever it was last.
    assert forecast.peak(running, best, 4, engine, CLEAR_STEPS + 1) is not None


def waiting(table: RequestTable, name: str, n: int = 20, **facts: float) -> Requests:
    told = {"prompt_tokens": 0, "max_tokens": 10**6, **facts}
    return table.rows(np.array([table.add(f"{name}{i}", **told) for i in range(n)]))


def test_candidates_of_one_step_after_another_are_all_counted_each_once() -> None:
    forecast, table, engine = forecast_of(1000)
    running = table.rows(np.array([table.add("r", prompt_tokens=16, max_tokens=10**6)]))
    # A hundred tokens at most each, by the first guess: 1,000 blocks take about 160 of them.
    assert forecast.peak(running, waiting(table, "0-"), 1000, engine, 0) is None
    clear = forecast._clear
    coming = clear.tokens
    for index in range(1, 7):
        best = waiting(table, f"{index}-")
        for _ in range(2):
            assert forecast.peak(running, best, 1000, engine, index) is None
            assert clear.tokens == pytest.approx(coming + 20 * index * clear.each)
    # None of them has started, which is seen when it is looked at again.
    assert forecast.peak(running, waiting(table, "7-"), 1000, engine, 7) is None
    assert clear.tokens == pytest.approx(coming)


def test_candidates_that_are_predicted_to_be_longer_than_any_are_looked_at() -> None:
    forecast, table, engine = forecast_of(1000)
    running = waiting(table, "r", 1, predicted_output_tokens=40.0, prompt_tokens=16)
    nobody = running.take(np.empty(0, np.intp))
    assert forecast.peak(running, nobody, 1000, engine, 0) is None
    clear = forecast._clear
    assert clear.each == 100.0  # the first guess, of one that is not predicted
    coming = clear.tokens
    shorter = waiting(table, "a", 3, predicted_output_tokens=30.0)
    assert forecast.peak(running, shorter, 1000, engine, 1) is None
    assert clear.tokens == pytest.approx(coming + 3 * 100.0)
    longer = waiting(table, "b", 3, predicted_output_tokens=2000.0)
    assert forecast.peak(running, longer, 1000, engine, 2) is None
    assert clear.each == 2000.0
    assert clear.tokens == pytest.approx(coming + 3 * 2000.0)


def test_the_first_that_is_predicted_is_looked_at() -> None:
    forecast, table, engine = forecast_of(1000)
    running = table.rows(np.array([table.add("r", prompt_tokens=16, max_tokens=10**6)]))
    assert forecast.peak(running, waiting(table, "a"), 1000, engine, 0) is None
    coming = forecast._clear.tokens - 20 * 100.0
    first = waiting(table, "b", 3, predicted_output_tokens=1500.0)
    assert forecast.peak(running, first, 1000, engine, 1) is None
    assert forecast._clear.tokens == pytest.approx(coming + 3 * 1500.0)


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 3000)), min_size=1, max_size=12),
    st.integers(0, 100),
)
def test_no_candidate_counts_as_less_than_the_longest_of_its_lengths(
    sizes: list[tuple[int, int]], answers: int
) -> None:
    forecast, table, _ = forecast_of(10**6)
    rng = np.random.default_rng(len(sizes))
    for k in range(answers):
        slot = table.add(
            f"e{k}", max_tokens=10**6, predicted_output_tokens=float(rng.integers(1, 500)),
            output_tokens=int(rng.integers(1, 500)),
        )  # fmt: skip
        forecast.answered(slot)
        table.remove(f"e{k}")
    rows = [
        waiting(table, f"{i}-", 1, predicted_output_tokens=min(p, c), max_tokens=c)
        for i, (p, c) in enumerate(sizes)
    ]
    running = waiting(table, "r", 1, predicted_output_tokens=1000.0, prompt_tokens=16)
    forecast._history.look(running.output_tokens)
    forecast._look_at(running, running.take(np.empty(0, np.intp)), 0)
    for best in rows:
        before = forecast._clear.tokens
        if forecast._clear.still(best, 10**12, 1):
            longest = float(forecast.left(best, PATH_LEVELS[-1:])[0, 0])
            assert forecast._clear.tokens - before >= longest - 1e-9
