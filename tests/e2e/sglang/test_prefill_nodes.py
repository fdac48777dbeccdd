"""SGLang's own loop of a server that only prefills: who starts, what is counted, how all ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.engine import EngineLimits
from batchpolicy.requests import Status
from batchpolicy_sglang.prefill_driver import PrefillDriver
from batchpolicy_sglang.seams import prefill as seam
from batchpolicy_sglang.seams import upstream
from batchpolicy_sglang.seams.batches import is_told
from tests.support.sglang_replays import plain, seeds

if not all(hasattr(upstream.scheduler().Scheduler, name) for name in seam.NEEDS):
    pytest.skip("such servers are refused before 0.5.22", allow_module_level=True)

from tests.support.sglang_prefills import FAILED, Node, Sender, node, room_of

pytestmark = pytest.mark.engine

LIMITS = EngineLimits(max_num_seqs=2, max_num_batched_tokens=128, kv_blocks=64, max_model_len=512)
PRIORITY = "policy: {name: priority}\npreempt: class\n"
BOTH_LOOPS = pytest.mark.parametrize("overlap", [False, True])


@contextmanager
def served(
    folder: Path, said: str = PRIORITY, *, limits: EngineLimits = LIMITS, **arguments: Any
) -> Iterator[tuple[Node, dict[str, Status]]]:
    """A node under a policy, and how its requests end."""
    file = folder / "policy.yaml"
    file.write_text(f"apiVersion: batchpolicy/v1\nkind: Policy\n{said}", "utf-8")
    with node(limits, file, **arguments) as found:
        ends: dict[str, Status] = {}
        ended = found.driver.ended

        def noting(rid: str, status: Status) -> None:
            assert rid not in ends
            ends[rid] = status
            ended(rid, status)

        found.driver.ended = noting  # type: ignore[method-assign]
        yield found, ends
        assert "adapter_faults" not in found.counters


@BOTH_LOOPS
def test_the_policy_says_whose_prompt_is_computed_and_only_the_prompt_counts(
    overlap: bool, tmp_path: Path
) -> None:
    limits = replace(LIMITS, async_scheduling=overlap)
    with served(tmp_path, limits=limits) as (found, ends):
        # Each fills a step, and could put out more than there is KV for: 1,024 tokens.
        came = [plain(f"p{p}", 0.0, 128, 5000, priority=p) for p in (3, -1, 9, 0)]
        found.serve(came, more=20)
        assert [list(step) for step in found.batches] == [["p-1"], ["p0"], ["p3"], ["p9"]]
        assert set(ends.values()) == {Status.FINISHED} and len(ends) == 4
        assert found.holds_nothing()


def test_a_policy_is_told_what_kind_of_server_it_is_in(tmp_path: Path) -> None:
    said = "policy: benefit\npredictor: {name: tenant-history}\nlimits: {tpot_target_s: 0.01}\n"
    with served(tmp_path, said) as (found, _):
        runner = found.driver.runner
        assert runner.engine.role == "prefill"
        assert runner.engine.capabilities == {"prefix"}
        # What is expected of an answer is of no use here, nor is what answers can spare.
        assert runner._foresight is None
        assert runner._limits.controller is None
        said_500 = plain("a", 0.0, 10, 5000, predicted_output_tokens=500.0)
        Sender.slow.add(room_of("a"))
        found.serve([said_500], more=3)
        columns = runner._ledger.view(runner._ledger.running)
        assert columns.remaining_output_tokens.tolist() == [1.0]
        found.serve([Sender.slow.clear], more=3)
        assert found.holds_nothing()


def test_checks_of_health_go_first_and_are_not_the_policys(tmp_path: Path) -> None:
    with served(tmp_path, PRIORITY + "queue: {max_waiting: 1}\n") as (found, _):
        came = [plain("a", 0.0, 128, 1, priority=-9), plain("HEALTH_CHECK_1", 0.0, 16, 1)]
        found.serve(came, more=6)
        assert next(iter(found.batches[0])) == "HEALTH_CHECK_1"
        assert found.counters["admitted"] == 1
        assert found.holds_nothing()


@BOTH_LOOPS
def test_a_fault_of_ours_costs_the_order_and_nothing_else(overlap: bool, tmp_path: Path) -> None:
    limits = replace(LIMITS, async_scheduling=overlap)
    file = tmp_path / "policy.yaml"
    file.write_text(f"apiVersion: batchpolicy/v1\nkind: Policy\n{PRIORITY}", "utf-8")
    with node(limits, file) as found:
        look, looks = found.driver._look, iter(range(9))

        def looking() -> None:
            look()
            # When one runs, two wait and one is midway.
            if next(looks) == 2:
                raise RuntimeError("a fault of ours")

        found.driver._look = looking  # type: ignore[method-assign]
        came = [plain(f"p{p}", 0.0, 128, 1, priority=p) for p in (3, 2, 1)]
        found.serve([plain("long", 0.0, 200, 1)], came, more=20)
        assert found.driver.runner.counters["adapter_faults"] == 1
        assert {rid for step in found.batches for rid in step} == {"long", "p1", "p2", "p3"}
        assert found.queues() == ([], [], [])
        assert found.scheduler.req_to_token_pool.available_size() == 2


@BOTH_LOOPS
def test_a_prompt_of_several_steps_and_one_that_passes_it(overlap: bool, tmp_path: Path) -> None:
    # Before 0.5.23 SGLang keeps a seat free beside a prompt that is midway.
    limits = replace(LIMITS, max_num_seqs=3, async_scheduling=overlap)
    with served(tmp_path, limits=limits) as (found, ends):
        found.serve(
            [plain("long", 0.0, 300, 1)], [plain("short", 0.0, 20, 1, priority=-1)], more=9
        )
        # The short one is more urgent, so that the long one gives way: 6 pages instead of 8.
        computed = [step.get("long", 0) for step in found.batches]
        assert sum(computed) == 300
        assert [set(step) for step in found.batches[:2]] == [{"long"}, {"long", "short"}]
        assert set(ends) == {"long", "short"}
        assert found.holds_nothing()


@BOTH_LOOPS
def test_a_prompt_gives_way_only_to_one_that_sglang_lets_start(
    overlap: bool, tmp_path: Path
) -> None:
    limits = replace(LIMITS, async_scheduling=overlap)
    with served(tmp_path, limits=limits) as (found, ends):
        found.serve(
            [plain("long", 0.0, 300, 1)], [plain("short", 0.0, 20, 1, priority=-1)], more=9
        )
        # Two seats, and before 0.5.23 none of them while a prompt is midway.
        rest = {"long": 96, "short": 20} if seats_count_once(found) else {"long": 128}
        assert found.batches[:2] == [{"long": 128}, rest]
        assert sum(step.get("long", 0) for step in found.batches) == 300
        assert found.counters["admitted"] == 2
        assert set(ends) == {"long", "short"}
        assert found.holds_nothing()


def seats_count_once(found: Node) -> bool:
    """Whether SGLang knows that a prompt that is midway has a seat."""
    return is_told(found.scheduler, "get_num_allocatable_reqs", "num_held_rows")


def test_whoever_has_no_other_end_yet_is_not_waiting(tmp_path: Path) -> None:
    with served(tmp_path) as (found, ends):
        Sender.late.add(room_of("late"))
        seen: list[Any] = []
        found.serve(
            [plain("late", 0.0, 10, 1, priority=-9), plain("there", 0.0, 10, 1)],
            [lambda: seen.append((found.queues(), found.known()))],
            [Sender.late.clear],
            more=6,
        )
        assert seen[0][0][0] == ["late"]
        assert "late" not in seen[0][1][0] + seen[0][1][1]
        assert [list(step) for step in found.batches] == [["there"], ["late"]]
        assert set(ends) == {"late", "there"}
        assert found.holds_nothing()


@BOTH_LOOPS
def test_kv_that_is_being_sent_is_not_free_and_its_request_runs_on(
    overlap: bool, tmp_path: Path
) -> None:
    # Room for one of the two: 40 pages each, of 64.
    limits = replace(LIMITS, max_num_batched_tokens=1024, max_num_seqs=4, async_scheduling=overlap)
    limits = replace(limits, max_model_len=1000)
    with served(tmp_path, limits=limits) as (found, ends):
        Sender.slow.add(room_of("first"))
        seen: list[Any] = []
        found.serve(
            [plain("first", 0.0, 640, 1)],
            [plain("second", 0.0, 640, 1), plain("small", 0.0, 16, 1, priority=5)],
            [],
            [],
            [],
            [lambda: seen.append((found.queues(), found.known()))],
            [Sender.slow.clear],
            more=9,
        )
        # Passed by one that is less urgent and fits.
        assert [list(step) for step in found.batches] == [["first"], ["small"], ["second"]]
        assert seen == [(([], ["second"], ["first"]), (["second"], ["first"]))]
        assert set(ends.values()) == {Status.FINISHED} and len(ends) == 3
        assert found.holds_nothing()


def test_limits_on_requests_count_those_whose_kv_is_being_sent(tmp_path: Path) -> None:
    limits = replace(LIMITS, max_num_seqs=4)
    with served(tmp_path, PRIORITY + "limits: {max_num_seqs: 1}\n", limits=limits) as (found, _):
        Sender.slow.add(room_of("a"))
        found.serve([plain("a", 0.0, 10, 1), plain("b", 0.0, 10, 1)], more=5)
        assert [list(step) for step in found.batches] == [["a"]]
        found.serve([Sender.slow.clear], more=5)
        assert [list(step) for step in found.batches] == [["a"], ["b"]]
        assert found.holds_nothing()


def test_who_is_too_much_is_refused_and_its_other_end_is_told(tmp_path: Path) -> None:
    with served(tmp_path, PRIORITY + "queue: {max_waiting: 1}\n") as (found, ends):
        Sender.slow.update((room_of("a"), room_of("b")))
        refused: list[Any] = []
        release = found.scheduler.release_aborted_prefill_waiting_req
        found.scheduler.release_aborted_prefill_waiting_req = lambda req: (
            refused.append(req),
            release(req),
        )
        first = [plain("a", 0.0, 10, 1), plain("b", 0.0, 10, 1)]
        came = [plain("c", 0.0, 10, 1, priority=2), plain("d", 0.0, 10, 1, priority=1)]
        found.serve(first, came, more=3)
        (told,) = found.told
        assert told.rid == "c"
        assert told.finished_reason["status_code"] == 503
        assert told.finished_reason["message"] == "batchpolicy: refused: 1 may wait"
        assert [req.disagg_kv_sender.poll() for req in refused] == [FAILED]
        assert found.known() == (["d"], ["a", "b"])
        found.serve([Sender.slow.clear], more=6)
        assert [set(step) for step in found.batches] == [{"a", "b"}, {"d"}]
        assert found.counters["refused"] == 1
        assert set(ends) == {"a", "b", "d"}
        assert found.holds_nothing()


def test_who_waits_too_long_expires(tmp_path: Path) -> None:
    limits = replace(LIMITS, max_num_seqs=1)
    with served(tmp_path, limits=limits) as (found, _):
        Sender.slow.add(room_of("a"))
        found.serve([plain("a", 0.0, 10, 1)], [plain("b", 0.0, 10, 1, queue_ttl_s=1e-5)], more=4)
        assert [told.rid for told in found.told] == ["b"]
        assert "expired: it waited longer" in found.told[0].finished_reason["message"]
        found.serve([Sender.slow.clear], more=4)
        assert found.holds_nothing()


@BOTH_LOOPS
@pytest.mark.parametrize("how", ["abort", "lost"])
@pytest.mark.parametrize("where", ["bootstrap", "waiting", "midway", "sending"])
def test_a_request_that_ends_early_is_known_to_nobody(
    how: str, where: str, overlap: bool, tmp_path: Path
) -> None:
    limits = replace(LIMITS, max_num_seqs=1, async_scheduling=overlap)
    with served(tmp_path, limits=limits) as (found, ends):
        x = plain("x", 0.0, 400 if where == "midway" else 20, 1)
        first: list[Any] = [[x], [], []]
        if where == "bootstrap":
            Sender.late.add(room_of("x"))
        if where == "waiting":
            Sender.slow.add(room_of("y"))
            first = [[plain("y", 0.0, 10, 1)], [x], [], []]
        if where == "midway":
            first = [[x], []]
        if where == "sending":
            Sender.slow.add(room_of("x"))
        lose = partial(Sender.lost.add, room_of("x"))
        ending = partial(found.abort, "x") if how == "abort" else lose
        found.serve(*first, [ending], [], [], [Sender.late.clear, Sender.slow.clear], more=6)
        others = {"y": Status.FINISHED} if where == "waiting" else {}
        # Before its other end is ready, nobody has heard of it.
        known = {} if where == "bootstrap" else {"x": Status.ABORTED}
        assert ends == others | known
        assert found.holds_nothing()


@BOTH_LOOPS
def test_a_prompt_computed_before_its_other_end_is_ready_is_sent_later(
    overlap: bool, tmp_path: Path
) -> None:
    limits = replace(LIMITS, async_scheduling=overlap)
    with served(tmp_path, limits=limits, optimistic_prefill_attempts=1) as (found, ends):
        Sender.late.add(room_of("x"))
        found.serve([plain("x", 0.0, 20, 1)], more=4)
        assert found.queues() == ([], [], ["x"])
        assert found.known() == ([], ["x"])
        found.serve([Sender.late.clear], more=4)
        assert found.batches == [{"x": 20}]
        assert ends == {"x": Status.FINISHED}
        assert found.holds_nothing()


@BOTH_LOOPS
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_prompt_in_vain_waits_again_and_keeps_its_arrival(
    attempts: int, overlap: bool, tmp_path: Path
) -> None:
    limits = replace(LIMITS, max_num_seqs=1, async_scheduling=overlap)
    with served(tmp_path, limits=limits, optimistic_prefill_attempts=attempts) as (found, ends):
        Sender.late.add(room_of("x"))
        table = found.driver.runner._ledger.table
        lost: list[int] = []

        def look() -> None:
            slot = table.slots["x"]
            lost.append(int(table.columns["preemptions"][slot]))
            assert table.columns["seq"][slot] == 0

        # Takes the only row, which the other needs to start.
        come = [[plain("x", 0.0, 20, 1)], [], [plain("y", 0.0, 20, 1)], [], [], [], [], [look]]
        found.serve(*come, [Sender.late.clear], more=12)
        assert lost[0] >= 1
        assert ends == {"x": Status.FINISHED, "y": Status.FINISHED}
        assert found.batches[0] == {"x": 20}
        assert found.holds_nothing()


@BOTH_LOOPS
@pytest.mark.parametrize("seed", seeds(6))
def test_the_runner_knows_what_is_there_whatever_happens(
    seed: int, overlap: bool, tmp_path: Path
) -> None:
    drawn = random.Random(seed)
    limits = replace(LIMITS, max_num_seqs=4, async_scheduling=overlap, prefix_cache=seed % 2 > 0)
    said = "policy: benefit\nqueue: {max_waiting: 3}\n"
    with served(tmp_path, said, limits=limits, optimistic_prefill_attempts=seed % 3) as (found, _):
        holds_after_each_look(found.driver, found.scheduler)
        ids = [f"r{i}" for i in range(40)]
        turns: list[list[Any]] = []
        for i, rid in enumerate(ids):
            prompt = drawn.choice((5, 20, 90, 200, 400))
            turn: list[Any] = [plain(rid, 0.0, prompt, 50, priority=drawn.randrange(3))]
            room = room_of(rid)
            for rooms, chance in ((Sender.late, 0.3), (Sender.slow, 0.4)):
                if drawn.random() < chance:
                    turn.insert(0, partial(rooms.add, room))
            for back in range(1, 6):
                other = room_of(ids[max(i - back, 0)])
                turn.append(partial(Sender.late.discard, other))
                if drawn.random() < 0.5:
                    turn.append(partial(Sender.slow.discard, other))
            if drawn.random() < 0.2:
                turn.append(partial(found.abort, ids[drawn.randrange(i + 1)]))
            if drawn.random() < 0.1:
                turn.append(partial(Sender.lost.add, room_of(ids[drawn.randrange(i + 1)])))
            turns += [turn, *([] for _ in range(drawn.randrange(3)))]
        found.serve(*turns, [Sender.late.clear, Sender.slow.clear], more=40)
        assert len(found.batches) > 10
        assert found.holds_nothing()


def holds_after_each_look(driver: PrefillDriver, scheduler: Any) -> None:
    """After each look the runner has the requests that SGLang has, each where it is."""
    look = driver._look

    def looking() -> None:
        look()
        waiting = {req.rid for req in scheduler.waiting_queue}
        busy = set(seam.busy(scheduler)) - waiting
        ledger = driver.runner._ledger
        assert set(ledger.view(ledger.waiting).request_id) == waiting
        assert set(ledger.view(ledger.running).request_id) == busy
        # Who is asked for anew where it is decoded cannot start.
        parked = set(ledger.view(ledger.blocked).request_id)
        assert parked <= set(seam.bootstrapping(scheduler))
        assert list(driver._waiting) == [req.rid for req in scheduler.waiting_queue]

    driver._look = looking  # type: ignore[method-assign]
