"""Small random workloads, with all that can change a step."""

from __future__ import annotations

import math
import random

from batchpolicy.engine import EngineLimits
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.conformance.policies import policy_of
from batchpolicy_tuning.conformance.problem import Problem

COST = FormulaCost(base_s=0.01, token_s=0.0001)
MAX_STEPS = 20_000
_LONGEST = 280
"""Tokens of the longest text, prompt and answer."""


def random_problem(seed: int) -> Problem:
    """The random workload of that number, its engine's limits and its policy."""
    rng = random.Random(seed)
    limits = random_limits(rng)
    return Problem(
        name=f"random {seed}",
        again=f"--seed {seed} --random 1",
        workload=random_workload(rng, limits),
        config=policy_of(seed),
        limits=limits,
        cost=COST,
        max_steps=MAX_STEPS,
        drawn=True,
    )


def random_limits(rng: random.Random) -> EngineLimits:
    """Ample or tight seats, tokens and blocks, with or without caps and prefix cache."""
    chunked = rng.random() < 0.85
    return EngineLimits(
        max_num_seqs=rng.choice([2, 4, 8, 16]),
        max_num_batched_tokens=(rng.choice([16, 32, 48, 64, 128, 256]) if chunked else _LONGEST),
        kv_blocks=rng.choice([20, 24, 30, 60, 400]),
        kv_block_tokens=16,
        max_model_len=_LONGEST,
        prefix_cache=rng.random() < 0.5,
        long_prefill_token_threshold=rng.choice([0, 0, 0, 16, 20]),
        max_loras=rng.choice([None, None, 1, 2]),
        watermark=rng.choice([0.0, 0.0, 0.03, 0.15]),
        chunked_prefill=chunked,
    )


def random_workload(rng: random.Random, limits: EngineLimits, count: int = 24) -> Workload:
    """Bursts of mixed lengths, classes and adapters; shared prefixes, sessions, cancellations.

    Ids in order of submission, since vLLM breaks ties of priority and time by id.
    """
    now_s = 0.0
    requests: list[WorkloadRequest] = []
    for i in range(count):
        now_s += rng.choice([0.0, 0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.4)])
        prompt = rng.choice([rng.randint(1, 40), rng.randint(40, 200), 16 * rng.randint(1, 8)])
        output = rng.choice([1, rng.randint(1, 50), rng.randint(20, 70)])
        shares = rng.choice(["", "", "prefix", "blocks", "session"])
        blocks = tuple(rng.choice([1, 2, 3]) for _ in range(rng.randint(1, 5)))
        size = rng.choice([16, 20, 32])
        requests.append(
            WorkloadRequest(
                id=f"r{i:02}",
                arrival_s=now_s,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=rng.choice([output, output + 10, max(output - 3, 1)]),
                priority=rng.choice([-3, 0, 0, 10]),
                tenant=rng.choice(["", "x", "y"]),
                ttft_slo_s=rng.choice([0.1, 5.0, math.inf]),
                tpot_slo_s=rng.choice([0.02, math.inf]),
                deadline_s=now_s + rng.choice([0.5, 3.0, math.inf]),
                weight=rng.choice([1.0, 2.0]),
                session=rng.choice(["s", "t"]) if shares == "session" else "",
                prefix_id=rng.choice(["a", "b"]) if shares in ("prefix", "session") else "",
                prefix_tokens=rng.choice([16, 32, 70]),
                prefix_blocks=blocks[: -(-prompt // size)] if shares == "blocks" else (),
                prefix_block_tokens=size,
                lora=rng.choice(["", "A", "B", "C"]) if limits.max_loras else "",
                queue_ttl_s=rng.choice([math.inf, math.inf, math.inf, 0.3]),
                cancel_at_s=now_s + rng.uniform(0.0, 1.0) if rng.random() < 0.1 else math.inf,
                predicted_output_tokens=rng.choice([math.nan, float(output)]),
            )
        )
    return Workload("random", tuple(requests))
