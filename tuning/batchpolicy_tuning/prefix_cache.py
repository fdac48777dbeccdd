"""Whether a run has a prefix cache: as asked, else where its engine has one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from batchpolicy import registry
from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.workload import Workload
from batchpolicy_tuning.engines import TWINS

CACHE = "prefix_cache"


def has_one(engine: str) -> bool:
    """Whether an engine has one; what is not installed is asked when it runs."""
    if engine in TWINS:
        return True  # which takes no import of the real ones
    try:
        return CACHE not in registry.engine(engine).without
    except BatchPolicyError:
        return True


def settled(engine: str, asked: bool | None) -> bool:
    """Whether runs have one: as asked, else where the engine has it.

    Raises
    ------
    ConfigError
        When it is asked of an engine that has none.
    """
    if asked is not True:
        return has_one(engine) if asked is None else asked
    if not has_one(engine):
        real = [name for name, light in TWINS.items() if light == engine] or list(TWINS)
        raise ConfigError(
            f"--prefix-cache: engine {engine} has no prefix cache; leave it out, or use an engine "
            f"that has one: {', '.join(real)}"
        )
    return True


def on(engine: Engine, limits: EngineLimits) -> EngineLimits:
    """The limits as an engine takes them: without the prefix cache where it has none."""
    return replace(limits, prefix_cache=limits.prefix_cache and CACHE not in engine.without)


def refuse_shared_prefixes(workloads: Iterable[Workload], where: str, instead: str) -> None:
    """Refuse requests that share prefixes where there is no cache for them.

    Raises
    ------
    ConfigError
        Saying how many there are, ``where`` there is none, and what to do ``instead``: a load
        that is set without the cache is another one.
    """
    requests = [r for one in workloads for r in one.requests]
    share = sum(bool(r.session or r.prefix_blocks or r.prefix_tokens) for r in requests)
    if share:
        raise ConfigError(
            f"{share:,} of {len(requests):,} requests share prefixes, and {where}; {instead}"
        )
