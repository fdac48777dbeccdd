"""What a case becomes for an engine: a workload, limits, a policy and a clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from batchpolicy.component import Component
from batchpolicy.config import Bounds, PolicyConfig, Queue, RequestDefaults
from batchpolicy.engine import EngineLimits
from batchpolicy.workload import Workload
from batchpolicy_tuning.cases.clock import ReferenceClock
from batchpolicy_tuning.cases.schema import Case, EngineSpec, Variant
from batchpolicy_tuning.workloads.jsonl import RequestRow, in_order

SETTINGS: tuple[type[Component], ...] = (Bounds, Queue)
"""Parts of a policy file whose keys are operator settings."""
_OF_THE_SCHEMA = ("max_wait_s", "max_bypass_s")


def known_settings() -> tuple[str, ...]:
    """Names of operator settings: the schema's, and whatever the policy file has."""
    own = [name for model in SETTINGS for name in model.model_fields]
    return tuple(dict.fromkeys([*_OF_THE_SCHEMA, *own]))


@dataclass(frozen=True, slots=True)
class Setting:
    """All that an engine needs to run a case."""

    workload: Workload
    limits: EngineLimits
    config: PolicyConfig
    clock: ReferenceClock
    notes: tuple[str, ...] = ()
    """What of the case has no place there."""


def setting_of(case: Case, config: PolicyConfig, variant: Variant | None = None) -> Setting:
    """The setting of a case of kind ``workload``, or of one of its variants."""
    change = variant or Variant(name="as it is", expect_same=("order",))
    engine, timing = change.engine or case.engine, change.timing or case.timing
    if engine is None or timing is None:
        raise AssertionError("the reader asks for both")
    rows = case.requests if change.requests is None else change.requests
    default = case.default_priority if change.default_priority is None else change.default_priority
    convention = change.priority_convention or case.priority_convention
    requests = _requests(
        rows, default, change.negate_priorities, convention == "higher_is_more_urgent"
    )
    settings = {**case.operator_settings, **(change.operator_settings or {})}
    limits = _limits(engine, {r.lora for r in requests if r.lora})
    own, notes = _with_settings(config, settings)
    if limits.max_waiting is not None and own.native_order() is None:
        # Under a policy it is the runner's to keep, and to say who goes.
        own, notes = _with_settings(config, {**settings, "max_waiting": limits.max_waiting})
        limits = replace(limits, max_waiting=None)
    return Setting(
        workload=Workload(case.id, requests),
        limits=limits,
        config=own,
        clock=ReferenceClock(timing),
        notes=notes,
    )


def _requests(
    rows: Iterable[RequestRow], default: int, negate: bool, higher_is_more_urgent: bool
) -> Any:
    """The requests with priorities as this package has them: lower is more urgent."""
    sign = -1 if negate != higher_is_more_urgent else 1

    def read(row: RequestRow) -> RequestRow:
        asked = default if row.priority is None else row.priority
        return row.model_copy(update={"priority": sign * asked})

    return in_order(r for row in rows for r in read(row).requests())


def _limits(engine: EngineSpec, adapters: set[str]) -> EngineLimits:
    return EngineLimits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_blocks=engine.kv_capacity_tokens // engine.block_size,
        kv_block_tokens=engine.block_size,
        prefix_cache=engine.prefix_cache,
        chunked_prefill=engine.chunked_prefill,
        max_waiting=engine.max_waiting,
        encoder_cache_tokens=engine.encoder_cache_tokens,
        # An engine without a cap still has to be told that adapters come.
        max_loras=engine.max_loras or len(adapters) or None,
    )


def _with_settings(
    config: PolicyConfig, settings: dict[str, Any]
) -> tuple[PolicyConfig, tuple[str, ...]]:
    """The policy with the operator's settings, and names that are no setting yet."""
    # The case has said what a request without priority has, and 0 is 0.
    requests = config.requests.model_copy(
        update={"default_priority": RequestDefaults().default_priority}
    )
    update: dict[str, Any] = {"requests": requests}
    bounds = _changed(config.bounds or Bounds(), settings)
    queue = _changed(config.queue or Queue(), settings)
    if bounds is not None:
        update["bounds"] = bounds
    if queue is not None:
        update["queue"] = queue
    known = {name for model in SETTINGS for name in model.model_fields}
    notes = tuple(f"{name} is not a setting yet" for name in settings if name not in known)
    return config.model_copy(update=update), notes


def _changed(part: Component, settings: dict[str, Any]) -> Component | None:
    inside = {k: v for k, v in settings.items() if k in type(part).model_fields}
    if not inside:
        return None
    return type(part).model_validate({**dict(part), **inside})
