"""Chat, code and documents side by side, each with targets of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from batchpolicy.errors import ConfigError
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.azure import read_azure
from batchpolicy_tuning.workloads.draws import generator
from batchpolicy_tuning.workloads.lengths import Sample
from batchpolicy_tuning.workloads.streams import Spread, Stream, bursty

CHAT, CODE, DOCUMENTS = "chat", "code", "documents"
FILES = {CHAT: "azure_2023_conv.csv.gz", CODE: "azure_2023_code.csv.gz"}
SUMMARIES = "vidur_arxiv_summarization_lengths.csv.gz"
_CEILING = 4096
"""Tokens of an answer, where no trace names one."""


class Targets(NamedTuple):
    """What clients of a class ask for, and its place among the others."""

    priority: int
    ttft_slo_s: float = math.inf
    tpot_slo_s: float = math.inf
    within_s: float = math.inf
    """From arrival to the end of the answer."""


TARGETS: Mapping[str, Targets] = {
    CHAT: Targets(0, ttft_slo_s=1.0, tpot_slo_s=0.1),
    CODE: Targets(1, ttft_slo_s=30.0, tpot_slo_s=0.1),
    DOCUMENTS: Targets(2, within_s=630.0),
}
"""TTFT and E2E of interactive-chat, code-generation and batch-summarization in the catalogue of
kubernetes-sigs/inference-perf; TPOT of code-generation."""


class Traffic(Protocol):
    """Where the workloads of the bench come from."""

    @property
    def name(self) -> str:
        """For titles."""
        ...

    def part(self, k: int, span_s: float) -> Workload:
        """The k-th ``span_s`` seconds of it, from 0, at its own rate."""
        ...


def _stream(rate: float, cv: float, prompt: Spread, output: Spread) -> Stream:
    return bursty(rate, cv, prompt, output, low=4, max_tokens=_CEILING)


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Drawn with the rates, bursts and lengths of the traces, but for what correlates in them."""

    name: str = "made-up traffic"
    streams: Mapping[str, Stream] = field(
        default_factory=lambda: {
            CHAT: _stream(5.5, 1.1, (1_000, 0.8, 14_000), (130, 1.0, 1_000)),
            CODE: _stream(2.6, 4.0, (1_450, 0.9, 7_500), (13, 1.2, 1_500)),
            DOCUMENTS: _stream(2.0, 1.0, (2_700, 0.3, 4_000), (170, 1.0, 3_500)),
        }
    )

    def part(self, k: int, span_s: float) -> Workload:
        """Drawn anew for each ``k``."""
        rows: list[WorkloadRequest] = []
        for name, stream in self.streams.items():
            rng = generator(f"{self.name} {name}", k, 0)
            rows += _with_targets(name, stream.requests(name, rng, span_s, Path()))
        return _together(self.name, rows)


@dataclass(frozen=True, slots=True)
class Traces:
    """The conversations and the code of Azure, 2023, with summaries of papers at random times.

    Raises
    ------
    ConfigError
        When the folder lacks one of the files.
    """

    folder: Path
    name: str = "Azure conversations and code, 2023, and summaries of papers"

    def __post_init__(self) -> None:
        missing = [
            name for name in (*FILES.values(), SUMMARIES) if not (self.folder / name).is_file()
        ]
        if missing:
            raise ConfigError(
                f"--data {self.folder}: expected a folder with {', '.join(missing)}."
            )

    def part(self, k: int, span_s: float) -> Workload:
        """Disjoint parts.

        Raises
        ------
        ConfigError
            When a trace has nothing there.
        """
        start_s, end_s = k * span_s, (k + 1) * span_s
        rows: list[WorkloadRequest] = []
        for name, file in FILES.items():
            inside = [
                replace(r, id=f"{name}-{r.id}", arrival_s=r.arrival_s - start_s)
                for r in _read(self.folder / file).requests
                if start_s <= r.arrival_s < end_s
            ]
            if not inside:
                raise ConfigError(
                    f"{self.folder / file}: nothing from {start_s:g} s to {end_s:g} s, expected "
                    "a trace that goes on for all parts."
                )
            rows += _with_targets(name, inside)
        columns = ("num_prefill_tokens", "num_decode_tokens")
        prompt, output = (Sample(dist="sample", file=SUMMARIES, column=c) for c in columns)
        stream = Stream(rate=2.0, prompt=prompt, output=output, max_tokens=_CEILING)
        rng = generator(f"{self.name} {DOCUMENTS}", k, 0)
        rows += _with_targets(DOCUMENTS, stream.requests(DOCUMENTS, rng, span_s, self.folder))
        return _together(self.name, rows)


@cache
def _read(path: Path) -> Workload:
    return read_azure(path).workload


def _with_targets(name: str, requests: Iterable[WorkloadRequest]) -> list[WorkloadRequest]:
    wanted = TARGETS[name]
    return [
        replace(
            r,
            request_class=name,
            priority=wanted.priority,
            ttft_slo_s=wanted.ttft_slo_s,
            tpot_slo_s=wanted.tpot_slo_s,
            deadline_s=r.arrival_s + wanted.within_s,
        )
        for r in requests
    ]


def _together(name: str, rows: list[WorkloadRequest]) -> Workload:
    return Workload(name, tuple(sorted(rows, key=lambda r: (r.arrival_s, r.id))))
