"""What a profile holds: a step cost with its origin, error and envelope."""

from __future__ import annotations

from typing import Annotated, Any, Protocol, Self

from pydantic import (
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from batchpolicy.component import Component
from batchpolicy.errors import ConfigError
from batchpolicy.step_cost import AdjustableCost, FormulaCost
from batchpolicy.step_costs.aiconfigurator import AIConfiguratorCost
from batchpolicy.step_costs.callables import CallableCost
from batchpolicy.step_costs.tables import TableCost

EXTENDED_CONTEXT_TOKENS = 131_072
"""Context per sequence up to which attention terms may leave what was measured."""


class Limits(Protocol):
    """What of an engine's limits a profile holds inside its envelope."""

    @property
    def max_num_seqs(self) -> int:
        """Requests that run at once."""
        ...

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one step."""
        ...


class Envelope(Component):
    """The largest steps that were measured, by kind of step."""

    prefill_tokens: PositiveInt
    """New tokens of a step that only prefills."""
    decodes: PositiveInt
    """Sequences of a step that only decodes."""
    mixed_prefill_tokens: PositiveInt
    """New tokens of a step that does both."""
    mixed_decodes: PositiveInt
    """Sequences that decode in a step that does both."""
    prefill_context_tokens: PositiveInt
    """Tokens that one prefilling sequence attends to, cached and new."""
    decode_context_tokens: PositiveInt
    """Context of one decoding sequence."""


class KvMemory(Component):
    """How the number of KV tokens was derived, from the figures of one device.

    Tensor parallelism splits weights and KV heads evenly, so each device holds its
    share of every token and the devices of a group hold the same tokens.
    """

    device_bytes: PositiveInt
    usable_frac: Annotated[float, Field(gt=0, le=1)]
    """Share that the engine may use: vLLM's ``gpu_memory_utilization``."""
    weights_bytes: PositiveInt
    """Of the model, divided by the devices that share it."""
    reserved_bytes: PositiveInt
    """Allowance for activations, CUDA graphs and the runtime."""
    bytes_per_token: PositiveInt
    """2 * layers * KV heads per device * head size * bytes of a value."""
    block_tokens: PositiveInt
    derivation: str

    @property
    def tokens(self) -> int:
        """What is left for KV, in whole blocks, counted in tokens."""
        free_bytes = (
            self.device_bytes * self.usable_frac - self.weights_bytes - self.reserved_bytes
        )
        return int(free_bytes // (self.bytes_per_token * self.block_tokens)) * self.block_tokens


class Errors(Component):
    """Relative errors of some rows, without their signs except in ``bias``."""

    rows: PositiveInt
    median: NonNegativeFloat
    p95: NonNegativeFloat
    worst: NonNegativeFloat
    bias: float
    """Mean of the signed errors: above 0 where the formula is too slow."""


class Fit(Component):
    """How far the formula is from the data, as shares of what was measured."""

    overall: Errors
    by_kind: dict[str, Errors]
    held_out: Errors
    """On rows that took no part in the fit that judges them."""
    held_out_by_kind: dict[str, Errors]
    method: str


class Origin(Component):
    """Where the numbers come from and what they leave out."""

    data: str
    data_sha256: str
    """Of the uncompressed file."""
    licence: str
    engine: str
    date: str | None
    """Day of the fit, ISO 8601."""
    measures: str
    notes: str = ""


class MetricErrors(Component):
    """How far a replay is from a real run in one metric, as shares of what was measured."""

    mean: float
    """Of the mean: above 0 where the replay is too slow."""
    p50: float
    p95: float
    mape: NonNegativeFloat
    """Mean over requests, each without its sign."""


class Calibration(Component):
    """How a cost was brought near to a real run, and what that run says of it afterwards."""

    run: str
    """Name of the file with its requests."""
    run_sha256: str
    """Of the uncompressed file."""
    base: str
    """Profile that was calibrated."""
    engine: str
    """What replayed the run."""
    scale: NonNegativeFloat
    overhead_s: NonNegativeFloat
    fitted_requests: PositiveInt
    """The first of the run, whose latencies the fit knows."""
    held_out_requests: PositiveInt
    """The others, which the errors are of."""
    errors: dict[str, MetricErrors]
    """By metric: ``e2el``, ``ttft``, ``tpot``."""


_FORMS: dict[str, type[AdjustableCost]] = {
    "formula": FormulaCost,
    "tables": TableCost,
    "callable": CallableCost,
    "aiconfigurator": AIConfiguratorCost,
}
_KEYS = {"attention": "tables", "callable": "callable", "system": "aiconfigurator"}
FORMS = frozenset(_FORMS)


def _form(given: Any) -> str:
    """Which form of cost is meant: by the key that only this form has."""
    if isinstance(given, dict):
        return next((form for key, form in _KEYS.items() if key in given), "formula")
    return next((form for form, cls in _FORMS.items() if isinstance(given, cls)), "formula")


Cost = Annotated[
    Annotated[FormulaCost, Tag("formula")]
    | Annotated[TableCost, Tag("tables")]
    | Annotated[CallableCost, Tag("callable")]
    | Annotated[AIConfiguratorCost, Tag("aiconfigurator")],
    Discriminator(_form),
]


class Profile(Component):
    """A model on some hardware: step cost, KV memory, and how far to trust them."""

    name: str
    hardware: str
    model: str
    tp: PositiveInt
    cost: Cost
    kv_capacity: PositiveInt | None = Field(default=None, alias="kv_tokens")
    """Tokens that the KV cache holds, in a file ``kv_tokens``; see the property of that name."""
    kv_memory: KvMemory | None = None
    """How they were computed, if they were."""
    kv_source: str = ""
    """Where they were read, if they were not computed."""
    envelope: Envelope | None = None
    """None for that of the cost itself: tables know where they end, callables do not."""
    fit: Fit | None = None
    origin: Origin
    calibration: Calibration | None = None

    @model_validator(mode="after")
    def _kv_tokens_follow(self) -> Self:
        if self.kv_memory is not None and self.kv_capacity != self.kv_memory.tokens:
            raise ValueError(
                f"kv_tokens is {self.kv_capacity}, but kv_memory gives {self.kv_memory.tokens}"
            )
        if self.kv_capacity is not None and self.kv_memory is None and not self.kv_source:
            raise ValueError("kv_tokens is given without its kv_memory or kv_source")
        return self

    # The field cannot have the name of the property, nor a file another name than it had.
    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            "kv_tokens" if name == "kv_capacity" else name: value
            for name, value in dump(self).items()
        }

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds.

        Raises
        ------
        ConfigError
            When the profile does not say.
        """
        if self.kv_capacity is None:
            raise ConfigError(
                f"profile {self.name!r} does not say how many tokens the KV cache holds, and "
                "nothing is guessed: give --kv-tokens. The engine logs the number at its start."
            )
        return self.kv_capacity

    @property
    def reach(self) -> Envelope | None:
        """The largest steps that may be asked for; None where nobody knows."""
        if self.envelope is not None or not isinstance(self.cost, TableCost):
            return self.envelope
        extent = self.cost.extent
        return Envelope(
            prefill_tokens=extent.tokens,
            decodes=extent.decodes,
            mixed_prefill_tokens=extent.tokens,
            mixed_decodes=extent.decodes,
            prefill_context_tokens=extent.prefill_context_tokens,
            decode_context_tokens=extent.decode_context_tokens,
        )

    @property
    def trust(self) -> str:
        """How far its step times are to be trusted, in half a sentence."""
        if self.calibration is not None:
            held_out, e2el = self.calibration.held_out_requests, self.calibration.errors["e2el"]
            return (
                f"calibrated to {self.calibration.run}: mean E2E off by {e2el.mean:+.1%} on "
                f"{held_out} requests that the fit did not see"
            )
        if self.fit is not None:
            overall = self.fit.overall
            return (
                f"fitted with a median error of {overall.median:.1%}, at most {overall.worst:.1%}"
            )
        if isinstance(self.cost, TableCost):
            return "interpolated in tables, uncalibrated"
        return "of unknown error"

    def check_limits(self, limits: Limits) -> None:
        """Refuse limits that let a step leave the envelope.

        Engines mix prefills and decodes, so the largest mixed steps count. A profile that does
        not say what was measured refuses nothing.

        Raises
        ------
        ConfigError
            When seats or tokens of a step are more than was measured.
        """
        reach = self.reach
        if reach is None:
            return
        asked = {
            "max_num_seqs": (limits.max_num_seqs, reach.mixed_decodes),
            "max_num_batched_tokens": (limits.max_num_batched_tokens, reach.mixed_prefill_tokens),
        }
        faults = [
            f"{name} is {value:,}, measured up to {most:,}"
            for name, (value, most) in asked.items()
            if value > most
        ]
        if faults:
            raise ConfigError(
                f"profile {self.name!r} says nothing about such steps: {'; '.join(faults)}. "
                "Lower the limits; a profile is not extrapolated."
            )

    def is_extended(self, context_tokens: int) -> bool:
        """Whether a sequence of that length leaves the contexts that were measured.

        Reports mark such runs as extended.

        Raises
        ------
        ConfigError
            Beyond 131,072 tokens, where attention terms may not be extended either.
        """
        if context_tokens > EXTENDED_CONTEXT_TOKENS:
            raise ConfigError(
                f"profile {self.name!r} cannot time a sequence of {context_tokens:,} tokens: "
                f"its attention terms reach {EXTENDED_CONTEXT_TOKENS:,}. Shorten the requests."
            )
        reach = self.reach
        if reach is None:
            return False
        return context_tokens > min(reach.prefill_context_tokens, reach.decode_context_tokens)
