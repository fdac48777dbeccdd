"""Checks that hold any policy to the interface's contract, and data for tests of policies."""

from batchpolicy.testing.checks import (
    CheckResult,
    check_policy,
    parametrize_with_checks,
    policy_checks,
)
from batchpolicy.testing.data import make_requests, make_step, make_table
from batchpolicy.testing.predictors import check_predictor, predictor_checks

__all__ = [
    "CheckResult",
    "check_policy",
    "check_predictor",
    "make_requests",
    "make_step",
    "make_table",
    "parametrize_with_checks",
    "policy_checks",
    "predictor_checks",
]
