from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy_vllm.plugin import register

pytestmark = pytest.mark.engine


def test_a_mistake_in_the_policy_file_ends_the_server_before_it_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcsf\n", encoding="utf-8")
    monkeypatch.setenv("BATCHPOLICY_CONFIG", str(file))
    with pytest.raises(SystemExit) as caught:
        register()
    assert caught.value.code == 2
    assert "policy.yaml:3: no policy named 'fcsf'. Did you mean 'fcfs'?" in capsys.readouterr().err


def test_without_a_file_and_with_a_good_one_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    register()
    file = tmp_path / "policy.yaml"
    file.write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\n", encoding="utf-8")
    monkeypatch.setenv("BATCHPOLICY_CONFIG", str(file))
    register()
