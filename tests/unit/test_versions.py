"""What `make test-vllm-versions` and its like say and return; nothing is fetched or run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.versions.releases import NotAvailable, Releases
from tests.versions.run_sglang import SGLANG
from tests.versions.run_vllm import VLLM


@pytest.mark.parametrize("releases", [VLLM, SGLANG], ids=["vllm", "sglang"])
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
    releases: Releases,
    outcomes: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_release = {f"0.{i}": outcome for i, outcome in enumerate(outcomes)}

    def files(self: Releases, release: str) -> Path:
        if by_release[release].startswith("not available: "):
            raise NotAvailable(by_release[release].removeprefix("not available: "))
        return Path(release)

    def tested(self: Releases, release: str, folder: Path) -> str:
        return by_release[release]

    monkeypatch.setattr(Releases, "files", files)
    monkeypatch.setattr(Releases, "tested", tested)
    assert releases.run(list(by_release)) == code
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{releases.engine} {r:8} {outcome}" for r, outcome in by_release.items()]


@pytest.mark.parametrize(
    ("release", "extra"),
    [
        ("0.5.11", ("transformers==5.6.0", "tokenizers==0.22.2")),
        ("0.5.12.post1", ("transformers==5.6.0", "tokenizers==0.22.2")),
        ("0.5.13", ("transformers==5.8.1", "tokenizers==0.22.2")),
        ("0.5.21", ("transformers==5.12.1", "tokenizers==0.22.2")),
        ("0.5.22", ()),
    ],
)
def test_an_older_sglang_gets_the_transformers_that_it_asks_for(
    release: str, extra: tuple[str, ...]
) -> None:
    assert SGLANG.extra(release) == extra
