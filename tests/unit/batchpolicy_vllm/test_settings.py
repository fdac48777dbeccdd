from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy_vllm.settings import configured

pytestmark = pytest.mark.engine

FILE = "apiVersion: batchpolicy/v1\nkind: Policy\npolicy: {name}\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Paths of policy files by name; none is set in the environment."""
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    found: dict[str, str] = {}
    for name in ("fcfs", "benefit"):
        path = tmp_path / f"my-{name}.yaml"
        path.write_text(FILE.format(name=name), encoding="utf-8")
        found[name] = str(path)
    return found


@pytest.mark.parametrize("given", [None, {}, {"other": 1}, "a string"])
def test_without_a_file_there_is_no_policy(given: object, files: dict[str, str]) -> None:
    assert configured(given) is None


def test_an_empty_variable_names_no_file(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHPOLICY_CONFIG", "")
    assert configured(None) is None


def test_the_variable_names_the_file(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHPOLICY_CONFIG", files["fcfs"])
    config = configured({})
    assert config is not None
    assert config.label == "my-fcfs"


def test_the_option_goes_before_the_variable(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHPOLICY_CONFIG", files["fcfs"])
    config = configured({"batchpolicy": files["benefit"]})
    assert config is not None
    assert config.policy.name == "benefit"


@pytest.mark.parametrize("given", [7, ["a.yaml"], {"policy": "benefit"}, True])
def test_the_option_must_be_a_path(given: object, files: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected the path of a policy file"):
        configured({"batchpolicy": given})


def test_a_file_that_is_not_there_is_named(files: dict[str, str]) -> None:
    missing = files["benefit"].replace("my-benefit", "my-benefitt")
    with pytest.raises(ConfigError, match=r"my-benefitt\.yaml.*Did you mean 'my-benefit\.yaml'"):
        configured({"batchpolicy": missing})
