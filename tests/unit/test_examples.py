from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from batchpolicy import registry
from batchpolicy.config import load_config
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step

CUSTOM = Path(__file__).parents[2] / "examples" / "custom_policy"


def test_least_slack_halves_by_its_scale_and_ends_at_no_target() -> None:
    policy = load_config(CUSTOM / "policy.yaml").build_policy()
    table = RequestTable()
    table.add("late", arrival_s=90.0, ttft_slo_s=1.0)
    table.add("soon", arrival_s=99.5, ttft_slo_s=0.75)
    table.add("whenever", arrival_s=0.0)
    benefit = policy.benefit(table.view(), make_step(now_s=100.0))
    # The file sets the scale to 250 ms; the second has just that left.
    assert np.array_equal(benefit, [1.0, 0.5, 0.0])


def test_the_examples_entry_point_names_its_class() -> None:
    project = tomllib.loads((CUSTOM / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    where, _, name = project["entry-points"]["batchpolicy.policies"]["least-slack"].partition(":")
    assert registry.policy_class(f"{where}.py:{name}", CUSTOM).__name__ == "LeastSlack"
