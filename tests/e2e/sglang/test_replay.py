"""SGLang's own scheduler under a virtual clock, in its own orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import StepLimitReached, WorkloadError
from batchpolicy.requests import Status
from batchpolicy.workload import Workload
from batchpolicy_sglang.replay import SglangReplay
from batchpolicy_sglang.seams import names
from tests.support.sglang_replays import (
    AMPLE,
    COST,
    EVERY_LIMITS,
    TIGHT,
    plain,
    random_requests,
    seeds,
    serve,
)

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("limits", EVERY_LIMITS)
@pytest.mark.parametrize("seed", seeds(3))
def test_every_answer_has_its_length_and_a_second_run_is_the_same(
    seed: int, limits: EngineLimits, overlap: bool
) -> None:
    limits = replace(limits, async_scheduling=overlap)
    requests = random_requests(seed, limits)
    first, second = serve(requests, limits), serve(requests, limits)
    assert first.run.digest() == second.run.digest()
    assert [s.tokens for s in first.steps] == [s.tokens for s in second.steps]
    for r, status, output in zip(requests, first.run.status, first.run.output_tokens, strict=True):
        if status == Status.FINISHED:
            assert output == min(r.output_tokens, r.max_tokens), r.id
        else:
            assert status == Status.ABORTED
            assert r.cancel_at_s < float("inf")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("limits", EVERY_LIMITS)
def test_no_kv_is_held_after_the_last_answer(limits: EngineLimits, overlap: bool) -> None:
    limits = replace(limits, async_scheduling=overlap)
    requests = random_requests(5, limits)
    # What comes last finds the pool as the others have left it; in 0.5.11 with overlap, who is
    # aborted at the very end leaves in a step of the next one.
    requests += [plain("next", 1000.0, 10, 1), plain("last", 2000.0, 10, 1)]
    steps = serve(requests, limits).steps
    at_last = next(s for s in steps if "last" in s.tokens)
    assert at_last.free_kv_blocks == limits.kv_blocks - 1


def test_a_step_prefills_or_decodes_and_prefills_go_first() -> None:
    served = serve([plain("a", 0.0, 20, 4), plain("b", 0.015, 30, 4)], AMPLE)
    # 10 ms and 0.1 ms a token: a's prompt until 12 ms, then one decode until 22.1 ms, in
    # which b has come; its prompt goes before a's next token.
    assert [dict(s.tokens) for s in served.steps if s.tokens] == [
        {"a": 20},
        {"a": 1},
        {"b": 30},
        {"a": 1, "b": 1},
        {"a": 1, "b": 1},
        {"b": 1},
    ]
    assert served.column("first_token_s")["b"] == pytest.approx(0.0221 + 0.013)


@pytest.mark.skipif(names.runtime_context is None, reason="0.5.13 and before cut otherwise")
def test_one_prompt_is_cut_at_the_budget_and_the_next_waits_for_its_last_part() -> None:
    served = serve([plain("a", 0.0, 200, 1), plain("b", 0.0, 100, 1)], AMPLE)
    assert [dict(s.tokens) for s in served.steps if s.tokens] == [
        {"a": 128},
        # 72 of a are charged as five pages of 16, so that 48 are left for b.
        {"a": 72, "b": 48},
        {"b": 52},
    ]


def test_a_prefix_that_was_computed_is_not_computed_again() -> None:
    limits = replace(AMPLE, prefix_cache=True)
    first = plain("a", 0.0, 100, 1, prefix_id="p", prefix_tokens=64)
    second = plain("b", 1.0, 90, 1, prefix_id="p", prefix_tokens=64)
    served = serve([first, second], limits)
    assert served.column("cached_tokens") == {"a": 0, "b": 64}
    assert served.steps[-1].tokens == {"b": 26}


def test_the_order_priority_is_sglangs_own_with_lower_as_more_urgent() -> None:
    limits = replace(AMPLE, max_num_seqs=1)
    requests = [plain("first", 0.0, 10, 20)]
    requests += [plain(f"p{p}", 0.001, 10, 1, priority=p) for p in (5, -1, 3)]
    config = PolicyConfig(
        policy=PolicySpec(name="priority", params={"ageing_s": "inf"}), preempt="never"
    )
    assert config.native_order() == "priority"
    assert serve(requests, limits, config).order() == ["first", "p-1", "p3", "p5"]


def test_a_client_that_leaves_takes_only_its_own_request_along() -> None:
    requests = [plain("a", 0.0, 10, 50, cancel_at_s=0.1), plain("a1", 0.0, 10, 50)]
    limits = replace(AMPLE, max_num_seqs=1)
    served = serve(requests, limits)
    assert served.column("status") == {"a": Status.ABORTED, "a1": Status.FINISHED}
    assert served.column("finished_s")["a"] == pytest.approx(0.1, abs=0.011)


def test_short_of_memory_the_youngest_answers_are_retracted_and_computed_again() -> None:
    # After 600 decodes SGLang reserves a tenth of what may come. Of 1,280 tokens "old" then
    # has 650, and 760 when the others have 126 each.
    requests = [plain("old", 0.0, 16, 1100)]
    requests += [plain(f"r{i}", 6.5 + 0.05 * i, 16, 110) for i in range(6)]
    served = serve(requests, replace(TIGHT, kv_blocks=80, max_model_len=2048))
    assert served.column("preemptions")["old"] == 0
    assert served.run.preemptions.sum() > 0
    assert served.run.recomputed_tokens.sum() > 0
    assert all(served.run.output_tokens == [1100] + [110] * 6)


def test_what_is_asked_of_it_in_vain_is_refused_with_a_sentence() -> None:
    one = [plain("a", 0.0, 10, 1)]
    for limits, said in (
        (replace(AMPLE, watermark=0.1), "keeps no limit watermark"),
        (replace(AMPLE, max_num_batched_tokens=100), "expected a multiple of the 16 tokens"),
    ):
        with pytest.raises(WorkloadError, match=said):
            serve(one, limits)
    with pytest.raises(WorkloadError, match="requests have ready_at_s"):
        serve([plain("a", 0.0, 10, 1, ready_at_s=1.0)], AMPLE)
    # 24 blocks of 16 tokens are 384, of which SGLang keeps one page and some tokens.
    with pytest.raises(WorkloadError, match="would cut these requests short"):
        serve([plain("a", 0.0, 200, 200)], replace(TIGHT, max_model_len=512))
    with pytest.raises(StepLimitReached, match="2 steps did not serve it"):
        SglangReplay().replay(
            Workload("w", (plain("a", 0.0, 10, 9),)), None, AMPLE, COST, max_steps=2
        )


def test_so_many_adapters_run_at_once_as_there_are_places_and_the_base_model_takes_one() -> None:
    limits = replace(AMPLE, max_loras=2)
    requests = [plain(name, 0.0, 16, 4, lora=lora) for name, lora in _ADAPTERS]
    for config in (None, PolicyConfig(policy=PolicySpec(name="shortest-first"))):
        steps = serve(requests, limits, config).steps
        of = dict(_ADAPTERS)
        together = [{of[rid] for rid in s.tokens} for s in steps if s.tokens]
        assert max(map(len, together)) == 2
        # Whose adapter runs goes past those that wait for a place.
        assert {"A", ""} == together[0]
        assert set(steps[0].tokens) == {"a1", "base", "a2"}


_ADAPTERS = (("a1", "A"), ("base", ""), ("b1", "B"), ("a2", "A"))


def test_adapters_without_a_number_of_places_are_refused() -> None:
    with pytest.raises(WorkloadError, match="say how many may run at once"):
        serve([plain("a", 0.0, 16, 4, lora="A")], AMPLE)
