"""What a user reads who asks for vLLM where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# As if vLLM were not installed, also where it is.
WITHOUT_VLLM = """
import sys
sys.modules["vllm"] = None
from batchpolicy.cli import main
sys.exit(main(sys.argv[1:]))
"""


def batchpolicy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_VLLM, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_a_comparison_on_vllm_without_vllm_ends_with_one_message_and_status_2() -> None:
    workload = ("--workload", "chat-and-batch", "--load", "0.9")
    done = batchpolicy("ab", "fcfs", "benefit", "--engine", "vllm", *workload)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "vllm" in done.stderr
    assert "make .venv-vllm" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
