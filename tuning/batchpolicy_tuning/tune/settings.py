"""From the file's space to parameters, and from parameters to a policy and limits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from types import NoneType
from typing import Any, cast

from batchpolicy.component import Component
from batchpolicy.config import PolicyConfig, PolicySpec, config_named
from batchpolicy.document import Document, Loc, dotted, short
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.nearest import near
from batchpolicy.profiles import Profile
from batchpolicy_tuning.tune.dimensions import TUNE, dimension, ranges_of
from batchpolicy_tuning.tune.engine_limits import TUNED_LIMITS
from batchpolicy_tuning.tune.records import Value
from batchpolicy_tuning.tune.space import POLICY, Parameter, Space
from batchpolicy_tuning.tune.study_file import SpaceSpec


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy and the limits of the engine below it."""

    config: PolicyConfig
    limits: EngineLimits

    @property
    def key(self) -> str:
        """Equal for settings that cannot differ in a run."""
        config = self.config
        rest = config.model_dump(mode="json", exclude={"policy", "predictor", "title"})
        predictor = None if config.predictor is None else _said_of(config.predictor.build())
        said = [_said_of(config.build_policy()), predictor, rest, asdict(self.limits)]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:20]

    def shown(self) -> dict[str, Value]:
        """What is set, flat: the policy, what its file says of it, and the tuned limits."""
        limits = {name: getattr(self.limits, name) for name in TUNED_LIMITS}
        return {POLICY: self.config.label, **_flat(self.config.policy.params), **limits}


def _said_of(made: Component) -> list[object]:
    """What a policy or a predictor is, wherever its file lies."""
    return [f"{type(made).__module__}:{type(made).__qualname__}", made.model_dump(mode="json")]


@dataclass(frozen=True, slots=True)
class Settings:
    """A space, and the settings that its points stand for."""

    space: Space
    bases: Mapping[str, PolicyConfig]
    """By policy, what its parameters are laid over."""
    limits: EngineLimits
    """Those of the baseline; what is not searched stays so."""
    notes: tuple[str, ...] = ()
    """Where the space was made smaller than asked for."""

    def of(self, params: Mapping[str, Value]) -> Setting:
        """The setting of these parameters.

        Raises
        ------
        ConfigError
            When the policy refuses them.
        """
        policy = str(params.get(POLICY, next(iter(self.bases))))
        given = deepcopy(self.bases[policy].policy.params)
        changed: dict[str, Any] = {}
        for name, value in params.items():
            if name in TUNED_LIMITS:
                changed[name] = value
            elif name != POLICY:
                _put(given, name.removeprefix(f"{policy}:"), value)
        base = self.bases[policy]
        spec = base.policy.model_copy(update={"params": given})
        return Setting(base.model_copy(update={"policy": spec}), replace(self.limits, **changed))


def read_settings(
    document: Document, spec: SpaceSpec, profile: Profile, limits: EngineLimits
) -> Settings | None:
    """The space of a study; None after noting what is wrong with it."""
    before = len(document.faults)
    notes: list[str] = []
    parameters, bases = read_policies(document, spec)
    if not spec.policies:
        bases["fcfs"] = config_named("fcfs")
    own_limits, limits = _of_limits(document, spec, profile, limits, notes)
    if not document.faults[before:] and not parameters and not own_limits and len(bases) < 2:
        document.fault(("space",), "space: nothing to search; name policies or limits to vary.")
    if len(document.faults) > before:
        return None
    if len(bases) > 1:
        parameters.insert(0, Parameter(POLICY, choices=tuple(bases)))
    else:
        parameters = [
            replace(one, name=one.name.removeprefix(f"{one.of}:"), of="") for one in parameters
        ]
    space = Space((*parameters, *own_limits), _Startable(limits))
    if next(iter(space.grid()), None) is None:
        document.fault(
            ("space", "limits"),
            "space.limits: max_num_batched_tokens is below max_num_seqs everywhere; "
            "no engine starts so.",
        )
        return None
    return Settings(space, bases, limits, tuple(notes))


def read_policies(
    document: Document, spec: SpaceSpec
) -> tuple[list[Parameter], dict[str, PolicyConfig]]:
    """Dimensions of the policies of a space, and what they are laid over; notes its faults."""
    parameters: list[Parameter] = []
    bases: dict[str, PolicyConfig] = {}
    for name, given in spec.policies.items():
        base = _base(document, name)
        if base is None:
            continue
        own, fixed = _of_policy(document, ("space", "policies", name), name, given, base)
        bases[name] = fixed
        parameters += own
    return parameters, bases


@dataclass(frozen=True, slots=True)
class _Startable:
    limits: EngineLimits

    def __call__(self, params: Mapping[str, Value]) -> bool:
        tokens = params.get("max_num_batched_tokens", self.limits.max_num_batched_tokens)
        seats = params.get("max_num_seqs", self.limits.max_num_seqs)
        return cast(int, tokens) >= cast(int, seats)


def _base(document: Document, name: str) -> PolicyConfig | None:
    try:
        return config_beside(document, name)
    except BatchPolicyError as fault:
        document.fault(("space", "policies", name), str(fault))
        return None


def config_beside(document: Document, name: str) -> PolicyConfig:
    """The policy of that name, or in that file; files are looked for beside the document."""
    if name.endswith((".yaml", ".yml", ".json")):
        return config_named(str(document.path.parent / name))
    spec = PolicySpec(name=name, base=document.path.absolute().parent)
    config = PolicyConfig(policy=spec)
    config.build_policy()
    return config


def _of_policy(
    document: Document, at: Loc, name: str, given: object, base: PolicyConfig
) -> tuple[list[Parameter], PolicyConfig]:
    """The dimensions of a policy, and the policy with what is fixed."""
    cls = type(base.build_policy())
    ranges = dict(ranges_of(cls))
    if given is None:
        return [], base
    if given == TUNE:
        dimensions: dict[str, object] = {k: TUNE for k, (_, _, off) in ranges.items() if not off}
        if not dimensions:
            document.fault(at, f"{name!r} has no ranges beside its fields; write it without.")
    elif isinstance(given, dict):
        dimensions = cast("dict[str, object]", given)
    else:
        document.fault(
            at,
            f"{dotted(at)} is {short(given)}; expected {TUNE!r}, dimensions by key, or nothing.",
        )
        return [], base
    found: list[Parameter] = []
    fixed = deepcopy(base.policy.params)
    for key, one in dimensions.items():
        place = (*at, key)
        if one == TUNE and key not in ranges:
            known = ", ".join(ranges) or "none"
            document.fault(
                place,
                f"{dotted(place)}: there is no range beside a field of that name, give low and "
                f"high.{near(key, ranges)} With a range: {known}.",
            )
            continue
        tune, integer, _ = ranges.get(key, (None, False, False))
        values = dimension(document, place, one, tune, integer)
        if values is None or not _accepted(document, place, base, key, values):
            continue
        if len(values.choices) == 1:
            _put(fixed, key, values.choices[0])
        else:
            found.append(replace(values, name=f"{name}:{key}", of=name))
    spec = base.policy.model_copy(update={"params": fixed})
    return found, base.model_copy(update={"policy": spec})


def _accepted(
    document: Document, at: Loc, base: PolicyConfig, key: str, values: Parameter
) -> bool:
    """Whether the policy takes the ends, or every choice; notes what it says else."""
    for value in values.choices or (values.at(0.0), values.at(1.0)):
        params = deepcopy(base.policy.params)
        try:
            _put(params, key, value)
            base.policy.model_copy(update={"params": params}).build()
        except BatchPolicyError as fault:
            document.fault(at, str(fault))
            return False
    return True


def _of_limits(
    document: Document, spec: SpaceSpec, profile: Profile, limits: EngineLimits, notes: list[str]
) -> tuple[list[Parameter], EngineLimits]:
    reach = profile.reach
    most = {
        "max_num_seqs": math.inf if reach is None else reach.mixed_decodes,
        "max_num_batched_tokens": math.inf if reach is None else reach.mixed_prefill_tokens,
        "watermark": 0.5,
    }
    found: list[Parameter] = []
    for name, given in spec.limits.items():
        at: Loc = ("space", "limits", name)
        if name not in TUNED_LIMITS:
            listed = ", ".join(TUNED_LIMITS)
            document.fault(
                at, f"unknown key {dotted(at)!r}.{near(name, TUNED_LIMITS)} Known: {listed}."
            )
            continue
        values = dimension(document, at, given, None, name != "watermark")
        if values is None:
            continue
        least = 1 if name.startswith("max_") else 0
        low = cast(float, values.choices[0]) if values.choices else values.low
        if not values.ordered or low < least or not _whole(values, name != "watermark"):
            kind = "numbers" if name == "watermark" else "whole numbers"
            document.fault(at, f"{dotted(at)}: expected {kind} from {least} on.")
            continue
        clipped = _clipped(values, most.get(name, math.inf))
        why = f"profile {profile.name} was measured" if name.startswith("max_") else "it goes"
        if clipped is None:
            document.fault(
                at, f"{dotted(at)}: {why} up to {most[name]:,}; nothing of this is within."
            )
            continue
        if clipped != values:
            notes.append(f"{name}: clipped to {_span(clipped)}; {why} up to {most[name]:,g}.")
        if len(clipped.choices) == 1:
            changed: dict[str, Any] = {name: clipped.choices[0]}
            limits = replace(limits, **changed)
        else:
            found.append(replace(clipped, name=name))
    return found, limits


def _whole(values: Parameter, asked: bool) -> bool:
    return not asked or all(isinstance(one, int) for one in values.choices)


def _clipped(values: Parameter, most: float) -> Parameter | None:
    if values.choices:
        kept = tuple(one for one in values.choices if cast(float, one) <= most)
        return replace(values, choices=kept) if kept else None
    return replace(values, high=min(values.high, most)) if values.low <= most else None


def _span(values: Parameter) -> str:
    if values.choices:
        return ", ".join(f"{one:,}" for one in values.choices)
    return f"{values.low:,g} to {values.high:,g}"


def _put(params: dict[str, Any], key: str, value: Value) -> None:
    """Set ``urgency.weight`` inside nested parameters."""
    *above, last = key.split(".")
    here = params
    for part in above:
        inner = here.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{key}: {part!r} is {short(inner)} in the policy; expected a mapping"
            )
        here = cast("dict[str, Any]", inner)
    here[last] = value


def _flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, value in params.items():
        if isinstance(value, dict):
            found |= _flat(cast("dict[str, Any]", value), f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str | NoneType):
            found[prefix + key] = value
        else:
            found[prefix + key] = str(value)
    return found
