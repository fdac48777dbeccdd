"""What an order did for the requests of a run, long ones and the unluckiest included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import Engine, Run
from batchpolicy.errors import WorkloadError
from batchpolicy.requests import Status
from batchpolicy.workload import Workload
from batchpolicy_tuning.metrics import percentile
from batchpolicy_tuning.size_benches.setting import COST, LIMITS, SEED


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of all requests of a run, the last ones included: what is put off has to be paid."""

    per_token_s: float
    """Mean over requests of the time from arrival to end, by output token."""
    mean_s: float
    """From arrival to end."""
    p99_s: float
    longest_wait_s: float
    """Longest time that anybody was without a token: before the first or between two."""
    long_s: float
    """From arrival to end, mean of the quarter with most tokens."""
    recomputed: float
    """Tokens computed again, as a part of all prompt and output tokens."""
    tokens_per_s: float
    """Output tokens over the time from the first arrival to the end."""


def served(engine: Engine, config: PolicyConfig, workload: Workload) -> Latencies:
    """Replay the workload.

    Raises
    ------
    WorkloadError
        When not all of its requests finish.
    """
    run = engine.replay(workload, config, LIMITS, COST, seed=SEED)
    lost = int((run.status != Status.FINISHED).sum())
    if lost:
        raise WorkloadError(
            f"{workload.name}: {lost} of {len(workload.requests)} requests did not finish, "
            "expected all of them; some may be too long for the engine."
        )
    return latencies(run)


def latencies(run: Run) -> Latencies:
    """The latencies of a run in which all requests finished."""
    requests = run.workload.requests
    arrival_s = np.array([r.arrival_s for r in requests])
    tokens = np.array([r.prompt_tokens + r.output_tokens for r in requests])
    whole_s = run.finished_s - arrival_s
    return Latencies(
        per_token_s=float((whole_s / run.output_tokens).mean()),
        mean_s=float(whole_s.mean()),
        p99_s=percentile(whole_s, 99),
        longest_wait_s=float(np.maximum(run.first_token_s - arrival_s, run.longest_gap_s).max()),
        long_s=float(whole_s[tokens >= np.percentile(tokens, 75)].mean()),
        recomputed=float(run.recomputed_tokens.sum() / tokens.sum()),
        tokens_per_s=float(run.output_tokens.sum() / (run.end_s - arrival_s[0])),
    )
