"""Step cost from NVIDIA's aiconfigurator-core, which interpolates measured kernels."""

from __future__ import annotations

import importlib
from typing import Any, Self

from pydantic import PositiveInt, PrivateAttr, model_validator
from typing_extensions import override

from batchpolicy.errors import ConfigError
from batchpolicy.step_cost import OutsideCost, StepShape


class AIConfiguratorCost(OutsideCost):
    """Asks aiconfigurator-core for the kernels of each step; GPU time only.

    The prompts of a step count as equally long, and so do its decodes. The answers are what
    the package gives, neither monotone nor held inside what was measured.
    """

    system: str
    """GPU as the package names it, such as ``h100_sxm``."""
    model: str
    """Model as the package names it, such as ``meta-llama/Meta-Llama-3.1-8B``."""
    backend: str = "vllm"
    backend_version: str | None = None
    tp: PositiveInt = 1

    _engine: Any = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _known(self) -> Self:
        self._compiled()
        return self

    def _compiled(self) -> Any:
        if self._engine is not None:
            return self._engine
        try:
            # By name, as the core is not to depend on it.
            package = importlib.import_module("aiconfigurator_core.sdk.engine")
        except ModuleNotFoundError as e:
            raise ConfigError(
                f"this profile needs {e.name!r}, which is not installed: "
                "pip install 'batchpolicy[aiconfigurator]'"
            ) from e
        try:
            self._engine = package.EngineHandle.compile(
                self.model,
                self.system,
                self.backend,
                backend_version=self.backend_version,
                tp_size=self.tp,
            )
        except Exception as e:
            raise ConfigError(
                f"aiconfigurator-core has no step times for model {self.model!r} on system "
                f"{self.system!r} under {self.backend!r}: {e}"
            ) from e
        return self._engine

    @override
    def plain(self, shape: StepShape) -> float:
        prefill_tokens, _, prefill_context, decodes, decode_context, sequences = shape
        engine = self._compiled()
        context = max(1, round(decode_context / decodes)) if decodes else 1
        if not prefill_tokens:
            return engine.predict_decode_latency(decodes, context) / 1000.0 if decodes else 0.0
        prompts = max(1, sequences - decodes)
        new = -(-prefill_tokens // prompts)
        _, others_ms, prefill_ms, _ = engine.mixed_step_breakdown(
            prefill_tokens, decodes, new, 2, prefill_context // prompts
        )
        decode_ms = 0.0
        if decodes:
            # Of its own, as the package takes one length for prompts and decodes.
            _, _, _, decode_ms = engine.mixed_step_breakdown(prefill_tokens, decodes, context, 2)
        return float(others_ms + prefill_ms + decode_ms) / 1000.0

    def __getstate__(self) -> dict[Any, Any]:
        """Without the compiled engine, which another process compiles again."""
        return super().__getstate__() | {"__pydantic_private__": {"_engine": None}}
