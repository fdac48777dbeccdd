"""Checks of ends, preemptions, work and what it costs to decide."""

from __future__ import annotations

from batchpolicy_tuning.cases.check_specs import (
    Check,
    CostRatioMax,
    CpuMax,
    DeadlinesMet,
    EndsIn,
    LoraCap,
    Plain,
    PreemptionsMax,
    ShareBetween,
    TokensMax,
)
from batchpolicy_tuning.cases.invariants import memory_returned, never_idle, same_twice
from batchpolicy_tuning.cases.judging import Evidence, listed
from batchpolicy_tuning.cases.outcome import Failure
from batchpolicy_tuning.cases.trace import TOLERANCE_S, Course


def all_finish(check: Check, evidence: Evidence) -> Failure | None:
    """Requests finish with all of their tokens."""
    assert isinstance(check, Plain)
    wrong = [
        f"{c.request.id} {c.state} with {len(c.token_s)} of {c.wanted} tokens"
        for c in evidence.named(check.ids)
        if c.state != "finished" or len(c.token_s) != c.wanted
    ]
    return Failure(check.kind, "finished with all tokens", listed(wrong)) if wrong else None


def ends_in(check: Check, evidence: Evidence) -> Failure | None:
    """Requests end in one of some states."""
    assert isinstance(check, EndsIn)
    return _in_states(check, evidence, check.ids, check.states)


def finished_or_aborted(check: Check, evidence: Evidence) -> Failure | None:
    """Requests end as finished or aborted."""
    assert isinstance(check, Plain)
    return _in_states(check, evidence, check.ids, ("finished", "aborted"))


def _in_states(
    check: Check, evidence: Evidence, ids: tuple[str, ...], states: tuple[str, ...]
) -> Failure | None:
    wrong = [f"{c.state} ({c.request.id})" for c in evidence.named(ids) if c.state not in states]
    return Failure(check.kind, " or ".join(states), listed(wrong)) if wrong else None


def preemptions_max(check: Check, evidence: Evidence) -> Failure | None:
    """Requests are preempted at most so often."""
    assert isinstance(check, PreemptionsMax)
    counts = {c.request.id: c.preemptions for c in evidence.named(check.ids)}
    expected: list[str] = []
    found: list[str] = []
    if check.max_each is not None and max(counts.values()) > check.max_each:
        worst = sorted((i for i in counts if counts[i] > check.max_each), key=lambda i: -counts[i])
        expected.append(f"at most {check.max_each} each")
        found.append(listed([f"{counts[i]} ({i})" for i in worst]))
    if check.max_total is not None and sum(counts.values()) > check.max_total:
        expected.append(f"at most {check.max_total} in all")
        found.append(f"{sum(counts.values())} in all")
    return Failure(check.kind, ", ".join(expected), ", ".join(found)) if expected else None


def tokens_max(check: Check, evidence: Evidence) -> Failure | None:
    """So many tokens at most are computed, computed again, or computed as prefill."""
    assert isinstance(check, TokensMax)
    total = sum(_work(check.kind, c) for c in evidence.named(check.ids))
    if total <= check.max:
        return None
    return Failure(check.kind, f"at most {check.max} tokens", f"{total}")


def _work(kind: str, c: Course) -> int:
    if kind == "recomputed_tokens_max":
        return c.recomputed
    return c.prefilled if kind == "prefilled_tokens_max" else c.prefilled + c.decoded


def deadlines_met(check: Check, evidence: Evidence) -> Failure | None:
    """So many requests at least finish by their deadline."""
    assert isinstance(check, DeadlinesMet)
    asked = evidence.named(check.ids)
    met = [
        c for c in asked if c.state == "finished" and c.end_s <= c.request.deadline_s + TOLERANCE_S
    ]
    if len(met) >= check.min_count:
        return None
    late = [f"{c.request.id} at {c.end_s:g} s" for c in asked if c not in met]
    return Failure(
        check.kind,
        f"at least {check.min_count} by their deadlines",
        f"{len(met)}; late: {listed(late)}",
    )


def share_between(check: Check, evidence: Evidence) -> Failure | None:
    """A tenant's part of the tokens computed in a time; a step counts when it is over."""
    assert isinstance(check, ShareBetween)
    start_s, end_s = check.window_s
    work = dict.fromkeys(check.tenants, 0)
    for step in evidence.trace.works:
        if start_s - TOLERANCE_S <= step.end_s <= end_s + TOLERANCE_S:
            for i, n in step.tokens.items():
                tenant = evidence.trace.courses[i].request.tenant
                if tenant in work:
                    work[tenant] += n
    total = sum(work.values())
    expected = f"{check.min:.0%} to {check.max:.0%} for {check.tenant}"
    if not total:
        return Failure(check.kind, expected, "no work of these tenants")
    share = work[check.tenant] / total
    if check.min <= share <= check.max:
        return None
    return Failure(check.kind, expected, f"{share:.1%}")


def lora_cap(check: Check, evidence: Evidence) -> Failure | None:
    """Adapters that run at once."""
    assert isinstance(check, LoraCap)
    cap = check.max_loras or evidence.setting.limits.max_loras or 0
    courses = evidence.trace.courses
    most = max(
        (len({courses[i].request.lora for i in w.held} - {""}) for w in evidence.trace.works),
        default=0,
    )
    return Failure(check.kind, f"at most {cap} adapters", f"{most}") if most > cap else None


def no_idle_with_work(check: Check, evidence: Evidence) -> Failure | None:
    """Invariant I4, asked for by name."""
    found = list(never_idle(evidence.trace))
    return Failure(check.kind, "never idle with work", listed(found)) if found else None


def ended_kv_zero(check: Check, evidence: Evidence) -> Failure | None:
    """Invariant I6, asked for by name."""
    found = list(memory_returned(evidence.trace))
    return Failure(check.kind, "no KV held at the end", listed(found)) if found else None


def twice_the_same(check: Check, evidence: Evidence) -> Failure | None:
    """Invariant I7, asked for by name."""
    found = list(same_twice(evidence.trace, evidence.again()))
    return Failure(check.kind, "the same schedule twice", listed(found)) if found else None


def cost_ratio_max(check: Check, evidence: Evidence) -> Failure | None:
    """What a decision costs with a long queue, over what it costs with a short one."""
    assert isinstance(check, CostRatioMax)
    small_s = evidence.seconds_per_decision(check.small_queue)
    large_s = evidence.seconds_per_decision(check.large_queue)
    if large_s <= check.max * small_s:
        return None
    return Failure(
        check.kind,
        f"at most {check.max:g} times the cost with {check.small_queue} waiting",
        f"{large_s / small_s:.3g} times: {large_s * 1e6:.0f} us with {check.large_queue}, "
        f"{small_s * 1e6:.0f} us with {check.small_queue}",
    )


def policy_cpu_max(check: Check, evidence: Evidence) -> Failure | None:
    """Processor time that the policy takes over the run."""
    assert isinstance(check, CpuMax)
    took_s = evidence.policy_cpu_s()
    if took_s <= check.max_s:
        return None
    return Failure(check.kind, f"at most {check.max_s:g} s", f"{took_s:.3g} s")
