"""``examples/policies/default.yaml`` is what ``benefit`` does out of the box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from batchpolicy.config import PolicyFile, config_named, load_config
from batchpolicy.policies.benefit import Benefit

FILE = Path(__file__).parents[2] / "examples" / "policies" / "default.yaml"


def test_the_policy_has_the_defaults() -> None:
    policy = load_config(FILE).build_policy()
    assert policy == Benefit()
    assert policy == config_named("benefit").build_policy()


@pytest.mark.parametrize("part", ["bounds", "queue", "memory", "limits", "requests"])
def test_every_other_part_has_the_defaults(part: str) -> None:
    config, bare = load_config(FILE), config_named("benefit")
    kind = type(getattr(config, part))
    assert part in PolicyFile.model_fields
    assert getattr(config, part) == kind()
    assert config.preempts() == bare.preempts()


def test_it_has_every_parameter_of_the_policy() -> None:
    given = yaml.safe_load(FILE.read_text(encoding="utf-8"))["policy"]
    dumped = Benefit().model_dump(mode="json", by_alias=True)
    assert _keys(given) - {"name"} == _keys(dumped)


def test_it_has_every_key_of_a_policy_file() -> None:
    given = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert list(given) == list(PolicyFile.model_fields)
    for part in ("bounds", "queue", "memory", "limits", "requests"):
        kind = type(getattr(load_config(FILE), part))
        assert set(given[part]) == set(kind.model_fields)


def test_every_value_is_explained() -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    values = [line for line in lines if ":" in line.partition("#")[0] and "#" in line]
    bare = [
        line
        for line in lines
        if line.partition("#")[0].partition(":")[2].strip() and line not in values
    ]
    assert bare == ["apiVersion: batchpolicy/v1", "kind: Policy", "  name: benefit"]


def _keys(given: dict[str, Any], at: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in given.items():
        found.add(f"{at}{key}")
        if isinstance(value, dict):
            found |= _keys(value, f"{at}{key}.")
    return found
