"""One number of a policy changed while it serves."""

from __future__ import annotations

from typing import Any, cast

import pytest

from batchpolicy.config import config_named
from batchpolicy.errors import ConfigError
from batchpolicy.policy import Limits
from batchpolicy.runner.retune import numbers, retuned
from tests.support.policies import Arrival
from tests.support.rig import Rig


def test_the_numbers_of_a_policy_have_the_names_of_its_file() -> None:
    policy = config_named("benefit").build_policy()
    assert numbers(policy)["lambda"] == policy.lambda_  # type: ignore[attr-defined]


def test_a_changed_policy_scores_anew_and_keeps_its_state() -> None:
    rig = Rig(config_named("benefit").build_policy())
    rig.arrive("a", tenant="x")
    rig.plan()
    before = cast("Any", rig.runner.policy)
    weights = [weight for weight, _ in before._scorers]
    rig.runner.retune("lambda", 7.0)
    after = cast("Any", rig.runner.policy)
    assert after.lambda_ == 7.0
    assert 7.0 in [weight for weight, _ in after._scorers]
    assert 7.0 not in weights, "what was derived from the old value is gone"
    assert after.fairness is before.fairness
    assert rig.plan().admit == ["a"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("lambda", -1.0, "lambda is -1.0"),
        ("lambda", "much", "lambda is 'much'"),
        ("lamda", 1.0, "has no number 'lamda'; it has: lambda"),
    ],
)
def test_what_cannot_be_taken_is_refused_and_changes_nothing(
    key: str, value: object, said: str
) -> None:
    policy = config_named("benefit").build_policy()
    with pytest.raises(ConfigError, match=said):
        retuned(policy, key, value)


def test_limits_change_up_to_those_of_the_engine() -> None:
    rig = Rig(Arrival())
    rig.arrive(*"abc")
    rig.runner.relimit(Limits(max_running=2))
    plan = rig.plan()
    assert plan.limits is not None
    assert plan.limits.max_running == 2
    rig.runner.relimit(Limits(max_running=1000))
    assert rig.runner.limits.max_running == 8, "the ceiling"
