"""What a vLLM request says about itself, as facts for a policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from batchpolicy.config import RequestDefaults
from batchpolicy.runner import RequestFacts
from batchpolicy_vllm.settings import tenant_keys

_MOST = 2**31
"""Beyond any priority and any number of tokens that makes sense."""
_MOST_CHARACTERS = 256
# Policies divide by these, and multiply them by tokens.
_SECONDS = (1e-6, 1e9)
_WEIGHT = (1e-6, 1e6)


class Metadata:
    """Reads ``priority``, ``session_id``, the LoRA adapter and ``vllm_xargs``.

    A value that cannot be used is replaced by its default and counted, under
    ``bad_metadata`` and under ``bad_metadata.KEY``: a client's mistake never fails a step.

    Raises
    ------
    ConfigError
        When the policy file looks for the tenant in a place that vLLM does not have.
    """

    def __init__(self, defaults: RequestDefaults, counters: Counter[str]) -> None:
        self._tenant_keys = tenant_keys(defaults).all
        self._default_priority = defaults.default_priority
        self._counters = counters

    def facts(self, request: Any, *, arrival_s: float | None, ready: bool) -> RequestFacts:
        """Facts of a request that has just come; ``arrival_s`` only under a virtual clock."""
        params = request.sampling_params
        given = params.extra_args if params is not None else None
        said: Mapping[str, Any] = cast("Any", given) if isinstance(given, Mapping) else {}
        lora = request.lora_request
        return RequestFacts(
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=self._priority(request.priority),
            tenant=self._name(said, "tenant", self._tenant_keys),
            weight=self._number(said, "weight", 1.0, _WEIGHT),
            session=self._session(request, said),
            lora="" if lora is None else str(lora.lora_name),
            ttft_slo_s=self._seconds(said, "ttft_slo_s"),
            tpot_slo_s=self._seconds(said, "tpot_slo_s"),
            # Replays alone know instants of their clock beforehand.
            deadline_s=math.inf if arrival_s is None else self._instant(said, "deadline_at_s"),
            deadline_after_s=self._seconds(said, "deadline_s"),
            queue_ttl_s=self._seconds(said, "queue_ttl_s"),
            predicted_output_tokens=self._number(
                said, "predicted_output_tokens", math.nan, (1.0, float(_MOST))
            ),
            # Replays alone know it; what a client says of it counts for nothing.
            true_output_tokens=None if arrival_s is None else said.get("true_output_tokens"),
            arrival_s=arrival_s,
            ready=ready,
        )

    def _priority(self, given: int) -> int:
        # On vLLM's wire, 0 is also what a request without a priority has.
        priority = given or self._default_priority
        if abs(priority) >= _MOST:
            self._count("priority")
            return max(min(priority, _MOST - 1), 1 - _MOST)
        return priority

    def _session(self, request: Any, said: Mapping[str, Any]) -> str:
        """The session, or else the program that the request is a call of."""
        # From JSON or X-Session-ID, in the versions of vLLM that know sessions.
        given = getattr(request, "session_id", None)
        name = self._name({"session_id": given}, "session_id") if given else ""
        return name or self._name(said, "session_id") or self._name(said, "program")

    def _name(self, said: Mapping[str, Any], fact: str, keys: tuple[str, ...] = ()) -> str:
        """The first name that is there; the empty one is none."""
        for key in keys or (fact,):
            if key not in said:
                continue
            value = said[key]
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
                return str(value)
            if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
                self._count(fact)
            elif value:
                return value
        return ""

    def _seconds(self, said: Mapping[str, Any], key: str) -> float:
        if key in said and _float(said[key]) == math.inf:
            return math.inf
        return self._number(said, key, math.inf, _SECONDS)

    def _instant(self, said: Mapping[str, Any], key: str) -> float:
        return self._number(said, key, math.inf, (-_SECONDS[1], _SECONDS[1]))

    def _number(
        self, said: Mapping[str, Any], key: str, default: float, bounds: tuple[float, float]
    ) -> float:
        if key not in said:
            return default
        value = _float(said[key])
        if bounds[0] <= value <= bounds[1]:
            return value
        self._count(key)
        return default

    def _count(self, key: str) -> None:
        self._counters["bad_metadata"] += 1
        self._counters[f"bad_metadata.{key}"] += 1


def _float(value: object) -> float:
    """The number in a value; NaN for none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
