from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import typer

from batchpolicy import cli, registry
from batchpolicy.cli import main
from batchpolicy.errors import EngineUnavailable, PolicyContractError, WorkloadError

BROKEN = """
from batchpolicy.policies.fcfs import FCFS

class Wrong(FCFS):
    \"\"\"Says that it is fcfs, and is not.\"\"\"
    def benefit(self, requests, step):
        return requests.arrival_s - step.now_s
"""
HEAD = "apiVersion: batchpolicy/v1\nkind: Policy\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "wrong.py").write_text(BROKEN)
    (tmp_path / "good.yaml").write_text(HEAD + "policy: fcfs\n")
    (tmp_path / "bad.yaml").write_text(HEAD + "policy: {name: fcsf}\npreempt: clas\n")
    return tmp_path


def install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Pretend that one command is installed."""
    real = registry.entry_points

    def found(**wanted: str) -> EntryPoints:
        if wanted.get("group") != registry.COMMANDS:
            return real(**wanted)
        return EntryPoints([EntryPoint(name, value, registry.COMMANDS)]).select(**wanted)

    monkeypatch.setattr(registry, "entry_points", found)


def test_the_list_has_every_policy_and_whether_it_may_starve(here: Path, capsys: Capture) -> None:
    assert main(["policies", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["fcfs"].rstrip().endswith("no")
    assert "Serve in order of arrival" in lines["fcfs"]
    assert lines["priority"].rstrip().endswith("yes")


def test_the_list_is_there_for_programs(here: Path, capsys: Capture) -> None:
    assert main(["policies", "list", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["fcfs"]["native"] == "fcfs"
    assert found["fcfs"]["may_starve"] is False
    assert found["priority"]["summary"].startswith("Serve the lowest priority number first")


def test_a_policy_that_cannot_be_imported_is_listed_with_the_reason(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoints([EntryPoint("far", "no_such_library:X", registry.POLICIES)])
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: broken.select(**wanted))
    assert main(["policies", "list"]) == 0
    assert "needs 'no_such_library'" in capsys.readouterr().out


def test_a_policy_is_shown_with_defaults_ranges_and_help(here: Path, capsys: Capture) -> None:
    assert main(["policies", "show", "benefit", "--json"]) == 0
    shown = {one["key"]: one for one in json.loads(capsys.readouterr().out)["parameters"]}
    assert shown["urgency.half_life_s"] == {
        "key": "urgency.half_life_s",
        "default": "0.5",
        "allowed": "number > 0",
        "searched": "0.05 to 10, log",
        "help": "Slack that halves the score, in seconds.",
    }
    # A sentence over several lines of the source is one line, and words are those of the file.
    assert "without a prediction, and with false" in shown["fairness.book"]["help"]
    assert shown["fairness.book"]["default"] == "true"
    assert main(["policies", "show", "benefit"]) == 0
    text = capsys.readouterr().out
    assert "urgency.half_life_s" in text and "may keep a request waiting for ever" in text
    assert main(["policies", "show", "wrong.py:Wrong"]) == 0
    assert "No parameters." in capsys.readouterr().out


def test_valid_files_are_named_on_stdout_and_mistakes_on_stderr(
    here: Path, capsys: Capture
) -> None:
    assert main(["policies", "validate", "good.yaml"]) == 0
    assert capsys.readouterr() == ("good.yaml: valid, policy fcfs\n", "")
    assert main(["policies", "validate", "bad.yaml", "good.yaml", "none.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == "good.yaml: valid, policy fcfs\n"
    assert [line.split(" ")[0] for line in err.splitlines()] == [
        "bad.yaml:3:",
        "bad.yaml:4:",
        "no",
    ]


def test_validation_tells_programs_the_same(here: Path, capsys: Capture) -> None:
    assert main(["policies", "validate", "--json", "bad.yaml", "good.yaml"]) == 2
    bad, good = json.loads(capsys.readouterr().out)
    assert (bad["valid"], len(bad["mistakes"])) == (False, 2)
    assert good == {"file": "good.yaml", "valid": True, "policy": "fcfs"}


def test_the_schema_is_printed_as_json(here: Path, capsys: Capture) -> None:
    assert main(["policies", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["kind"]["const"] == "Policy"


def test_a_sound_policy_keeps_all_promises(here: Path, capsys: Capture) -> None:
    assert main(["check", "good.yaml"]) == 0
    assert re.search(r"good\.yaml: (\d+) of \1 promises kept", capsys.readouterr().out)


def test_a_broken_promise_is_named_and_ends_in_1(here: Path, capsys: Capture) -> None:
    assert main(["check", "wrong.py:Wrong"]) == 1
    out = capsys.readouterr().out
    assert "says it equals 'fcfs' and differs from it at place 0" in out
    kept, all_of_them = map(int, re.findall(r"(\d+) of (\d+) promises kept", out)[0])
    assert kept == all_of_them - 2
    assert main(["check", "wrong.py:Wrong", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert [one["check"] for one in found["checks"] if one["status"] == "failed"] == [
        "check_equals_are_served_in_order",
        "check_native_order_is_the_engines",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["check", "fcsf"], "Did you mean 'fcfs'"),
        (["check", "wrong.py:Wong"], "Did you mean 'Wrong'"),
        (["check", "bad.yaml"], "bad.yaml:4: preempt is 'clas'"),
        (["policies", "show", "none"], "no policy named 'none'"),
        (["polcies"], "Did you mean 'policies'"),
        (["policies", "list", "--jsn"], "--jsn"),
        (["check"], "Missing argument"),
    ],
)
def test_wrong_usage_ends_in_2_with_a_message_on_stderr(
    here: Path, capsys: Capture, arguments: list[str], expected: str
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, expected in err, "Traceback" in err) == ("", True, False)


def test_without_arguments_there_is_help_and_2(here: Path, capsys: Capture) -> None:
    assert main([]) == 2
    assert "policies" in "".join(capsys.readouterr())


def test_the_version_is_that_of_the_distribution(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("batchpolicy ")


def test_help_lists_installed_commands_without_importing_them(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "ab", "no_such_module:app")
    assert main(["--help"]) == 0
    assert "Compare policies on an engine" in capsys.readouterr().out
    assert main(["abb"]) == 2
    assert "Did you mean 'ab'" in capsys.readouterr().err
    assert main(["ab"]) == 2
    assert "needs 'no_such_module'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WorkloadError("trace.csv is empty"), 2),
        (EngineUnavailable("engine 'far' is missing"), 2),
        (PolicyContractError("benefit broke a promise"), 1),
        (typer.Exit(4), 4),
    ],
)
def test_what_an_installed_command_raises_becomes_a_status(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    app = typer.Typer()

    @app.command()
    def compare(policy: str) -> None:
        print(f"comparing {policy}")
        raise error

    monkeypatch.setattr(cli, "for_this_test", app, raising=False)
    install(monkeypatch, "compare", "batchpolicy.cli:for_this_test")
    assert main(["compare", "fcfs"]) == status
    out, err = capsys.readouterr()
    assert out == "comparing fcfs\n"
    assert err == ("" if status == 4 else f"{error}\n")


def test_a_command_that_is_no_command_is_refused(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "odd", "batchpolicy.policies.fcfs:FCFS")
    assert main(["odd"]) == 2
    assert "expected a typer.Typer" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_fault_worth_a_word() -> None:
    code = "import sys; from batchpolicy.cli import main; sys.exit(main(['policies', 'schema']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_full_disk_behind_stdout_is_told_in_a_line() -> None:
    for command in (["policies", "schema"], ["policies", "list"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "batchpolicy", *command],
                cwd=Path(__file__).parents[2],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.stderr == "output cannot be written: No space left on device\n"
        assert done.returncode == 1


def test_a_shell_that_closed_stdout_gets_the_status_and_no_traceback() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m batchpolicy policies schema >&-"],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_file_that_cannot_be_written_is_told_by_its_name(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_: object) -> None:
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(typer.main, "get_command", full)
    assert main(["policies"]) == 1
    assert capsys.readouterr().err == f"some/file: {os.strerror(number)}\n"


@pytest.mark.parametrize("place", ["get_command", "policies"])
def test_ctrl_c_is_told_wherever_it_comes(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if place == "get_command":
        monkeypatch.setattr(typer.main, "get_command", pressed)
    else:
        monkeypatch.setattr("batchpolicy.describe.installed_policies", pressed)
    assert main(["policies", "list"]) == 130
    assert capsys.readouterr() == ("", "interrupted; nothing was written\n")


def test_numbers_that_json_has_no_word_for_are_text(capsys: Capture) -> None:
    cli.emit_json({"a": float("inf"), "b": [float("nan"), 1.0]})
    assert json.loads(capsys.readouterr().out) == {"a": "inf", "b": ["nan", 1.0]}


def test_what_a_policy_prints_does_not_get_into_the_report(here: Path, capsys: Capture) -> None:
    (here / "loud.py").write_text(
        "from batchpolicy.policies.fcfs import FCFS\n\n\nclass Loud(FCFS):\n"
        "    def benefit(self, requests, step):\n"
        "        print('hello')\n        return super().benefit(requests, step)\n"
    )
    assert main(["check", "loud.py:Loud", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["passed"]
    assert "hello" in told.err


def test_signs_that_the_terminal_has_not_are_replaced(here: Path) -> None:
    (here / "wrong.py").write_text(BROKEN.replace("Says", "First \u2192 last. Says"), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "batchpolicy", "policies", "show", "wrong.py:Wrong"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"First ? last. Says that it is fcfs" in done.stdout


def test_an_argument_that_is_no_text_is_refused_with_what_to_set(
    here: Path, capsys: Capture
) -> None:
    assert main(["policies", "validate", "\udcc3.yaml"]) == 2
    assert "is no text in this environment" in capsys.readouterr().err
