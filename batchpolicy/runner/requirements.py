"""What a policy and a predictor require of an engine: refused at its start, by name."""

from __future__ import annotations

from collections.abc import Set

from batchpolicy.config import PolicyConfig
from batchpolicy.errors import ConfigError
from batchpolicy.policy import Policy
from batchpolicy.predictor import TRUTH, Predictor
from batchpolicy.runner.facts import EngineFacts


def policy_for(config: PolicyConfig, engine: EngineFacts) -> Policy:
    """The policy of a file.

    Raises
    ------
    ConfigError
        When it requires what the engine lacks.
    """
    policy = config.build_policy()
    _demand(policy.tags.requires, engine, f"policy {config.label!r}")
    return policy


def predictor_for(config: PolicyConfig, engine: EngineFacts) -> Predictor | None:
    """The predictor of a file, None where it names none; see ``policy_for``."""
    if config.predictor is None:
        return None
    predictor = config.predictor.build()
    who = f"predictor {config.predictor.name!r}"
    if TRUTH in predictor.requires - _abilities(engine):
        raise ConfigError(
            f"{who} knows the true lengths of answers, which only replays have; "
            "a server needs one that predicts, or none."
        )
    _demand(predictor.requires, engine, who)
    return predictor


def _abilities(engine: EngineFacts) -> Set[str]:
    return engine.capabilities if engine.cost is None else engine.capabilities | {"step_cost"}


def _demand(required: Set[str], engine: EngineFacts, who: str) -> None:
    able = _abilities(engine)
    missing = sorted(required - able)
    if missing:
        raise ConfigError(
            f"{who} requires {', '.join(missing)}, which this engine lacks; "
            f"it has: {', '.join(sorted(able)) or 'none'}."
        )
