"""What the adapter needs of vLLM, missed by name; dry runs that leave no trace."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from batchpolicy.errors import ConfigError, EngineUnavailable
from batchpolicy.policy import Limits
from batchpolicy_vllm import PolicyScheduler, scheduler_class, seams
from batchpolicy_vllm.model import make_scheduler
from batchpolicy_vllm.seams import probes
from tests.support.vllm_bench import Bench, own_tokens
from tests.support.vllm_replays import BENEFIT, FCFS, STRICT_PRIORITY, TIGHT, engine_config

pytestmark = pytest.mark.engine

CACHED = replace(TIGHT, prefix_cache=True, max_num_batched_tokens=512)


def test_a_class_without_a_method_that_is_needed_is_refused_by_its_name() -> None:
    class Foreign:
        def schedule(self) -> None: ...
        def add_request(self, request: object) -> None: ...

    with pytest.raises(EngineUnavailable) as error:
        scheduler_class(Foreign, BENEFIT)
    said = str(error.value)
    assert seams.vllm_version in said
    assert "_preempt_request" in said
    assert "update_from_output" in said
    assert "add_request" not in said


@pytest.mark.parametrize("name", ["waiting", "pause_state", "num_spec_tokens"])
def test_a_scheduler_without_an_attribute_that_is_needed_is_refused_by_its_name(name: str) -> None:
    class Older(seams.Scheduler):
        def __getattribute__(self, asked: str) -> Any:
            # Only the adapter's own look at it fails.
            if asked == name and getattr(self, "made", False):
                raise AttributeError(asked)
            return super().__getattribute__(asked)

        def __init__(self, *args: Any, **keys: Any) -> None:
            super().__init__(*args, **keys)
            self.made = True

    with pytest.raises(EngineUnavailable, match=rf"its scheduler has no {name}\."):
        make_scheduler(scheduler_class(Older, BENEFIT), engine_config(TIGHT))


def test_a_kv_cache_manager_without_what_is_needed_is_refused_by_name() -> None:
    scheduler = make_scheduler(seams.Scheduler, engine_config(TIGHT))
    scheduler.kv_cache_manager = SimpleNamespace(block_pool=None, get_blocks=None)
    with pytest.raises(
        EngineUnavailable,
        match=r"no kv_cache_manager\.get_computed_blocks, kv_cache_manager\.log_stats\.",
    ):
        seams.check_scheduler(scheduler)


def test_both_of_vllms_schedulers_have_all_that_is_needed() -> None:
    for base in (seams.Scheduler, seams.AsyncScheduler):
        seams.check_class(base)
        seams.check_scheduler(make_scheduler(base, engine_config(TIGHT)))


def test_the_factory_takes_the_class_that_vllm_would_have_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    for asynchronous, base in ((False, seams.Scheduler), (True, seams.AsyncScheduler)):
        config = engine_config(TIGHT, asynchronous=asynchronous)
        made = make_scheduler(PolicyScheduler, config)
        assert isinstance(made, base)
        assert isinstance(made, seams.AsyncScheduler) == asynchronous


def test_without_configuration_the_engine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    made = make_scheduler(scheduler_class(seams.Scheduler), engine_config(TIGHT))
    assert type(made.waiting).__name__ == "FCFSRequestQueue"
    assert made._driver is None


@pytest.mark.parametrize("started_with", ["fcfs", "priority"])
@pytest.mark.parametrize(
    ("config", "queue"),
    [(FCFS, "FCFSRequestQueue"), (STRICT_PRIORITY, "PriorityRequestQueue")],
    ids=["fcfs", "priority"],
)
def test_an_order_of_the_engines_own_is_left_to_its_queue_and_noted_in_the_log(
    config: Any, queue: str, started_with: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "batchpolicy_vllm"):
        made = make_scheduler(
            scheduler_class(seams.Scheduler, config), engine_config(TIGHT, policy=started_with)
        )
    assert type(made.waiting).__name__ == queue
    assert type(seams.holding(made)).__name__ == queue
    assert made._driver is None
    assert f"batchpolicy: {config.label} is the engine's own order" in caplog.text


def test_a_policy_of_ours_takes_the_place_of_the_engines_priority_order() -> None:
    made = make_scheduler(
        scheduler_class(seams.Scheduler, BENEFIT), engine_config(TIGHT, policy="priority")
    )
    assert made.policy.value == "fcfs"
    assert made.waiting is made._driver.queue


def test_lines_of_ours_go_where_the_engines_go_unless_logging_is_set_up_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, root = logging.getLogger("batchpolicy_vllm"), logging.getLogger()
    for logger in (ours, logging.getLogger("batchpolicy")):
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logging.NOTSET)
    seams.share_log()
    assert ours.handlers == [], "pytest listens at the root"
    monkeypatch.setattr(root, "handlers", [])
    seams.share_log()
    assert ours.handlers == logging.getLogger("vllm").handlers


def test_a_dry_run_finds_the_cached_tokens_and_the_blocks_that_are_wanted() -> None:
    bench = Bench(CACHED, BENEFIT)
    prefix = own_tokens(500, 48)
    bench.add("holder", prompt=[*prefix, *own_tokens(0, 4)], output=30)
    bench.step()
    bench.add("same", prompt=[*prefix, *own_tokens(1, 20)], output=2)
    bench.add("new", prompt=33, output=2)
    probe = seams.KvProbe(bench.scheduler)
    before = bench.free_blocks
    hits, needs = probe.prefix(["same", "new"])
    assert hits.tolist() == [48, 0]
    # 68 tokens are 5 blocks, of which the holder has 3; 33 are 3.
    assert needs.tolist() == [2, 3]
    assert bench.free_blocks == before
    assert probe.prefix(["same", "new"])[0].tolist() == [48, 0]


def test_blocks_that_nobody_holds_are_wanted_although_they_are_cached() -> None:
    bench = Bench(CACHED, BENEFIT)
    prompt = own_tokens(500, 48)
    bench.add("gone", prompt=prompt, output=2)
    bench.drain()
    bench.add("again", prompt=[*prompt, *own_tokens(0, 10)])
    hits, needs = seams.KvProbe(bench.scheduler).prefix(["again"])
    # Taking them out of the free ones costs as much as new ones.
    assert (hits.tolist(), needs.tolist()) == ([48], [4])


def test_displacing_frees_the_blocks_that_nobody_shares() -> None:
    bench = Bench(CACHED, BENEFIT)
    prefix = own_tokens(500, 32)
    bench.add("a", prompt=[*prefix, *own_tokens(0, 20)], output=9)
    bench.step()
    bench.add("b", prompt=[*prefix, *own_tokens(1, 2)], output=9)
    bench.step()
    bench.add("waits", output=9)
    probe = seams.KvProbe(bench.scheduler)
    assert probe.held(["a", "b"]).tolist() == [2, 1]
    assert probe.held(["waits", "stranger"]).tolist() == [-1, -1]


def test_a_request_whose_blocks_are_still_written_to_cannot_be_displaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(replace(TIGHT, max_num_seqs=1), BENEFIT)
    bench.add("low", priority=10, output=9)
    bench.step()
    if not hasattr(bench.scheduler, "_request_blocks_can_be_freed"):
        pytest.skip("in this vLLM they always can")
    monkeypatch.setattr(bench.scheduler, "_request_blocks_can_be_freed", lambda request: False)
    assert seams.KvProbe(bench.scheduler).held(["low"]).tolist() == [-1]
    bench.add("urgent", priority=0)
    bench.step()
    assert bench.running == ["low"]


def test_the_engine_tells_the_blocks_that_requests_can_hold() -> None:
    bench = Bench(TIGHT, BENEFIT)
    assert bench.driver.runner.engine.total_kv_blocks == TIGHT.kv_blocks == bench.free_blocks
    assert seams.total_blocks(bench.scheduler) == TIGHT.kv_blocks


def test_a_dry_run_takes_no_part_in_the_engines_hit_rate() -> None:
    scheduler = make_scheduler(seams.Scheduler, engine_config(CACHED), log_stats=True)
    manager, request = scheduler.kv_cache_manager, Bench(CACHED, None).add("a", prompt=20)
    scheduler.add_request(request)
    seams.KvProbe(scheduler).prefix(["a"])
    assert manager.make_prefix_cache_stats().queries == 0
    scheduler.schedule()
    assert manager.make_prefix_cache_stats().queries == 20


def test_a_limit_below_what_runs_lets_nobody_in_until_enough_have_ended() -> None:
    bench = Bench(TIGHT, BENEFIT)
    for i in range(4):
        bench.add(f"r{i}", output=4 + i)
    bench.step()
    seams.set_limits(bench.scheduler, Limits(max_running=2, token_budget=30, prefill_chunk=10))
    bench.add("next", prompt=20, output=2)
    assert seams.max_running(bench.scheduler) == 2
    assert seams.free_seats(bench.scheduler) == -2
    # The i-th has its last token in step 4 + i.
    bench.step(5)
    assert bench.plans[3:] == [
        {"r0": 1, "r1": 1, "r2": 1, "r3": 1},
        {"r1": 1, "r2": 1, "r3": 1},
        {"r2": 1, "r3": 1},
    ]
    assert bench.step() == {"r3": 1, "next": 10}
    bench.drain()
    assert len(bench.answers["next"]) == 2
    assert bench.free_blocks == TIGHT.kv_blocks


@pytest.mark.parametrize("base", [seams.Scheduler, seams.AsyncScheduler])
def test_the_workers_hear_of_everybody_that_we_preempt(base: type) -> None:
    bench = Bench(replace(TIGHT, max_num_seqs=1), BENEFIT, base=base)
    bench.add("low", priority=10, output=9)
    bench.step(2)
    bench.add("urgent", priority=0, output=2)
    bench.step()
    assert bench.preempted == ["low"]


def test_ranks_that_have_to_decide_alike_get_no_policy_but_an_order_of_the_engines_own() -> None:
    config = engine_config(TIGHT)
    config.parallel_config.distributed_executor_backend = "external_launcher"
    with pytest.raises(ConfigError, match=r"'external_launcher': each rank schedules for itself"):
        make_scheduler(scheduler_class(seams.Scheduler, BENEFIT), config)
    for own in (FCFS, STRICT_PRIORITY):
        made = make_scheduler(scheduler_class(seams.Scheduler, own), config)
        assert made._driver is None


@pytest.mark.parametrize("names", [("a",), ("b", "a")])
def test_one_of_two_names_is_enough_and_both_are_told_when_neither_is_there(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_METHODS", ("schedule", "a|b"))
    probes.check_class(type("Either", (), dict.fromkeys((*names, "schedule"))))
    with pytest.raises(EngineUnavailable, match=r"has no a or b\. .* needs vLLM 0\.20 to 0\.33"):
        probes.check_class(type("Neither", (), {"schedule": None}))
