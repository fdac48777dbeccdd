"""Predictions on their way to the tables: on a thread in servers, at a stated cost in replays."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from batchpolicy.config import Memory, PredictorSpec
from batchpolicy.predictor import Arrivals, LengthDist, Predictor
from batchpolicy.requests import Status
from batchpolicy.runner import Plan, RequestFacts
from batchpolicy.runner.asking import Asked, Asker, Question
from batchpolicy.runner.facts import Predictions, Tick
from batchpolicy.runner.on_thread import Mailbox, OnThread
from tests.support.policies import Arrival
from tests.support.rig import Rig
from tests.support.staged import LONG_S, STAGE, Waits


@pytest.fixture(autouse=True)
def _stage() -> Iterator[None]:
    STAGE.reset()
    yield
    STAGE.let_go()


class Odd(Waits):
    """Cannot count, nor say what it costs."""

    @override
    def counts(self) -> Any:
        return {"calls": "many"}

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return float("nan")


class Leaves(Waits):
    """Ends with whatever it is asked about by name."""

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        raise KeyboardInterrupt if batch.request_id == ["ctrl-c"] else SystemExit(3)


def asked(*names: str) -> list[Asked]:
    facts = RequestFacts(prompt_tokens=10, max_tokens=50)
    return [Asked(name, seq, -1, facts) for seq, name in enumerate(names)]


def desk(**most: int) -> OnThread:
    return OnThread(Asker(Waits(), 0.9), **most)


def ask(made: OnThread, ended: list[tuple[Asked, int]], new: list[Asked]) -> int:
    """Leave a question, and let it be answered; how many are dropped."""
    made.ask(Question(ended, new), 0.0)
    return made.begin()


def step(made: Rig) -> Plan:
    """Plan a step, and let the engine compute it."""
    plan = made.plan()
    foresight = made.runner._foresight
    assert foresight is not None
    foresight.begin()
    return plan


def joined(made: OnThread) -> None:
    """Close it and wait until its thread has ended."""
    thread = made._thread
    made.close()
    assert thread is not None
    thread.join(LONG_S)
    assert not thread.is_alive()


def rig(cls: type[Predictor] = Waits, *, strict: bool = False, **facts: Any) -> Rig:
    spec = PredictorSpec(name=f"{cls.__module__}:{cls.__qualname__}")
    made = Rig(Arrival(), parts={"predictor": spec, "memory": Memory()}, **facts)
    foresight = made.runner._foresight
    assert foresight is not None
    foresight._strict = strict
    return made


def medians(made: Rig) -> list[float]:
    found: list[float] = made.runner._ledger.table.view().predicted_output_tokens.tolist()
    return found


def thread_of(made: Rig) -> threading.Thread:
    foresight = made.runner._foresight
    assert foresight is not None
    thread = foresight._desk._thread  # type: ignore[attr-defined]
    assert isinstance(thread, threading.Thread)
    return thread


# --- on a thread -------------------------------------------------------------------------


def test_what_comes_while_the_predictor_works_is_one_question() -> None:
    made = desk()
    ask(made, [], asked("a"))
    STAGE.wait()
    ask(made, [], asked("b"))
    ask(made, [(asked("a")[0], 5)], asked("c", "d"))
    assert made.answers(0.0) == []
    STAGE.go.release()
    STAGE.wait()
    (answer,) = made.answers(0.0)
    assert answer.said is not None
    assert answer.said.ids == ["a"]
    STAGE.go.release()
    joined(made)
    assert STAGE.calls() == [
        ("predict", ["a"]),
        ("observe", ["a"]),
        ("predict", ["b", "c", "d"]),
    ]
    threads = {thread for _, _, thread in STAGE.log}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_long_queue_is_answered_in_parts() -> None:
    made = desk(most_at_once=2)
    for _ in range(3):
        STAGE.go.release()
    ask(made, [], asked("a", "b", "c", "d", "e"))
    for _ in range(3):
        STAGE.wait()
    assert STAGE.calls() == [
        ("predict", ["a", "b"]),
        ("predict", ["c", "d"]),
        ("predict", ["e"]),
    ]


def test_of_a_predictor_that_hangs_nobody_waits_and_the_oldest_are_dropped() -> None:
    made = desk(most_left=3)
    assert ask(made, [], asked("a")) == 0
    STAGE.wait()
    assert ask(made, [], asked("b", "c", "d")) == 0
    assert ask(made, [], asked("e", "f")) == 2
    made.close()  # does not wait either
    assert ask(made, [], asked("g")) == 0
    STAGE.go.release()
    joined(made)
    assert STAGE.calls() == [("predict", ["a"])]


def test_of_those_that_are_left_the_latest_are_answered() -> None:
    made = desk(most_left=2)
    ask(made, [], asked("a"))
    STAGE.wait()
    assert ask(made, [], asked("b", "c", "d")) == 1
    STAGE.go.release()
    STAGE.wait()
    assert STAGE.calls()[1] == ("predict", ["c", "d"])


def test_the_thread_ends_with_its_owner() -> None:
    made = desk()
    STAGE.go.release()
    ask(made, [], asked("a"))
    thread = made._thread
    assert thread is not None
    assert thread.daemon
    del made
    gc.collect()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_it_ends_with_the_runner_and_is_not_started_without_requests() -> None:
    idle = rig(live=True)
    idle.plan()
    foresight = idle.runner._foresight
    assert foresight is not None
    assert foresight._desk._thread is None  # type: ignore[attr-defined]
    idle.runner.close()
    made = rig(live=True)
    made.arrive("a")
    step(made)
    STAGE.wait()
    STAGE.go.release()
    thread = thread_of(made)
    made.runner.close()
    thread.join(LONG_S)
    assert not thread.is_alive()
    made.arrive("b")
    step(made)  # nobody is asked, and nobody waits


def test_in_a_server_the_column_is_nan_until_a_tick_takes_what_is_ready() -> None:
    made = rig(live=True)
    made.arrive("a")
    assert step(made).admit == ["a"]
    STAGE.wait()
    step(made)
    assert np.isnan(medians(made)).all()
    STAGE.go.release()
    made.arrive("b")
    step(made)
    STAGE.wait()  # so that the first is answered
    step(made)
    assert medians(made)[0] == 7.0
    assert np.isnan(medians(made)[1])


def test_a_prediction_for_one_that_has_gone_is_not_for_the_next_of_its_name() -> None:
    made = rig(live=True)
    made.arrive("a", "b")
    step(made)
    STAGE.wait()
    made.runner.finished("a", Status.ABORTED)
    made.runner.finished("b", Status.ABORTED)
    made.arrive("a")
    STAGE.go.release()
    step(made)
    STAGE.wait()
    step(made)
    assert np.isnan(medians(made)).tolist() == [True]
    # Its own comes with the tick that finds it.
    STAGE.go.release()
    made.arrive("c")
    step(made)
    STAGE.wait()
    step(made)
    assert medians(made)[0] == 7.0


def test_faults_on_the_thread_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = rig(live=True)
    made.arrive("bad")
    step(made)
    STAGE.wait()
    STAGE.go.release()
    made.arrive("a")
    step(made)
    STAGE.wait()
    STAGE.go.release()
    thread = thread_of(made)
    made.runner.close()
    thread.join(LONG_S)
    with caplog.at_level(logging.ERROR):
        step(made)
    assert made.counters["predictor_faults"] == 1
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert np.isnan(medians(made)[0])
    assert medians(made)[1] == 7.0


def test_requests_that_a_slow_predictor_drops_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpolicy.runner.on_thread.OnThread.__init__.__kwdefaults__",
                        {"most_at_once": 64, "most_left": 1})  # fmt: skip
    made = rig(live=True)
    made.arrive("a")
    with caplog.at_level(logging.ERROR):
        step(made)
        STAGE.wait()
        for names in ("bcd", "ef"):
            made.arrive(*names)
            step(made)
    assert made.counters["predictor_dropped"] == 4
    assert len(caplog.records) == 1
    assert "too slow, or hangs" in caplog.text


def test_what_the_predictor_counts_joins_the_runners_counters() -> None:
    made = rig()
    made.arrive("a")
    STAGE.go.release()
    for _ in range(4):
        step(made)
    assert made.counters["predictor_calls"] == 1
    assert made.counters["predictor_turns"] == 2
    made.arrive("b")
    STAGE.go.release()
    for _ in range(4):
        step(made)
    assert made.counters["predictor_calls"] == 2
    assert made.counters["predictor_turns"] == 4


def test_what_is_known_of_a_request_reaches_the_predictor() -> None:
    made = rig(live=True)
    ids = [3, 1, 4]
    made.arrive("a", prompt_ids=ids, temperature=0.5, hour=7.5, session="s", tenant="t")
    made.arrive("b", session="s", priority=-3)
    made.arrive("c")
    step(made)
    STAGE.wait()
    (batch,) = STAGE.batches
    assert batch.priority is not None and batch.priority.tolist() == [0, -3, 0]
    assert batch.prompt_ids is not None
    assert batch.prompt_ids[0] is ids
    assert [list(one) for one in batch.prompt_ids[1:]] == [[], []]
    assert batch.tenant == ["t", "", ""]
    assert batch.turn is not None and batch.turn.tolist() == [0, 1, -1]
    assert batch.temperature is not None and batch.hour is not None
    assert batch.temperature[0] == 0.5 and np.isnan(batch.temperature[1:]).all()
    assert batch.hour[0] == 7.5 and np.isnan(batch.hour[1:]).all()
    assert batch.truth is None


class WouldWait(Exception):
    pass


class NobodyRings:
    """A bell on one thread, for which waiting would be for ever."""

    def empty(self) -> bool:
        return True

    def put(self, _: object) -> None: ...

    def get(self) -> None:
        raise WouldWait


def test_it_does_not_work_while_a_step_is_planned() -> None:
    made = desk(most_at_once=2)
    box = made._mailbox
    box._bell = NobodyRings()  # type: ignore[assignment]
    made._thread = threading.current_thread()
    made.ask(Question([], asked("a", "b", "c")), 0.0)
    with pytest.raises(WouldWait):
        box.get()
    made.begin()
    first, rest = box.get(), box.get()
    assert first is not None and rest is not None
    assert [len(first.new), len(rest.new)] == [2, 1]
    # What is asked from here on is told when the next step is planned.
    made.ask(Question([], asked("d")), 0.0)
    with pytest.raises(WouldWait):
        box.get()
    made.begin()
    assert box.get() == Question([], asked("d"))


def test_of_a_hanging_predictor_the_bell_is_rung_once() -> None:
    box = Mailbox(2, 10)
    for _ in range(1000):
        box.put(Question([], asked("a")))
    assert box._bell.qsize() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads are all alike")
def test_its_thread_takes_no_core_from_the_one_that_wakes_it() -> None:
    seen: list[int] = []

    class Looks(Waits):
        @override
        def counts(self) -> Mapping[str, int]:
            seen.append(os.sched_getscheduler(0))
            return {}

    before = os.sched_getscheduler(0)
    made = OnThread(Asker(Looks(), 0.9))
    STAGE.go.release()
    ask(made, [], asked("a"))
    STAGE.wait()
    ask(made, [], asked("b"))
    STAGE.wait()  # so that the first is answered
    assert seen == [os.SCHED_BATCH if before == os.SCHED_OTHER else before]
    assert os.sched_getscheduler(0) == before


def test_it_answers_where_threads_cannot_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "sched_getscheduler", refused, raising=False)
    desk = OnThread(Asker(Waits(), 0.9))
    desk.ask(Question([], asked("a")), 0.0)
    desk.begin()
    assert STAGE.entered.acquire(timeout=LONG_S)


def test_what_a_step_that_came_to_nothing_left_is_done_with_the_next_tick() -> None:
    made = rig(live=True)
    made.arrive("a")
    made.plan()
    made.plan()
    STAGE.wait()
    assert STAGE.calls() == [("predict", ["a"])]


# --- on the clock ------------------------------------------------------------------------


def test_in_a_replay_the_stated_cost_passes_before_predictions_arrive() -> None:
    made = rig()
    for _ in range(2):
        STAGE.go.release()
    made.arrive("a")
    made.plan()  # at 1 s, and ready at 3.5
    made.arrive("b")
    made.plan()  # at 2 s; the predictor is free at 3.5, and done at 6
    made.plan()
    assert np.isnan(medians(made)).tolist() == [True, True]
    made.plan()
    assert medians(made)[0] == 7.0
    made.plan()
    assert np.isnan(medians(made)[1])
    made.plan()
    assert medians(made) == [7.0, 7.0]
    assert {thread for _, _, thread in STAGE.log} == {threading.get_ident()}


def test_a_predictor_that_cannot_count_or_state_its_cost_is_at_fault() -> None:
    made = rig(Odd)
    STAGE.go.release()
    made.arrive("a")
    made.plan()
    assert made.counters["predictor_faults"] == 2
    assert medians(made) == [7.0]


# --- either way --------------------------------------------------------------------------


def test_where_nothing_is_said_the_column_stays_nan_and_it_is_counted() -> None:
    made = rig(strict=True)
    STAGE.go.release()
    made.arrive("sulks", "a", "b")
    for _ in range(4):
        made.plan()
    assert np.isnan(medians(made)).tolist() == [True, False, False]
    assert made.counters["predictor_silent"] == 1


def test_only_the_rank_that_makes_the_ticks_predicts() -> None:
    made = rig(leads=False)
    made.running("a")
    made.decode("a")
    made.runner.finished("a", Status.FINISHED)
    assert made.runner.tick().predictions is None
    assert STAGE.log == []
    foresight = made.runner._foresight
    assert foresight is not None
    assert not (foresight._new or foresight._open or foresight._ended)


@pytest.mark.parametrize("how", ["refused", "reconciled"])
def test_nothing_is_kept_of_requests_that_end_in_the_queue(how: str) -> None:
    made = rig()
    made.arrive("a", queue_ttl_s=0.5)
    STAGE.go.release()
    made.plan(seats=0)
    if how == "refused":
        assert [i for i, _ in made.plan(seats=0).refuse] == ["a"]
    else:
        made.runner.reconcile([], [])
    foresight = made.runner._foresight
    assert foresight is not None
    assert not foresight._open


def test_a_prediction_is_a_change_after_which_admission_is_tried_again() -> None:
    made = rig()
    STAGE.go.release()
    made.arrive("a")
    made.plan()
    before = made.runner._ledger.changes
    made.plan()
    assert made.runner._ledger.changes == before
    made.plan()
    made.plan()
    assert made.runner._ledger.changes == before + 1


def test_a_tick_keeps_what_an_earlier_one_brought() -> None:
    def tick(now_s: float, *names: str) -> Tick:
        n = len(names)
        told = Predictions(list(names), np.full((n, 9), now_s), np.full(n, now_s), np.arange(n))
        return Tick(now_s, told if n else None)

    assert tick(2.0).after(tick(1.0)) == Tick(2.0, None)
    for both in (tick(2.0).after(tick(1.0, "a")), tick(2.0, "a").after(tick(1.0))):
        assert both.now_s == 2.0
        assert both.predictions is not None
        assert both.predictions.ids == ["a"]
    told = tick(2.0, "b").after(tick(1.0, "a")).predictions
    assert told is not None
    assert told.ids == ["a", "b"]
    assert told.quantiles[:, 0].tolist() == [1.0, 2.0]
    assert told.high.tolist() == [1.0, 2.0]
    assert told.seq.tolist() == [0, 0]


def test_a_predictor_that_exits_is_at_fault_and_ctrl_c_is_none() -> None:
    answer = Asker(Leaves(), 0.9).answer(Question([], asked("a")))
    assert [type(fault) for fault in answer.faults] == [SystemExit]
    assert answer.said is None
    with pytest.raises(KeyboardInterrupt):
        Asker(Leaves(), 0.9).answer(Question([], asked("ctrl-c")))
