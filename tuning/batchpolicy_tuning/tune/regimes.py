"""Winners of studies at several loads, put together into one policy file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from batchpolicy import registry
from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits, Run
from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near
from batchpolicy.requests import FloatArray
from batchpolicy_tuning.measured import measured_rows
from batchpolicy_tuning.prefix_cache import on
from batchpolicy_tuning.replay import Replay
from batchpolicy_tuning.tune.deploy import NAMES, flags, policy_document, write_policy
from batchpolicy_tuning.tune.problem import draw, setting_of
from batchpolicy_tuning.tune.result import StudyResult, read_result
from batchpolicy_tuning.tune.settings import Setting
from batchpolicy_tuning.tune.study import Study, changed_parts, read_study, with_search

NAME = "regimes"
APART = 1.5
"""Least ratio of the loads of neighbours, so that one is left before the other is entered."""
_ROWS_OWN = ("max_num_seqs", "max_num_batched_tokens", "prefill_chunk")
"""Limits of the policy file that each row has for itself."""
_ONE_FOR_ALL = ("preempt", "bounds", "queue", "memory", "predictor", "limits", "requests")
_START_ONLY = (
    *("kv_blocks", "kv_block_tokens", "prefix_cache", "async_scheduling", "max_loras"),
    "watermark",
)
"""Limits that an engine has from its start on, whatever a policy says."""


@dataclass(frozen=True, slots=True)
class Won:
    """A study, and what it says to deploy."""

    name: str
    """Of the row."""
    folder: Path
    result: StudyResult
    study: Study
    setting: Setting

    @property
    def load(self) -> float:
        """Mean load of its workloads, in parts of what fcfs sustains."""
        loads = [one.load for one in self.result.workloads]
        return sum(loads) / len(loads)


@dataclass(frozen=True, slots=True)
class Joined:
    """A table of regimes, and how it came about."""

    setting: Setting
    """The policy, and the limits that the engine is to be started with."""
    loads: Mapping[str, float]
    """Live requests per seat, or tokens per token of KV, on average under each winner."""
    above: Mapping[str, float]
    """From where on each row holds."""
    safe: str

    def remarks(self) -> list[str]:
        """How the file came about, for its head."""
        rows = [
            f"{name}: filled the engine to {load:.3g} on average, holds from {above:.3g} on"
            for (name, load), above in zip(self.loads.items(), self.above.values(), strict=True)
        ]
        start = flags(self.setting.limits)
        return [
            "batchpolicy tune regimes",
            *rows,
            f"Safe setting: {self.safe}",
            *(f"Start {NAMES[engine]} with {text}" for engine, text in start.items()),
        ]


def read_won(name: str, folder: Path) -> Won:
    """The winner of a study.

    Raises
    ------
    ConfigError
        When it has none that meets its targets, or the study file is not what it was.
    """
    result = read_result(folder)
    if result.winner is None:
        why = result.summary[0] if result.summary else ""
        raise ConfigError(
            f"{name}={folder}: {result.conclusion}, so that there is nothing to deploy: {why} "
            "Run more trials or more held-out slices, or leave this row out."
        )
    if not Path(result.file).is_file():
        raise ConfigError(
            f"{name}={folder}: its study {result.file} is not here; expected this command where "
            "tune ran."
        )
    # A command line may have named another seed than the file.
    study = with_search(read_study(Path(result.file)), trials=None, seed=result.seed)
    parts, _ = changed_parts(result.fingerprint, study.fingerprint())
    if parts:
        raise ConfigError(
            f"{name}={folder}: {result.file} has changed since, in {', '.join(parts)}; tune it "
            "again, or bring it back."
        )
    trial = next(one for one in result.trials if one.number == result.winner)
    setting = setting_of(study, trial.origin, trial.label, trial.parameters)
    return Won(name, folder, result, study, setting)


def check_together(won: Sequence[Won], safe: str) -> None:
    """Refuse studies whose winners cannot stand in one file.

    Raises
    ------
    ConfigError
        With everything that is wrong.
    """
    first = won[0]
    faults: list[str] = []
    names = [one.name for one in won]
    if len(won) < 2:
        faults.append("one study: expected two or more, from low load to high")
    faults += [
        f"{name!r} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    if safe not in names:
        faults.append(f"--safe {safe!r} is none of {', '.join(names)}{near(safe, names)}")
    for one in won[1:]:
        for key in ("engine", "profile"):
            mine, other = (str(x.result.study[key]) for x in (first, one))
            if mine != other:
                faults.append(f"{key}: {first.name} was tuned for {mine}, {one.name} for {other}")
        for key in _START_ONLY:
            mine, other = (getattr(x.setting.limits, key) for x in (first, one))
            if mine != other:
                faults.append(
                    f"{key}: {mine} in {first.name} and {other} in {one.name}; an engine has "
                    "one from its start on"
                )
        for key in _ONE_FOR_ALL:
            if _rest(first.setting.config, key) != _rest(one.setting.config, key):
                faults.append(
                    f"{key}: differs between {first.name} and {one.name}; a policy file has one, "
                    "and rows have policies and limits only"
                )
    for low, high in pairwise(won):
        if low.load >= high.load:
            faults.append(
                f"load: {low.name} was tuned at {low.load:g} and {high.name} after it at "
                f"{high.load:g}; name them from low load to high"
            )
    if faults:
        raise ConfigError(
            "these studies do not go together:\n" + "\n".join(f"  {f}" for f in faults)
        )


def join(won: Sequence[Won], safe: str) -> Joined:
    """One table of regimes with a row for each winner.

    Where a row starts is half-way, as a ratio, between how much the engine is filled by its
    study's workload under its winner and by the one before. That is measured here, on the
    light engine and the slices that the search saw.

    Raises
    ------
    ConfigError
        When the studies do not go together, or fill the engine alike.
    """
    check_together(won, safe)
    start = _start([one.setting.limits for one in won])
    loads = {one.name: measured_load(one, start) for one in won}
    for (low, a), (high, b) in pairwise(loads.items()):
        if b < APART * a:
            raise ConfigError(
                f"{low} fills the engine to {a:.3g} and {high} to {b:.3g}: a load cannot tell "
                f"them apart. Tune them at loads that differ more, or leave one out."
            )
    between = [sqrt(a * b) for a, b in pairwise(loads.values())]
    above = dict(zip(loads, [0.0, *(float(f"{x:.3g}") for x in between)], strict=True))
    rows = [
        {"name": one.name, "above": above[one.name]}
        | ({} if one.name == safe else {"inner": _policy(one), **_ceilings(one, start)})
        for one in won
    ]
    kept = next(one for one in won if one.name == safe)
    params = {"inner": _policy(kept), "safe": _ceilings(kept, start), "rows": rows}
    shared = kept.setting.config
    limits = shared.limits
    if limits is not None:
        limits = limits.model_copy(update=dict.fromkeys(_ROWS_OWN))
    config = shared.model_copy(
        update={
            "policy": PolicySpec(name=NAME, params=params),
            "limits": limits,
            "title": NAME,
        }
    )
    return Joined(Setting(config, start), loads, above, safe)


def write_joined(joined: Joined, path: Path) -> None:
    """Write the policy file."""
    write_policy(joined.setting, path, joined.remarks())


def measured_load(one: Won, start: EngineLimits) -> float:
    """How far the workload of a study fills the engine under its winner; see ``mean_load``."""
    engine = registry.engine(one.study.search_engine)
    drawn = draw(one.study, engine)
    if drawn.digest() != one.result.workload_sha256:
        raise ConfigError(
            f"{one.name}={one.folder}: its workloads are others than when it was tuned; "
            "tune it again."
        )
    found = [
        mean_load(
            Replay(
                instance.name,
                one.setting.config,
                instance.workload,
                on(engine, one.setting.limits),
                one.study.profile.cost,
                one.study.file.search.seed,
            ).run(engine),
            start,
        )
        for instance in drawn.search
    ]
    return float(np.mean(found))


def mean_load(run: Run, limits: EngineLimits) -> float:
    """Live requests per seat or, if it is more, their tokens per token of KV cache.

    On average over the time in which measured requests arrived. An answer counts in full
    length for half of its time, which is what growing evenly comes to.
    """
    requests = run.workload.requests
    rows = measured_rows(len(requests))
    arrival_s = np.array([r.arrival_s for r in requests])
    from_s, to_s = arrival_s[rows][0], arrival_s[rows][-1]
    if to_s <= from_s:
        return 0.0

    def within(start_s: FloatArray) -> FloatArray:
        end_s = np.where(np.isnan(run.finished_s), run.end_s, run.finished_s)
        start_s = np.where(np.isnan(start_s), end_s, start_s)
        spent_s: FloatArray = np.minimum(end_s, to_s) - np.maximum(start_s, from_s)
        return np.maximum(spent_s, 0.0)

    live_s = within(arrival_s)
    prompts = np.array([r.prompt_tokens for r in requests])
    token_s = prompts * live_s + run.output_tokens / 2 * within(run.first_token_s)
    seats = limits.max_num_seqs
    kv_tokens = limits.kv_blocks * limits.kv_block_tokens
    most = max(live_s.sum() / seats, token_s.sum() / kv_tokens)
    return float(most / (to_s - from_s))


def _start(limits: Sequence[EngineLimits]) -> EngineLimits:
    """Limits that leave room for each of these."""
    chunks = [one.long_prefill_token_threshold for one in limits]
    return replace(
        limits[0],
        max_num_seqs=max(one.max_num_seqs for one in limits),
        max_num_batched_tokens=max(one.max_num_batched_tokens for one in limits),
        long_prefill_token_threshold=0 if 0 in chunks else max(chunks),
    )


def _policy(one: Won) -> dict[str, Any]:
    found: dict[str, Any] = policy_document(one.setting.config)["policy"]
    return found


def _ceilings(one: Won, start: EngineLimits) -> dict[str, int]:
    """Limits of a winner, where they are below those that the engine is started with."""
    limits, own = one.setting.limits, one.setting.config.limits
    said = {
        "max_num_seqs": (limits.max_num_seqs, start.max_num_seqs),
        "max_num_batched_tokens": (limits.max_num_batched_tokens, start.max_num_batched_tokens),
        "prefill_chunk": (
            limits.long_prefill_token_threshold or None,
            start.long_prefill_token_threshold or None,
        ),
    }
    found: dict[str, int] = {}
    for key, (tuned, most) in said.items():
        asked: int | None = getattr(own, key, None)
        values = [value for value in (tuned, asked) if value is not None]
        if values and min(values) != most:
            found[key] = min(values)
    return found


def _rest(config: PolicyConfig, key: str) -> object:
    """A section of a policy file, without what rows have for themselves."""
    part = getattr(config, key)
    if key != "limits":
        return part
    said: dict[str, Any] = {} if part is None else part.model_dump(exclude_defaults=True)
    return {name: value for name, value in said.items() if name not in _ROWS_OWN}
