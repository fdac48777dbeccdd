from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.cli import main
from tests.unit.tuning.cases.files import case, row, written

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine


def test_cases_run_on_vllms_own_scheduler_or_are_not_applicable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The more urgent one goes first, though it stands behind the other.
    requests = [row("a"), row("low", 0.01, priority=5), row("high", 0.01, priority=-5)]
    order = {"kind": "order", "event": "first_scheduled", "ids": ["a", "high", "low"]}
    written(tmp_path, case(requests=requests, checks=[order]), "1.json")
    written(tmp_path, case(id="T2", requests=[row("a", ready_at_s=1.0)]), "2.json")
    command = ["cases", str(tmp_path), "--engine", "vllm", "--policy", "priority", "-q"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "T1 passed",
        "T2 not applicable: blocked_requests (engine vllm)",
        "1 passed, 0 failed, 1 not applicable",
    ]
