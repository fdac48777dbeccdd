"""What a user reads who asks for vLLM where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_comparison_on_vllm_without_vllm_ends_with_one_message_and_status_2() -> None:
    policies, load = ("fcfs", "benefit"), ("--workload", "chat-and-batch", "--load", "0.9")
    done = subprocess.run(
        [sys.executable, "-m", "batchpolicy", "ab", *policies, "--engine", "vllm", *load],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert "vllm" in message
    assert "make .venv-vllm" in message
