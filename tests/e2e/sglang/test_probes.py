"""A SGLang that is not what the adapter needs, or runs in a way it does not take."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from batchpolicy.errors import ConfigError, EngineUnavailable
from batchpolicy_sglang import hooks
from batchpolicy_sglang.seams import limits, prefill, probes, upstream

pytestmark = pytest.mark.engine


def scheduler(**changed: Any) -> Any:
    """What the adapter reads of a scheduler."""
    given = dict.fromkeys(probes._ATTRIBUTES, None) | {
        "schedule_policy": "fcfs",
        "enable_priority_scheduling": False,
    }
    return SimpleNamespace(**(given | changed))


def test_this_release_has_all_that_is_hooked_and_called() -> None:
    probes.check_classes()
    probes.check_scheduler(scheduler(), several=probes.passes_ticks())


_INSTALL = """
import sys
import sglang.srt.managers.scheduler
from batchpolicy_sglang import hooks
hooks.install()
from sglang.srt.plugins.hook_registry import HookRegistry
print(*sorted(name.rpartition('.')[2] for name in HookRegistry._patched))
"""


def test_sglang_takes_every_hook_that_it_has_a_place_for() -> None:
    # In a process of its own: hooks stay on SGLang's classes.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _INSTALL],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    taken = done.stdout.split()
    assert {"init_schedule_policy", "init_request_dispatcher", "get_internal_state"} <= set(taken)
    # Ticks, the order of retraction and numbers that change while it serves came later.
    assert ("recv_requests" in taken) == probes.passes_ticks()
    batch = upstream.schedule_batch().ScheduleBatch
    assert ("_get_decode_retraction_order" in taken) == hasattr(
        batch, "_get_decode_retraction_order"
    )


def test_all_options_that_are_in_the_way_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        probes.check_scheduler(
            scheduler(schedule_policy="lpm", enable_priority_scheduling=True), several=False
        )
    assert "--schedule-policy is 'lpm', expected fcfs" in str(error.value)
    assert "--enable-priority-scheduling orders and displaces by itself" in str(error.value)


def test_what_is_missing_is_named_with_the_version() -> None:
    one = scheduler()
    del one.tree_cache
    with pytest.raises(EngineUnavailable, match=r"it has no Scheduler\.tree_cache\..*0\.5\.11"):
        probes.check_scheduler(one, several=False)


def test_several_ranks_without_a_common_clock_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "passes_ticks", lambda: False)
    with pytest.raises(ConfigError, match="--tp-size and --pp-size must be 1"):
        probes.check_scheduler(scheduler(), several=True)


def test_a_hook_that_was_not_taken_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Registry:
        _patched: ClassVar[set[str]] = set()

        def register(self, *_: Any) -> None:
            pass

        def apply_hooks(self) -> None:
            pass

    kinds = {"AFTER": 1, "BEFORE": 2}
    monkeypatch.setattr(probes, "hook_registry", lambda: (Registry(), kinds))
    with pytest.raises(EngineUnavailable, match=r"did not take the hook on .*init_sch"):
        hooks.install()


def only_prefills(monkeypatch: pytest.MonkeyPatch, *, stages: int = 1, **settings: Any) -> Any:
    """A scheduler of a server with these settings of split servers, all that it needs there."""
    given = {"disaggregation_mode": "prefill", **settings}
    monkeypatch.setattr(probes, "_of_split_servers", given.get)
    monkeypatch.setattr(limits, "stages", lambda _: stages)
    return scheduler(**dict.fromkeys((*prefill.NEEDS, *prefill.QUEUES)))


def test_a_server_that_only_prefills_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    one = only_prefills(monkeypatch)
    probes.check_scheduler(one, several=False)
    probes.check_queues(one)
    assert probes.role(one) == "prefill"


def test_a_server_that_only_decodes_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = only_prefills(monkeypatch, disaggregation_mode="decode")
    with pytest.raises(ConfigError, match=r"is 'decode': requests get their KV .* own order"):
        probes.check_scheduler(one, several=False)


def test_what_is_in_the_way_of_a_server_that_only_prefills_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = only_prefills(monkeypatch, stages=2, enable_pd_role_switch=True)
    del one.release_aborted_prefill_waiting_req
    with pytest.raises(ConfigError) as error:
        probes.check_scheduler(one, several=False)
    pipeline, role, missing = str(error.value).splitlines()
    assert "has no Scheduler.release_aborted_prefill_waiting_req" in missing
    assert "--pp-size must be 1" in pipeline
    assert "--enable-pd-role-switch" in role


def test_queues_that_are_read_there_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    one = only_prefills(monkeypatch)
    del one.disagg_prefill_inflight_queue
    with pytest.raises(EngineUnavailable, match=r"no Scheduler\.disagg_prefill_inflight_queue"):
        probes.check_queues(one)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_releases_that_keep_the_role_in_the_arguments_are_asked_there(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_of_split_servers", lambda _: None)
    one = scheduler(server_args=SimpleNamespace(disaggregation_mode=role))
    assert probes.role(one) == role
    assert probes.role(scheduler()) == "null"
