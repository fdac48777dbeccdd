"""What SGLang's processes do with the plug-in before there is a scheduler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from batchpolicy_sglang.plugin import register


def test_without_a_file_nothing_is_done_or_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    monkeypatch.setitem(sys.modules, "batchpolicy_sglang.hooks", None)
    register()
    assert capsys.readouterr() == ("", "")


def test_a_process_that_does_not_schedule_only_reads_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: benefit\n", "utf-8")
    monkeypatch.setenv("BATCHPOLICY_CONFIG", str(file))
    monkeypatch.delitem(sys.modules, "sglang.srt.managers.scheduler", raising=False)
    # None lets an import fail.
    monkeypatch.setitem(sys.modules, "batchpolicy_sglang.hooks", None)
    register()


def test_a_mistake_in_the_file_ends_the_process_which_sglang_would_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcsf\n", "utf-8")
    monkeypatch.setenv("BATCHPOLICY_CONFIG", str(file))
    with pytest.raises(SystemExit) as caught:
        register()
    assert caught.value.code == 2
    assert "policy.yaml:3: no policy named 'fcsf'. Did you mean 'fcfs'?" in capsys.readouterr().err
