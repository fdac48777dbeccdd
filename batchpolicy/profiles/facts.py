"""What a profile says of itself, for people and programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchpolicy.errors import BatchPolicyError
from batchpolicy.profiles.loading import load_profile, profile_names
from batchpolicy.profiles.profile import Profile
from batchpolicy.step_cost import StepShape

SAMPLES = {
    "1 decode at 1,024 tokens": StepShape(decodes=1, decode_context=1024, sequences=1),
    "32 decodes at 1,024": StepShape(decodes=32, decode_context=32 * 1024, sequences=32),
    "128 decodes at 1,024": StepShape(decodes=128, decode_context=128 * 1024, sequences=128),
    "a prompt of 512": StepShape(prefill_tokens=512, attention=512 * 256.0, sequences=1),
    "a prompt of 2,048": StepShape(prefill_tokens=2048, attention=2048 * 1024.0, sequences=1),
    "512 of a prompt beside 32 decodes at 1,024": StepShape(
        512, 512 * 256.0, 0, 32, 32 * 1024, 33
    ),
}
"""Steps that are shown with their times."""


def installed_profiles() -> Iterable[dict[str, Any]]:
    """Name and main facts of each shipped profile."""
    for name in profile_names():
        try:
            yield profile_facts(load_profile(name))
        except BatchPolicyError as e:
            yield {"name": name, "error": str(e)}


def profile_facts(profile: Profile) -> dict[str, Any]:
    """All that a profile holds; ``steps_s`` are times of steps inside its envelope."""
    reach = profile.reach
    facts = profile.model_dump(mode="json", exclude={"cost"}, exclude_none=True)
    facts |= {
        "trust": profile.trust,
        "form": type(profile.cost).__name__,
        "cost": profile.cost.model_dump(mode="json", exclude_defaults=True),
        "envelope": None if reach is None else reach.model_dump(),
        "kv_tokens": profile.kv_capacity,
        "steps_s": {
            name: profile.cost(shape) for name, shape in SAMPLES.items() if within(profile, shape)
        },
    }
    return facts


def within(profile: Profile, shape: StepShape) -> bool:
    """Whether a step is no larger than what was measured."""
    reach = profile.reach
    if reach is None:
        return True
    if not shape.decodes:
        return shape.prefill_tokens <= reach.prefill_tokens
    if not shape.prefill_tokens:
        return shape.decodes <= reach.decodes
    tokens = shape.prefill_tokens + shape.decodes
    return tokens <= reach.mixed_prefill_tokens and shape.decodes <= reach.mixed_decodes
