"""Limits under which a run is replayed: said by options, by the run, never guessed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchpolicy.engine import EngineLimits
from batchpolicy.errors import ConfigError
from batchpolicy.profiles import Profile
from batchpolicy_tuning.calibrate.run_log import RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says of the run's engine; None leaves it to the metadata."""

    kv_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    prefix_cache: bool | None = None
    async_scheduling: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """Engine limits, and where the number of KV tokens was read."""

    limits: EngineLimits
    kv_tokens: int
    kv_source: str


def setting(asked: Asked, facts: RunFacts, base: Profile) -> Setting:
    """Limits for the replay; all that is missing is named at once.

    KV tokens come from the option, else from the run, else from the profile if it is of the
    same model on the same GPUs.

    Raises
    ------
    ConfigError
        When a limit is said nowhere, or leaves the profile's envelope.
    """
    faults: list[str] = []
    seats = asked.max_num_seqs or facts.max_num_seqs
    if seats is None:
        faults.append("seats: give --max-num-seqs")
    tokens = asked.max_num_batched_tokens or facts.max_num_batched_tokens
    if tokens is None:
        faults.append("tokens of a step: give --max-num-batched-tokens")
    kv_tokens, source = _kv_tokens(asked, facts, base)
    if kv_tokens is None:
        faults.append(f"KV tokens: give --kv-tokens, which vLLM logs at its start ({source})")
    if seats is None or tokens is None or kv_tokens is None:
        told = "\n".join(f"  {fault}" for fault in faults)
        raise ConfigError(f"the run does not say under what limits its engine ran:\n{told}")
    block_tokens = facts.kv_block_tokens or 16
    if kv_tokens < block_tokens:
        raise ConfigError(f"{kv_tokens} KV tokens are less than one block of {block_tokens}")
    cached = asked.prefix_cache if asked.prefix_cache is not None else facts.prefix_cache
    limits = EngineLimits(
        max_num_seqs=seats,
        max_num_batched_tokens=tokens,
        kv_blocks=kv_tokens // block_tokens,
        kv_block_tokens=block_tokens,
        # vLLM's own default.
        prefix_cache=True if cached is None else cached,
        async_scheduling=asked.async_scheduling,
    )
    if facts.max_model_len is not None:
        limits = replace(limits, max_model_len=facts.max_model_len)
    base.check_limits(limits)
    return Setting(limits, limits.kv_blocks * block_tokens, source)


def _kv_tokens(asked: Asked, facts: RunFacts, base: Profile) -> tuple[int | None, str]:
    """Their number and where it was read; None and why it is not known."""
    if asked.kv_tokens is not None:
        return asked.kv_tokens, "given with --kv-tokens"
    if facts.kv_tokens is not None:
        return facts.kv_tokens, "read from the metadata of the run"
    if facts.hardware is None or facts.model is None:
        lacking = "GPU" if facts.hardware is None else "model"
        return None, f"the run names no {lacking}, so that profile {base.name!r} may be of another"
    ours = (base.hardware, base.model, base.tp)
    theirs = (facts.hardware, facts.model, facts.tp or 1)
    if ours != theirs:
        return None, (f"profile {base.name!r} is of {_told(*ours)}, the run of {_told(*theirs)}")
    if base.kv_capacity is None:
        return None, f"profile {base.name!r} does not say either"
    return base.kv_capacity, f"that of profile {base.name}, of the same model on the same GPUs"


def _told(hardware: str, model: str, tp: int) -> str:
    return f"{model} on {tp} x {hardware}"
