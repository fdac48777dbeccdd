"""Any callable as a step cost."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy.profiles import load_profile
from batchpolicy.step_cost import StepShape
from batchpolicy.step_costs.callables import CallableCost

SOURCE = """
from batchpolicy.step_cost import FormulaCost, StepCost

def seconds(shape):
    return 0.01 + 0.001 * shape.decodes

class Slow(StepCost):
    def __call__(self, shape):
        return 2.0

made = FormulaCost(base_s=0.5)
number = 3

def backwards(shape):
    return -1.0

def two(shape, more):
    return 1.0

def word(shape):
    return "long"
"""
DECODE = StepShape(decodes=5, decode_context=50, sequences=5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("name", "expected_s"), [("seconds", 0.015), ("Slow", 2.0), ("made", 0.5)]
)
def test_a_function_a_class_and_an_object_are_asked(
    name: str, expected_s: float, source: Path
) -> None:
    profile = load_profile(f"{source}:{name}")
    assert profile.cost(DECODE) == pytest.approx(expected_s)
    assert profile.cost.adjusted(2.0, 1.0)(DECODE) == pytest.approx(2.0 * expected_s + 1.0)


def test_a_module_on_the_path_is_asked(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.rename(source.with_name("cost_of_a_test.py"))
    monkeypatch.syspath_prepend(source.parent)
    assert load_profile("cost_of_a_test:seconds").cost(DECODE) == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("second", "no class 'second' in"),
        ("number", "cannot be called"),
        ("backwards", "says -1.0 for StepShape"),
        ("two", "cannot answer for StepShape"),
        ("word", "cannot answer for StepShape"),
    ],
)
def test_what_is_no_step_cost_is_refused(name: str, said: str, source: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        load_profile(f"{source}:{name}")


def test_its_kv_tokens_are_asked_for_and_its_envelope_is_not_known(source: Path) -> None:
    profile = load_profile(f"{source}:seconds")
    with pytest.raises(ConfigError, match="nothing is guessed: give --kv-tokens"):
        profile.kv_tokens  # noqa: B018 - the property raises
    assert profile.reach is None
    assert not profile.is_extended(100_000)
    assert profile.trust == "of unknown error"


def test_a_profile_file_names_a_callable_beside_it_and_says_the_rest(source: Path) -> None:
    fields = load_profile("h100-llama-3.1-8b").model_dump(mode="json")
    fields |= {"cost": {"callable": "mine.py:seconds", "scale": 2.0}}
    file = source.with_name("mine.json")
    file.write_text(json.dumps(fields))
    profile = load_profile(file)
    assert profile.cost(DECODE) == pytest.approx(0.03)
    assert profile.kv_tokens == 438_608


def test_another_process_finds_the_function_again(source: Path) -> None:
    cost = CallableCost(callable=f"{source}:seconds")
    assert pickle.loads(pickle.dumps(cost))(DECODE) == cost(DECODE)
