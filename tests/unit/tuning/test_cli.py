from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.cli import main
from batchpolicy_tuning import output
from batchpolicy_tuning.cli import compare

ROOT = Path(__file__).parents[3]
ENGINES = "tests.support.serial_engine"
SMALL = (
    *("--engine", f"{ENGINES}:SerialEngine", "--workload", "chat-and-batch"),
    *("--requests", "40", "--pairs", "8", "--jobs", "1", "--max-num-seqs", "1"),
)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that exits with 2 says on stderr, in one line."""
    assert main(["ab", *arguments]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "Traceback" not in told.err
    return " ".join(told.err.replace("│", " ").split())


def test_the_command_prints_a_table_and_who_pays(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    assert main(["ab", "fcfs", "priority", *SMALL, "--json", str(path)]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert "chat-and-batch at load 0.9" in told.out
    assert "chat (60% of requests)" in told.out
    assert any(line.strip().startswith("better for chat: TTFT p50") for line in lines)
    assert any(line.strip().startswith("worse for batch: TTFT") for line in lines)
    assert max(map(len, lines)) <= 120
    assert "load 0.9: 2 policies x 8 replications: 16 of 16 (100%)" in told.err
    assert json.loads(path.read_text())["kind"] == "Comparison"


def test_quiet_says_nothing_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", "fcfs", "priority", *SMALL, "--quiet"]) == 0
    assert not capsys.readouterr().err


_ON_SGLANGS = ("--requests", "40", "--pairs", "2", "--jobs", "1", "--engine", "light-sglang")


def test_an_engine_without_a_prefix_cache_goes_without_and_the_report_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["ab", "fcfs", "priority", *_ON_SGLANGS, "--workload", "chat-and-batch", "--quiet"]
    told: list[dict[str, Any]] = []
    for i, more in enumerate(([], ["--no-prefix-cache"])):
        assert main([*arguments, *more, "--json", str(tmp_path / f"{i}.json")]) == 0
        told.append(json.loads((tmp_path / f"{i}.json").read_text()))
    note = "Without a prefix cache, which light-sglang has not."
    assert [note in one["notes"] for one in told] == [True, False]
    assert note in capsys.readouterr().out
    assert not any(one["limits"]["prefix_cache"] for one in told)
    first, second = (one["loads"][0]["policies"] for one in told)
    assert [p["runs"][0]["sha256"] for p in first] == [p["runs"][0]["sha256"] for p in second]


def test_an_engine_with_a_prefix_cache_has_it_by_default(tmp_path: Path) -> None:
    arguments = ["ab", "fcfs", "priority", *SMALL, "--quiet", "--json", str(tmp_path / "out")]
    for more, cached in (([], True), (["--no-prefix-cache"], False)):
        assert main([*arguments, *more]) == 0
        assert json.loads((tmp_path / "out").read_text())["limits"]["prefix_cache"] is cached


def test_a_prefix_cache_that_an_engine_lacks_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--workload", "chat-and-batch", "--prefix-cache")
    told = _refused(capsys, "fcfs", "priority", *_ON_SGLANGS, *asked, "--quiet")
    assert "--prefix-cache: engine light-sglang has no prefix cache; leave it out" in told
    assert told.endswith("or use an engine that has one: sglang")


def test_prefixes_that_no_cache_would_reuse_are_refused_unless_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sessions = str(ROOT / "examples/workloads/chat-sessions.yaml")
    arguments = ("fcfs", "priority", *_ON_SGLANGS, "--workload", sessions, "--quiet")
    told = _refused(capsys, *arguments)
    assert "requests share prefixes, and light-sglang has no prefix cache" in told
    assert told.endswith("or without it: --no-prefix-cache")
    assert main(["ab", *arguments, "--no-prefix-cache"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fcfs", "priority", *SMALL, "--load", "0.9,x"), "'x' is no positive number"),
        (("fcfs", "priority", *SMALL, "--load", "0"), "'0' is no positive number"),
        (("fcfs", "priority", *SMALL, "--load", "inf"), "'inf' is no positive number"),
        (("fcfs", "priority", *SMALL, "--load", "1,1.0"), "1 is given twice"),
        (("fcfs", "priority", *SMALL, "--load", "0.001"), "0.001 is outside 0.01 to 10"),
        (("fcfs", "priority", *SMALL, "--load", "11"), "11 is outside 0.01 to 10"),
        (("fcfs", "priority", *SMALL, "--pairs", "1001"), "--pairs"),
        (("fcfs", "priority", *SMALL, "--requests", "1000001"), "--requests"),
        (("fcfs", "priority", *SMALL, "--kv-tokens", "1000000001"), "--kv-tokens"),
        (("fcfs", "priority", *SMALL, "--jobs", "257"), "--jobs"),
        (
            ("fcfs", "priority", *SMALL, "--max-num-seqs", "64", "--max-num-batched-tokens", "1"),
            "--max-num-batched-tokens 1 is below --max-num-seqs 64",
        ),
        (
            ("fcfs", "priority", *SMALL, "--block-size", "1000000"),
            "one block of 1,000,000 tokens is more than the KV pool of 438,608",
        ),
        (("fcfs", *SMALL), "'fcfs' has nothing to be compared with"),
        (("fcfs", "benfit", *SMALL), "Did you mean 'benefit'?"),
        (("fcfs", "none.yaml", *SMALL), "none.yaml"),
        (("fcfs", "priority", *SMALL, "--workload", "noisy"), "no workload named 'noisy'"),
        (("fcfs", "priority", *SMALL, "--classes", "x.yaml"), "has classes of its own"),
        (
            ("fcfs", "priority", *SMALL, "--profile", "h100-lama-3.1-8b"),
            "Did you mean 'h100-llama",
        ),
        (("fcfs", "priority", *SMALL, "--max-num-seqs", "9999"), "measured up to 256"),
        (("fcfs", "priority", *SMALL, "--kv-tokens", "64"), "exceed the KV pool of 64"),
        (("fcfs", "priority", *SMALL, "--pairs", "1"), "--pairs"),
        (("fcfs", "priority", *SMALL, "--margin", "5"), "'5' is no percentage"),
        (("fcfs", "priority", *SMALL, "--margin", "0%"), "over 0%, under 100%"),
        (("fcfs", "priority", *SMALL, "--gate", "ttft.p99<=5%"), "write ttft.p99<=+5%"),
        (("fcfs", "priority", *SMALL, "--gate", "itl.p99<=+5%"), "not measured here"),
        (("fcfs", "priority", *SMALL, "--gate", "ttft.p99<=+5%@class=x"), "Classes: chat"),
        (("fcfs", "priority", *SMALL, "--json", "no/such/folder.json"), "no folder"),
        (("fcfs", "priority", *SMALL, "--engine", "vlm"), "Did you mean 'vllm'?"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in _refused(capsys, *arguments, "--quiet")


def test_a_file_that_cannot_be_written_costs_no_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output, "write_whole", full)
    path = tmp_path / "out.json"
    assert main(["ab", "fcfs", "priority", *SMALL, "--quiet", "--json", str(path)]) == 1
    told = capsys.readouterr()
    assert "chat-and-batch at load 0.9" in told.out
    assert told.err == (
        f"{path}: cannot be written: No space left on device; the table above is complete\n"
    )


@pytest.mark.parametrize("fault", [BrokenPipeError(), SystemExit(1)])
def test_a_table_that_nobody_reads_costs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def unread(*_: object) -> None:
        raise fault

    monkeypatch.setattr(compare, "show", unread)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    path = tmp_path / "out.json"
    assert main(["ab", "fcfs", "priority", *SMALL, "--quiet", "--json", str(path)]) == 1
    assert json.loads(path.read_text())["kind"] == "Comparison"


@pytest.mark.parametrize(
    ("jobs", "engine"),
    [("1", "InterruptedEngine"), ("2", "InterruptedEngine"), ("2", "TerminatedEngine")],
)
def test_ctrl_c_ends_everything_with_130_and_writes_nothing(
    tmp_path: Path, jobs: str, engine: str
) -> None:
    done = _ended_by(engine, jobs, tmp_path / "out.json")
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("interrupted; nothing was written\n")
    assert not done.stdout.strip()
    assert not list(tmp_path.iterdir())


def test_processes_of_a_comparison_that_was_killed_end_by_themselves(tmp_path: Path) -> None:
    # Its output ends only when the last process that could write to it has ended.
    killed = _ended_by("KilledEngine", "2", tmp_path / "out.json")
    assert killed.returncode == -signal.SIGKILL


def _in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    roots = os.pathsep.join(str(ROOT / root) for root in (".", "adapters", "tuning"))
    return subprocess.run(
        [sys.executable, "-m", "batchpolicy", "ab", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=60,
        # A shell may have told whoever runs the tests to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def _ended_by(engine: str, jobs: str, path: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["--engine", f"{ENGINES}:{engine}", "--jobs", jobs, "--json", str(path)]
    return _in_a_process("fcfs", "priority", *SMALL, *arguments)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        # Priority takes chat first, and batch pays.
        (("--gate", "ttft.p50<=+5%@class=chat"), 0, "ttft.p50<=+5%@class=chat: passed"),
        (("--gate", "ttft.p50<=+0%@class=batch"), 4, "ttft.p50<=+0%@class=batch: violated"),
        (
            ("--gate", "ttft.p50<=+5%@class=chat", "--gate", "ttft.p50<=+0%@class=batch"),
            4,
            "ttft.p50<=+0%@class=batch: violated",
        ),
        (("--gate", "ttft.p50<=+5%", "--pairs", "7"), 5, "invalid, 7 pairs, 8 needed"),
        (("--gate", "ttft.p50<=+5%", "--load", "0.01"), 5, "invalid, no request ever waited"),
        (
            ("--gate", "ttft.p50<=+5%", "--engine", f"{ENGINES}:FaultyEngine"),
            5,
            "invalid, priority failed 16 times",
        ),
        (
            ("--gate", "ttft.p50<=+5%", "--engine", f"{ENGINES}:StuckEngine"),
            5,
            "2.5% of the requests of fcfs never ended; 2.5% of the requests of priority",
        ),
        (("--pairs", "7"), 0, "With 7 pairs there are no verdicts"),
    ],
)
def test_gates_set_the_exit_status(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, said: str
) -> None:
    assert main(["ab", "fcfs", "priority", *SMALL, "--quiet", *arguments]) == status
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_gate_that_failed_counts_more_than_one_that_could_not_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--gate", "ttft.p50<=+0%@class=batch", "--load", "0.01,0.9"]
    assert main(["ab", "fcfs", "priority", *SMALL, "--quiet", *arguments]) == 4
    out = capsys.readouterr().out
    assert "invalid, no request ever waited" in " ".join(out.split())


def test_a_run_that_reaches_its_limit_of_steps_is_an_invalid_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = f"{ENGINES}:EndlessEngine"
    assert main(["ab", "fcfs", "priority", *SMALL, "--quiet", "--engine", engine]) == 5
    told = capsys.readouterr()
    assert not told.out
    assert "replication 0: 10 steps did not serve it" in told.err


def test_the_state_of_the_queue_is_told_for_each_policy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["ab", "fcfs", "priority", *SMALL, "--quiet", "--load", "0.3,3"]) == 0
    light, heavy = capsys.readouterr().out.split("at load 3")
    assert "fcfs stable: somebody waits" in light
    assert "fcfs overloaded: somebody waits" in heavy
    assert "priority overloaded: somebody waits" in heavy


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_policy_that_fails_in_every_replication_shows_its_traceback_once(
    tmp_path: Path, jobs: str
) -> None:
    path = tmp_path / "faulty.py"
    path.write_text(
        "from batchpolicy import Policy\n\n\n"
        "class Faulty(Policy):\n"
        "    def benefit(self, requests, step):\n"
        "        raise ZeroDivisionError\n"
    )
    small = [*SMALL, "--quiet", "--engine", "light", "--jobs", jobs]
    done = _in_a_process("fcfs", f"{path}:Faulty", *small)
    assert done.returncode == 5
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.count("error: Faulty failed in every replication at load 0.9:") == 1
    assert "warning: Faulty failed" in done.stdout


def test_no_output_replaces_what_is_read_or_another_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: priority\n")
    before = policy.read_text()
    said = _refused(capsys, "fcfs", str(policy), *SMALL, "--json", str(policy))
    assert "is read by this command" in said
    assert policy.read_text() == before
    out = str(tmp_path / "out")
    said = _refused(capsys, "fcfs", "priority", *SMALL, "--json", out, "--html", out)
    assert "is given for two outputs" in said
