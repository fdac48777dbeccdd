"""The conclusion of a study in words."""

from __future__ import annotations

import shlex

from batchpolicy_tuning.tune.records import TrialRecord
from batchpolicy_tuning.tune.result import Conclusion, FinalistResult, StudyResult
from batchpolicy_tuning.tune.summary import comparison_text, target_text, trial_text


def summary_of(result: StudyResult, reason: str | None) -> tuple[str, ...]:
    """A line that says it, then what an operator needs to act on it."""
    match result.conclusion:
        case Conclusion.WINNER:
            return _winner(result, reason)
        case Conclusion.KEEP_BASELINE:
            return (f"Keep the baseline: {reason}.",)
        case Conclusion.INCONCLUSIVE:
            return (
                f"Inconclusive: {reason}. Exit code {result.exit_code}.",
                *_candidate(result),
            )
        case Conclusion.NOTHING_FEASIBLE:
            return _nothing(result)
        case Conclusion.UNFINISHED:
            return _unfinished(result, reason)


def _winner(result: StudyResult, reason: str | None) -> tuple[str, ...]:
    won = next(one for one in result.finalists if one.trial == result.winner)
    gains = "; ".join(f"{one.objective} {comparison_text(one)}" for one in won.comparisons)
    return (
        f"Winner: trial {won.trial} {reason}.",
        f"  {trial_text(result, won.trial)}",
        f"  against the baseline held out: {gains}",
        *(f"  {target_text(one)}" for one in won.targets),
        *_deploy(result),
    )


def _unfinished(result: StudyResult, running: str | None) -> tuple[str, ...]:
    planned = result.study.get("search", {}).get("trials", "?")
    at_work = f", {running}" if running else ""
    best = result.closest if result.best is None else result.best
    said = "closest to the targets" if result.best is None else "best"
    so_far = [] if best is None else [f"  {said} so far: trial {best}, {trial_text(result, best)}"]
    return (
        f"Not at its end: {len(result.trials)} of {planned} trials{at_work}.",
        *so_far,
        "  nothing is judged held out yet",
        f"  unless it still runs: {_resume(result)}",
    )


def _resume(result: StudyResult) -> str:
    """The command that goes on with a study."""
    argv: list[str] = list(result.environment.get("argv", ()))
    if argv[:1] != ["tune"]:  # started by a program
        argv = ["tune", result.file]
    return shlex.join(["batchpolicy", *argv, *([] if "--resume" in argv else ["--resume"])])


def _candidate(result: StudyResult) -> tuple[str, ...]:
    if not result.finalists:
        return ()
    first: FinalistResult = result.finalists[0]
    return (
        f"  best in the search: trial {first.trial}, {trial_text(result, first.trial)}",
        f"  {result.policy_file} has it; more slices held out may tell (held_out in the study)",
    )


def _nothing(result: StudyResult) -> tuple[str, ...]:
    first = f"Nothing feasible in {len(result.trials)} trials. Exit code {result.exit_code}."
    closest = next((one for one in result.trials if one.number == result.closest), None)
    if closest is None:
        return (first, "  no trial gave a result:", *_reasons(result.trials))
    return (
        first,
        f"  closest: trial {closest.number}, {trial_text(result, closest.number)}",
        *(
            f"  {target_text(one)}{' (binding)' if one == result.binding else ''}"
            for one in closest.targets
        ),
        f"  {result.policy_file} has the closest setting; it does not meet the targets",
    )


def _reasons(trials: tuple[TrialRecord, ...]) -> list[str]:
    said = dict.fromkeys(f"  {one.outcome}: {one.reason}" for one in trials)
    return list(said)[:5]


def _deploy(result: StudyResult) -> tuple[str, ...]:
    file, flags = result.policy_file, result.flags
    vllm = f"batchpolicy serve --policy {file} -- MODEL {flags['vllm']}"
    sglang = f"batchpolicy serve --engine sglang --policy {file} -- MODEL {flags['sglang']}"
    if str(result.study.get("engine", "")).endswith("sglang"):
        return (f"  deploy: {sglang}", f"  vLLM: {flags['vllm']}")
    return (f"  deploy: {vllm}", f"  SGLang: {flags['sglang']}")
