"""The highest load at which a setting of the engine meets a target for time between tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.step_cost import StepCost
from batchpolicy.workload import Workload
from batchpolicy_tuning.measured import measured_rows
from batchpolicy_tuning.metrics import RequestColumns, percentile
from batchpolicy_tuning.queue_course import DRAIN_SHARE, LoadState, QueueCourse


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine's start values, and the policy on top of them."""

    limits: EngineLimits
    config: PolicyConfig | None = None
    """None for the engine's own order."""


@dataclass(frozen=True, slots=True)
class AtLoad:
    """How a setting stood up to one load, over all its workloads."""

    tpot_p99_s: float
    """Over the requests of all workloads together; inf where one in a hundred never ended."""
    ttft_p99_s: float
    stable: bool
    """The queue emptied now and then, and soon after the last arrival."""

    def meets(self, target_s: float) -> bool:
        """Whether the target is met and the queue stable."""
        return self.stable and self.tpot_p99_s <= target_s


def at_load(
    engine: Engine, setting: Setting, cost: StepCost, workloads: Sequence[Workload], load: float
) -> AtLoad:
    """Serve the workloads ``load`` times as fast as they are."""
    tpot_s: list[float] = []
    ttft_s: list[float] = []
    courses: list[QueueCourse] = []
    for workload in workloads:
        run = engine.replay(workload.stretched(1.0 / load), setting.config, setting.limits, cost)
        rows = measured_rows(len(workload.requests))
        columns = RequestColumns.of(run)
        tpot_s += columns.tpot_s[rows].tolist()
        ttft_s += columns.ttft_s[rows].tolist()
        courses.append(QueueCourse.of(run))
    course = QueueCourse.mean(courses)
    return AtLoad(
        percentile(np.array(tpot_s), 99),
        percentile(np.array(ttft_s), 99),
        course.state is not LoadState.OVERLOADED and course.drain_share <= DRAIN_SHARE,
    )


LEAST = 0.01
"""Part of the load that a search starts from, below which it does not go."""


def highest(holds: Callable[[float], bool], near: float, ratio: float) -> float:
    """The highest of ``near * ratio**k`` at which something holds; 0 for none above ``LEAST``.

    By growing steps away from ``near`` and then by bisection, as if it held up to some load
    and not beyond.
    """
    least = math.floor(math.log(LEAST) / math.log(ratio))
    fits = too_much = 0
    step = 1
    if holds(near):
        while holds(near * ratio ** (fits + step)):
            fits, step = fits + step, 2 * step
        too_much = fits + step
    else:
        while not holds(near * ratio ** (fits := max(too_much - step, least))):
            too_much, step = fits, 2 * step
            if too_much == least:
                return 0.0
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        if holds(near * ratio**middle):
            fits = middle
        else:
            too_much = middle
    return near * ratio**fits


def best_of(
    settings: Sequence[Setting],
    holds: Callable[[Setting, float], bool],
    near: float,
    ratio: float,
) -> tuple[Setting, float]:
    """The setting of the highest load, and that load.

    Each is first asked for a little more than the best so far, so that most cost one look.
    """
    best, load = settings[0], highest(partial(holds, settings[0]), near, ratio)
    for setting in settings[1:]:
        more = max(load, LEAST * near) * ratio
        if holds(setting, more):
            best, load = setting, highest(partial(holds, setting), more, ratio)
    return best, load
