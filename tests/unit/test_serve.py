"""What ``batchpolicy serve`` refuses, and what it becomes; no engine is needed for either."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from batchpolicy import registry
from batchpolicy.cli import main
from batchpolicy.cli import serve as serve_command
from batchpolicy.config import load_config
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.metadata import VARIABLE
from batchpolicy.serve import Address, Launch
from batchpolicy_vllm import serve as vllm_serve

HEAD = "apiVersion: batchpolicy/v1\nkind: Policy\n"
SCHEDULER = ["--scheduler-cls", "batchpolicy_vllm.PolicyScheduler"]
MIDDLEWARE = ["--middleware", "batchpolicy_vllm.HeaderMiddleware"]

Capture = pytest.CaptureFixture[str]
Started = list[tuple[list[str], dict[str, str]]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of policy files, beside a vLLM that looks installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("VLLM_USE_RUST_FRONTEND", raising=False)
    monkeypatch.setattr(vllm_serve, "find_spec", lambda name: object())
    monkeypatch.setattr(vllm_serve, "distribution", lambda name: object())
    (tmp_path / "good.yaml").write_text(HEAD + "policy: benefit\n")
    (tmp_path / "other.yaml").write_text(HEAD + "policy: fcfs\n")
    (tmp_path / "bad.yaml").write_text(HEAD + "policy: {name: fcsf}\npreempt: clas\n")
    (tmp_path / "places.yaml").write_text(
        HEAD + "policy: fcfs\nrequests: {tenant_from: [header.x-tenant]}\n"
    )
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Commands that this process would have become, and what is new in their environment."""
    found: Started = []

    def become(program: str, command: list[str], environment: dict[str, str]) -> None:
        assert program == command[0]
        new = {k: v for k, v in environment.items() if os.environ.get(k) != v}
        found.append((command, new))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    return found


def launch(*arguments: str, file: str = "good.yaml") -> Launch:
    return vllm_serve.VllmServer().launch(Path(file), load_config(file), arguments)


def serve(*arguments: str) -> int:
    """Status of a start under the good file; the port is one that the system picks."""
    return main(["serve", "--policy", "good.yaml", "--", "m", "--port", "0", *arguments])


@contextmanager
def taken(host: str, *, listening: bool = True) -> Iterator[int]:
    """A port that somebody has."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        if listening:
            other.listen()
        yield int(other.getsockname()[1])


def test_it_becomes_the_engines_server_with_file_scheduler_and_middleware(
    here: Path, started: Started, capsys: Capture
) -> None:
    assert serve("--dtype", "float32") == 0
    ((command, new),) = started
    ours = [*SCHEDULER, *MIDDLEWARE]
    program = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    assert command == [*program, "m", *ours, "--port", "0", "--dtype", "float32"]
    assert new == {VARIABLE: str(here / "good.yaml")}
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "batchpolicy: vllm on 0.0.0.0:0 (any free port) follows good.yaml (policy benefit)\n"
    )


def test_quiet_says_nothing(started: Started, capsys: Capture) -> None:
    assert main(["serve", "-q", "--policy", "good.yaml", "--", "m", "--port", "0"]) == 0
    assert len(started) == 1
    assert capsys.readouterr() == ("", "")


def test_the_variable_names_the_file_where_the_option_does_not(
    here: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "other.yaml")
    assert main(["serve", "--quiet", "--", "m", "--port", "0"]) == 0
    assert serve() == 0
    assert [new[VARIABLE] for _, new in started] == [
        str(here / "other.yaml"),
        str(here / "good.yaml"),
    ]


def test_without_a_file_it_says_how_to_name_one(started: Started, capsys: Capture) -> None:
    assert main(["serve", "--", "m"]) == 2
    assert "--policy FILE" in (err := capsys.readouterr().err)
    assert VARIABLE in err
    assert started == []


def test_all_mistakes_in_the_file_are_told_at_once(started: Started, capsys: Capture) -> None:
    assert main(["serve", "--policy", "bad.yaml", "--", "m"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["bad.yaml:3:", "bad.yaml:4:"]
    assert started == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--scheduler-cls", "mine.Scheduler"], "--scheduler-cls is 'mine.Scheduler', expected"),
        (["--scheduler_cls=mine.Scheduler"], "--scheduler-cls is 'mine.Scheduler', expected"),
        (["--scheduler-c", "mine.Scheduler"], "--scheduler-cls is 'mine.Scheduler', expected"),
        (
            ["--additional-config", '{"batchpolicy": "other.yaml"}'],
            "--additional-config names the policy file 'other.yaml', expected 'good.yaml'",
        ),
        (["--additional_config.batchpolicy", "other.yaml"], "names the policy file 'other.yaml'"),
        (["--additional-config", '{"batchpolicy": 7}'], "names the policy file '7'"),
        (["--host"], "vLLM's argument --host: expected one argument."),
        (["--config", "none.yaml"], "no file 'none.yaml'"),
        (["--port", "abc"], "--port is 'abc', expected a number up to 65535"),
        (["--port=70000"], "--port is '70000', expected"),
        (["--port", "-1"], "--port is '-1', expected"),
        (["--port", ""], "--port is '', expected"),
        (["--port", "1" * 5000], "--port is '111"),
    ],
)
def test_arguments_that_cannot_be_meant_are_told_in_one_line(
    arguments: list[str], expected: str, started: Started, capsys: Capture
) -> None:
    assert serve(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert expected in err
    assert started == []


def test_a_place_that_vllm_cannot_read_is_told_with_the_file(capsys: Capture) -> None:
    assert main(["serve", "--policy", "places.yaml", "--", "m"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "places.yaml:4: requests.tenant_from[0] is 'header.x-tenant'; engines cannot read it"
    )


def test_an_engine_that_is_unknown_or_missing_is_told_with_what_helps(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["serve", "--engine", "vlm", "--policy", "good.yaml", "--", "m"]) == 2
    assert "no server named 'vlm'. Did you mean 'vllm'?" in capsys.readouterr().err
    monkeypatch.setattr(vllm_serve, "find_spec", lambda name: None)
    assert main(["serve", "--policy", "good.yaml", "--", "m"]) == 2
    err = capsys.readouterr().err
    assert "engine 'vllm' needs package 'vllm'" in err
    assert err.endswith("make .venv-vllm\n")


def test_what_is_no_launcher_is_refused() -> None:
    assert registry.launcher_class("vllm") is vllm_serve.VllmServer
    with pytest.raises(ConfigError, match="no subclass of Launcher"):
        registry.launcher_class("batchpolicy.serve:Address")


@pytest.mark.parametrize(
    "given",
    [
        ["--scheduler-cls=batchpolicy_vllm.PolicyScheduler", *MIDDLEWARE],
        ["--scheduler_cls", "batchpolicy_vllm.scheduler.PolicyScheduler", *MIDDLEWARE],
    ],
)
def test_what_is_given_already_is_not_given_again(given: list[str]) -> None:
    assert launch("m", *given).command[4:] == ["m", *given]


def test_the_same_file_may_be_named_twice(here: Path) -> None:
    same = [
        json.dumps({"batchpolicy": named, "other": 1})
        for named in ("good.yaml", str(here / "good.yaml"), "./good.yaml")
    ]
    # Of what is no JSON vLLM complains.
    for said in (*same, "{not JSON", "[1]"):
        assert launch("m", "--additional-config", said).command[-2:] == [
            "--additional-config",
            said,
        ]


def test_middlewares_of_the_user_come_after_ours_so_that_they_see_requests_first() -> None:
    command = launch("m", "--middleware", "auth.Check").command
    assert command[-4:] == [*MIDDLEWARE, "--middleware", "auth.Check"]


def test_the_front_end_in_rust_gets_no_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert launch("m").command[4:] == ["m", *SCHEDULER]


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], Address("", 8000)),
        (["m"], Address("", 8000)),
        (["m", "--port", "8001", "--host", "::1"], Address("::1", 8001)),
        (["--host=10.0.0.1", "--port=1", "m", "--port=2"], Address("10.0.0.1", 2)),
        (["m", "--uds", "/tmp/s", "--port", "no"], None),
        (["m", "--headless"], None),
        (["m", "--api_server_count=0"], None),
        (["--help"], None),
        (["m", "-h"], None),
        (["--help=port"], None),
    ],
)
def test_host_and_port_are_found_among_the_arguments(
    arguments: list[str], address: Address | None
) -> None:
    assert launch(*arguments).address == address


def test_the_engines_own_file_counts_and_the_command_line_goes_before_it(here: Path) -> None:
    (here / "vllm.yaml").write_text(
        "model: m\nport: 8005\nhost: 10.0.0.1\nenforce-eager: true\nheadless: false\n"
        "middleware: [batchpolicy_vllm.HeaderMiddleware]\n"
        "scheduler_cls: batchpolicy_vllm.PolicyScheduler\n"
        "additional-config: {batchpolicy: good.yaml}\n"
    )
    found = launch("--config", "vllm.yaml", "--port", "8006")
    assert found.address == Address("10.0.0.1", 8006)
    assert found.command[4:] == ["--config", "vllm.yaml", "--port", "8006"]
    assert launch("--config", "vllm.yaml").address == Address("10.0.0.1", 8005)
    with pytest.raises(ConfigError, match=r"names the policy file 'good.yaml', expected"):
        launch("--config", "vllm.yaml", file="other.yaml")


def test_where_vllms_command_does_not_start_the_module_behind_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> object:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_serve, "distribution", absent)
    module, *rest = launch("m", "--port", "1").command[2:]
    assert module == "vllm.entrypoints.openai.api_server"
    assert rest == ["--model", "m", *SCHEDULER, *MIDDLEWARE, "--port", "1"]
    assert launch("--model", "m").command[3:] == [*SCHEDULER, *MIDDLEWARE, "--model", "m"]
    launch("--help")
    # There it would serve some other model.
    with pytest.raises(ConfigError, match=r"begin with no model, expected as in: -- MODEL"):
        launch("--port", "1", "m")


@pytest.mark.parametrize(
    ("other", "host"),
    [
        ("127.0.0.1", ""),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", ""),
        ("::1", "::1"),
        ("::1", "::"),
    ],
)
@pytest.mark.parametrize("listening", [True, False], ids=["listening", "loading"])
def test_a_taken_port_is_told_in_one_line_with_what_to_do(
    other: str, host: str, listening: bool, started: Started, capsys: Capture
) -> None:
    with taken(other, listening=listening) as port:
        assert serve("--port", str(port), *(["--host", host] if host else [])) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"cannot listen on {Address(host, port)}: Address already in use")
    assert "choose another port with --port." in err
    assert started == []


def test_connections_of_a_server_that_has_ended_do_not_keep_its_port() -> None:
    with socket.socket() as ended:
        ended.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ended.bind(("127.0.0.1", 0))
        ended.listen()
        port = ended.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = ended.accept()
        accepted.close()
        client.close()
    with socket.socket() as plain, pytest.raises(OSError):
        plain.bind(("127.0.0.1", port))
    Address("127.0.0.1", port).check()


def test_without_a_table_of_connections_only_those_who_listen_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchpolicy.serve._CONNECTIONS", ("/proc/no/such",))
    with taken("127.0.0.1", listening=False) as port:
        Address("127.0.0.1", port).check()
    with taken("127.0.0.1") as port, pytest.raises(BatchPolicyError):
        Address("127.0.0.1", port).check()


@pytest.mark.parametrize(
    "host", ["nowhere.invalid", "192.0.2.1", "2001:db8::1", "a..b", "ü..b", "ü" * 70, "::g"]
)
def test_a_host_that_is_not_this_machine_is_told_with_what_to_do(
    host: str, started: Started, capsys: Capture
) -> None:
    assert serve("--host", host) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"cannot listen on {Address(host, 0)}: ")
    assert err.endswith("with --host, or leave that out.\n")
    assert started == []


def test_a_port_that_only_root_may_take_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*of: Any, **given: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Address, "_bind", denied)
    with pytest.raises(BatchPolicyError, match=r"Permission denied; .* below 1024 are for root"):
        Address("", 80).check()


FAKE = """
import json, os, sys
print(json.dumps([os.getpid(), sys.argv[1:], os.environ["BATCHPOLICY_CONFIG"]]))
sys.exit(7)
"""


@pytest.fixture
def beside_fake_vllm(here: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the command where vLLM is a module that says how it was started."""
    folder = here / "fake/vllm/entrypoints/cli"
    folder.mkdir(parents=True)
    (here / "fake/vllm/__init__.py").write_text("")
    (folder / "main.py").write_text(FAKE)
    about = here / "fake/vllm-9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9\n")

    def run(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "batchpolicy", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(here / "fake")},
        )

    return run


def test_the_server_is_this_very_process_and_ends_with_its_own_status(
    here: Path, beside_fake_vllm: Callable[..., subprocess.Popen[str]]
) -> None:
    process = beside_fake_vllm("--policy", "good.yaml", "--", "my model", "--port", "0")
    out, err = process.communicate(timeout=60)
    pid, arguments, file = json.loads(out)
    assert (process.returncode, pid) == (7, process.pid)
    assert arguments == ["serve", "my model", *SCHEDULER, *MIDDLEWARE, "--port", "0"]
    assert file == str(here / "good.yaml")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("there", "expected"),
    [({"vllm"}, "vllm"), ({"sglang"}, "sglang"), ({"vllm", "sglang"}, "vllm"), (set(), "vllm")],
)
def test_the_engine_is_the_one_installed(
    there: set[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    asked: list[str] = []

    def launcher(name: str) -> Any:
        asked.append(name)
        raise ConfigError("seen")

    monkeypatch.setattr(serve_command, "find_spec", lambda name: name in there or None)
    monkeypatch.setattr(registry, "launcher_class", launcher)
    assert main(["serve", "--policy", "good.yaml", "--", "m"]) == 2
    assert asked == [expected]
