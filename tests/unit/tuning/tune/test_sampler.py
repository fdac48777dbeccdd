from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.records import Value
from batchpolicy_tuning.tune.sampler import (
    STARTUP,
    Proposer,
    SamplerName,
    Seen,
    check_sampler,
)
from batchpolicy_tuning.tune.space import POLICY, Parameter, Space

SMALL = Space((Parameter("a", choices=(1, 2, 3, 4)), Parameter("b", choices=("x", "y", "z"))))
MIXED = Space(
    (
        Parameter(POLICY, choices=("fcfs", "benefit", "edf")),
        Parameter("benefit:lambda", 0.01, 10.0, log=True, of="benefit"),
        Parameter("edf:scale", 0.0, 1.0, of="edf"),
        Parameter("seats", 8, 256, log=True, integer=True),
    )
)
SAMPLERS: tuple[SamplerName, ...] = ("tpe", "nsga2", "random", "grid")


def _key(params: Mapping[str, Value]) -> str:
    return json.dumps(params, sort_keys=True)


def _asked(
    space: Space, sampler: SamplerName, most: int, seed: int = 0, salt: int = 0
) -> list[Seen]:
    """Trials that a sampler asks for, one after another; higher is worse for all."""
    proposer = Proposer(space, sampler, seed, 1, most)
    seen: list[Seen] = []
    for _ in range(most):
        known = {_key(one.params) for one in seen}
        found = proposer.propose(seen, known, _key, salt)
        if found is None:
            break
        loss = float(sum(v for v in found.params.values() if isinstance(v, int | float)))
        seen.append(Seen(found.params, (loss,), (loss - 5.0,), attributes=found.attributes))
    return seen


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_setting_of_a_small_space_comes_once_and_then_none(sampler: SamplerName) -> None:
    keys = [_key(one.params) for one in _asked(SMALL, sampler, 20)]
    assert len(keys) == len(set(keys)) == 12


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_settings_of_a_space_with_policies_are_inside_and_new(sampler: SamplerName) -> None:
    seen = _asked(MIXED, sampler, 30)
    assert all(MIXED.inside(one.params) for one in seen)
    assert len({_key(one.params) for one in seen}) == len(seen) == 30


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_seed_gives_the_same_settings_and_another_gives_others(sampler: SamplerName) -> None:
    first, again, other = (
        [_key(one.params) for one in _asked(MIXED, sampler, 15, seed)] for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_workers_of_another_salt_do_not_think_of_the_same() -> None:
    seen = _asked(MIXED, "tpe", 12)
    known = {_key(one.params) for one in seen}
    proposer = Proposer(MIXED, "tpe", 0, 1, 40)
    found = [proposer.propose(seen, known, _key, salt) for salt in range(8)]
    assert len({_key(one.params) for one in found if one is not None}) > 4


def test_the_first_settings_leave_no_half_of_a_dimension_out() -> None:
    space = Space(tuple(Parameter(name, 0.0, 1.0) for name in "abc"))
    for seed in range(20):
        first = _asked(space, "tpe", STARTUP, seed)
        for name in "abc":
            halves = [one.params[name] < 0.5 for one in first]  # type: ignore[operator]
            assert sum(halves) == STARTUP / 2


def test_a_failed_setting_keeps_tpe_away_from_its_neighbours() -> None:
    space = Space((Parameter("a", 0.0, 1.0),))
    proposer = Proposer(space, "tpe", 0, 1, 100)
    good = [Seen({"a": k / 40}, (1.0,), (-1.0,)) for k in range(10)]
    bad = [Seen({"a": 0.75 + k / 100}, None) for k in range(20)]
    found = [proposer.propose([*good, *bad], (), _key, salt) for salt in range(60)]
    inside = [one for one in found if one is not None and 0.75 <= one.params["a"] <= 0.95]  # type: ignore[operator]
    assert len(inside) < 60 * 0.2 / 2


def test_nsga2_finds_its_generations_again() -> None:
    seen = _asked(SMALL, "nsga2", 11)
    assert any("generation" in key for one in seen for key in one.attributes)


def test_several_objectives_can_be_told() -> None:
    proposer = Proposer(MIXED, "tpe", 0, 2, 40)
    seen = [
        Seen(MIXED.at([k / 12, 0.3, 0.4, k / 12]), (float(k), 12.0 - k), (0.0,)) for k in range(12)
    ]
    assert proposer.propose(seen, (), _key) is not None


def test_running_trials_are_told_and_have_no_values() -> None:
    proposer = Proposer(MIXED, "tpe", 0, 1, 40)
    seen = [Seen(MIXED.at([k / 12, 0.3, 0.4, k / 12]), (math.sqrt(k),)) for k in range(11)]
    running = Seen(MIXED.at([0.4, 0.2, 0.2, 0.2]), None, running=True)
    assert proposer.propose([*seen, running], (), _key) is not None


def test_a_sampler_whose_library_is_missing_is_refused_by_name() -> None:
    check_sampler("tpe")
    if find_spec("torch") is None:
        with pytest.raises(ConfigError, match=r"pip install 'batchpolicy\[gp\]'"):
            check_sampler("gp")
    else:
        check_sampler("gp")
