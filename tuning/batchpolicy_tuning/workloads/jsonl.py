"""Our own format: one request object a line."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from batchpolicy.component import Component
from batchpolicy.document import Document
from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.files import Faults, json_rows

Limit = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Time = Annotated[float, Field(ge=0, allow_inf_nan=True)]


class Repeat(Component):
    """How often a line stands for a request."""

    count: Annotated[int, Field(gt=0, le=1_000_000)]
    every_s: NonNegativeFloat
    """Seconds from one arrival to the next."""


class After(Component):
    """Which request's end a request waits for before it arrives."""

    id: Annotated[str, Field(min_length=1)]
    gap_s: NonNegativeFloat = 0.0
    """Seconds from the other's end to the arrival."""


class RequestRow(Component):
    """A line of the file; cases hold the same objects."""

    id: Annotated[str, Field(min_length=1)]
    arrival_s: NonNegativeFloat
    """Not needed beside ``arrival_after``; there it is the earliest time."""
    arrival_after: After | None = None
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt
    """What it will really produce; the policy never sees it."""
    max_tokens: PositiveInt
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    """Lower is more urgent; null counts as the engine's default, 0."""
    tenant: str = ""
    request_class: Annotated[str, Field(alias="class")] = ""
    """Name of its class, for targets and metrics."""
    repeat: Repeat | None = None
    """Stands for ``count`` requests ``<id>-0000``, ``<id>-0001`` and so on."""
    cancel_at_s: Time = math.inf
    """When its client leaves."""
    cancel_every: PositiveInt | None = None
    """With ``repeat``: only the first of each so many is cancelled."""
    queue_ttl_s: Limit = math.inf
    """Longest time it may wait before it first starts."""
    deadline_s: Time = math.inf
    """When it should have ended, on the clock of the arrivals."""
    ttft_slo_s: Limit = math.inf
    tpot_slo_s: Limit = math.inf
    weight: PositiveFloat = 1.0
    """Share of its tenant."""
    lora: str = ""
    """Adapter that it needs."""
    prefix_id: str = ""
    """The first ``prefix_tokens`` are the same for all requests with this id."""
    prefix_tokens: NonNegativeInt = 0
    prefix_blocks: tuple[int, ...] = ()
    """Ids of the prompt's blocks of ``prefix_block_tokens``, in place of ``prefix_id``."""
    prefix_block_tokens: NonNegativeInt = 0
    session: str = ""
    """Turns of one conversation."""
    predicted_output_tokens: float | None = None
    """What a predictor says; may be wrong."""
    ready_at_s: Time = 0.0
    """It cannot start before, for reasons outside: a grammar being compiled, a transfer."""
    encoder_tokens: NonNegativeInt = 0
    """Encoder space that it holds from its start until its prefill is done."""

    @model_validator(mode="before")
    @classmethod
    def _arrives_at_some_time(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        row = cast("dict[str, Any]", given)
        follows = row.get("arrival_after") is not None
        return {"arrival_s": 0.0, **row} if follows else row

    @model_validator(mode="after")
    def _some_are_cancelled(self) -> Self:
        if self.cancel_every is not None and (self.repeat is None or self.cancel_at_s == math.inf):
            raise ValueError("cancel_every needs repeat and cancel_at_s")
        return self

    def requests(self, default_priority: int = 0) -> Iterator[WorkloadRequest]:
        """The requests that it stands for; those without a priority have the default."""
        given: dict[str, Any] = self.model_dump(
            exclude={"repeat", "cancel_every", "arrival_after"}, exclude_unset=True
        )
        given["priority"] = default_priority if self.priority is None else self.priority
        if self.predicted_output_tokens is None:
            given.pop("predicted_output_tokens", None)
        if self.arrival_after is not None:
            given["arrival_after"] = self.arrival_after.id
            given["gap_s"] = self.arrival_after.gap_s
        if self.repeat is None:
            yield WorkloadRequest(**given)
            return
        # Those that follow another request come one by one behind its end.
        later = "arrival_s" if self.arrival_after is None else "gap_s"
        first_s = given[later]
        for k in range(self.repeat.count):
            given["id"] = f"{self.id}-{k:04}"
            given[later] = first_s + k * self.repeat.every_s
            given["cancel_at_s"] = (
                self.cancel_at_s if k % (self.cancel_every or 1) == 0 else math.inf
            )
            yield WorkloadRequest(**given)


def in_order(requests: Iterable[WorkloadRequest]) -> tuple[WorkloadRequest, ...]:
    """Sorted by arrival; those of one time keep their order, and followers come last.

    A follower stands behind the request that it follows, if that is there.
    """
    given = list(requests)
    found = sorted((r for r in given if not r.arrival_after), key=lambda r: r.arrival_s)
    left = [r for r in given if r.arrival_after]
    placed = {r.id for r in found}
    while left:
        ready = [r for r in left if r.arrival_after in placed]
        if not ready:
            break
        placed.update(r.id for r in ready)
        found += ready
        left = [r for r in left if r.id not in placed]
    return (*found, *left)


def read_jsonl(path: Path) -> Workload:
    """The requests of a file, plain or gzipped, in order of arrival.

    Requests that arrive at one time keep the order of the file.

    Raises
    ------
    WorkloadError
        With what is wrong: unknown fields with the nearest one, and values; up to
        ten, with their lines.
    """
    faults = Faults(path)
    requests: list[WorkloadRequest] = []
    line_of: dict[str, int] = {}
    for line, found in json_rows(path, faults):
        for request in _requests(path, line, found, faults):
            first = line_of.setdefault(request.id, line)
            if first != line:
                faults.add(line, f"id {request.id!r} is used twice, first in line {first}.")
            requests.append(request)
    faults.raise_any()
    if not requests:
        raise WorkloadError(f"{path}: the file has no requests; expected one a line")
    return Workload(path.name, in_order(requests))


def write_jsonl(workload: Workload, path: Path) -> None:
    """One line for each request, without the fields that have their default; see ``read_jsonl``.

    Gzipped where the name ends in ``.gz``; equal workloads give equal files.
    """
    lines = "".join(f"{json.dumps(_given(r))}\n" for r in workload.requests).encode()
    path.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)


def _requests(
    path: Path, line: int, found: dict[str, object], faults: Faults
) -> Iterator[WorkloadRequest]:
    document = Document(path, lines={(): line})
    row = document.validate(RequestRow, found)
    for _, text in document.faults:
        faults.add(line, text)
    if row is not None:
        yield from row.requests()


_ALWAYS = ("id", "arrival_s", "prompt_tokens", "output_tokens", "max_tokens")
_DEFAULTS = {one.name: one.default for one in fields(WorkloadRequest)}


def _given(r: WorkloadRequest) -> dict[str, object]:
    values = {
        name: value
        for name, value in asdict(r).items()
        # NaN, the default of a prediction, is not equal to itself.
        if name in _ALWAYS or (value != _DEFAULTS[name] and value == value)
    }
    gap_s = values.pop("gap_s", 0.0)
    if r.arrival_after:
        values["arrival_after"] = {"id": r.arrival_after, "gap_s": gap_s}
    return {"class" if name == "request_class" else name: value for name, value in values.items()}
