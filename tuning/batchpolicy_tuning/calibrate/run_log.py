"""Real runs: a request a line, as vLLM's engine core times them, and facts of the engine.

Each line is a JSON object with ``request_id``, ``input_toks``, ``output_toks`` and, in seconds
of one monotonic clock, ``queued_ts``, ``scheduled_ts``, ``first_token_ts``, ``last_token_ts``.
Other keys are ignored. Lines stand in order of ``queued_ts``.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from batchpolicy.errors import WorkloadError
from batchpolicy.reading import unpacked
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.calibrate.accuracy import Latencies

TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
COUNTS = ("input_toks", "output_toks")


class RunFault(WorkloadError):
    """A run cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the metadata of a run say of its engine; None where they do not."""

    model: str | None = None
    hardware: str | None = None
    tp: int | None = None
    engine: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_tokens: int | None = None
    kv_block_tokens: int | None = None
    prefix_cache: bool | None = None


@dataclass(frozen=True, slots=True)
class RealRun:
    """Requests with the latencies that they had."""

    path: Path
    sha256: str
    workload: Workload
    latencies: Latencies


def read_run(path: Path) -> RealRun:
    """The requests of a log, plain or compressed with gzip.

    Arrival is ``queued_ts``, when the engine took the request; latencies start there too.

    Raises
    ------
    RunFault
        When the file cannot be read, holds no request, or a line is no request, repeats
        an id, or has a clock that goes backwards; with file and line.
    """
    try:
        raw = unpacked(path)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise RunFault(f"{path}: cannot be read: {reason}") from e
    requests: list[WorkloadRequest] = []
    times: list[list[float]] = []
    seen: dict[str, int] = {}
    before_s = start_s = -math.inf
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        row = _Row(f"{path}:{number}", line)
        request_id = row.id()
        if request_id in seen:
            raise row.fault(f"request {request_id!r} stands in line {seen[request_id]} already")
        seen[request_id] = number
        prompt, output = (row.count(name) for name in COUNTS)
        stamps = [row.time(name) for name in TIMES]
        for k in range(1, len(TIMES)):
            if stamps[k] < stamps[k - 1]:
                raise row.fault(
                    f"a negative duration: {TIMES[k]} {stamps[k]:.6f} lies "
                    f"{stamps[k - 1] - stamps[k]:.6f} s before {TIMES[k - 1]}"
                )
        if stamps[0] < before_s:
            raise row.fault(
                f"the clock goes backwards: queued_ts {stamps[0]:.6f} lies "
                f"{before_s - stamps[0]:.6f} s before that of the request above; sort the lines "
                "by queued_ts, if they are of one run"
            )
        if stamps[0] == stamps[-1]:
            raise row.fault("the request took no time: last_token_ts is its queued_ts")
        before_s = stamps[0]
        start_s = stamps[0] if not requests else start_s
        times.append(stamps)
        requests.append(
            WorkloadRequest(
                id=request_id,
                arrival_s=stamps[0] - start_s,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output,
            )
        )
    if not requests:
        raise RunFault(f"{path}: holds no request; expected one a line, as a JSON object")
    queued, _, first, last = np.array(times).T
    tokens = np.array([r.output_tokens for r in requests])
    return RealRun(
        path,
        hashlib.sha256(raw).hexdigest(),
        Workload(path.name, tuple(requests)),
        Latencies.of(first - queued, last - queued, tokens),
    )


def metadata_beside(path: Path) -> Path | None:
    """``X_meta.json`` beside ``X_requests.jsonl`` or ``X_requests.jsonl.gz``, if it is there."""
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    if not stem.endswith("_requests"):
        return None
    found = path.with_name(f"{stem.removesuffix('_requests')}_meta.json")
    return found if found.is_file() else None


def read_facts(path: Path) -> RunFacts:
    """What a metadata file says of the engine.

    It is a JSON object: ``model``, ``vllm_version``, ``engine_kwargs`` with vLLM's own names,
    ``hardware.device_name``, and ``kv_cache`` with ``num_kv_tokens`` or ``num_gpu_blocks``,
    ``block_size`` and ``enable_prefix_caching``. All may be absent.

    Raises
    ------
    RunFault
        When it cannot be read, or a number in it is none.
    """
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise RunFault(f"{path}: cannot be read: {reason}") from e
    top = _Facts(path, "", found)
    engine, kv = top.part("engine_kwargs"), top.part("kv_cache")
    block_tokens, blocks = kv.count("block_size"), kv.count("num_gpu_blocks")
    tokens = kv.count("num_kv_tokens")
    if tokens is None and blocks is not None and block_tokens is not None:
        tokens = blocks * block_tokens
    version = top.text("vllm_version")
    return RunFacts(
        model=top.text("model") or engine.text("model"),
        hardware=top.part("hardware").text("device_name"),
        tp=engine.count("tensor_parallel_size"),
        engine=None if version is None else f"vllm {version}",
        max_num_seqs=engine.count("max_num_seqs"),
        max_num_batched_tokens=engine.count("max_num_batched_tokens"),
        max_model_len=engine.count("max_model_len"),
        kv_tokens=tokens,
        kv_block_tokens=block_tokens,
        prefix_cache=kv.flag("enable_prefix_caching"),
    )


class _Row:
    """One line of a log."""

    def __init__(self, place: str, line: str) -> None:
        self._place = place
        try:
            found: object = json.loads(line)
        except ValueError as e:
            raise self.fault(f"is no JSON: {e}") from e
        if not isinstance(found, dict):
            raise self.fault(f"is {found!r}, expected a JSON object")
        self._found = cast("dict[str, object]", found)

    def fault(self, what: str) -> RunFault:
        return RunFault(f"{self._place}: {what}")

    def _value(self, name: str) -> object:
        if name not in self._found:
            expected = ", ".join(("request_id", *COUNTS, *TIMES))
            raise self.fault(f"has no {name}; expected {expected}")
        return self._found[name]

    def id(self) -> str:
        value = self._value("request_id")
        if not isinstance(value, str) or not value:
            raise self.fault(f"request_id is {value!r}, expected a text")
        return value

    def count(self, name: str) -> int:
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(f"{name} is {value!r}, expected a whole number, at least 1")
        return value

    def time(self, name: str) -> float:
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(f"{name} is {value!r}, expected seconds")
        if not math.isfinite(value):
            raise self.fault(f"{name} is {value!r}, expected finite seconds")
        return float(value)


class _Facts:
    """A JSON object whose keys may be absent or null."""

    def __init__(self, path: Path, place: str, found: object) -> None:
        self._path, self._place = path, place
        if not isinstance(found, dict):
            raise self._fault("", found, "a JSON object")
        self._found = cast("dict[str, object]", found)

    def _fault(self, name: str, value: object, expected: str) -> RunFault:
        place = ".".join(part for part in (self._place, name) if part) or "the file"
        return RunFault(f"{self._path}: {place} is {value!r}, expected {expected}")

    def part(self, name: str) -> _Facts:
        value = self._found.get(name)
        return _Facts(self._path, name, {} if value is None else value)

    def text(self, name: str) -> str | None:
        value = self._found.get(name)
        if value is not None and not isinstance(value, str):
            raise self._fault(name, value, "a text")
        return value

    def flag(self, name: str) -> bool | None:
        value = self._found.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._fault(name, value, "true or false")
        return value

    def count(self, name: str) -> int | None:
        value = self._found.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._fault(name, value, "a whole number, at least 1")
        return value
