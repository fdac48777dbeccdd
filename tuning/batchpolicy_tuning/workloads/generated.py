"""Workloads drawn from a file of streams, or from streams made in Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from batchpolicy.component import Component
from batchpolicy.errors import ConfigError, WorkloadError
from batchpolicy.reading import read_document
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.draws import generator
from batchpolicy_tuning.workloads.lengths import Sample
from batchpolicy_tuning.workloads.streams import Stream


class _File(Component):
    """A file of streams."""

    apiVersion: Literal["batchpolicy/v1"]
    kind: Literal["Workload"]
    streams: Annotated[dict[str, Any], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Generated:
    """Streams of requests side by side, drawn anew for each replication.

    A replication lasts as long as ``requests`` take on average at the streams' rates
    together; how many come in that time is drawn. What one stream draws does not
    depend on the others.
    """

    name: str
    streams: Mapping[str, Stream]
    requests: int
    base: Path = field(default_factory=Path)
    """Folder that the paths of samples start from."""
    replications: None = None

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the results should know, one sentence each."""
        found: list[str] = []
        if any(stream.session is not None for stream in self.streams.values()):
            found.append(
                "Turns of a session arrive at expected times, whenever the last one really ended."
            )
        if any(s.session is not None or s.prefix_tokens for s in self.streams.values()):
            found.append(f"Prompts of {self.name} share prefixes, which --prefix-cache reuses.")
        return found

    def replication(self, k: int, seed: int) -> Workload:
        """Workload number ``k``; the same for equal arguments."""
        span_s = self.requests / math.fsum(stream.rate for stream in self.streams.values())
        rows: list[WorkloadRequest] = []
        for name, stream in self.streams.items():
            rng = generator(f"{self.name} {name}", k, seed)
            rows += stream.requests(name, rng, span_s, self.base)
        return Workload(self.name, tuple(sorted(rows, key=lambda r: (r.arrival_s, r.id))))


def read_generated(path: Path, requests: int) -> Generated:
    """The workload that a YAML or JSON file of ``kind: Workload`` describes.

    Raises
    ------
    ConfigError
        With everything that is wrong with the file and the samples it names.
    """
    document = read_document(path)
    whole = cast("dict[str, object]", document.value)
    if whole.get("kind") == "Classes":
        raise ConfigError(
            f"{path} holds classes, which are laid over a trace: --workload TRACE --classes {path}"
        )
    read = document.validate(_File, whole)
    base = path.absolute().parent
    streams: dict[str, Stream] = {}
    # Each by itself: the faults of all of them are told, with the nearest key.
    for name, given in (read.streams if read is not None else {}).items():
        stream = document.validate(Stream, given, ("streams", name))
        if stream is None:
            continue
        streams[name] = stream
        for key, lengths in (("prompt", stream.prompt), ("output", stream.output)):
            if isinstance(lengths, Sample):
                try:
                    lengths.values(base)
                except WorkloadError as e:
                    document.fault(("streams", name, key, "file"), str(e))
    document.raise_faults()
    return Generated(path.name, streams, requests, base)
