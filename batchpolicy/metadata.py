"""What requests say about themselves, as facts for a policy: one reader for every engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from batchpolicy.config import RequestDefaults
from batchpolicy.runner import RequestFacts
from batchpolicy.tenant_places import tenant_keys

VARIABLE = "BATCHPOLICY_CONFIG"
"""Environment variable that names the policy file of a server."""

_MOST = 2**31
"""Beyond any priority and any number of tokens that makes sense."""
_MOST_CHARACTERS = 256
# Policies divide by these, and multiply them by tokens.
_SECONDS = (1e-6, 1e9)
_WEIGHT = (1e-6, 1e6)


class RequestReader:
    """Makes facts of what a request says.

    A value that cannot be used is replaced by its default and counted, under
    ``bad_metadata`` and under ``bad_metadata.KEY``: a client's mistake never fails a step.
    """

    def __init__(self, defaults: RequestDefaults, counters: Counter[str]) -> None:
        self._tenant_keys = tenant_keys(defaults.tenant_from).all
        self._default_priority = defaults.default_priority
        self._counters = counters

    def facts(
        self,
        given: object,
        *,
        prompt_tokens: int,
        max_tokens: int,
        priority: int | None,
        session: object,
        lora: str,
        arrival_s: float | None,
        ready: bool,
        prompt_ids: Sequence[int] | None = None,
        temperature: float | None = None,
        hour: float = math.nan,
    ) -> RequestFacts:
        """Facts of a request that has just come.

        ``given`` are its own parameters, a mapping or anything else; ``priority`` counts
        lower as more urgent, None if it has none; ``session`` is the engine's own name of
        its session, if it has such; ``arrival_s`` is known only under a virtual clock, where
        the last three, made up for the engine's sake, count for nothing.
        """
        live = arrival_s is None
        said: Mapping[str, Any] = cast("Any", given) if isinstance(given, Mapping) else {}
        return RequestFacts(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            priority=self._priority(priority),
            tenant=self._name(said, "tenant", self._tenant_keys),
            weight=self._number(said, "weight", 1.0, _WEIGHT),
            session=self._session(session, said),
            lora=lora,
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
            prompt_ids=prompt_ids if live else None,
            temperature=temperature if live and temperature is not None else math.nan,
            hour=hour if live else math.nan,
            arrival_s=arrival_s,
            ready=ready,
        )

    def _priority(self, given: int | None) -> int:
        priority = self._default_priority if given is None else given
        if abs(priority) >= _MOST:
            self._count("priority")
            return max(min(priority, _MOST - 1), 1 - _MOST)
        return priority

    def _session(self, given: object, said: Mapping[str, Any]) -> str:
        """The session, or else the program that the request is a call of."""
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
