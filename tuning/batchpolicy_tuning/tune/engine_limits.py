"""Which limits of a study its engines keep: the one that trials run on, and the finalists'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import cast

from batchpolicy import registry
from batchpolicy.document import Document, Loc, dotted
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import BatchPolicyError
from batchpolicy.workload import Workload
from batchpolicy_tuning.engines import TWINS
from batchpolicy_tuning.prefix_cache import CACHE, has_one, refuse_shared_prefixes
from batchpolicy_tuning.tune.space import Parameter
from batchpolicy_tuning.tune.study_file import EngineStart, StudyFile

TUNED_LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "watermark",
)
"""Limits that a search may vary; of these a light engine keeps what its real one keeps."""
_DEFAULTS = {o.name: o.default for o in fields(EngineLimits) if o.default is not MISSING}
"""Of the limits that an engine may be without."""
STEP = "max_num_batched_tokens"


def search_engine(file: StudyFile) -> str:
    """Name of the engine that trials run on."""
    return file.search.engine or TWINS.get(file.engine, file.engine)


def has_prefix_cache(file: StudyFile) -> bool:
    """Whether finalists run with one: as the file says, else where their engine has it."""
    said = file.limits.prefix_cache
    return has_one(file.engine) if said is None else said


def note_of_cache(file: StudyFile) -> tuple[str, ...]:
    """That trials run without the prefix cache that finalists have."""
    trials = search_engine(file)
    if not has_prefix_cache(file) or has_one(trials):
        return ()
    return (f"trials run without a prefix cache, which {trials} has not; finalists have it",)


def check_prefixes(file: StudyFile, workloads: Sequence[Workload]) -> None:
    """Refuse requests that share prefixes where trials would have no cache for them.

    Raises
    ------
    ConfigError
        Saying how many there are.
    """
    if not note_of_cache(file):
        return
    refuse_shared_prefixes(
        workloads,
        f"trials would run on {search_engine(file)}, which has no prefix cache",
        f"run them where finalists run, search: {{engine: {file.engine}}}, or without a cache, "
        "limits: {prefix_cache: false}",
    )


def refuse_what_engines_lack(document: Document, file: StudyFile) -> None:
    """Note each limit, fixed or searched, that an engine of the study does not keep."""
    for at, name in _asked(file):
        final, trials = file.engine, search_engine(file)
        if _lacks(final, name):
            others = [one for one in TWINS if one != final and not _lacks(TWINS[one], name)]
            hint = f", or judge on another engine: {', '.join(others)}" if others else ""
            document.fault(
                at, f"{dotted(at)}: engine {final} has no such limit; leave it out{hint}."
            )
        elif name != CACHE and _lacks(trials, name):
            document.fault(
                at,
                f"{dotted(at)}: trials run on {trials}, which has no such limit; leave it out, or "
                f"run them where finalists run, search: {{engine: {final}}}.",
            )


def refuse_part_blocks(document: Document, file: StudyFile, searched: Sequence[Parameter]) -> None:
    """Note token budgets that are no whole KV blocks where an engine takes only such."""
    strict = [one for one in (file.engine, search_engine(file)) if _fills_blocks(one)]
    if not strict:
        return
    block = file.limits.block_size
    why = (
        f"engine {strict[0]} cuts prompts at the ends of KV blocks, of {block} tokens here "
        "(limits.block_size)"
    )
    if file.limits.max_num_batched_tokens % block:
        at: Loc = ("limits", STEP)
        said = f"{dotted(at)} is {file.limits.max_num_batched_tokens}"
        document.fault(at, f"{said}; {why}: expected a multiple.")
    at = ("space", "limits", STEP)
    for one in searched:
        if one.name != STEP:
            continue
        part = [str(value) for value in one.choices if cast(int, value) % block]
        if not one.choices:
            document.fault(
                at, f"{dotted(at)}: {why}: expected a list of multiples, or low, high and step."
            )
        elif part:
            document.fault(
                at, f"{dotted(at)}: {why}: expected multiples, found {', '.join(part[:5])}."
            )


def _asked(file: StudyFile) -> Iterator[tuple[Loc, str]]:
    for name in EngineStart.model_fields:
        value: object = getattr(file.limits, name)
        if name in _DEFAULTS and value is not None and value != _DEFAULTS[name]:
            yield ("limits", name), name
    for name in file.space.limits:
        if name in TUNED_LIMITS and name in _DEFAULTS:
            yield ("space", "limits", name), name


def _lacks(engine: str, limit: str) -> bool:
    """Whether an engine does not keep a limit; what is not installed is asked when it runs."""
    twin = TWINS.get(engine)
    if twin is not None and limit in TUNED_LIMITS and limit in _of(twin)[0]:
        return True  # which takes no import of the real one
    return limit in _of(engine)[0]


def _fills_blocks(engine: str) -> bool:
    return _of(TWINS.get(engine, engine))[1]


@cache
def _of(engine: str) -> tuple[frozenset[str], bool]:
    """What an engine lacks, and whether its steps are of whole blocks."""
    try:
        made = registry.engine(engine)
    except BatchPolicyError:
        return frozenset(), False
    return made.without, made.whole_block_chunks
