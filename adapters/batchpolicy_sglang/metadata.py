"""What a SGLang request says about itself, as facts for a policy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from batchpolicy.config import RequestDefaults
from batchpolicy.metadata import RequestReader
from batchpolicy.runner import RequestFacts
from batchpolicy_sglang.settings import KEY

_BASE = "(base model)"
_ROUTING_KEY = "routing_key"


class Metadata:
    """Reads ``priority``, the session, the LoRA adapter and ``custom_params["batchpolicy"]``.

    ``low_first``: lower priorities are more urgent, as with SGLang's
    ``--schedule-low-priority-values-first``; without it, higher ones are.
    ``base_takes_place``: a request without adapter counts as one with an adapter of its own.
    """

    def __init__(
        self,
        defaults: RequestDefaults,
        counters: Counter[str],
        *,
        low_first: bool,
        base_takes_place: bool = False,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """``wall_s`` are seconds since 1970."""
        self._wall_s = wall_s
        self._reader = RequestReader(defaults, counters)
        self._low_first = low_first
        self._base = _BASE if base_takes_place else ""

    def facts(self, req: Any, *, arrival_s: float | None, ready: bool = True) -> RequestFacts:
        """Facts of a request that has just come; ``arrival_s`` only under a virtual clock."""
        params = req.sampling_params
        priority = req.priority
        if priority is not None and not self._low_first:
            priority = -priority
        return self._reader.facts(
            _given(req),
            prompt_tokens=len(req.origin_input_ids),
            max_tokens=max(params.max_new_tokens, 1),
            priority=priority,
            session=getattr(req, "session_id", None),
            lora=req.lora_id or self._base,
            arrival_s=arrival_s,
            ready=ready,
            prompt_ids=req.origin_input_ids,
            # SGLang has a greedy request choose the first of one.
            temperature=0.0 if params.top_k == 1 else params.temperature,
            hour=self._wall_s() / 3600.0 % 24.0,
        )


def _given(req: Any) -> object:
    """What the client put under our key, and the routing key where it named a tenant by that."""
    custom = getattr(req.sampling_params, "custom_params", None)
    given: object = None
    if isinstance(custom, Mapping):
        given = cast("Mapping[str, object]", custom).get(KEY)
    routing_key = getattr(req, _ROUTING_KEY, None)
    if routing_key is None:
        return given
    said: Mapping[str, object] = {}
    if isinstance(given, Mapping):
        said = cast("Mapping[str, object]", given)
    return {_ROUTING_KEY: routing_key, **said}
