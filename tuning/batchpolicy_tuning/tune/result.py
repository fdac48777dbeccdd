"""``study.json``: all that a study found, for reports and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, ValidationError

from batchpolicy.errors import ConfigError
from batchpolicy.reading import refuse_device
from batchpolicy_tuning.tune.records import Model, Part, TargetResult, TrialRecord, Value

FILE = "study.json"
_VERSION, _KIND = "batchpolicy/v1", "TuningStudy"


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


class ParameterImportance(Model):
    """How much of what tells the best trials from others is told by one parameter."""

    name: str
    share: float
    """Of all parameters together, which make 1."""
    chance: float
    """What it reaches in 95 of 100 cases when the trials' results are shuffled; may exceed 1."""


class ImportanceResult(Model):
    """Importance of parameters by one measure, among some trials."""

    measure: str
    """An objective, or ``distance to the targets``."""
    of: str
    """The policy among whose trials; empty for all trials."""
    trials: int
    """How many were measured to the end."""
    parameters: tuple[ParameterImportance, ...] = ()
    """The most important first; none where nothing can be said."""
    reason: str = ""
    """Why nothing can be said."""


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
    importance: tuple[ImportanceResult, ...] = ()
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
        When there is none, it is damaged, or it is of another version.
    """
    path = folder / FILE if folder.is_dir() else folder
    try:
        refuse_device(path)
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
    except FileNotFoundError as fault:
        raise ConfigError(_none(folder, path)) from fault
    except OSError as fault:
        raise ConfigError(f"{path} cannot be read: {fault.strerror}.") from fault
    except ValueError as fault:
        raise ConfigError(
            f"{path} is damaged: {fault}. The trials are in the storage: batchpolicy tune with "
            "--resume writes it anew."
        ) from fault
    _check_kind(path, found)
    try:
        return StudyResult.model_validate_json(text)
    except ValidationError as fault:
        first = fault.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{path} is no study of this version{_written_by(found)}: {at}: {first['msg']}."
        ) from fault


def _none(folder: Path, path: Path) -> str:
    if not folder.exists():
        return f"no folder {str(folder)!r}; give the --out of a study, by default tuned/NAME."
    if folder.is_dir() and any(folder.glob("*.log")):
        return (
            f"no file {str(path)!r}, though there is a journal: the study has not drawn its "
            "workloads yet, or ended there. `batchpolicy tune` writes it."
        )
    return f"no file {str(path)!r}; `batchpolicy tune` writes it."


def _check_kind(path: Path, found: object) -> None:
    told = cast("dict[str, object]", found) if isinstance(found, dict) else dict[str, object]()
    if told.get("kind") != _KIND:
        raise ConfigError(
            f"{path} is no study of this version: kind is {told.get('kind')!r}, "
            f"expected {_KIND!r}."
        )
    if told.get("apiVersion") != _VERSION:
        raise ConfigError(
            f"{path} is of apiVersion {told.get('apiVersion')!r}, and this batchpolicy reads "
            f"{_VERSION!r}{_written_by(told)}. Upgrade batchpolicy to read it."
        )


def _written_by(found: Mapping[str, Any]) -> str:
    try:
        return f" (written by batchpolicy {found['environment']['packages']['batchpolicy']})"
    except (KeyError, TypeError):
        return ""
