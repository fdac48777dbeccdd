"""A tuning study with every outcome, small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchpolicy_tuning.tune.judging import Goal
from batchpolicy_tuning.tune.records import Outcome, Part, TargetResult, TrialRecord
from batchpolicy_tuning.tune.result import (
    ComparisonResult,
    Conclusion,
    FinalistResult,
    ObjectiveResult,
    ParameterResult,
    ScopeResult,
    StudyResult,
    WorkloadResult,
)
from batchpolicy_tuning.tune.space import Parameter
from batchpolicy_tuning.tune.standing import standing

WAIT, JAIN = "queue.max<=60s", "jain>=0.9"
GOALS = (Goal("goodput", True), Goal("ttft.p99", False))
SPACE = (
    Parameter("policy", choices=("fcfs", "benefit")),
    Parameter("benefit:lambda", 0.1, 10.0, log=True, of="benefit"),
    Parameter("max_num_seqs", choices=(8, 16)),
)
SEARCHED, HELD_OUT = ("trace, slice 0", "trace, slice 2"), ("trace, slice 1", "trace, slice 3")


def targets(waited_s: float, jain: float) -> tuple[TargetResult, ...]:
    """The longest wait is to be at most 60 s, and Jain's index at least 0.9."""
    wait, fair = (waited_s - 60.0) / 60.0, (0.9 - jain) / 0.9
    return (
        TargetResult(target=WAIT, value=waited_s, bound=60.0, met=wait <= 0.0, miss=wait),
        TargetResult(target=JAIN, value=jain, bound=0.9, met=fair <= 0.0, miss=fair),
    )


def trial(
    number: int,
    outcome: Outcome,
    goodput: float | None = None,
    ttft_s: float = 1.0,
    told: tuple[TargetResult, ...] = (),
    **changes: Any,
) -> TrialRecord:
    """A trial of ``benefit``; half and one and a half of its goodput are those of the slices."""
    values = {} if goodput is None else {"goodput": goodput, "ttft.p99": ttft_s}
    parts = () if goodput is None else tuple(_parts(SEARCHED, goodput, ttft_s))
    fields: dict[str, Any] = {
        "number": number,
        "origin": "sampled",
        "label": "benefit",
        "key": f"key {number}",
        "parameters": {"policy": "benefit", "benefit:lambda": 0.5, "max_num_seqs": 16},
        "setting": {"policy": "benefit", "lambda": 0.5, "max_num_seqs": 16},
        "outcome": outcome,
        "values": values,
        "targets": told,
        "parts": parts,
        "planned": len(SEARCHED),
    }
    return TrialRecord(**{**fields, **changes})


def _parts(names: Sequence[str], goodput: float, ttft_s: float) -> list[Part]:
    shares = (0.5, 1.5)
    return [
        Part(instance=name, values={"goodput": share * goodput, "ttft.p99": ttft_s})
        for name, share in zip(names, shares, strict=True)
    ]


MET = targets(30.0, 0.95)
TRIALS = (
    trial(
        0, Outcome.FEASIBLE, 2.0, 8.0, MET, origin="baseline", label="baseline",
        parameters={}, setting={"policy": "fcfs", "max_num_seqs": 8},
    ),
    trial(1, Outcome.FEASIBLE, 3.0, 4.0, MET),
    # Misses both, fairness by less: 61.2 s is 2% beyond, 0.891 is 1% short.
    trial(2, Outcome.INFEASIBLE, 9.0, 1.0, targets(61.2, 0.891), reason="misses"),
    trial(3, Outcome.FAILED, reason="engine refused it"),
    trial(4, Outcome.TIMED_OUT, reason="not done after 60 s"),
    trial(6, Outcome.PRUNED, 1.0, 9.0, reason="goodput is worse than in trial 1 in 2 of 2"),
    trial(7, Outcome.FEASIBLE, 4.0, 5.0, MET),
)  # fmt: skip
"""Trial 5 was given up. On the front: 7 and 1."""


def finalist(number: int, goodput: float, gain: float | None, **changes: Any) -> FinalistResult:
    """What a setting gave held out; ``gain`` in parts of the baseline, with 0.1 at either side."""
    one = next(one for one in TRIALS if one.number == number)
    comparisons: list[ComparisonResult] = []
    if gain is not None:
        for key, base in (("goodput", 2.0), ("ttft.p99", 8.0)):
            comparisons.append(
                ComparisonResult(
                    objective=key, baseline=base, value=base * (1.0 + gain),
                    improvement=base * gain, low=base * (gain - 0.1), high=base * (gain + 0.1),
                    relative_low=gain - 0.1, relative_high=gain + 0.1, pairs=2,
                    verdict="better" if gain > 0.0 else "worse",
                    p=0.004 if key == "goodput" else None,
                )
            )  # fmt: skip
    fields: dict[str, Any] = {
        "trial": number,
        "label": one.label,
        "setting": one.setting,
        "outcome": "feasible",
        "values": {"goodput": goodput, "ttft.p99": 7.0},
        "targets": MET,
        "parts": tuple(_parts(HELD_OUT, goodput, 7.0)),
        "comparisons": tuple(comparisons),
        "scopes": (
            _scope("all", "", 30, 0.5 + 0.05 * number),
            _scope("class", "chat", 20, 0.9 - 0.02 * number),
            _scope("tenant", "acme", 10, None),
        ),
    }
    return FinalistResult(**{**fields, **changes})


def _scope(kind: Any, name: str, requests: int, attainment: float | None) -> ScopeResult:
    return ScopeResult(
        kind=kind, name=name, requests=requests, attainment=attainment, ttft_p50_s=0.25,
        ttft_p99_s=float("inf"), tpot_p99_s=None, longest_wait_s=12.5,
    )  # fmt: skip


def study(trials: Sequence[TrialRecord] = TRIALS, **changes: Any) -> StudyResult:
    """The study, won by trial 7, with trial 1 worse than the baseline held out."""
    fields: dict[str, Any] = {
        "name": "evening",
        "file": "evening.yaml",
        "study": {"kind": "Study", "targets": [WAIT, JAIN], "search": {"trials": 9}},
        "fingerprint": {"targets": "0123abcd"},
        "conclusion": Conclusion.WINNER,
        "exit_code": 0,
        "summary": ("Winner: trial 7 is better.", "  policy benefit, max_num_seqs 16"),
        "search_engine": "light 1",
        "final_engine": "vllm 2",
        "storage": "journal.log",
        "seed": 41,
        "profile": "h100",
        "profile_trust": "fitted",
        "profile_extended": False,
        "environment": {
            "python": "3.12.0", "packages": {"batchpolicy": "0.1"}, "platform": "Linux",
            "cpus": 2, "jobs": 1, "argv": ["tune", "evening.yaml"],
        },
        "parameters": tuple(
            ParameterResult(name=one.name, choices=one.choices, of=one.of)
            if one.choices
            else ParameterResult(
                name=one.name, low=one.low, high=one.high, log=one.log, of=one.of
            )
            for one in SPACE
        ),
        "objectives": (
            ObjectiveResult(key="goodput", direction="maximize"),
            ObjectiveResult(key="ttft.p99", direction="minimize"),
        ),
        "targets": (WAIT, JAIN),
        "workloads": (WorkloadResult(name="trace", load=0.9, saturation_requests_per_s=5.5),),
        "workload_sha256": "feed" * 16,
        "search_instances": SEARCHED,
        "held_out_instances": HELD_OUT,
        "notes": ("max_num_seqs was clipped to 16",),
        "baseline": finalist(0, 2.5, None),
        "finalists": (finalist(7, 3.5, 0.4), finalist(1, 1.5, -0.25)),
        "winner": 7,
        "policy_file": "policy.yaml",
        "flags": {"vllm": "--max-num-seqs 16", "sglang": "--max-running-requests 16"},
        "wall_s": 12.0,
        **standing(GOALS, SPACE, trials),
        "void_trials": 1,
    }  # fmt: skip
    return StudyResult(**{**fields, **changes})


def unfinished(trials: Sequence[TrialRecord] = TRIALS, **changes: Any) -> StudyResult:
    """The study before its finalists were run."""
    begun: dict[str, Any] = {
        "conclusion": Conclusion.UNFINISHED, "summary": ("Not at its end.",), "baseline": None,
        "finalists": (), "winner": None, "policy_file": None,
    }  # fmt: skip
    return study(trials, **{**begun, **changes})
