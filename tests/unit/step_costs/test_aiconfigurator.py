"""The adapter to aiconfigurator-core, on a stand-in; the package itself is not installed here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from batchpolicy.step_cost import StepShape
from batchpolicy.step_costs.aiconfigurator import AIConfiguratorCost


class Handle:
    """Answers in milliseconds, with numbers that tell who asked."""

    asked: ClassVar[list[tuple[Any, ...]]] = []

    @classmethod
    def compile(cls, model: str, system: str, backend: str, **more: Any) -> Handle:
        if system == "nowhere":
            raise ValueError("unknown system")
        return cls()

    def predict_decode_latency(self, *sizes: int) -> float:
        self.asked.append(("decode", *sizes))
        return 7.0

    def mixed_step_breakdown(self, *sizes: int) -> tuple[float, float, float, float]:
        self.asked.append(("mixed", *sizes))
        return 0.0, 10.0, 2.0, 1.0


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = ModuleType("aiconfigurator_core.sdk.engine")
    engine.EngineHandle = Handle
    Handle.asked.clear()
    for name in ("aiconfigurator_core", "aiconfigurator_core.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, engine.__name__, engine)


def made(system: str = "h100_sxm") -> AIConfiguratorCost:
    return AIConfiguratorCost(system=system, model="some/model")


def test_without_the_package_the_error_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    with pytest.raises(ValidationError, match=r"pip install 'batchpolicy\[aiconfigurator\]'"):
        made()


@pytest.mark.usefixtures("package")
def test_a_step_is_asked_for_by_its_mean_prompt_and_its_mean_context() -> None:
    cost = made()
    assert cost(StepShape(decodes=4, decode_context=400, sequences=4)) == 0.007
    # Two prompts of 50 tokens after 20 cached each, alone and beside 4 decodes at 100.
    assert cost(StepShape(100, 0.0, 40, 0, 0, 2)) == pytest.approx(0.012)
    assert cost(StepShape(100, 0.0, 40, 4, 400, 6)) == pytest.approx(0.013)
    assert cost(StepShape()) == 0.0
    assert Handle.asked == [
        ("decode", 4, 100),
        ("mixed", 100, 0, 50, 2, 20),
        ("mixed", 100, 4, 50, 2, 20),
        ("mixed", 100, 4, 100, 2),
    ]


@pytest.mark.usefixtures("package")
def test_what_the_package_does_not_know_is_refused_with_its_words() -> None:
    with pytest.raises(ValidationError, match="system 'nowhere' under 'vllm': unknown system"):
        made("nowhere")
