"""Step costs fitted to measured hardware, each with its origin, error and envelope."""

from __future__ import annotations

import difflib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Protocol, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, ValidationError, model_validator

from batchpolicy.component import Component
from batchpolicy.errors import ConfigError
from batchpolicy.step_cost import FormulaCost

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


class Profile(Component):
    """A model on some hardware: step cost, KV memory, and how far to trust them."""

    name: str
    hardware: str
    model: str
    tp: PositiveInt
    cost: FormulaCost
    kv_tokens: PositiveInt
    kv_memory: KvMemory
    envelope: Envelope
    fit: Fit
    origin: Origin

    @model_validator(mode="after")
    def _kv_tokens_follow(self) -> Self:
        if self.kv_tokens != self.kv_memory.tokens:
            raise ValueError(
                f"kv_tokens is {self.kv_tokens}, but kv_memory gives {self.kv_memory.tokens}"
            )
        return self

    def check_limits(self, limits: Limits) -> None:
        """Refuse limits that let a step leave the envelope.

        Engines mix prefills and decodes, so the largest mixed steps count.

        Raises
        ------
        ConfigError
            When seats or tokens of a step are more than was measured.
        """
        asked = {
            "max_num_seqs": (limits.max_num_seqs, self.envelope.mixed_decodes),
            "max_num_batched_tokens": (
                limits.max_num_batched_tokens,
                self.envelope.mixed_prefill_tokens,
            ),
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
        measured = min(self.envelope.prefill_context_tokens, self.envelope.decode_context_tokens)
        return context_tokens > measured


def profile_names() -> list[str]:
    """Names of the profiles that are shipped."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json"))


def load_profile(name_or_path: str | Path) -> Profile:
    """The shipped profile of that name, or the one in a JSON file.

    Raises
    ------
    ConfigError
        When there is no such profile or file, or the file is not a profile; all
        that is wrong with it is named at once.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".json") or "/" in text or "\\" in text:
        file: Path | Traversable = Path(name_or_path)
    elif text in profile_names():
        file = resources.files(__name__) / f"{text}.json"
    else:
        known = profile_names()
        near = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"no profile named {text!r}.{hint} Shipped: {', '.join(known) or 'none'}; "
            "or give the path of a .json file."
        )
    try:
        found = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"profile {text} cannot be read: {reason}") from e
    try:
        return Profile.model_validate_json(found, strict=True)
    except ValidationError as e:
        faults = "\n".join(
            f"  {'.'.join(str(part) for part in fault['loc']) or 'file'}: {fault['msg']}"
            for fault in e.errors()
        )
        raise ConfigError(f"profile {text} cannot be used:\n{faults}") from e


__all__ = [
    "EXTENDED_CONTEXT_TOKENS",
    "Envelope",
    "Errors",
    "Fit",
    "KvMemory",
    "Limits",
    "Origin",
    "Profile",
    "load_profile",
    "profile_names",
]
