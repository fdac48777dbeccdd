from __future__ import annotations

import json
import sys
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


@pytest.mark.parametrize("form", ["apart", "joined"])
def test_a_file_that_an_option_names_is_looked_at_as_well(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({"batchpolicy": str(tmp_path / "missing.yaml")})
    option = ["--additional-config", text] if form == "apart" else [f"--additional-config={text}"]
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    monkeypatch.setattr(sys, "argv", ["serve", "--model", "m", *option, "--port", "1"])
    with pytest.raises(SystemExit) as caught:
        register()
    assert caught.value.code == 2
    assert "missing.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_an_option_that_is_no_mapping_is_left_to_vllm(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    monkeypatch.setattr(sys, "argv", ["serve", "--additional-config", text])
    register()
    assert capsys.readouterr().err == ""


def test_without_a_file_and_with_a_good_one_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve"])
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    register()
    file = tmp_path / "policy.yaml"
    file.write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\n", encoding="utf-8")
    monkeypatch.setenv("BATCHPOLICY_CONFIG", str(file))
    register()
    assert capsys.readouterr().err == ""
