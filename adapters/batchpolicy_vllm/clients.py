"""What the requests of a workload look like to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from batchpolicy.prompts import STOP, Prompts, said
from batchpolicy.workload import WorkloadRequest
from batchpolicy_vllm import seams


class Clients:
    """Make engine requests, whose prompts share what the workload says that they share."""

    def __init__(
        self,
        requests: Iterable[WorkloadRequest],
        hasher: Callable[[Any], Any] | None,
        seed: int,
    ) -> None:
        self._hasher = hasher
        self._prompts = Prompts(requests, seed)
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
                extra_args=said(r),
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
        # Without a prefix cache nobody looks at the tokens.
        return [0] * r.prompt_tokens if self._hasher is None else self._prompts.prompt(r)
