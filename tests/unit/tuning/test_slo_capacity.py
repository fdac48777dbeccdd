from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from batchpolicy.engine import EngineLimits
from batchpolicy.errors import ConfigError
from batchpolicy.workload import Workload
from batchpolicy_tuning.capacity import Setting
from batchpolicy_tuning.slo_capacity import bench
from batchpolicy_tuning.slo_capacity.bench import ARMS, BUDGETS, CapacityBench, served
from batchpolicy_tuning.slo_capacity.traffic import (
    CHAT,
    CODE,
    DOCUMENTS,
    FILES,
    SUMMARIES,
    TARGETS,
    MadeUp,
    Traces,
)
from tests.support.serial_engine import SerialEngine, request


def traces(folder: Path) -> Path:
    """Conversations at 0, 5 and 12 s, code at 0 and 11 s, and one length of summaries."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for name, seconds in ((CHAT, (0, 5, 12)), (CODE, (0, 11))):
        rows = "".join(f"2023-11-16 18:15:{s:02}.0000000,10,20\n" for s in seconds)
        (folder / FILES[name]).write_bytes(gzip.compress((head + rows).encode()))
    lengths = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3000,50,3050,60\n"
    (folder / SUMMARIES).write_bytes(gzip.compress(lengths.encode()))
    return folder


def test_parts_of_the_traces_follow_one_another(tmp_path: Path) -> None:
    source = Traces(traces(tmp_path))
    first, second = (source.part(k, 10.0).requests for k in range(2))

    def arrivals(rows: tuple[object, ...], name: str) -> list[float]:
        return [r.arrival_s for r in rows if r.request_class == name]  # type: ignore[attr-defined]

    assert (arrivals(first, CHAT), arrivals(second, CHAT)) == ([0.0, 5.0], [2.0])
    assert (arrivals(first, CODE), arrivals(second, CODE)) == ([0.0], [1.0])
    summaries = [r for r in first if r.request_class == DOCUMENTS]
    assert {(r.prompt_tokens, r.output_tokens) for r in summaries} == {(3000, 50)}
    assert all(0.0 <= r.arrival_s < 10.0 for r in summaries)


def test_a_trace_that_is_over_before_the_last_part_is_refused(tmp_path: Path) -> None:
    source = Traces(traces(tmp_path))
    with pytest.raises(ConfigError, match=f"{FILES[CHAT]}: nothing from 20 s to 30 s"):
        source.part(2, 10.0)


def test_each_class_has_its_targets_at_every_load(tmp_path: Path) -> None:
    for workload in (MadeUp().part(0, 30.0), Traces(traces(tmp_path)).part(0, 10.0)):
        for r in workload.stretched(1.0 / 0.3).requests:
            wanted = TARGETS[r.request_class]
            assert (r.priority, r.ttft_slo_s) == (wanted.priority, wanted.ttft_slo_s)
            assert r.tpot_slo_s == wanted.tpot_slo_s
            assert r.deadline_s - r.arrival_s == pytest.approx(wanted.within_s)


def test_parts_that_are_made_up_are_other_ones_and_come_again() -> None:
    one, again, other = (MadeUp().part(k, 30.0) for k in (1, 1, 2))
    assert one.digest() == again.digest() != other.digest()


def test_all_files_that_a_folder_lacks_are_named(tmp_path: Path) -> None:
    (traces(tmp_path) / SUMMARIES).unlink()
    (tmp_path / FILES[CODE]).unlink()
    with pytest.raises(ConfigError, match=f"{FILES[CODE]}, {SUMMARIES}"):
        CapacityBench().choose_data(tmp_path)


def test_a_load_is_carried_while_99_of_100_meet_all_of_their_targets() -> None:
    limits = EngineLimits(max_num_seqs=1, max_num_batched_tokens=512, kv_blocks=1000)

    def at(load: float, **late: float) -> bench.Served:
        # One request a second, each served in 0.1 s.
        rows = [request(f"r{i:03}", float(i), 100, request_class=CHAT) for i in range(99)]
        rows.append(request("x", 99.0, 100, request_class=DOCUMENTS, **late))
        return served(SerialEngine(), Setting(limits), Workload("w", tuple(rows)), load)

    assert at(1.0).holds
    missed = at(1.0, deadline_s=99.05)
    assert missed.by_class == {CHAT: 1.0, DOCUMENTS: 0.0}
    assert missed.attained == pytest.approx(0.99)
    assert missed.holds
    # Twice as many as it serves: half of them are served after the last has come.
    overload = at(20.0)
    assert overload.attained == 1.0
    assert not overload.holds


def test_arms_to_choose_from_hold_the_defaults() -> None:
    (plain,), tuned = ARMS["benefit"], ARMS[bench.TUNED]
    built = [one.build_policy() for one in tuned if one is not None]
    assert plain is not None
    assert plain.build_policy() in built
    assert len({one.model_dump_json() for one in built}) == len(tuned)
    assert all(budget >= 512 for budget in BUDGETS)


@pytest.mark.slow
def test_a_quick_run_has_all_orders_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BUDGETS", (1024,))
    monkeypatch.setattr(bench, "FINE", 1.5)
    report = CapacityBench().run(lambda told: None, quick=True)
    assert [one.goal for one in report.measurements] == [">= 1.5x", ">= 1.1x", ""]
    (table,) = report.tables
    assert [row[0] for row in table.rows] == list(ARMS)
    loads = {row[0]: float(row[table.columns.index("part 1")]) for row in table.rows}
    assert 0.0 < loads[bench.FCFS] <= loads[bench.EDF]
    assert all(math.isfinite(load) for load in loads.values())
