"""What requests of a workload share, vLLM's own prefix cache finds."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from batchpolicy.engine import EngineLimits, Run
from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm.replay import VllmReplay
from tests.support.vllm_replays import COST

pytestmark = pytest.mark.engine

LIMITS = EngineLimits(
    max_num_seqs=4,
    max_num_batched_tokens=256,
    kv_blocks=400,
    kv_block_tokens=16,
    max_model_len=512,
    prefix_cache=True,
)


def _replay(*requests: WorkloadRequest) -> Run:
    return VllmReplay().replay(Workload("w", requests), None, LIMITS, COST)


def _request(id: str, arrival_s: float, prompt_tokens: int, **facts: Any) -> WorkloadRequest:
    given = {"output_tokens": 2, "max_tokens": 8, **facts}
    return WorkloadRequest(id=id, arrival_s=arrival_s, prompt_tokens=prompt_tokens, **given)


def test_equal_blocks_from_the_start_are_computed_once() -> None:
    run = _replay(
        _request("first", 0.0, 70, prefix_blocks=(1, 2), prefix_block_tokens=32),
        _request("half", 1.0, 70, prefix_blocks=(1, 3), prefix_block_tokens=32),
        _request("longer", 2.0, 80, prefix_blocks=(1, 2, 9), prefix_block_tokens=32),
        _request("again", 3.0, 80, prefix_blocks=(1, 2, 9), prefix_block_tokens=32),
        _request("elsewhere", 4.0, 70, prefix_blocks=(2, 1), prefix_block_tokens=32),
        _request("alone", 5.0, 70),
    )
    # Of a prompt found whole, the last block is computed again for its last token.
    assert run.cached_tokens.tolist() == [0, 32, 64, 64, 0, 0]


def test_a_turn_finds_the_whole_text_of_the_turn_before() -> None:
    run = _replay(
        _request("a1", 0.0, 40, output_tokens=10, max_tokens=16, session="a"),
        _request("b1", 1.0, 40, output_tokens=10, max_tokens=16, session="b"),
        _request("a2", 2.0, 66, session="a"),
        _request("a3", 3.0, 90, session="a"),
        _request("cut", 4.0, 40, output_tokens=30, max_tokens=10, session="c"),
        _request("after", 5.0, 66, session="c"),
    )
    # Of 40 + 10 tokens, 49 are computed: the last one has been emitted only; 3 full blocks.
    # Of 66 + 2, 67: 4 blocks.
    assert run.cached_tokens.tolist() == [0, 0, 48, 64, 0, 48]


def test_a_named_prefix_opens_a_session() -> None:
    run = _replay(
        _request("other", 0.0, 60, prefix_id="system", prefix_tokens=32),
        _request("turn-1", 1.0, 60, prefix_id="system", prefix_tokens=32, session="s"),
        _request("turn-2", 2.0, 90, prefix_id="system", prefix_tokens=32, session="s"),
    )
    # 60 + 2 tokens, 61 computed: 3 full blocks.
    assert run.cached_tokens.tolist() == [0, 32, 48]


class _Unable(VllmReplay):
    capabilities: ClassVar[frozenset[str]] = frozenset({"priority"})


@pytest.mark.parametrize(
    ("facts", "field"), [({"lora": "A"}, "lora"), ({"queue_ttl_s": 1.0}, "queue_ttl_s")]
)
def test_what_a_replay_would_ignore_is_refused_by_name(facts: dict[str, Any], field: str) -> None:
    workload = Workload("w", (_request("r", 0.0, 20, **facts),))
    with pytest.raises(WorkloadError, match=f"requests have {field}, which the replay on vLLM"):
        _Unable().replay(workload, None, LIMITS, COST)
