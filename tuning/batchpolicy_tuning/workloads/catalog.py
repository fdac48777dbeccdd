"""Workloads by name or file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from batchpolicy.document import short
from batchpolicy.errors import ConfigError, WorkloadError
from batchpolicy.nearest import near
from batchpolicy.workload import Workload
from batchpolicy_tuning.workloads import azure, servegen
from batchpolicy_tuning.workloads.chat_and_batch import ChatAndBatch
from batchpolicy_tuning.workloads.classes import Classes, read_classes
from batchpolicy_tuning.workloads.files import Faults, csv_header, json_rows
from batchpolicy_tuning.workloads.generated import read_generated
from batchpolicy_tuning.workloads.jsonl import read_jsonl
from batchpolicy_tuning.workloads.long_prompts import LongPrompts
from batchpolicy_tuning.workloads.noisy_tenant import NoisyTenant
from batchpolicy_tuning.workloads.source import TraceSlices, WorkloadSource
from batchpolicy_tuning.workloads.timed_trace import read_timed_trace
from batchpolicy_tuning.workloads.trace import Trace

EMBEDDED: Mapping[str, Callable[[int], WorkloadSource]] = {
    "chat-and-batch": ChatAndBatch,
    "long-prompts": LongPrompts,
    "noisy-tenant": NoisyTenant,
}
"""Workloads that come with the package, by name; made from requests per replication."""

_CSV = {azure.COLUMNS: azure.read_azure, servegen.COLUMNS: servegen.read_servegen}
_GENERATED = (".yaml", ".yml", ".json")
_SHOWN_COLUMNS = 10
_SUFFIXES = (".csv", ".jsonl", *_GENERATED)


def workload_named(
    text: str, *, pairs: int, requests: int, classes: Path | None = None
) -> WorkloadSource:
    """The embedded workload, the trace or the generators in a file, that ``text`` names.

    A trace is told by its ending, with or without ``.gz``, and its content:

    * ``.csv`` by its columns, see ``read_azure`` and ``read_servegen``;
    * ``.jsonl`` by its first line: with a ``timestamp`` a timed trace, see
      ``read_timed_trace``, else our own format, see ``read_jsonl``;
    * ``.yaml``, ``.yml`` and ``.json`` hold generators, see ``read_generated``.

    What is drawn has ``requests`` of them, or about as many, in each replication; a
    trace is cut into ``pairs`` slices. ``classes`` is a file to lay over a trace.

    Raises
    ------
    ConfigError
        When there is no such workload, or the classes do not fit to it.
    WorkloadError
        When the trace cannot be used.
    """
    if text in EMBEDDED:
        _refuse(classes, f"workload {text!r}")
        return EMBEDDED[text](requests)
    path = Path(text)
    if not path.exists():
        raise ConfigError(
            f"no workload named {text!r}, and no such file.{near(text, EMBEDDED)} "
            f"Embedded: {', '.join(EMBEDDED)}."
        )
    name = path.name.removesuffix(".gz")
    if (
        path.is_dir()
        or not name.endswith(_SUFFIXES)
        or (path.suffix == ".gz" and name.endswith(_GENERATED))
    ):
        raise ConfigError(
            f"{text}: expected a trace ending in .csv, .csv.gz, .jsonl or .jsonl.gz, "
            "or generators in a .yaml or .json."
        )
    if name.endswith(_GENERATED):
        _refuse(classes, text)
        return read_generated(path, requests)
    source = _csv(path, pairs) if name.endswith(".csv") else _json_lines(path, pairs)
    return source if classes is None else _with_classes(source, read_classes(classes))


def _csv(path: Path, pairs: int) -> TraceSlices:
    header = csv_header(path)
    if not header:
        raise WorkloadError(f"{path}: the file is empty")
    for columns, read in _CSV.items():
        # One column tells the formats apart, so that a lack of the others can be told.
        if columns[0] in header:
            return _slices(read(path), pairs)
    found = [name if name.isprintable() and len(name) <= 60 else short(name) for name in header]
    if len(found) > _SHOWN_COLUMNS:
        found[_SHOWN_COLUMNS:] = ["..."]
    raise ConfigError(
        f"{path}:1: columns {', '.join(found)} are of no trace that is known here; "
        f"expected {' or '.join(','.join(columns) for columns in _CSV)}."
    )


def _json_lines(path: Path, pairs: int) -> TraceSlices:
    first = next(islice(json_rows(path, Faults(path)), 1), None)
    if first is None or "timestamp" not in first[1]:
        return TraceSlices(read_jsonl(path), pairs)
    found = read_timed_trace(path)
    source = _slices(found.trace, pairs)
    notes = [*source.notes]
    if found.whole_ms:
        notes.append(
            f"Timestamps of {path.name} are whole milliseconds; requests of one instant arrive "
            "spread over the time to the next."
        )
    if found.block_tokens:
        notes.append(
            f"Prompts of {path.name} share blocks of {found.block_tokens} tokens, which "
            "--prefix-cache reuses; each slice starts with an empty cache."
        )
    return replace(source, notes=notes, spread_ticks=found.whole_ms)


def _slices(trace: Trace, pairs: int) -> TraceSlices:
    notes: tuple[str, ...] = ()
    name = trace.workload.name
    if trace.dropped:
        notes = (f"{trace.dropped} rows of {name} without output tokens were left out.",)
    return TraceSlices(trace.workload, pairs, notes=notes)


def _with_classes(source: TraceSlices, classes: Classes) -> TraceSlices:
    trace = source.trace
    if any(
        r.request_class or r.priority or min(r.ttft_slo_s, r.tpot_slo_s) < math.inf
        for r in trace.requests
    ):
        _refuse(classes.path, trace.name)
    _check_tenants(trace, classes)
    notes = [*source.notes]
    if any(r.tenant for r in trace.requests) and any(
        c.tenants != 1 for c in classes.classes.values()
    ):
        notes.append(
            f"Requests of {trace.name} keep their tenants; those of {classes.path.name} are for "
            "requests without one."
        )
    return replace(source, classes=classes, notes=notes)


def _check_tenants(trace: Workload, classes: Classes) -> None:
    known = sorted({r.tenant for r in trace.requests if r.tenant})
    unknown = [
        f"{classes.path}: class {name!r} is of tenant {tenant!r}, which {trace.name} does not "
        f"have.{near(tenant, known)}"
        for name, kind in classes.classes.items()
        for tenant in kind.of_tenants
        if tenant not in known
    ]
    if unknown:
        raise ConfigError("\n".join(unknown))


def _refuse(classes: Path | None, what: str) -> None:
    if classes is not None:
        raise ConfigError(f"{what} has classes of its own; --classes is for traces without any.")
