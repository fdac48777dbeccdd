"""Promises of parameters, hooks and state."""

from __future__ import annotations

import json
import math

import numpy as np

from batchpolicy.policy import CodeKind, Policy, Work
from batchpolicy.requests import FloatArray, Requests, Status
from batchpolicy.testing.compare import (
    Scene,
    copy_of,
    experienced,
    fail,
    live_through,
    made_again,
    same,
    scene,
    scene_of,
    scores,
    work_of,
)
from batchpolicy.testing.data import make_table


def check_parameters_survive_a_round_trip(policy: Policy) -> None:
    """Parameters written as JSON and read again make an equal policy."""
    dumped = policy.model_dump(mode="json", by_alias=True)
    again = type(policy).model_validate(json.loads(json.dumps(dumped)))
    if again != policy:
        fail(policy, "model_dump", f"loses parameters: {again!r} instead of {policy!r}")


def check_tenant_weights_are_positive(policy: Policy) -> None:
    """Shares by name, each finite and above 0."""
    for name, weight in policy.tenant_weights().items():
        if not (math.isfinite(weight) and weight > 0):
            fail(policy, "tenant_weights", f"gives {weight} to {name!r}, expected more than 0")


def check_hooks_take_no_rows(policy: Policy) -> None:
    """A hook called with no rows changes nothing."""
    at = scene()
    lived, again = experienced(policy, at), experienced(policy, at)
    none = at.waiting.take(np.zeros(0, dtype=np.intp))
    empty = np.zeros(0, dtype=np.int64)
    lived.on_arrived(none, at.step)
    lived.on_admitted(none, at.step)
    lived.on_computed(none, Work(empty, empty, 0, 0.0), at.step)
    lived.on_preempted(none, at.step)
    lived.on_finished(none, at.step)
    same(policy, "on_...", scores(lived, at), scores(again, at), "after hooks without rows")


def check_hooks_add_up(policy: Policy) -> None:
    """Events delivered singly or merged leave equal state."""
    at = scene()
    merged, singly = copy_of(policy), copy_of(policy)
    everyone, running = at.table.view(), at.running
    work = work_of(running, steps=2)
    few = running.take(np.arange(4))

    def compare(hook: str) -> None:
        same(policy, hook, scores(singly, at), scores(merged, at), "events singly, not merged")

    merged.on_arrived(everyone, at.step)
    for row in _one_by_one(everyone):
        singly.on_arrived(row, at.step)
    compare("on_arrived")
    merged.on_admitted(running, at.step)
    for row in _one_by_one(running):
        singly.on_admitted(row, at.step)
    compare("on_admitted")
    merged.on_computed(running, Work(2 * work[0], 2 * work[1], 2, 0.04), at.step)
    for _ in range(2):
        for i, row in enumerate(_one_by_one(running)):
            one = slice(i, i + 1)
            singly.on_computed(row, Work(work[0][one], work[1][one], 1, 0.02), at.step)
    compare("on_computed")
    merged.on_preempted(few, at.step)
    for row in _one_by_one(few):
        singly.on_preempted(row, at.step)
    compare("on_preempted")
    merged.on_finished(running, at.step)
    for row in _one_by_one(running):
        singly.on_finished(row, at.step)
    compare("on_finished")


def check_instances_share_no_state(policy: Policy) -> None:
    """What one policy was told does not move another with the same parameters."""
    at = scene()
    told, other = made_again(policy), made_again(policy)
    before = scores(other, at)
    live_through(told, at)
    told.on_finished(at.running, at.step)
    same(policy, "on_...", scores(other, at), before, "after hooks of another instance")


def check_the_same_events_give_the_same_scores(policy: Policy) -> None:
    """Randomness comes from a field's seed: two policies told alike agree bit for bit."""
    at = scene()
    one, two = made_again(policy), made_again(policy)
    for each in (one, two):
        live_through(each, at)
    same(policy, "benefit", scores(one, at), scores(two, at), "run twice", tolerance=0.0)


def check_a_reused_slot_starts_afresh(policy: Policy) -> None:
    """A new request scores the same in the slot of an ended one as in a slot never used."""
    after: list[tuple[Scene, Policy]] = []
    for reuse in (True, False):
        lived = copy_of(policy)
        table = make_table(24, running=8)
        at = scene_of(table)
        live_through(lived, at)
        slot = table.slots["r0"]
        gone = table.rows(np.array([slot]))
        table.set("r0", status=int(Status.FINISHED))
        lived.on_finished(gone, at.step)
        table.forget("r0")
        if reuse:
            table.release(slot)
        table.add(
            "new", arrival_s=99.5, tenant=2, prompt_tokens=300, max_tokens=200, ttft_slo_s=2.0,
            need_kv_blocks=19,
        )  # fmt: skip
        at = scene_of(table)
        lived.on_arrived(table.rows(np.array([table.slots["new"]])), at.step)
        after.append((at, lived))
    (at, lived), (elsewhere, other) = after
    got, expected = scores(lived, at)[-1:], scores(other, elsewhere)[-1:]
    same(policy, "on_arrived", got, expected, "a new request in a used slot")


def check_who_is_forgotten_leaves_nothing(policy: Policy) -> None:
    """After ``forget``, the code of a tenant or session scores like one never used."""
    kinds: tuple[CodeKind, ...] = ("tenant", "session")
    for kind in kinds:
        for code in range(5):
            _check_forgotten(policy, kind, code)


def _check_forgotten(policy: Policy, kind: CodeKind, code: int) -> None:
    found: list[FloatArray] = []
    for given in (code, 60):
        lived = copy_of(policy)
        table = make_table(24, running=8)
        at = scene_of(table)
        live_through(lived, at)
        everyone = table.view()
        owned = everyone.take((everyone.tenant if kind == "tenant" else everyone.session) == code)
        lived.on_finished(owned, at.step)
        for request_id in owned.request_id:
            table.forget(request_id)
        gone = np.asarray(lived.forget(np.array([code]), kind))
        if gone.shape != (1,) or gone.dtype != np.bool_:
            fail(policy, "forget", f"returned {gone!r} for one code, expected one truth value")
        if not gone[0]:
            return
        table.add(
            "new", **{"arrival_s": 99.5, "tenant": 2, "session": 3, kind: given},
            prompt_tokens=300, max_tokens=200, ttft_slo_s=2.0, need_kv_blocks=19,
        )  # fmt: skip
        at = scene_of(table)
        lived.on_arrived(table.rows(np.array([table.slots["new"]])), at.step)
        found.append(scores(lived, at)[-1:])
    got, expected = found
    same(policy, "forget", got, expected, f"a new {kind} with the code of a forgotten one")


def _one_by_one(rows: Requests) -> list[Requests]:
    return [rows.take(np.array([i])) for i in range(len(rows))]
