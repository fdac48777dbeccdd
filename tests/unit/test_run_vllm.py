"""What `make test-vllm-versions` says and returns, without fetching or running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.versions import run_vllm


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["passed: 9 tests", "passed: 9 tests"], 0),
        (["passed: 9 tests", "not available: no wheel"], 0),
        (["passed: 9 tests", "failed: 1 failed, 8 tests"], 1),
        (["not available: no wheel"], 1),
    ],
)
def test_it_fails_if_a_release_does_or_none_could_be_run(
    outcomes: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_release = {f"0.{i}": outcome for i, outcome in enumerate(outcomes)}

    def python_files(release: str) -> Path:
        if by_release[release].startswith("not available: "):
            raise run_vllm.NotAvailable(by_release[release].removeprefix("not available: "))
        return Path(release)

    monkeypatch.setattr(run_vllm, "_python_files", python_files)
    monkeypatch.setattr(run_vllm, "_tested", lambda release, folder: by_release[release])
    assert run_vllm.main(list(by_release)) == code
    said = capsys.readouterr().out.splitlines()
    assert said == [f"vLLM {r:8} {outcome}" for r, outcome in by_release.items()]
