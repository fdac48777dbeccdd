"""Workloads by name or file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from batchpolicy.errors import ConfigError
from batchpolicy.registry import near
from batchpolicy_tuning.workloads.azure import read_azure
from batchpolicy_tuning.workloads.chat_and_batch import ChatAndBatch
from batchpolicy_tuning.workloads.classes import read_classes
from batchpolicy_tuning.workloads.noisy_tenant import NoisyTenant
from batchpolicy_tuning.workloads.source import TraceSlices, WorkloadSource

EMBEDDED: Mapping[str, Callable[[int], WorkloadSource]] = {
    "chat-and-batch": ChatAndBatch,
    "noisy-tenant": NoisyTenant,
}
"""Workloads that come with the package, by name; made from requests per replication."""


def workload_named(
    text: str, *, pairs: int, requests: int, classes: Path | None = None
) -> WorkloadSource:
    """The embedded workload, or the trace in a file, that ``text`` names.

    An embedded workload draws ``requests`` for each replication, a trace is cut
    into ``pairs`` slices. ``classes`` is a file to lay over a trace.

    Raises
    ------
    ConfigError
        When there is no such workload, or the classes do not fit to it.
    WorkloadError
        When the trace cannot be used.
    """
    if text in EMBEDDED:
        if classes is not None:
            raise ConfigError(
                f"workload {text!r} has classes of its own; --classes is for traces without any."
            )
        return EMBEDDED[text](requests)
    path = Path(text)
    if not path.exists():
        raise ConfigError(
            f"no workload named {text!r}, and no such file.{near(text, EMBEDDED)} "
            f"Embedded: {', '.join(EMBEDDED)}."
        )
    if path.is_dir() or not path.name.endswith((".csv", ".csv.gz")):
        raise ConfigError(f"{text}: expected a trace ending in .csv or .csv.gz.")
    laid = None if classes is None else read_classes(classes)
    trace = read_azure(path)
    notes: tuple[str, ...] = ()
    if trace.dropped:
        notes = (f"{trace.dropped} rows of {path.name} without output tokens were left out.",)
    return TraceSlices(trace.workload, pairs, laid, notes)
