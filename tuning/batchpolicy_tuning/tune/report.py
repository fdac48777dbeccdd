"""What is known of a study, from its folder: also while it runs, or after it was killed."""

from __future__ import annotations

import math
from pathlib import Path

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.judging import Goal
from batchpolicy_tuning.tune.ledger import Ledger
from batchpolicy_tuning.tune.place import is_hidden, shown_place
from batchpolicy_tuning.tune.records import Outcome, TrialRecord
from batchpolicy_tuning.tune.result import (
    Conclusion,
    ParameterResult,
    StudyResult,
    read_result,
)
from batchpolicy_tuning.tune.space import Parameter, Space
from batchpolicy_tuning.tune.standing import standing
from batchpolicy_tuning.tune.storage import open_storage
from batchpolicy_tuning.tune.verdict_text import summary_of


def read_standing(folder: Path, storage: str | None) -> StudyResult:
    """The result in a folder; of a study that has not ended, with the trials so far.

    These are in the storage that the result names or, where that is a database whose URL has
    a password, in ``storage``.

    Raises
    ------
    ConfigError
        When there is no result, it cannot be read, or ``storage`` has no such study.
    """
    result = read_result(folder)
    if result.conclusion is not Conclusion.UNFINISHED:
        return result
    try:
        records = _records(folder, result, storage)
    except ConfigError as fault:
        if storage is not None:
            raise
        note = f"trials since then are not shown: {fault}"
        return result.model_copy(update={"notes": (*result.notes, note)})
    goals = [Goal(one.key, one.direction == "maximize") for one in result.objectives]
    parameters = [_parameter(one) for one in result.parameters]
    running = sum(one.outcome is Outcome.RUNNING for one in records)
    found = result.model_copy(update=standing(goals, parameters, records))
    return found.model_copy(update={"summary": summary_of(found, _at_work(running))})


def _at_work(running: int) -> str | None:
    return f"{running} running, or their workers are gone" if running else None


def _records(folder: Path, result: StudyResult, storage: str | None) -> list[TrialRecord]:
    place = storage or _place(folder, result)
    if "://" not in place and not Path(place).is_file():
        raise ConfigError(f"no journal file {shown_place(place)}; name it with --storage.")
    opened = open_storage(place)
    try:
        study_id = opened.get_study_id_from_name(result.name)
    except KeyError as fault:
        raise ConfigError(f"{shown_place(place)} has no study {result.name!r}.") from fault
    return Ledger(opened, study_id, Space(())).records()


def _place(folder: Path, result: StudyResult) -> str:
    """Where the trials are; beside the result, should the folder have been moved."""
    place = result.storage
    if is_hidden(place):
        raise ConfigError(f"they are in {place}; give its URL with --storage.")
    if "://" in place or Path(place).is_file():
        return place
    return str((folder if folder.is_dir() else folder.parent) / Path(place).name)


def _parameter(one: ParameterResult) -> Parameter:
    return Parameter(
        one.name,
        math.nan if one.low is None else one.low,
        math.nan if one.high is None else one.high,
        one.log,
        one.integer,
        one.choices,
        one.of,
    )
