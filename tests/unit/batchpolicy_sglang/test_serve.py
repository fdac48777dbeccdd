"""What ``batchpolicy serve --engine sglang`` refuses, and what it becomes; no engine is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from batchpolicy.config import load_config
from batchpolicy.errors import ConfigError, EngineUnavailable
from batchpolicy.metadata import VARIABLE
from batchpolicy.serve import Address, Launch
from batchpolicy_sglang import serve

FILE = "good.yaml"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy file, beside a SGLang that looks installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "find_spec", lambda name: object())
    (tmp_path / FILE).write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: benefit\n")
    return tmp_path


def launch(*arguments: str) -> Launch:
    return serve.SglangServer().launch(Path(FILE), load_config(FILE), arguments)


@pytest.mark.parametrize("model", [["m"], ["--model-path", "m"]])
def test_it_becomes_sglangs_server_with_the_file_in_its_environment(
    here: Path, model: list[str]
) -> None:
    found = launch(*model, "--tp-size", "2", "--port", "31000")
    assert found.command == [
        *(sys.executable, "-m", "sglang.launch_server"),
        *("--model-path", "m", "--tp-size", "2", "--port", "31000"),
    ]
    assert found.environment == {VARIABLE: str(here / FILE)}
    assert found.address == Address("127.0.0.1", 31000)


def test_without_options_it_listens_where_sglang_does() -> None:
    assert launch("m").address == Address("127.0.0.1", 30000)
    assert launch("m", "--host", "0.0.0.0", "--port=5").address == Address("0.0.0.0", 5)
    assert launch("--help").address is None


def test_sglangs_own_file_counts_and_the_command_line_goes_before_it(here: Path) -> None:
    (here / "server.yaml").write_text("model_path: m\nport: 31000\nschedule-policy: lpm\n")
    with pytest.raises(ConfigError, match="--schedule-policy is 'lpm', expected fcfs"):
        launch("--config", "server.yaml")
    found = launch("--config", "server.yaml", "--schedule-policy", "fcfs")
    assert found.address == Address("127.0.0.1", 31000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--enable-priority-scheduling"], "--enable-priority-scheduling orders"),
        (["--dllm-algorithm", "x"], "diffusion models"),
        (["--enable-hisparse"], "--enable-hisparse admits"),
        (["--enable-pdmux"], "--enable-pdmux admits"),
        (["--enable-lora-overlap-loading"], "--enable-lora-overlap-loading admits"),
        (["--disaggregation-mode", "decode"], "--disaggregation-mode is 'decode'"),
        (
            ["--disaggregation-mode", "prefill", "--pp-size", "2"],
            "--pp-size must be 1 with --disaggregation-mode prefill",
        ),
        (
            ["--disaggregation-mode", "prefill", "--enable-pd-role-switch"],
            "--enable-pd-role-switch would",
        ),
        (["--port", "x"], "--port is 'x', expected a number"),
        (["--port"], "SGLang's argument --port: expected one argument"),
    ],
)
def test_what_would_fight_with_the_policy_is_told_before_a_model_is_loaded(
    given: list[str], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        launch("m", *given)
    assert said in str(error.value)


def test_all_that_is_in_the_way_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        launch("m", "--enable-pdmux", "--schedule-policy", "lof")
    assert len(str(error.value).splitlines()) == 2


def test_a_prefill_server_may_start() -> None:
    assert launch("m", "--disaggregation-mode", "prefill").address is not None
    assert launch("m", "--pp-size", "2").address is not None


def test_where_sglang_is_missing_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    with pytest.raises(EngineUnavailable, match="needs package 'sglang'"):
        launch("m")
