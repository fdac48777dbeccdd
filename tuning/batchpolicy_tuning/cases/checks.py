"""The checks by their kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from batchpolicy_tuning.cases import time_checks, work_checks
from batchpolicy_tuning.cases.check_specs import Check
from batchpolicy_tuning.cases.judging import Evidence
from batchpolicy_tuning.cases.outcome import Failure

Judge = Callable[[Check, Evidence], Failure | None]
"""None where the check holds."""

JUDGES: Mapping[str, Judge] = {
    "all_finish": work_checks.all_finish,
    "status": work_checks.ends_in,
    "ttft_max": time_checks.time_max,
    "wait_max": time_checks.time_max,
    "e2e_max": time_checks.time_max,
    "itl_max": time_checks.time_max,
    "within": time_checks.within,
    "order": time_checks.in_order,
    "before": time_checks.before,
    "preemptions_max": work_checks.preemptions_max,
    "recomputed_tokens_max": work_checks.tokens_max,
    "prefilled_tokens_max": work_checks.tokens_max,
    "computed_tokens_max": work_checks.tokens_max,
    "makespan_max": time_checks.makespan_max,
    "slo_met_min": work_checks.deadlines_met,
    "share_between": work_checks.share_between,
    "lora_cap": work_checks.lora_cap,
    "no_idle_with_work": work_checks.no_idle_with_work,
    "same_twice": work_checks.twice_the_same,
    "finished_or_aborted": work_checks.finished_or_aborted,
    "first_scheduled_in_submission_order": time_checks.submission_order,
    "no_output_after_cancel": time_checks.nothing_after_cancel,
    "ended_kv_zero": work_checks.ended_kv_zero,
    "decision_cost_ratio_max": work_checks.cost_ratio_max,
    "policy_cpu_max": work_checks.policy_cpu_max,
}
"""What judges a check of each kind that can be judged."""
