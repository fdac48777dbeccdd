"""A table in place of runs: what a setting gives is looked up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from batchpolicy_tuning.tune.judging import Goal, Limit
from batchpolicy_tuning.tune.records import Value
from batchpolicy_tuning.tune.search import Candidate, TrialFailed
from batchpolicy_tuning.tune.space import Space

Key = tuple[Value, ...]
"""Values of the parameters, in the order of the space."""
Row = Mapping[str, float] | str
"""What a setting gave on an instance, or why it gave nothing."""


@dataclass(frozen=True, slots=True)
class Landscape:
    """A ``Problem`` whose settings were all measured before."""

    space: Space
    limits: Sequence[Limit]
    goals: Sequence[Goal]
    rows: Mapping[Key, Sequence[Row]]
    """By setting, a row for each instance."""
    instances: Sequence[str]
    baseline: Mapping[str, Value] | None = None
    asked: list[Key] = field(default_factory=list[Key])
    """Settings that were looked up, in order."""

    @property
    def first(self) -> Sequence[Candidate]:
        """The baseline, if there is one."""
        if self.baseline is None:
            return ()
        key = self._named(self.baseline)
        return (Candidate("baseline", "baseline", key, self.baseline, self.baseline),)

    def candidate(self, params: Mapping[str, Value]) -> Candidate:
        """The setting of these parameters."""
        return Candidate("sampled", "", self._named(params), params, params)

    def measure(self, candidate: Candidate, instance: int) -> Mapping[str, float]:
        """Look it up."""
        key = self.key(candidate.params)
        if instance == 0:
            self.asked.append(key)
        row = self.rows[key][instance]
        if isinstance(row, str):
            raise TrialFailed(row)
        return row

    def values(self, measured: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Means over the instances."""
        return {k: sum(row[k] for row in measured) / len(measured) for k in measured[0]}

    def key(self, params: Mapping[str, Value]) -> Key:
        """Where the setting stands in the table."""
        return tuple(params[one.name] for one in self.space.parameters)

    def _named(self, params: Mapping[str, Value]) -> str:
        return json.dumps(self.key(params))
