"""Orders that go by the prefix cache, and SGLang's own of that kind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from batchpolicy.config import PolicyConfig, config_named
from batchpolicy.engine import Run
from batchpolicy.workload import Workload
from batchpolicy_sglang.replay import SglangReplay
from tests.support.sglang_replays import AMPLE, COST, plain, seeds

pytestmark = pytest.mark.engine

# 1,600 tokens: beside what runs there is room for three or four prefixes of ten.
LIMITS = replace(
    AMPLE, max_num_seqs=4, max_num_batched_tokens=512, kv_blocks=100, prefix_cache=True
)


def shared(seed: int) -> Workload:
    """200 requests at once, 240 of whose 260 prompt tokens are one of ten prefixes."""
    rng = random.Random(seed)
    return Workload(
        "shared",
        tuple(
            plain(f"r{i:03}", 0.0, 260, 2, prefix_id=f"p{rng.randrange(10)}", prefix_tokens=240)
            for i in range(200)
        ),
    )


def served(workload: Workload, order: str, config: PolicyConfig | None = None) -> Run:
    return SglangReplay(order).replay(workload, config, LIMITS, COST)


@pytest.mark.parametrize("seed", seeds(2))
def test_longest_prefix_holds_where_lpm_has_ended(seed: int) -> None:
    workload = shared(seed)
    native = served(workload, "lpm")
    ours, again = (served(workload, "fcfs", config_named("longest-prefix")) for _ in range(2))
    assert ours.digest() == again.digest()
    assert (ours.output_tokens == 2).all()
    # Above 128 waiting SGLang serves in order of arrival, which is random in prefixes.
    assert ours.cached_tokens.sum() > 1.15 * native.cached_tokens.sum()
    assert ours.end_s < 0.75 * native.end_s
    # 190 of 200 requests could find all 240 tokens of theirs.
    assert ours.cached_tokens.sum() > 0.95 * 190 * 240


def test_highest_response_ratio_lets_short_ones_pass_for_a_while() -> None:
    requests = [plain("first", 0.0, 128, 40), plain("long", 0.01, 500, 1)]
    requests += [plain(f"short{i}", 0.02 + 0.01 * i, 16, 1) for i in range(20)]
    limits = replace(LIMITS, max_num_seqs=1, kv_blocks=400, max_model_len=1024)
    runs = [
        SglangReplay().replay(Workload("one", tuple(requests)), config, limits, COST)
        for config in (config_named("fcfs"), config_named("highest-response-ratio"))
    ]
    plainly, ours = (run.first_token_s[2:].mean() for run in runs)
    assert ours < plainly
    assert (runs[1].output_tokens == [40] + [1] * 21).all()
