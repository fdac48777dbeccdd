"""What the requests of a workload look like to the engine."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from batchpolicy.workload import WorkloadRequest
from batchpolicy_vllm import seams

TOKEN, STOP = 7, 8
"""What every answer consists of, and what it ends with."""


class Clients:
    """Make engine requests, whose prompts share what the workload says that they share."""

    def __init__(
        self,
        requests: Iterable[WorkloadRequest],
        hasher: Callable[[Any], Any] | None,
        seed: int,
    ) -> None:
        self._hasher = hasher
        self._seed = seed
        self._turns = Counter(r.session for r in requests if r.session)
        """Turns to come of each session."""
        self._said: dict[str, list[int]] = {}
        """Text of the latest turn of each session that goes on."""
        self._loras: dict[str, Any] = {}
        """Adapters by name, numbered from 1 as they are first asked for."""

    def request(self, r: WorkloadRequest) -> Any:
        """The engine's request for one of the workload; to be made in order of arrival."""
        return seams.Request(
            request_id=r.id,
            prompt_token_ids=self._prompt(r),
            sampling_params=seams.SamplingParams(
                max_tokens=r.max_tokens,
                temperature=0.0,
                ignore_eos=True,
                stop_token_ids=[STOP],
                extra_args=_xargs(r),
            ),
            pooling_params=None,
            arrival_time=r.arrival_s,
            priority=r.priority,
            lora_request=self._lora(r.lora),
            block_hasher=self._hasher,
        )

    def _lora(self, name: str) -> Any:
        """The adapter of that name, None for the base model; nothing is loaded."""
        if name and name not in self._loras:
            # The number tells adapters apart in the scheduler, the name in the prefix cache.
            self._loras[name] = seams.LoRARequest(name, len(self._loras) + 1, lora_path=name)
        return self._loras.get(name)

    def _prompt(self, r: WorkloadRequest) -> list[int]:
        if self._hasher is None:
            return [0] * r.prompt_tokens
        prompt = self._shared(r)[: r.prompt_tokens]
        prompt += _tokens(f"{self._seed} {r.id}", r.prompt_tokens - len(prompt))
        if r.session:
            self._turns[r.session] -= 1
            if self._turns[r.session]:
                self._said[r.session] = prompt + _answer(r)
            else:
                self._said.pop(r.session, None)
        return prompt

    def _shared(self, r: WorkloadRequest) -> list[int]:
        """What the prompt begins with and other requests may have too; may be longer than it."""
        if r.prefix_blocks:
            blocks = (_tokens(f"block {b}", r.prefix_block_tokens) for b in r.prefix_blocks)
            return list(chain.from_iterable(blocks))
        if r.session in self._said:
            return self._said[r.session]
        return list(_tokens(f"prefix {r.prefix_id}", r.prefix_tokens if r.prefix_id else 0))


def _xargs(r: WorkloadRequest) -> dict[str, Any]:
    """What a request says about itself, as ``Metadata`` reads it."""
    said: dict[str, Any] = {"weight": r.weight, "true_output_tokens": r.output_tokens}
    for key, name in (("tenant", r.tenant), ("session_id", r.session)):
        if name:
            said[key] = name
    for key, value in (
        ("ttft_slo_s", r.ttft_slo_s),
        ("tpot_slo_s", r.tpot_slo_s),
        # Equal deadlines have to stay equal, which sums with the arrivals would not.
        ("deadline_at_s", r.deadline_s),
        ("queue_ttl_s", r.queue_ttl_s),
        ("predicted_output_tokens", r.predicted_output_tokens),
    ):
        if math.isfinite(value):
            said[key] = value
    return said


def _answer(r: WorkloadRequest) -> list[int]:
    """What a request will have produced at its end, if nobody cancels it; see ``Loop``."""
    if r.output_tokens <= r.max_tokens:
        return [TOKEN] * (r.output_tokens - 1) + [STOP]
    return [TOKEN] * r.max_tokens


def _tokens(name: str, count: int) -> range:
    """Token ids that differ between names, wherever Python runs."""
    start = zlib.crc32(name.encode()) << 20
    return range(start, start + count)
