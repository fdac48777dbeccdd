from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from batchpolicy import registry
from batchpolicy.cli import main
from batchpolicy.config import load_config
from batchpolicy.errors import ConfigError
from batchpolicy_tuning import output
from batchpolicy_tuning.tune.cli import commands as tune_command
from batchpolicy_tuning.tune.page import page
from batchpolicy_tuning.tune.result import StudyResult, read_result

ROOT = Path(__file__).parents[4]
LIGHT = "engine: light\nlimits: {max_num_seqs: 8, max_num_batched_tokens: 512}\n"
SERIAL = "tests.support.serial_engine"
STUDY = """\
apiVersion: batchpolicy/v1
kind: Study
workloads: [{workload: chat-and-batch, load: 1.3, slices: 5, held_out: 8, requests: 60}]
ENGINE
targets: [TARGET]
policies: [priority]
space:
  policies: {fcfs: , benefit: {lambda: tune}}
  limits: {max_num_seqs: [4, 8, 16, 32]}
search: {trials: 6}
finalists: {count: 2}
"""

Write = Callable[..., Path]


@pytest.fixture
def study(tmp_path: Path) -> Write:
    def write(target: str = "ttft.p99<=60s", engine: str = LIGHT, **changes: str) -> Path:
        text = STUDY.replace("ENGINE", engine.rstrip()).replace("TARGET", target)
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return path

    return write


def _tuned(path: Path, *arguments: str) -> tuple[int, StudyResult]:
    out = path.parent / "out"
    status = main(["tune", str(path), "--out", str(out), *arguments])
    return status, read_result(out)


def test_a_winner_is_found_held_out_and_written(
    study: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = _tuned(study())
    told = capsys.readouterr()
    assert status == 0
    assert result.conclusion == "winner"
    out = Path(result.policy_file or "").parent
    assert sorted(p.name for p in out.iterdir()) == [
        *("flags.txt", "journal.log", "policy.yaml", "report.html", "study.json")
    ]
    assert load_config(out / "policy.yaml").policy.name in ("benefit", "fcfs", "priority")
    won = next(one for one in result.finalists if one.trial == result.winner)
    assert all(one.met for one in won.targets)
    gain = won.comparisons[0]
    assert gain.verdict == "better"
    assert gain.low is not None
    assert gain.low > 0.0
    assert result.trials[0].origin == "baseline"
    assert result.trials[1].origin == "given"
    assert result.baseline is not None
    assert {(one.kind, one.name) for one in won.scopes} >= {
        *(("all", ""), ("class", "chat"), ("class", "batch"), ("tenant", "web"))
    }
    assert len(result.held_out_instances) == 8
    assert not set(result.held_out_instances) & set(result.search_instances)
    assert told.out.splitlines()[0].startswith("study: 6 trials: ")
    assert f"Winner: trial {result.winner}" in told.out
    assert "trial 6 of 6: " in told.err
    assert "0:00 left" in told.err
    assert (out / "report.html").read_text() == page(result)


def test_the_same_seed_gives_the_same_study_and_another_another(study: Write) -> None:
    path = study()
    first = main(["tune", str(path), "--out", str(path.parent / "a"), "-q"])
    again = main(["tune", str(path), "--out", str(path.parent / "b"), "-q"])
    other = main(["tune", str(path), "--out", str(path.parent / "c"), "-q", "--seed", "1"])
    a, b, c = (read_result(path.parent / name) for name in "abc")
    assert first == again == a.exit_code
    assert [one.values for one in a.trials] == [one.values for one in b.trials]
    assert (a.winner, a.workload_sha256) == (b.winner, b.workload_sha256)
    assert a.workload_sha256 != c.workload_sha256
    assert other == c.exit_code


def test_nothing_feasible_is_exit_3_with_the_closest_setting(
    study: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = _tuned(study("ttft.p50<=1ms, attainment>=1%"), "--quiet")
    told = capsys.readouterr()
    assert status == 3
    assert result.conclusion == "nothing feasible"
    assert result.best is None
    assert result.closest is not None
    assert result.binding is not None
    assert result.binding.target == "ttft.p50<=1ms"
    assert "Nothing feasible in 6 trials. Exit code 3." in told.out
    assert f"closest: trial {result.closest}, " in told.out
    assert "(binding)" in told.out
    assert "attainment>=1%" in told.out
    assert (Path(result.policy_file or "")).name == "closest.yaml"
    assert not (Path(result.policy_file or "").parent / "policy.yaml").exists()
    assert not told.err


def test_a_study_goes_on_to_more_trials_in_several_processes(study: Write) -> None:
    path = study()
    _, first = _tuned(path, "-q")
    status, more = _tuned(path, "-q", "--resume", "--trials", "9", "--jobs", "2")
    assert status == more.exit_code
    assert len(more.trials) == 9
    assert more.trials[:6] == first.trials
    assert len({one.key for one in more.trials}) == 9


def test_trials_are_not_run_over(study: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = study()
    _tuned(path, "-q", "--trials", "2")
    capsys.readouterr()
    out = str(path.parent / "out")
    assert main(["tune", str(path), "--out", out, "-q"]) == 2
    assert "has 2 trials of study 'study': go on with --resume" in capsys.readouterr().err
    assert main(["tune", str(path), "--out", f"{out}2", "--resume"]) == 2
    assert "has no study 'study' to resume" in capsys.readouterr().err


def test_a_table_that_nobody_reads_costs_no_page(
    study: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(tune_command, "show", unread)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    path = study()
    assert main(["tune", str(path), "--out", str(path.parent / "out"), "-q", "--trials", "2"]) == 1
    assert (path.parent / "out" / "report.html").is_file()


def test_a_page_that_finds_no_place_costs_no_table(
    study: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = output.write_whole

    def full(text: str, path: Path) -> None:
        if path.suffix == ".html":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(text, path)

    monkeypatch.setattr(output, "write_whole", full)
    path = study()
    out = path.parent / "out"
    assert main(["tune", str(path), "--out", str(out), "-q", "--trials", "2"]) == 1
    told = capsys.readouterr()
    assert "study: 2 trials" in told.out
    assert told.err == f"{out / 'report.html'}: No space left on device\n"


def test_a_study_that_has_changed_is_not_resumed_unawares(
    study: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    _tuned(study(), "-q", "--trials", "3")
    out = str(study().parent / "out")
    resume = ["tune", str(study()), "--out", out, "-q", "--resume", "--trials", "4"]
    study(**{"[4, 8, 16, 32]": "[4, 8, 16]"})
    assert main(resume) == 2
    assert "has changed since its 3 trials were run: space. They still count" in (
        capsys.readouterr().err
    )
    assert main([*resume, "--changed"]) in (0, 5)
    study(target="ttft.p99<=59s")
    capsys.readouterr()
    assert main([*resume, "--changed"]) == 2
    assert (
        "targets, space. They do not say what settings would give now" in capsys.readouterr().err
    )


def test_failed_trials_are_told_apart_and_cost_nobody_the_study(
    study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(
        "from batchpolicy.policy import Policy\n"
        "class Faulty(Policy):\n"
        "    def benefit(self, requests, step):\n"
        "        raise ZeroDivisionError\n"
    )
    status, result = _tuned(study(**{"[priority]": "['faulty.py:Faulty']"}), "-q")
    assert status in (0, 5)
    assert result.trials[1].outcome == "failed"
    assert "policy or adapter failed" in result.trials[1].reason
    assert result.outcomes["failed"] == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "failed: chat-and-batch" in shown


def test_an_engine_that_is_missing_is_told_before_any_trial(
    study: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry.engine

    def without_vllm(name: str) -> object:
        if name == "vllm":
            raise registry.lacks_package("vllm", "vllm")
        return found(name)

    monkeypatch.setattr(registry, "engine", without_vllm)
    path = study(engine=LIGHT.replace("light", "vllm"))
    assert main(["tune", str(path), "--out", str(path.parent / "out"), "-q"]) == 2
    said = capsys.readouterr().err
    assert "vllm" in said
    assert "pip install" in said or "make" in said


def test_what_the_workload_has_not_is_told_before_any_trial(
    study: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study("ttft.p99<=1s@class=chatt, ttft.p99<=1s@tenant=webb")
    assert main(["tune", str(path), "--out", str(path.parent / "out"), "-q"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean 'chat'?" in said
    assert "Did you mean 'web'?" in said


def test_json_is_the_result_and_tells_no_password(
    study: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [
        "batchpolicy",
        "tune",
        "a.yaml",
        "--storage=postgresql://me:secret@db/tuning?password=secret",
    ]
    monkeypatch.setattr(sys, "argv", argv)
    status, result = _tuned(study(), "-q", "--json", "--trials", "3")
    told = capsys.readouterr().out
    assert "secret" not in told
    assert "--storage=postgresql://me:***@db/tuning?password=***" in told
    assert all(
        "secret" not in one.read_text() for one in Path(result.policy_file or "").parent.iterdir()
    )
    printed = StudyResult.model_validate_json(told)
    assert printed == result
    assert printed.exit_code == status
    assert json.loads((Path(result.policy_file or "").parent / "study.json").read_text())


def test_several_objectives_have_a_front(study: Write) -> None:
    path = study(**{"search:": "objectives: [goodput, queue.p99]\nsearch:"})
    status, result = _tuned(path, "-q")
    assert status in (0, 5)
    assert result.pareto
    assert [one.direction for one in result.objectives] == ["maximize", "minimize"]
    study_name = optuna.load_study(
        study_name="study", storage=_journal(path.parent / "out" / "journal.log")
    )
    assert len(study_name.directions) == 2


def _journal(path: Path) -> optuna.storages.JournalStorage:
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.storages.JournalStorage(backend)


def test_a_second_terminal_helps(study: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = study()
    out = str(path.parent / "out")
    assert main(["tune", "worker", str(path), "--out", out, "-q"]) == 2
    assert "no journal" in capsys.readouterr().err
    _tuned(path, "-q", "--trials", "2")
    _tuned(path, "-q", "--resume", "--trials", "3")
    capsys.readouterr()
    assert main(["tune", "worker", str(path), "--out", out, "-q"]) == 0
    assert capsys.readouterr().out == "0 trials of study run here\n"
    study(**{"load: 1.3": "load: 1.2"})
    assert main(["tune", "worker", str(path), "--out", out, "-q"]) == 2
    assert "workloads differ" in capsys.readouterr().err


def test_ctrl_c_leaves_a_study_that_can_be_resumed(
    study: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study(engine=f"engine: {SERIAL}:InterruptedEngine\n" + LIGHT.split("\n", 1)[1])
    out = path.parent / "out"
    done = subprocess.run(
        [sys.executable, "-m", "batchpolicy", "tune", str(path), "--out", str(out), "-q"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"interrupted; go on with: batchpolicy tune {path} --resume --out {out}"
    )
    assert "Traceback" not in done.stderr
    assert read_result(out).conclusion == "unfinished"
    assert main(["tune", "report", str(out)]) == 0
    assert "Not at its end: " in capsys.readouterr().out


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`batchpolicy tune` writes it"):
        read_result(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no study of this version"):
        read_result(tmp_path)


def test_a_worker_may_have_another_engine_beside_it_if_trials_run_on_the_same(
    study: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = LIGHT.partition("\n")[2]
    path = study(engine=LIGHT)
    out = str(path.parent / "out")
    _tuned(path, "--trials", "2", "-q")
    # Neither engine has to be here: trials are read from the storage, and there are enough.
    study(engine=f"engine: vllm\n{limits}")
    assert main(["tune", "worker", str(path), "--out", out, "-q"]) == 0
    study(engine=f"engine: sglang\n{limits}")
    capsys.readouterr()
    assert main(["tune", "worker", str(path), "--out", out, "-q"]) == 2
    assert "search.engine differ" in capsys.readouterr().err
