from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError, WorkloadError
from batchpolicy.workload import Workload
from batchpolicy_tuning import gates, output, report, table
from batchpolicy_tuning.ab import check_fit, run_comparison
from batchpolicy_tuning.cli.compare import exit_status
from batchpolicy_tuning.document import document
from batchpolicy_tuning.metrics import METRICS, Metric
from batchpolicy_tuning.pool import RunFailed
from batchpolicy_tuning.statistics import Verdict
from tests.support.comparisons import FEW, Repeated, Silent, compared
from tests.support.serial_engine import (
    LIMITS,
    DyingEngine,
    FailingEngine,
    FaultyEngine,
    request,
)

METRIC = {metric.key: metric for metric in METRICS}


def test_load_is_a_fraction_of_what_the_engine_sustains() -> None:
    found = compared(loads=[0.5])
    assert found.saturation == pytest.approx(8 / 6.2)
    assert found.loads[0].rate == pytest.approx(0.5 * 8 / 6.2)


def test_what_one_class_gains_another_pays() -> None:
    found = compared()
    at = found.loads[0]
    chat = at.against_baseline(1, "chat", METRIC["ttft.p50"])
    assert (chat.baseline, chat.policy) == (pytest.approx(1.6), pytest.approx(0.6))
    assert (chat.improvement, chat.verdict) == (pytest.approx(1.0), Verdict.BETTER)
    batch = at.against_baseline(1, "batch", METRIC["queue.max"])
    assert (batch.improvement, batch.verdict) == (pytest.approx(-0.1), Verdict.WORSE)
    assert at.against_baseline(1, "batch", METRIC["attainment"]).policy == 0.5
    assert at.against_baseline(1, None, METRIC["attainment"]).improvement == 0.0


def test_losers_are_told_beside_winners() -> None:
    found = compared()
    lines = [cell.text for cell in table.summary(found, found.loads[0], 1)]
    assert lines[0] == "priority against fcfs: who gains, who pays"
    assert lines[1].startswith("  better for chat: TTFT p50 62% lower (1.6 s to 600 ms), ")
    assert lines[1].endswith("targets met 100.0 points higher (0.0% to 100.0%)")
    assert lines[2].startswith("  worse for batch: TTFT p50 3.3% higher (1.5 s to 1.55 s), ")
    assert "longest wait 10% higher (1 s to 1.1 s)" in lines[2]
    assert lines[3] == "  no difference shown for all requests beside times"


def test_the_table_has_a_section_for_each_class_and_one_for_all() -> None:
    found = compared()
    (sheet,) = table.sheets(found, found.loads[0], width=100)
    assert sheet.headers == ["", "fcfs", "priority", "gain"]
    assert [section.name for section in sheet.sections] == [
        "chat (33% of requests)",
        "batch (67% of requests)",
        "all requests (30)",
    ]
    first = [cell.text for cell in sheet.sections[0].rows[0]]
    assert first == ["TTFT p50", "1.6 s", "600 ms", "+62% [62, 62] better"]


def test_many_policies_are_spread_over_tables_that_fit() -> None:
    found = compared(FEW, "fcfs", "priority", "fcfs", "priority")
    at = found.loads[0]
    heads = [sheet.headers[2::2] for sheet in table.sheets(found, at, width=104)]
    assert heads == [["priority#1", "fcfs#2"], ["priority#2"]]
    assert len(table.sheets(found, at, width=40)) == 3


def test_with_few_pairs_nothing_is_judged() -> None:
    found = compared(pairs=7)
    judged = found.loads[0].against_baseline(1, "chat", METRIC["ttft.p50"])
    assert (judged.verdict, judged.reason) == (Verdict.NOT_SHOWN, "7 pairs, 8 needed")


def test_arms_that_never_queued_had_nothing_to_schedule() -> None:
    apart = Repeated((request("a", 0.0, 100), request("b", 9.0, 100, priority=1)))
    found = compared(apart, loads=[0.01])
    at = found.loads[0]
    assert not at.queued(1)
    judged = at.against_baseline(1, None, METRIC["ttft.p50"])
    assert judged.verdict is Verdict.NOTHING_TO_SCHEDULE
    assert "nothing to schedule" in table.summary(found, at, 1)[1].text


def test_every_arm_sees_the_same_workload_and_a_rerun_gives_the_same() -> None:
    first, again = compared(FEW, "fcfs", "fcfs"), compared(FEW, "fcfs", "fcfs")
    digests = [[run.digest for run in runs] for runs in first.loads[0].runs]
    assert digests[0] == digests[1]
    assert digests == [[run.digest for run in runs] for runs in again.loads[0].runs]


def test_two_processes_give_the_same_as_one() -> None:
    alone, spread = compared(), compared(processes=2)
    for one, other in zip(alone.loads[0].runs, spread.loads[0].runs, strict=True):
        assert [run.digest for run in one] == [run.digest for run in other]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_inside_a_run_names_the_run(processes: int) -> None:
    with pytest.raises(RunFailed) as caught:
        compared(engine=FailingEngine, processes=processes)
    assert "load 3.1, replication" in str(caught.value)
    assert "ZeroDivisionError in" in str(caught.value)
    assert str(caught.value).endswith("no seats")


def test_a_policy_that_fell_back_is_told_beside_its_figures() -> None:
    found = compared(engine=FaultyEngine)
    (warning,) = table.warnings(found, found.loads[0])
    assert warning.startswith("warning: priority failed 20 times;")


def test_a_policy_that_failed_in_every_replication_was_not_measured() -> None:
    found = compared(engine=FaultyEngine)
    (said,) = gates.failed_throughout(found)
    assert said.startswith("priority failed in every replication at load 3.1: its figures are")
    assert exit_status(found) == 5
    # In all but one, it was; and with a predictor alone that failed.
    at = found.loads[0]
    for counters in ({}, {"predictor_faults": 3}):
        runs = [replace(at.runs[1][0], counters=counters), *at.runs[1][1:]]
        others = replace(found, loads=[replace(at, runs=[at.runs[0], runs])])
        assert gates.failed_throughout(others) == []
        assert exit_status(others) == 0


def test_a_predictor_that_fails_is_told_apart_from_its_policy() -> None:
    found = compared()
    at = found.loads[0]
    run = replace(at.runs[1][0], counters={"predictor_faults": 3, "policy_faults": 2})
    policy, predictor = table.warnings(found, replace(at, runs=[at.runs[0], [run]]))
    assert policy.startswith("warning: priority failed 2 times; requests were then served in")
    assert predictor.startswith("warning: the predictor of priority failed 3 times; requests")


def test_a_process_that_dies_is_reported() -> None:
    with pytest.raises(RunFailed, match="a process of the comparison died"):
        compared(engine=DyingEngine, processes=2)


def test_a_request_that_can_never_fit_is_named_before_any_run() -> None:
    large = replace(LIMITS, kv_blocks=1000)
    workload = Workload("w", (request("small", 0.0, 15_999), request("large", 0.0, 16_000)))
    with pytest.raises(WorkloadError) as caught:
        check_fit([workload], large)
    assert str(caught.value).splitlines()[1:] == [
        "  request 'large' of replication 0: 16,000 prompt and 1 output tokens exceed "
        "the KV pool of 16,000"
    ]


def test_the_document_carries_what_is_shown_and_what_it_came_from(tmp_path: Path) -> None:
    found = compared()
    path = tmp_path / "out.json"
    output.write_json(document(found), path)
    told = json.loads(path.read_text())
    assert told["workload"]["classes"] == {"chat": 10, "batch": 20}
    assert told["saturation_requests_per_s"] == pytest.approx(8 / 6.2)
    assert told["environment"]["engine"] == "serial 1"
    assert told["profile"]["origin"]["licence"]
    assert told["limits"]["max_num_seqs"] == 1
    chat = told["loads"][0]["policies"][1]["scopes"][0]
    assert chat["class"] == "chat"
    ttft = chat["metrics"]["ttft.p50"]
    assert ttft["values"] == pytest.approx([0.6] * 10)
    assert ttft["against_baseline"]["relative_improvement"] == pytest.approx(1.0 / 1.6)
    assert ttft["against_baseline"]["verdict"] == "better"
    assert told["loads"][0]["policies"][1]["changes"][0]["text"].startswith("TTFT p50 62% lower")
    assert told["loads"][0]["policies"][0]["runs"][9]["sha256"]
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(("prompt_tokens", "extended"), [(24_575, False), (24_576, True)])
def test_a_request_past_the_measured_contexts_marks_every_report(
    prompt_tokens: int, extended: bool
) -> None:
    plan = replace(
        compared().plan,
        source=Repeated((request("a", 0.0, 100), request("long", 9.0, prompt_tokens))),
        limits=replace(LIMITS, kv_blocks=2000),
    )
    found = run_comparison(plan, Silent())
    assert found.extended is extended
    assert document(found)["profile_extended"] is extended
    marked = [note for note in table.notes(found) if "extended: some contexts" in note]
    assert len(marked) == extended


@pytest.mark.parametrize(
    ("max_loras", "said"), [(None, ""), (1, "1 LoRA adapter at once"), (3, "3 LoRA adapters at")]
)
def test_a_limit_of_adapters_is_told_where_there_is_one(max_loras: int | None, said: str) -> None:
    found = compared(pairs=2)
    limits = replace(LIMITS, max_loras=max_loras)
    found = replace(found, plan=replace(found.plan, limits=limits))
    (note,) = [note for note in table.notes(found) if note.startswith("Replayed on")]
    assert said in note
    assert ("LoRA" in note) is bool(said)
    assert document(found)["limits"]["max_loras"] == max_loras


def test_limits_that_leave_the_profile_are_refused_before_anything_runs() -> None:
    plan = compared().plan
    for wrong in ({"max_num_seqs": 257}, {"max_num_batched_tokens": 8193}):
        with pytest.raises(ConfigError, match="measured up to"):
            run_comparison(
                replace(plan, make_engine=FailingEngine, limits=replace(LIMITS, **wrong)), Silent()
            )


def test_what_has_no_value_is_null(tmp_path: Path) -> None:
    apart = Repeated((request("a", 0.0, 100), request("b", 9.0, 100)))
    path = tmp_path / "out.json"
    output.write_json(document(compared(apart, loads=[0.01])), path)
    scope = json.loads(path.read_text())["loads"][0]["policies"][0]["scopes"][0]
    assert scope["metrics"]["jain"]["mean"] is None


def test_a_document_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        output.check_writable(tmp_path / "none" / "out.json")
    with pytest.raises(ConfigError, match="is a folder"):
        output.check_writable(tmp_path)
    with pytest.raises(ConfigError, match="'/proc' takes no file"):
        output.check_writable(Path("/proc/out.json"))
    output.check_writable(tmp_path / "out.json")
    assert not list(tmp_path.iterdir())


def test_a_document_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")
    broken = replace(compared(), workload_digest=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        output.write_json(document(broken), path)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0123, "seconds", "12.3 ms"),
        (0.0, "seconds", "0 s"),
        (0.0009999996, "seconds", "1 ms"),
        (math.inf, "seconds", "no end"),
        (math.nan, "share", "-"),
        (0.4567, "share", "45.7%"),
        (0.98765, "index", "0.988"),
        (3.25, "count", "3.2"),
        (2938.4, "tokens/s", "2,938"),
        (229_666.4, "tokens", "230k"),
    ],
)
def test_values_are_told_in_their_unit(value: float, unit: str, shown: str) -> None:
    assert report.in_unit(value, Metric("m", "m", unit)) == shown  # type: ignore[arg-type]
