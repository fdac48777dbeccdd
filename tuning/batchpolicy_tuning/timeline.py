"""What is shown of the recorded replication: time series, and a window of its requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchpolicy.requests import Status
from batchpolicy.workload import WorkloadRequest
from batchpolicy_tuning.ab import AtLoad, Results
from batchpolicy_tuning.recording import Recording

MOST_REQUESTS = 48
"""Requests of the window: as many as a page can show one by one."""


def recorded(results: Results, at: AtLoad) -> dict[str, Any]:
    """The recorded replication under every policy, for the document."""
    labels = [arm.label for arm in results.plan.arms]
    found = [runs[results.representative].recording for runs in at.runs]
    recordings = [recording for recording in found if recording is not None]
    rows = window(recordings[0])
    requests = recordings[0].run.workload.requests
    return {
        "replication": results.representative,
        "chosen": "the middle one when replications are sorted by tokens per second that arrive",
        "window": (
            f"{len(rows)} requests in a row, around the longest queue under {labels[0]}"
            if len(rows) < len(requests)
            else f"all {len(rows)} requests"
        ),
        "requests": [_request(requests[row]) for row in rows],
        "policies": [
            {
                "label": label,
                "series": _series(recording),
                "requests": [_course(recording, row) for row in rows],
            }
            for label, recording in zip(labels, recordings, strict=True)
        ],
    }


def window(recording: Recording) -> range:
    """Rows of requests that arrived around the time of the longest queue."""
    requests = recording.run.workload.requests
    arrival_s = [r.arrival_s for r in requests]
    longest_s = float(recording.at_s[int(recording.waiting.argmax())])
    middle = bisect_left(arrival_s, longest_s)
    first = max(min(middle - MOST_REQUESTS // 2, len(requests) - MOST_REQUESTS), 0)
    return range(first, min(first + MOST_REQUESTS, len(requests)))


def _series(recording: Recording) -> dict[str, Any]:
    return {
        "at_s": _rounded(recording.at_s),
        "end_s": _rounded([recording.run.end_s])[0],
        "waiting": recording.waiting.tolist(),
        "running": recording.running.tolist(),
        "kv_used_frac": np.round(recording.kv_used_frac, 4).tolist(),
    }


def _request(r: WorkloadRequest) -> dict[str, Any]:
    return {
        "id": r.id,
        "class": r.request_class,
        "tenant": r.tenant,
        "priority": r.priority,
        "prompt_tokens": r.prompt_tokens,
        "ttft_slo_s": r.ttft_slo_s,
        "tpot_slo_s": r.tpot_slo_s,
    }


def _course(recording: Recording, row: int) -> dict[str, Any]:
    run = recording.run
    columns = (run.first_scheduled_s, run.first_token_s, run.finished_s)
    scheduled_s, token_s, ended_s = _rounded([column[row] for column in columns])
    return {
        "arrival_s": _rounded([run.workload.requests[row].arrival_s])[0],
        "status": Status(int(run.status[row])).name.lower(),
        "first_scheduled_s": scheduled_s,
        "first_token_s": token_s,
        "ended_s": ended_s,
        "output_tokens": int(run.output_tokens[row]),
        "cached_tokens": int(run.cached_tokens[row]),
        "preempted_s": [_rounded(pair) for pair in recording.breaks_s[row]],
    }


def _rounded(times_s: Sequence[float] | np.ndarray[Any, Any]) -> list[float]:
    """Times in whole microseconds."""
    return [round(float(time_s), 6) for time_s in times_s]
