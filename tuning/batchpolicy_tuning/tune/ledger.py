"""The trials of a study in its storage: claimed by one worker each, none lost or doubled."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from batchpolicy_tuning.tune import worker_id
from batchpolicy_tuning.tune.records import ENDED, VOID, Outcome, TrialRecord, Value
from batchpolicy_tuning.tune.space import Space

_RECORD, _BEAT, _CONSTRAINTS = "record", "beat", "constraints"
BEAT_S = 15.0
GRACE_S = 90.0
"""A worker on another machine whose beat stands still for so long is gone."""
# Optuna 4.2 has no name for it, and raises its base.
_Finished: type[Exception] = getattr(optuna.exceptions, "UpdateFinishedTrialError", RuntimeError)
_STATES = {
    Outcome.FEASIBLE: TrialState.COMPLETE,
    Outcome.INFEASIBLE: TrialState.COMPLETE,
    Outcome.PRUNED: TrialState.PRUNED,
}


@dataclass(frozen=True, slots=True)
class Claim:
    """A trial that this worker is to run."""

    trial_id: int
    record: TrialRecord


class Ledger:
    """Reads and writes the trials of one study; what it shows is what the storage has now.

    A trial is created with its setting in one write, so that others see all of it or
    nothing. Of two workers that come to one setting at once, the one with the lower number
    keeps it and the other withdraws: both can tell from the storage alone. The trial of a
    worker that has ended is void, and its setting is tried again by whoever asks next; that
    too follows from the storage, so nothing is lost when a process ends at any point.

    Trials are written through Optuna's storage interface and can be read by whatever reads
    that, such as its dashboard.
    """

    def __init__(self, storage: BaseStorage, study_id: int, space: Space) -> None:
        self._storage = storage
        self._study_id = study_id
        self._space = space
        self._worker = worker_id.this_worker()
        self._ended: dict[int, TrialRecord] = {}
        self._beats: dict[int, tuple[object, float]] = {}

    def records(self) -> list[TrialRecord]:
        """All trials, in the order in which they were claimed, void ones included."""
        return [record for _, record in self._read()]

    def trials(self) -> list[TrialRecord]:
        """The trials that have ended with a result, failures included."""
        return [one for one in self.records() if one.outcome in ENDED]

    def note(self, key: str) -> Any:
        """A fact about the study, None if it was not written."""
        return self._storage.get_study_user_attrs(self._study_id).get(key)

    def write_note(self, key: str, value: Any) -> None:
        """Keep a fact about the study."""
        self._storage.set_study_user_attr(self._study_id, key, value)

    def claim(self, record: TrialRecord, most: int) -> Claim | None:
        """A new trial that this worker is to run; None when another worker came first.

        Also None, and the trial withdrawn, when ``most`` trials came before. ``record`` is
        of the setting; its number and worker are filled in here.
        """
        claimed = record.model_copy(
            update={
                "outcome": Outcome.RUNNING,
                "worker": self._worker,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        )
        params, distributions = self._inside(record.parameters)
        template = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=distributions,
            user_attrs={_RECORD: _dumped(claimed)},
        )
        trial_id = self._storage.create_new_trial(self._study_id, template)
        number = self._storage.get_trial_number_from_id(trial_id)
        mine = Claim(trial_id, claimed.model_copy(update={"number": number}))
        before = [one for one in self.records() if one.number < number and one.outcome not in VOID]
        if any(one.key == record.key for one in before) or len(before) >= most:
            self.end(mine, mine.record.model_copy(update={"outcome": Outcome.WITHDRAWN}))
            return None
        return mine

    def end(self, claim: Claim, record: TrialRecord) -> bool:
        """Write what became of a trial; False when it was taken for lost meanwhile."""
        trial_id = claim.trial_id
        state = _STATES.get(record.outcome, TrialState.FAIL)
        losses = list(record.values.values()) if state is TrialState.COMPLETE else None
        try:
            self._storage.set_trial_user_attr(trial_id, _RECORD, _dumped(record))
            for name in ("outcome", "reason"):
                self._storage.set_trial_user_attr(trial_id, name, str(getattr(record, name)))
            if record.targets:
                misses = [one.miss for one in record.targets]
                self._storage.set_trial_system_attr(trial_id, _CONSTRAINTS, misses)
            for step, part in enumerate(record.parts):
                value = next(iter(part.values.values()), None)
                if value is not None and value - value == 0.0:
                    self._storage.set_trial_intermediate_value(trial_id, step, value)
            if losses is not None:
                goals = len(self._storage.get_study_directions(self._study_id))
                losses = losses[:goals]
            self._storage.set_trial_state_values(trial_id, state, losses)
        except _Finished:
            return False
        return True

    def lose(self, reason: str, claim: Claim) -> None:
        """Give a trial back: its setting is to be tried again."""
        self.end(
            claim, claim.record.model_copy(update={"outcome": Outcome.LOST, "reason": reason})
        )

    def sweep(self) -> int:
        """Void the trials of workers that are gone; how many there were."""
        swept = 0
        for frozen, record in self._read():
            if record.outcome is not Outcome.RUNNING or record.worker == self._worker:
                continue
            if self._is_stale(frozen, record):
                trial_id = self._id_of(frozen)
                lost = record.model_copy(
                    update={"outcome": Outcome.LOST, "reason": f"worker {record.worker} ended"}
                )
                swept += self.end(Claim(trial_id, record), lost)
        return swept

    def beating(self, claim: Claim) -> Beat:
        """Tells others, while it is entered, that this worker is at the trial."""
        return Beat(self._storage, claim.trial_id)

    def _is_stale(self, frozen: FrozenTrial, record: TrialRecord) -> bool:
        if worker_id.is_here(record.worker):
            return worker_id.is_gone(record.worker)
        # Clocks of machines differ: that a beat stands still is seen by this one alone.
        beat, now = frozen.user_attrs.get(_BEAT), time.monotonic()
        last, since = self._beats.get(frozen.number, (object(), now))
        if beat != last:
            self._beats[frozen.number] = (beat, now)
            return False
        return now - since > GRACE_S

    def _read(self) -> list[tuple[FrozenTrial, TrialRecord]]:
        found: list[tuple[FrozenTrial, TrialRecord]] = []
        for frozen in self._storage.get_all_trials(self._study_id, deepcopy=False):
            record = self._ended.get(frozen.number)
            if record is None:
                if _RECORD not in frozen.user_attrs:
                    continue  # somebody else's, as by a dashboard
                record = _loaded(frozen)
                if frozen.state.is_finished():
                    self._ended[frozen.number] = record
            found.append((frozen, record))
        return found

    def _id_of(self, frozen: FrozenTrial) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, frozen.number)

    def _inside(self, params: Mapping[str, Value]) -> tuple[dict[str, Any], dict[str, Any]]:
        known = {one.name: one for one in self._space.parameters}
        kept = {k: v for k, v in params.items() if k in known and known[k].holds(v)}
        return kept, {k: known[k].distribution() for k in kept}


class Beat:
    """Counts up in the storage every few seconds, from a thread of its own."""

    def __init__(self, storage: BaseStorage, trial_id: int) -> None:
        self._storage = storage
        self._trial_id = trial_id
        self._over = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        count = 0
        while not self._over.wait(BEAT_S):
            count += 1
            try:
                self._storage.set_trial_user_attr(self._trial_id, _BEAT, count)
            except Exception:
                return  # the trial was taken for lost, or the storage is gone: the worker will see


def _dumped(record: TrialRecord) -> str:
    return record.model_dump_json(exclude={"number"})


def _loaded(frozen: FrozenTrial) -> TrialRecord:
    record = json.loads(frozen.user_attrs[_RECORD])
    found = TrialRecord.model_validate({**record, "number": frozen.number})
    if frozen.state.is_finished() and found.outcome is Outcome.RUNNING:
        # Ended between two writes, or by another tool.
        return found.model_copy(update={"outcome": Outcome.LOST, "reason": "ended without result"})
    return found
