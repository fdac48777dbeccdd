"""What a vLLM request says about itself, as facts for a policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from batchpolicy.config import RequestDefaults
from batchpolicy.errors import ConfigError
from batchpolicy.runner import RequestFacts

_SOURCE = "vllm_xargs."
_MOST = 2**31


class Metadata:
    """Reads ``priority`` and ``vllm_xargs``.

    A value that cannot be used is counted and replaced by its default: a client's
    mistake never fails a step.

    Raises
    ------
    ConfigError
        When the policy file looks for the tenant in a place that vLLM does not have.
    """

    def __init__(self, defaults: RequestDefaults, counters: Counter[str]) -> None:
        unknown = [s for s in defaults.tenant_from if not s.startswith(_SOURCE)]
        if unknown:
            raise ConfigError(
                f"requests.tenant_from: vLLM cannot read {', '.join(map(repr, unknown))}; "
                f"expected {_SOURCE}KEY, such as {_SOURCE}tenant."
            )
        self._tenant_keys = [s.removeprefix(_SOURCE) for s in defaults.tenant_from]
        self._default_priority = defaults.default_priority
        self._counters = counters

    def facts(self, request: Any, *, arrival_s: float | None, ready: bool) -> RequestFacts:
        """Facts of a request that has just come."""
        params = request.sampling_params
        extra: Mapping[str, Any] = (params.extra_args or {}) if params is not None else {}
        lora = request.lora_request
        return RequestFacts(
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=self._priority(request.priority),
            tenant=self._tenant(extra),
            weight=self._positive(extra, "weight", 1.0),
            ttft_slo_s=self._positive(extra, "ttft_slo_s", math.inf),
            tpot_slo_s=self._positive(extra, "tpot_slo_s", math.inf),
            lora="" if lora is None else str(lora.lora_name),
            arrival_s=arrival_s,
            ready=ready,
        )

    def _priority(self, given: int) -> int:
        # On vLLM's wire, 0 is also what a request without a priority has.
        priority = given or self._default_priority
        if abs(priority) >= _MOST:
            self._counters["bad_metadata"] += 1
            return max(min(priority, _MOST - 1), 1 - _MOST)
        return priority

    def _tenant(self, extra: Mapping[str, Any]) -> str:
        for key in self._tenant_keys:
            if key in extra:
                tenant = extra[key]
                if isinstance(tenant, (str, int)) and not isinstance(tenant, bool):
                    return str(tenant)
                self._counters["bad_metadata"] += 1
        return ""

    def _positive(self, extra: Mapping[str, Any], key: str, default: float) -> float:
        if key not in extra:
            return default
        try:
            value = float(extra[key])
        except (TypeError, ValueError):
            value = math.nan
        if value > 0.0 and (math.isfinite(value) or math.isinf(default)):
            return value
        self._counters["bad_metadata"] += 1
        return default
