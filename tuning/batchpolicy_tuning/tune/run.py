"""A study from its file to its result."""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from batchpolicy import registry
from batchpolicy.engine import Engine
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.finalists import Chosen, Final, ranked_for_finals, run_finalists
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.place import shown_place
from batchpolicy_tuning.tune.problem import Drawn, ReplayProblem, draw, setting_of
from batchpolicy_tuning.tune.progress import Watcher
from batchpolicy_tuning.tune.records import ENDED, Outcome, TrialRecord
from batchpolicy_tuning.tune.result import (
    EXIT_CODES,
    Conclusion,
    ObjectiveResult,
    ParameterResult,
    StudyResult,
    WorkloadResult,
)
from batchpolicy_tuning.tune.result_files import Outputs, outputs_of, write_study
from batchpolicy_tuning.tune.space import Parameter
from batchpolicy_tuning.tune.standing import standing
from batchpolicy_tuning.tune.study import Study, changed_parts
from batchpolicy_tuning.tune.verdict_text import summary_of
from batchpolicy_tuning.tune.workers import ledger_of, own_salt, run_workers, search_of

_FINGERPRINT, _TRIALS, _WORKLOADS = "fingerprint", "trials", "workload_sha256"
_PACKAGES = ("batchpolicy", "optuna", "numpy", "scipy", "pydantic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a study is to be run."""

    study: Study
    folder: Path
    """Where results go."""
    place: str
    """Where trials are kept: a journal file or a database."""
    resume: bool = False
    changed: bool = False
    """Whether to go on although the study file has changed."""
    jobs: int = 1


def tune(asked: Asked, watcher: Watcher) -> StudyResult:
    """Search, run the finalists, and write all results.

    Raises
    ------
    ConfigError
        When there are trials already and ``resume`` was not asked for, or none and it was,
        or when they were measured for another study.
    EngineUnavailable
        When the engine of the search, or of the finalists, is not installed.
    KeyboardInterrupt
        After the running trial was given back and what there is was written.
    """
    started = time.perf_counter()
    study = asked.study
    trials = study.file.search.trials
    final = _engine(study.file.engine)
    engine = final if study.search_engine == study.file.engine else _engine(study.search_engine)
    ledger = ledger_of(study, asked.place)
    _check_notes(asked, ledger)
    watcher.say(f"drawing workloads, finding what fcfs sustains on {engine.version}")
    drawn = draw(study, engine)
    _check_workloads(asked, ledger, drawn)
    for note in study.settings.notes:
        watcher.say(note)
    ledger.write_note(_TRIALS, trials)
    found = functools.partial(_found, asked, ledger, drawn, engine, final, started)
    # What a report shows while it runs, and should it be killed.
    begun, _ = found(None, ended=False)
    write_study(begun.model_copy(update={"policy_file": None}), asked.folder)
    try:
        _searched(asked, ledger, engine, drawn, watcher)
    except KeyboardInterrupt:
        _write(*found(None, ended=False))
        raise
    if any(one.outcome is Outcome.FEASIBLE for one in ledger.trials()):
        return _write(*found(_final(asked, ledger, drawn, watcher)))
    return _write(*found(None))


def work(study: Study, place: str, watcher: Watcher) -> int:
    """Help with a study that runs elsewhere, or goes on later; how many trials were run.

    Raises
    ------
    ConfigError
        When there is no such study in the storage, or it is of another file.
    """
    ledger = ledger_of(study, place)
    stored = ledger.note(_FINGERPRINT)
    if stored is None:
        raise ConfigError(
            f"no study {study.name!r} in {shown_place(place)}; start it with batchpolicy tune "
            f"{study.path} --storage {shown_place(place)}"
        )
    parts, _ = changed_parts(stored, study.fingerprint())
    # Finalists are run by the first command, on the engine that is installed there.
    parts = [part for part in parts if part != "engine"]
    if parts:
        raise ConfigError(
            f"{study.path} is not the file that study {study.name!r} was started with: "
            f"{', '.join(parts)} differ. Bring the same file, and the workloads that it names."
        )
    engine = _engine(study.search_engine)
    drawn = draw(study, engine)
    trials = int(ledger.note(_TRIALS) or study.file.search.trials)
    problem = ReplayProblem(study, engine, drawn.search)
    watcher.stage(f"trials of {study.name}", trials, len(ledger.trials()))
    done: list[TrialRecord] = []

    def told(record: TrialRecord) -> None:
        done.append(record)
        watcher.trial(record, ledger.trials())

    search_of(problem, ledger, trials, own_salt(), told).run()
    return len(done)


def _engine(name: str) -> Engine:
    return registry.engine(name)


def _check_notes(asked: Asked, ledger: Ledger) -> None:
    study, now = asked.study, asked.study.fingerprint()
    before = cast("Mapping[str, str] | None", ledger.note(_FINGERPRINT))
    there = len([one for one in ledger.records() if one.outcome in ENDED])
    place = shown_place(asked.place)
    if before is not None and there and not asked.resume:
        raise ConfigError(
            f"{place} has {there} trials of study {study.name!r}: go on with --resume, or "
            f"{_anew(asked)}"
        )
    if asked.resume and before is None:
        raise ConfigError(
            f"{place} has no study {study.name!r} to resume; leave --resume out to start it"
        )
    if before is not None:
        parts, comparable = changed_parts(before, now)
        if parts and there and not comparable:
            raise ConfigError(
                f"{study.path} has changed since its {there} trials were run: "
                f"{', '.join(parts)}. They do not say what settings would give now; "
                f"{_anew(asked)}"
            )
        if parts and there and not asked.changed:
            raise ConfigError(
                f"{study.path} has changed since its {there} trials were run: "
                f"{', '.join(parts)}. They still count; add --changed to go on, or "
                f"{_anew(asked)}"
            )
    ledger.write_note(_FINGERPRINT, now)


def _anew(asked: Asked) -> str:
    inside = Path(asked.place).parent == asked.folder
    return f"start anew with another {'--out' if inside else '--storage, or name the file anew'}"


def _check_workloads(asked: Asked, ledger: Ledger, drawn: Drawn) -> None:
    """Refuse to go on where equal words in the file draw other requests than before."""
    before, now = ledger.note(_WORKLOADS), drawn.digest()
    if before is not None and before != now and ledger.trials():
        raise ConfigError(
            f"{asked.study.path}: the workloads are others than those of the trials so far, as "
            f"after an update of batchpolicy or of a trace; {_anew(asked)}"
        )
    ledger.write_note(_WORKLOADS, now)


def _searched(
    asked: Asked, ledger: Ledger, engine: Engine, drawn: Drawn, watcher: Watcher
) -> None:
    study, trials = asked.study, asked.study.file.search.trials
    ledger.sweep()
    seen = {one.number for one in ledger.trials()}
    watcher.stage(f"trials of {study.name}", trials, len(seen))

    def look() -> None:
        ended = ledger.trials()
        for i, one in enumerate(ended):
            if one.number not in seen:
                seen.add(one.number)
                watcher.trial(one, ended[: max(i + 1, len(seen))])

    if asked.jobs > 1 and len(seen) < trials:
        run_workers(study, asked.place, drawn.search, asked.jobs, trials, look)
    problem = ReplayProblem(study, engine, drawn.search)
    # Alone, the same seed gives the same trials, however often it was interrupted.
    salt = 0 if asked.jobs == 1 else own_salt()
    search_of(problem, ledger, trials, salt, lambda _: look()).run(wait_s=1.0)


def _final(asked: Asked, ledger: Ledger, drawn: Drawn, watcher: Watcher) -> Final:
    study = asked.study
    trials = ledger.trials()
    first = next(one for one in trials if one.origin == "baseline")
    chosen = [
        Chosen(one.number, one.label, setting_of(study, one.origin, one.label, one.parameters))
        for one in ranked_for_finals(study.goals, trials)[: study.file.finalists.count]
    ]
    baseline = Chosen(first.number, first.label, study.baseline)
    count = (1 + len(chosen)) * len(drawn.held_out)
    those = "1 finalist" if len(chosen) == 1 else f"{len(chosen)} finalists"
    watcher.stage(f"{those} and the baseline, held out", count)
    make: Callable[[], Engine] = functools.partial(registry.engine, study.file.engine)
    return run_finalists(
        study, baseline, chosen, drawn.held_out, make, asked.jobs, watcher.advance
    )


def _write(result: StudyResult, files: Outputs) -> StudyResult:
    files.write(result)
    return result


def _found(
    asked: Asked,
    ledger: Ledger,
    drawn: Drawn,
    engine: Engine,
    final_engine: Engine,
    started: float,
    final: Final | None,
    *,
    ended: bool = True,
) -> tuple[StudyResult, Outputs]:
    """The result as it stands, and the files that go with it."""
    study, goals = asked.study, asked.study.goals
    stands = standing(goals, study.settings.space.parameters, ledger.records())
    conclusion, winner = _conclusion(final, ended)
    deployed = _deployed(stands, winner, final)
    setting = (
        None
        if deployed is None
        else setting_of(study, deployed.origin, deployed.label, deployed.parameters)
    )
    files = outputs_of(asked.folder, conclusion, setting)
    result = StudyResult(
        name=study.name,
        file=str(study.path),
        study=study.file.model_dump(mode="json"),
        fingerprint=study.fingerprint(),
        conclusion=conclusion,
        exit_code=EXIT_CODES[conclusion],
        summary=(),
        search_engine=engine.version,
        final_engine=final_engine.version,
        storage=shown_place(asked.place),
        seed=study.file.search.seed,
        profile=study.profile.name,
        profile_trust=study.profile.trust,
        profile_extended=drawn.extended,
        environment=_environment(asked),
        parameters=tuple(_parameter(one) for one in study.settings.space.parameters),
        objectives=tuple(
            ObjectiveResult(
                key=goal.key, direction="maximize" if goal.high_is_good else "minimize"
            )
            for goal in goals
        ),
        targets=tuple(limit.text for limit in study.limits),
        workloads=tuple(
            WorkloadResult(name=name, load=spec.load, saturation_requests_per_s=rate)
            for (name, rate), spec in zip(
                drawn.saturation.items(), study.file.workloads, strict=True
            )
        ),
        workload_sha256=drawn.digest(),
        search_instances=tuple(one.name for one in drawn.search),
        held_out_instances=tuple(one.name for one in drawn.held_out),
        notes=(*study.settings.notes, *drawn.notes),
        **stands,
        baseline=None if final is None else final.baseline,
        finalists=() if final is None else final.finalists,
        winner=winner,
        policy_file=files.policy_name,
        flags=files.flags,
        wall_s=time.perf_counter() - started,
    )
    result = result.model_copy(
        update={"summary": summary_of(result, None if final is None else final.reason)}
    )
    return result, files


def _conclusion(final: Final | None, ended: bool) -> tuple[Conclusion, int | None]:
    if final is not None:
        return final.conclusion, final.winner
    return Conclusion.NOTHING_FEASIBLE if ended else Conclusion.UNFINISHED, None


def _deployed(
    stands: Mapping[str, Any], winner: int | None, final: Final | None
) -> TrialRecord | None:
    """The setting that is written: the winner, else the best candidate, else the closest."""
    number = winner
    if number is None and final is not None and final.finalists:
        number = final.finalists[0].trial
    if number is None:
        number = stands["closest"] if stands["best"] is None else stands["best"]
    return next((one for one in stands["trials"] if one.number == number), None)


def _parameter(one: Parameter) -> ParameterResult:
    if one.choices:
        return ParameterResult(name=one.name, choices=one.choices, of=one.of)
    return ParameterResult(
        name=one.name, low=one.low, high=one.high, log=one.log, integer=one.integer, of=one.of
    )


def _environment(asked: Asked) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "jobs": asked.jobs,
        # A storage may have been given with its password.
        "argv": [shown_place(one) for one in sys.argv[1:]],
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
