"""The runner's counters on SGLang's ``/metrics``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from batchpolicy_sglang.seams import limits

PUBLISH_STEPS = 64

_told: Counter[str] = Counter()
_counters: list[Any] = []


def publish(counted: Mapping[str, int]) -> None:
    """Add what was counted since the last call, if SGLang was started with ``--enable-metrics``.

    It has set the folder then in which processes leave their metrics for its front end.
    """
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ or not limits.is_leader():
        return
    if not _counters:
        # The library reads the folder's name when it is imported.
        from prometheus_client import Counter as Metric

        _counters.append(Metric("batchpolicy_events", "What the runner counted", ["event"]))
    for name, count in counted.items():
        if count > _told[name]:
            _counters[0].labels(event=name).inc(count - _told[name])
            _told[name] = count
