"""Scale and per-step overhead under which a replay takes as long as the real run did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from batchpolicy.engine import Engine, EngineLimits
from batchpolicy.errors import WorkloadError
from batchpolicy.requests import Status
from batchpolicy.step_cost import AdjustableCost
from batchpolicy.workload import Workload
from batchpolicy_tuning.calibrate.accuracy import Latencies

Floats = npt.NDArray[np.float64]

LENGTHS = (0.1, 10.0)
"""How long a typical step may turn out, as a multiple of its plain cost."""
MOST_OVERHEAD = 0.8
"""Part of a typical step that may turn out to be overhead."""
SHARES = tuple(np.linspace(0.0, MOST_OVERHEAD, 9).tolist())
"""Parts of a step that are tried as overhead before the search goes on from the best."""
STEPS = (0.01, 1e-3)
"""Changes that slopes are taken over: of the length, and of the part that is overhead.

A replay jumps where an arrival falls into another step. Over large changes the jumps even out,
which finds the place; near it small ones find the point.
"""
USUAL = 0.1
"""Log ratio beyond which a request counts less and less, as an outlier."""
MOST_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a run is replayed: all of its requests, at its arrivals."""

    engine: Engine
    workload: Workload
    limits: EngineLimits

    def latencies(self, cost: AdjustableCost) -> Latencies:
        """Latencies of all requests, in the engine's own order of service.

        Raises
        ------
        WorkloadError
            When the replay does not serve a request.
        """
        run = self.engine.replay(self.workload, None, self.limits, cost)
        lost = np.flatnonzero(run.status != Status.FINISHED)
        if len(lost):
            named = self.workload.requests[int(lost[0])].id
            raise WorkloadError(
                f"the replay ends {len(lost)} requests without serving them, the first {named!r}"
            )
        arrival_s = np.array([r.arrival_s for r in self.workload.requests])
        return Latencies.of(
            run.first_token_s - arrival_s, run.finished_s - arrival_s, run.output_tokens
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The two numbers of a fit."""

    scale: float
    overhead_s: float
    replays: int


def fit(
    replayed: Replayed,
    cost: AdjustableCost,
    real: Latencies,
    first: int,
    told: Callable[[str], None] = lambda text: None,
) -> Found:
    """Scale and overhead nearest to the E2E of the ``first`` requests, by log ratio.

    All requests are replayed, as the later ones slow the earlier; the latencies of the later
    take no part.
    """
    truth = real.picked(slice(0, first))
    plain = replayed.latencies(cost)
    step_s = float(np.nanmedian(np.where(np.isfinite(plain.tpot), plain.tpot, plain.e2el)))
    replays, best, best_x = 1, np.inf, np.array([1.0, 1.0])

    def residuals(x: Floats) -> Floats:
        nonlocal replays, best, best_x
        replays += 1
        scale, overhead_s = _numbers(x, step_s)
        guess = replayed.latencies(cost.adjusted(scale, overhead_s)).picked(slice(0, first))
        ratio: Floats = np.log(guess.e2el / truth.e2el)
        told(
            f"replay {replays}: scale {scale:.4f}, overhead {overhead_s * 1000:.3f} ms a step, "
            f"E2E off by {np.sqrt((ratio**2).mean()):.2%}"
        )
        lost = float((np.sqrt(1.0 + (ratio / USUAL) ** 2) - 1.0).sum())
        if lost < best:
            best, best_x = lost, x.copy()
        return ratio

    def search(x: Floats, step: float, share: float | None = None) -> Floats:
        """Length and share near ``x``, or the length alone where the share is given."""
        least = [LENGTHS[0], 1.0] if share is None else LENGTHS[:1]
        most = [LENGTHS[1], 1.0 + MOST_OVERHEAD] if share is None else LENGTHS[1:]

        def of(y: Floats) -> Floats:
            return residuals(y if share is None else np.array([y[0], 1.0 + share]))

        found = least_squares(
            of,
            x if share is None else x[:1],
            bounds=(least, most),
            loss="soft_l1",
            f_scale=USUAL,
            diff_step=[step] * len(least),
            xtol=1e-5,
            ftol=1e-6,
            max_nfev=MOST_ROUNDS if share is None else 4,
        )
        return found.x

    # The length of steps shows in every request, how much of it is overhead only in how long
    # and short ones differ. So the second is tried over its range, the first fitted each time.
    x = np.array([1.0, 1.0])
    for share in SHARES:
        x = search(x, STEPS[0], share)
    for step in STEPS:
        search(best_x, step)
    scale, overhead_s = _numbers(best_x, step_s)
    return Found(float(f"{scale:.5g}"), float(f"{overhead_s:.4g}"), replays)


def _numbers(x: Floats, step_s: float) -> tuple[float, float]:
    """Scale and overhead of a length and a share, which is counted from 1.

    So that a relative change of it, as the search makes them, is one of the whole step.
    """
    length, share = float(x[0]), float(x[1]) - 1.0
    return length * (1.0 - share), length * share * step_s
