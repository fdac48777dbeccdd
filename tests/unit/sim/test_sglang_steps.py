"""SGLang's steps in the light engine, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchpolicy.engine import EngineLimits, Run, StepRecord
from batchpolicy.errors import WorkloadError
from batchpolicy.requests import Status
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightSglang

COST = FormulaCost(base_s=0.01, token_s=0.0001)
LIMITS = EngineLimits(max_num_seqs=4, max_num_batched_tokens=128, kv_blocks=400, max_model_len=512)


def request(name: str, arrival_s: float, prompt: int, output: int, **more: Any) -> WorkloadRequest:
    given = {"max_tokens": output, **more}
    return WorkloadRequest(
        id=name, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, **given
    )


def serve(
    *requests: WorkloadRequest, limits: EngineLimits = LIMITS
) -> tuple[Run, list[StepRecord]]:
    steps: list[StepRecord] = []
    run = LightSglang().replay(
        Workload("small", requests), None, limits, COST, observer=steps.append
    )
    return run, steps


def plans(steps: list[StepRecord]) -> list[dict[str, int]]:
    return [dict(s.tokens) for s in steps]


def test_a_step_prefills_or_decodes_and_prefills_go_first() -> None:
    _, steps = serve(request("a", 0.0, 20, 4), request("b", 0.015, 30, 4))
    assert plans(steps) == [
        {"a": 20},
        {"a": 1},
        {"b": 30},
        {"a": 1, "b": 1},
        {"a": 1, "b": 1},
        {"b": 1},
    ]


def test_one_prompt_is_midway_and_parts_are_charged_in_pages() -> None:
    _, steps = serve(request("a", 0.0, 200, 1), request("b", 0.0, 100, 1))
    # 72 tokens are five pages of 16, so that 48 of 128 are left.
    assert plans(steps) == [{"a": 128}, {"a": 72, "b": 48}, {"b": 52}]


def test_what_may_still_come_is_reserved_and_less_so_once_it_comes() -> None:
    # 20 pages are 320 tokens. a is charged 16 + 16 + 150, b needs 16 + 150 + 16 < 320 - 182.
    limits = replace(LIMITS, kv_blocks=20)
    run, steps = serve(request("a", 0.0, 16, 150), request("b", 0.0, 16, 150), limits=limits)
    # In the next pass a has its page, and 0.7 of 150 is reserved: 320 - 16 - 105 = 199 > 182.
    assert plans(steps)[:3] == [{"a": 16}, {"b": 16}, {"a": 1, "b": 1}]
    # Both would take 2 * 166: the one with fewer tokens loses its own, and has them again.
    assert run.preemptions.tolist() == [0, 1]
    assert run.output_tokens.tolist() == [150, 150]


def test_whose_client_left_goes_on_to_its_next_token() -> None:
    run, steps = serve(request("a", 0.0, 16, 50, cancel_at_s=0.05), request("b", 0.0, 16, 9))
    assert run.status.tolist() == [int(Status.ABORTED), int(Status.FINISHED)]
    last = max(i for i, s in enumerate(steps) if "a" in s.tokens)
    assert steps[last].start_s >= 0.05
    assert run.finished_s[0] <= steps[last].start_s


def test_what_does_not_fit_beside_a_page_is_refused_when_it_comes() -> None:
    # 20 pages are 320 tokens, of which one page and a token stay.
    limits = replace(LIMITS, kv_blocks=20)
    run, _ = serve(request("a", 0.0, 256, 48), request("b", 0.0, 256, 47), limits=limits)
    assert run.status.tolist() == [int(Status.REFUSED), int(Status.FINISHED)]


def test_limits_that_it_does_not_keep_are_refused() -> None:
    with pytest.raises(WorkloadError, match="keeps no limit prefix_cache and watermark"):
        serve(request("a", 0.0, 1, 1), limits=replace(LIMITS, prefix_cache=True, watermark=0.1))
