"""The settings that are told apart: the baseline, and those that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batchpolicy_tuning.tune.judging import shown
from batchpolicy_tuning.tune.records import Outcome, Part, TargetResult, TrialRecord
from batchpolicy_tuning.tune.result import FinalistResult, StudyResult
from batchpolicy_tuning.tune.summary import setting_text


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting, in the search and held out."""

    i: int
    """0 is the baseline."""
    label: str
    trial: TrialRecord | None
    """In the search; None before it has ended there."""
    held_out: FinalistResult | None
    """None where nothing was held out for it."""

    @property
    def setting(self) -> str:
        """All that was set, in one line."""
        of = self.trial or self.held_out
        return "" if of is None else setting_text(of.setting)

    @property
    def told(self) -> TrialRecord | FinalistResult | None:
        """What it came to held out, else in the search."""
        return self.held_out or self.trial

    @property
    def outcome(self) -> str:
        """Of ``told``."""
        return "" if self.told is None else f"{self.told.outcome}"

    def value(self, key: str) -> str:
        """The value of an objective, for people."""
        values: Mapping[str, float] = {} if self.told is None else self.told.values
        return shown(key, values[key]) if key in values else "-"

    def target(self, text: str) -> TargetResult | None:
        """How it stands to a target."""
        targets = () if self.told is None else self.told.targets
        return next((one for one in targets if one.target == text), None)

    def parts(self, *, held_out: bool) -> tuple[Part, ...]:
        """What each slice gave."""
        of = self.held_out if held_out else self.trial
        return () if of is None else of.parts


def arms(result: StudyResult) -> list[Arm]:
    """The baseline and the finalists; before there are any, the best trial or the closest."""
    by_number = {one.number: one for one in result.trials}
    first = next((one for one in result.trials if one.origin == "baseline"), None)
    found = [Arm(0, "baseline", first, result.baseline)]
    for one in result.finalists:
        won = one.trial == result.winner
        label = f"trial {one.trial}{' (winner)' if won else ''}"
        found.append(Arm(len(found), label, by_number.get(one.trial), one))
    if not result.finalists:
        number = result.closest if result.best is None else result.best
        nearest = None if number is None else by_number.get(number)
        if nearest is not None and nearest is not first:
            best = nearest.outcome is Outcome.FEASIBLE
            label = f"trial {number} ({'best' if best else 'closest'} in the search)"
            found.append(Arm(1, label, nearest, None))
    return found
