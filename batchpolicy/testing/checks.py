"""Contract checks: one function per promise, named after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import Policy
from batchpolicy.testing import accounting, holding, planning, predicting, scoring, wrapping
from batchpolicy.wrappers import Wrapper

if TYPE_CHECKING:
    import pytest

Check = Callable[[Policy], None]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check said of one policy."""

    check: str
    status: Literal["passed", "failed", "xfail", "xpass"]
    error: Exception | None = None
    reason: str | None = None


def policy_checks(policy: Policy) -> Iterator[Check]:
    """The checks that apply to this policy, most basic first."""
    yield accounting.check_parameters_survive_a_round_trip
    yield accounting.check_tenant_weights_are_positive
    yield scoring.check_benefit_is_one_finite_float_a_row
    yield scoring.check_tier_is_one_small_class_a_row
    yield scoring.check_keep_benefit_is_one_number_a_row
    yield scoring.check_who_is_displaced_does_not_displace_in_turn
    yield scoring.check_admissible_is_one_truth_value_a_row
    yield scoring.check_rank_is_a_ranking_of_every_row
    yield planning.check_limits_are_whole_numbers
    yield planning.check_rank_follows_rows
    yield scoring.check_columns_are_left_alone
    yield scoring.check_scoring_changes_nothing
    yield scoring.check_benefit_follows_rows
    yield scoring.check_a_row_alone_scores_as_in_the_queue
    yield scoring.check_clock_origin_does_not_matter
    yield scoring.check_extreme_values_stay_finite
    if "prediction" not in policy.tags.requires:
        yield scoring.check_needs_no_undeclared_prediction
        yield predicting.check_no_prediction_counts_as_some_length
    if "step_cost" not in policy.tags.requires:
        yield scoring.check_needs_no_undeclared_step_cost
    if not policy.tags.may_starve:
        yield scoring.check_equals_are_served_in_order
    if policy.native_order() is not None:
        yield scoring.check_native_order_is_the_engines
    yield holding.check_a_hold_ends
    if isinstance(policy, Wrapper):
        yield wrapping.check_inner_is_asked_about_a_row_once
        yield wrapping.check_hooks_reach_inner
        yield wrapping.check_inner_has_its_say
        if policy.neutral is not None:
            yield wrapping.check_neutral_parameters_change_nothing
    yield accounting.check_hooks_take_no_rows
    yield accounting.check_hooks_add_up
    yield accounting.check_instances_share_no_state
    yield accounting.check_the_same_events_give_the_same_scores
    yield planning.check_the_same_events_give_the_same_plans
    yield accounting.check_a_reused_slot_starts_afresh
    yield accounting.check_who_is_forgotten_leaves_nothing


def check_policy(
    policy: Policy,
    *,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "report"] = "raise",
) -> list[CheckResult]:
    """Run every check that applies; the policy itself is left as it was.

    ``expected_failures`` maps names of checks to reasons. With ``on_fail="report"``
    a failure is a result; otherwise it is raised.

    Raises
    ------
    PolicyContractError
        When the policy breaks a promise, unless it is to be reported.
    ValueError
        When ``expected_failures`` names a check that does not apply.
    """
    expected = dict(expected_failures or {})
    checks = list(policy_checks(policy))
    unknown = sorted(set(expected) - {check.__name__ for check in checks})
    if unknown:
        raise ValueError(f"expected_failures names no check that applies: {', '.join(unknown)}")
    results: list[CheckResult] = []
    for check in checks:
        name = check.__name__
        reason = expected.get(name)
        try:
            check(policy)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:
            # One that leaves by SystemExit must not decide how the checks end.
            e = fault if isinstance(fault, Exception) else _left(fault)
            if reason is None and on_fail == "raise":
                raise e from fault
            results.append(CheckResult(name, "failed" if reason is None else "xfail", e, reason))
        else:
            results.append(
                CheckResult(name, "passed" if reason is None else "xpass", None, reason)
            )
    return results


def _left(fault: BaseException) -> PolicyContractError:
    return PolicyContractError(f"raised {type(fault).__name__}, which ends the process")


def parametrize_with_checks(policies: Iterable[Policy]) -> pytest.MarkDecorator:
    """Pytest decorator: one test item for each policy and check."""
    import pytest

    return pytest.mark.parametrize(
        ("policy", "check"),
        [
            pytest.param(policy, check, id=f"{type(policy).__name__}-{check.__name__}")
            for policy in policies
            for check in policy_checks(policy)
        ],
    )
