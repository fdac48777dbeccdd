"""``study.json``: all that a study found, for reports and programs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.records import Model, Part, TargetResult, TrialRecord, Value

FILE = "study.json"


class Conclusion(StrEnum):
    """What a study says in the end."""

    WINNER = "winner"
    """A setting meets all targets held out, where the baseline misses one or is worse."""
    KEEP_BASELINE = "keep the baseline"
    """The engine's default meets all targets, and no finalist is better."""
    INCONCLUSIVE = "inconclusive"
    """No finalist met the targets held out, or none is shown to be better."""
    NOTHING_FEASIBLE = "nothing feasible"
    """No setting met all targets in the search."""
    UNFINISHED = "unfinished"
    """The search was interrupted."""


EXIT_CODES: Mapping[Conclusion, int] = {
    Conclusion.WINNER: 0,
    Conclusion.KEEP_BASELINE: 0,
    Conclusion.NOTHING_FEASIBLE: 3,
    Conclusion.INCONCLUSIVE: 5,
    Conclusion.UNFINISHED: 130,
}


class ParameterResult(Model):
    """One dimension of the space."""

    name: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    integer: bool = False
    choices: tuple[Value, ...] = ()
    of: str = ""
    """The policy under which it exists; empty for all."""


class ObjectiveResult(Model):
    """What was to be improved."""

    key: str
    direction: Literal["maximize", "minimize"]


class WorkloadResult(Model):
    """One workload of the study."""

    name: str
    load: float
    saturation_requests_per_s: float
    """What first-come-first-served sustains: load 1."""


class ScopeResult(Model):
    """How some of the requests fared on what is held out."""

    kind: Literal["all", "class", "tenant"]
    name: str
    requests: int
    attainment: float | None
    """Part of the requests with targets that met them; None without targets."""
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    longest_wait_s: float


class ComparisonResult(Model):
    """A finalist against the baseline in one objective, slice by slice held out."""

    objective: str
    baseline: float | None
    value: float | None
    improvement: float | None
    """Mean difference over the slices, positive where the finalist is better."""
    low: float | None
    high: float | None
    """Ends of its interval at 95%; None without one."""
    relative_low: float | None
    relative_high: float | None
    """Ends of the interval of the change in parts of the baseline."""
    pairs: int
    verdict: str
    """better, worse, equivalent, not shown, or nothing to schedule."""
    p: float | None
    """Of no improvement, one-sided, adjusted by Holm over the finalists."""
    reason: str = ""


class FinalistResult(Model):
    """A setting on what is held out, on the engine of the study."""

    trial: int
    """Number of its trial in the search; that of the baseline is its own."""
    label: str
    setting: Mapping[str, Value]
    outcome: str
    """feasible, infeasible or failed, held out."""
    reason: str = ""
    values: Mapping[str, float] = Field(default_factory=dict[str, float])
    targets: tuple[TargetResult, ...] = ()
    parts: tuple[Part, ...] = ()
    comparisons: tuple[ComparisonResult, ...] = ()
    """By objective; none for the baseline."""
    scopes: tuple[ScopeResult, ...] = ()
    """All requests, then by class, then by tenant."""


class StudyResult(Model):
    """Everything that a study found."""

    apiVersion: Literal["batchpolicy/v1"] = "batchpolicy/v1"
    kind: Literal["TuningStudy"] = "TuningStudy"
    name: str
    file: str
    study: Mapping[str, Any]
    """The study file, defaults filled in."""
    fingerprint: Mapping[str, str]
    conclusion: Conclusion
    exit_code: int
    summary: tuple[str, ...]
    """The conclusion in words, as the command prints it."""
    search_engine: str
    final_engine: str
    storage: str
    """Where the trials are, passwords left out: what a dashboard reads."""
    seed: int
    profile: str
    profile_trust: str
    profile_extended: bool
    environment: Mapping[str, Any]
    parameters: tuple[ParameterResult, ...]
    objectives: tuple[ObjectiveResult, ...]
    targets: tuple[str, ...]
    workloads: tuple[WorkloadResult, ...]
    workload_sha256: str
    search_instances: tuple[str, ...]
    held_out_instances: tuple[str, ...]
    notes: tuple[str, ...]
    trials: tuple[TrialRecord, ...]
    """In the order in which they were begun; the first is the baseline."""
    outcomes: Mapping[str, int]
    """How many trials ended how."""
    void_trials: int
    """Claims that were given up: workers that ended, or two at one setting."""
    best: int | None
    """Number of the best feasible trial of the search."""
    pareto: tuple[int, ...]
    closest: int | None
    """Number of the trial nearest to the targets, where none is feasible."""
    binding: TargetResult | None
    """Its target that is farthest from being met."""
    baseline: FinalistResult | None
    finalists: tuple[FinalistResult, ...]
    winner: int | None
    """Number of the trial to deploy; that of the baseline where it is to be kept."""
    policy_file: str | None
    flags: Mapping[str, str]
    """Of the winner, else of the best setting, by engine."""
    wall_s: float


def read_result(folder: Path) -> StudyResult:
    """What a study wrote to a folder.

    Raises
    ------
    ConfigError
        When there is none, or it is not of this version.
    """
    path = folder / FILE if folder.is_dir() else folder
    try:
        return StudyResult.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise ConfigError(f"no file {str(path)!r}; `batchpolicy tune` writes it.") from fault
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{path} cannot be read: {fault}.") from fault
    except ValidationError as fault:
        first = fault.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path} is no study of this version: {at}: {first['msg']}.") from fault
