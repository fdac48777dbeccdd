"""What must hold of every run of the light engine, whatever the workload and the policy."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.config import LimitSettings, PolicyConfig, PolicySpec, config_named
from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.requests import Status
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine

COST = FormulaCost(
    base_s=0.01, weights_s=0.002, token_s=1e-4, sharpness=2.5, decode_context_token_s=1e-7
)
SIZE = 4

POLICIES: list[PolicyConfig | None] = [
    None,
    PolicyConfig(policy=PolicySpec(name="priority", params={"ageing_s": "inf"}), preempt="never"),
    config_named("benefit"),
    PolicyConfig(policy=PolicySpec(name="edf"), preempt="class"),
    PolicyConfig(
        policy=PolicySpec(name="benefit"), limits=LimitSettings(max_num_seqs=2, prefill_chunk=6)
    ),
    PolicyConfig(
        policy=PolicySpec(name="fcfs"), preempt="never", limits=LimitSettings(tpot_target_s=0.0125)
    ),
    PolicyConfig(policy=PolicySpec(name="benefit"), limits=LimitSettings(tpot_target_s=0.011)),
]

limits = st.builds(
    EngineLimits,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 40),
    kv_blocks=st.integers(16, 40),
    kv_block_tokens=st.just(SIZE),
    prefix_cache=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 0, 5]),
    max_loras=st.integers(1, 2),
    watermark=st.sampled_from([0.0, 0.1]),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    requests: list[WorkloadRequest] = []
    now_s = 0.0
    for i in range(draw(st.integers(1, 14))):
        now_s += draw(st.sampled_from([0.0, 0.0, 0.013, 0.2]))
        output = draw(st.integers(1, 20))
        prefix = draw(st.sampled_from(["", "p", "q"]))
        requests.append(
            WorkloadRequest(
                id=f"r{i:02}",
                arrival_s=now_s,
                prompt_tokens=draw(st.integers(1, 40)),
                output_tokens=output,
                max_tokens=output + draw(st.sampled_from([0, 5])),
                priority=draw(st.sampled_from([0, 0, 5])),
                lora=draw(st.sampled_from(["", "", "A", "B", "C"])),
                prefix_id=prefix,
                prefix_tokens=8 if prefix else 0,
                session=draw(st.sampled_from(["", "", "s"])),
                deadline_s=draw(st.sampled_from([math.inf, now_s + 0.5])),
                cancel_at_s=draw(st.sampled_from([math.inf, math.inf, math.inf, now_s + 0.1])),
                ready_at_s=draw(st.sampled_from([-math.inf, -math.inf, now_s + 0.15])),
                arrival_after=f"r{i - 1:02}" if i and draw(st.integers(0, 9)) == 0 else "",
                gap_s=draw(st.sampled_from([0.0, 0.1])),
            )
        )
    return Workload("drawn", tuple(requests))


cases = given(workloads(), limits, st.sampled_from(POLICIES))


def watched(
    workload: Workload, limits: EngineLimits, config: PolicyConfig | None
) -> tuple[Run, list[StepRecord]]:
    steps: list[StepRecord] = []
    run = LightEngine().replay(
        workload, config, limits, COST, max_steps=20_000, observer=steps.append
    )
    return run, steps


@cases
@settings(max_examples=150, deadline=None)
def test_unwatched_and_repeated_runs_come_to_the_same(
    workload: Workload, limits: EngineLimits, config: PolicyConfig | None
) -> None:
    run, steps = watched(workload, limits, config)
    again = LightEngine().replay(workload, config, limits, COST)
    assert again.digest() == run.digest()
    assert again.peak_waiting == run.peak_waiting
    assert watched(workload, limits, config)[0].digest() == run.digest()
    assert run.steps in (len(steps), len(steps) + 1)


@cases
@settings(max_examples=150, deadline=None)
def test_every_step_keeps_the_limits_and_every_request_gets_what_it_asked_for(
    workload: Workload, limits: EngineLimits, config: PolicyConfig | None
) -> None:
    run, steps = watched(workload, limits, config)
    loras = {r.id: r.lora for r in workload.requests}
    for step in steps:
        assert sum(step.tokens.values()) <= limits.max_num_batched_tokens
        assert len(step.tokens) <= step.running <= limits.max_num_seqs
        assert 0 <= step.free_kv_blocks <= limits.kv_blocks
        assert limits.max_loras is not None
        assert len({loras[i] for i in step.tokens} - {""}) <= limits.max_loras
    finished = run.status == int(Status.FINISHED)
    wanted = np.array([min(r.output_tokens, r.max_tokens) for r in workload.requests])
    assert (run.output_tokens[finished] == wanted[finished]).all()
    cancelled = np.array([r.cancel_at_s < math.inf for r in workload.requests])
    assert (finished | (run.status == int(Status.ABORTED)) & cancelled).all()
    done = finished & (wanted > 1)
    assert (run.longest_gap_s[done] > 0.0).all()
    assert (run.finished_s[finished] >= run.first_token_s[finished]).all()
    prompts = np.array([r.prompt_tokens for r in workload.requests])
    computed = sum(sum(step.tokens.values()) for step in steps)
    least = (prompts + wanted - 1)[finished].sum()
    if not limits.prefix_cache:
        assert computed >= least + run.recomputed_tokens[finished].sum()
        if finished.all():
            assert computed == least + run.recomputed_tokens.sum()


@cases
@settings(max_examples=150, deadline=None)
def test_free_blocks_are_those_that_nobody_holds(
    workload: Workload, limits: EngineLimits, config: PolicyConfig | None
) -> None:
    # Slow and obvious: whoever is running holds the blocks of its computed tokens.
    workload = Workload(
        workload.name, tuple(replace(r, cancel_at_s=math.inf) for r in workload.requests)
    )
    limits = replace(limits, prefix_cache=False)
    _, steps = watched(workload, limits, config)
    whole = {
        r.id: r.prompt_tokens + min(r.output_tokens, r.max_tokens) - 1 for r in workload.requests
    }
    computed: dict[str, int] = defaultdict(int)
    for step in steps:
        for request_id in step.preempted:
            computed[request_id] = 0
        for request_id, tokens in step.tokens.items():
            computed[request_id] += tokens
        held = sum(-(-n // SIZE) for n in computed.values())
        assert step.free_kv_blocks == limits.kv_blocks - held
        for request_id in step.tokens:
            if computed[request_id] == whole[request_id]:
                computed[request_id] = 0


@given(workloads(), limits)
@settings(max_examples=100, deadline=None)
def test_nobody_waits_in_vain_while_seats_tokens_blocks_and_adapters_are_free(
    workload: Workload, limits: EngineLimits
) -> None:
    plain = tuple(
        replace(r, lora="", ready_at_s=-math.inf, prompt_tokens=min(r.prompt_tokens, 20))
        for r in workload.requests
    )
    limits = replace(limits, watermark=0.0)
    _, steps = watched(Workload(workload.name, plain), limits, None)
    for step in steps:
        if step.waiting and not step.preempted:
            full = step.running == limits.max_num_seqs
            used_up = sum(step.tokens.values()) == limits.max_num_batched_tokens
            # The largest of these takes 10 blocks.
            assert full or used_up or step.free_kv_blocks < 10
