"""What a vLLM request says about itself, as facts for a policy."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batchpolicy.config import RequestDefaults
from batchpolicy.metadata import RequestReader
from batchpolicy.runner import RequestFacts


class Metadata:
    """Reads ``priority``, ``session_id``, the LoRA adapter and ``vllm_xargs``."""

    def __init__(self, defaults: RequestDefaults, counters: Counter[str]) -> None:
        self._reader = RequestReader(defaults, counters)

    def facts(self, request: Any, *, arrival_s: float | None, ready: bool) -> RequestFacts:
        """Facts of a request that has just come; ``arrival_s`` only under a virtual clock."""
        params = request.sampling_params
        lora = request.lora_request
        return self._reader.facts(
            params.extra_args if params is not None else None,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            # On vLLM's wire, 0 is also what a request without a priority has.
            priority=request.priority or None,
            # From JSON or X-Session-ID, in the versions of vLLM that know sessions.
            session=getattr(request, "session_id", None),
            lora="" if lora is None else str(lora.lora_name),
            arrival_s=arrival_s,
            ready=ready,
            prompt_ids=request.prompt_token_ids,
            temperature=None if params is None else params.temperature,
            # Stamped by the front end, in seconds since 1970.
            hour=request.arrival_time / 3600.0 % 24.0,
        )
