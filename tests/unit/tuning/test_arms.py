from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.arms import arms_named

FILE = "apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\n"


def test_arms_are_called_as_their_files_or_policies(tmp_path: Path) -> None:
    today = tmp_path / "today.yaml"
    today.write_text(FILE)
    assert [arm.label for arm in arms_named(["fcfs", str(today)])] == ["fcfs", "today"]


def test_arms_of_one_label_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.yaml").write_text(FILE)
    texts = [str(tmp_path / folder / "p.yaml") for folder in ("a", "b")]
    assert [arm.label for arm in arms_named(texts)] == texts
    assert [arm.label for arm in arms_named(["fcfs", "priority", "fcfs"])] == [
        "fcfs#1",
        "priority",
        "fcfs#2",
    ]


def test_a_policy_that_is_not_installed_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"'fcsf'.*Did you mean 'fcfs'"):
        arms_named(["fcsf", "priority"])
