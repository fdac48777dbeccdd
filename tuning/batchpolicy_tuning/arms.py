"""The policies that are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from batchpolicy.config import PolicyConfig, config_named


@dataclass(frozen=True, slots=True)
class Arm:
    """One policy in a comparison."""

    label: str
    """Its name in the results, different from that of every other arm."""
    text: str
    """How the command line named it."""
    config: PolicyConfig


def arms_named(texts: Sequence[str]) -> tuple[Arm, ...]:
    """The arms that a command line names, the baseline first.

    Arms of one label are told apart by how they were named, and when that is the
    same too, as in a comparison of a policy with itself, by a number.

    Raises
    ------
    ConfigError
        When there is no such policy, or its file has mistakes.
    """
    configs = [config_named(text) for text in texts]
    shared = Counter(config.label for config in configs)
    labels = [
        config.label if shared[config.label] == 1 else text
        for text, config in zip(texts, configs, strict=True)
    ]
    seen: Counter[str] = Counter()
    arms: list[Arm] = []
    for label, text, config in zip(labels, texts, configs, strict=True):
        seen[label] += 1
        number = f"#{seen[label]}" if labels.count(label) > 1 else ""
        arms.append(Arm(label + number, text, config))
    return tuple(arms)
