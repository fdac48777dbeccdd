"""What single requests went through, as stays in one state after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchpolicy.quantities import format_seconds
from batchpolicy_tuning.page import marks

Stay = tuple[str, float, float]
"""State, start and end in seconds."""


@dataclass(frozen=True, slots=True)
class Course:
    """One request under one policy."""

    row: int
    """Its place among the requests of the window."""
    request_class: str
    arrival_s: float
    end_s: float
    stays: list[Stay]
    facts: str
    """For the pointer, as plotly takes it."""
    missed_at_s: float | None
    """When its first token was due, if that came later or never."""


def courses(at: Mapping[str, Any], policy: Mapping[str, Any]) -> list[Course]:
    """The requests of the window under a policy of ``recorded``."""
    end_s = policy["series"]["end_s"]
    pairs = zip(at["recorded"]["requests"], policy["requests"], strict=True)
    return [_course(row, request, told, end_s) for row, (request, told) in enumerate(pairs)]


def _course(
    row: int, request: Mapping[str, Any], told: Mapping[str, Any], run_end_s: float
) -> Course:
    stays = list(_stays(told, run_end_s))
    due_s = told["arrival_s"] + _number(request["ttft_slo_s"], math.inf)
    missed = due_s < _number(told["first_token_s"], math.inf) and due_s < math.inf
    return Course(
        row=row,
        request_class=request["class"],
        arrival_s=told["arrival_s"],
        end_s=stays[-1][2] if stays else told["arrival_s"],
        stays=stays,
        facts="<br>".join(marks.text(line) for line in _facts(request, told, stays)),
        missed_at_s=due_s if missed else None,
    )


def _stays(told: Mapping[str, Any], run_end_s: float) -> Iterator[Stay]:
    """Waiting, prefill and decode, cut by preemptions; what never ended goes on to the end."""
    end_s = _number(told["ended_s"], run_end_s)
    scheduled_s = _number(told["first_scheduled_s"], end_s)
    token_s = _number(told["first_token_s"], end_s)
    yield "waiting", told["arrival_s"], scheduled_s
    breaks = [(_number(a, end_s), _number(b, end_s)) for a, b in told["preempted_s"]]
    at_s = scheduled_s
    for gone_s, again_s in [*breaks, (end_s, end_s)]:
        if at_s < token_s:
            yield "prefill", at_s, min(token_s, gone_s)
        if max(at_s, token_s) < gone_s:
            yield "decode", max(at_s, token_s), gone_s
        if again_s > gone_s:
            yield "preempted", gone_s, again_s
        at_s = again_s


def _facts(
    request: Mapping[str, Any], told: Mapping[str, Any], stays: list[Stay]
) -> Iterator[str]:
    spent: dict[str, float] = {}
    for state, start_s, end_s in stays:
        spent[state] = spent.get(state, 0.0) + end_s - start_s
    who = [request["class"] or "without class", request["tenant"], f"request {request['id']}"]
    yield ", ".join(part for part in who if part)
    yield f"{told['status']}, priority {request['priority']}, arrived at {told['arrival_s']:.2f} s"
    yield (
        f"{request['prompt_tokens']:,} prompt tokens ({told['cached_tokens']:,} cached), "
        f"{told['output_tokens']:,} output tokens"
    )
    yield ", ".join(f"{state} {format_seconds(spent_s)}" for state, spent_s in spent.items())
    times = {"TTFT": told["first_token_s"], "E2E": told["ended_s"]}
    yield ", ".join(
        f"{name} {format_seconds(at_s - told['arrival_s'])}"
        for name, at_s in times.items()
        if at_s is not None
    )
    target_s = request["ttft_slo_s"]
    if isinstance(target_s, float | int):
        yield f"TTFT target {format_seconds(target_s)}"


def _number(value: float | str | None, otherwise: float) -> float:
    return float(value) if isinstance(value, float | int) else otherwise
