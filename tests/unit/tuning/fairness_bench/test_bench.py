from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.config import load_config
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.fairness_bench import bench
from batchpolicy_tuning.fairness_bench.bench import ROWS, FairnessBench
from batchpolicy_tuning.fairness_bench.rows import OURS, OURS_BLIND, OURS_ORACLE
from batchpolicy_tuning.fairness_bench.workloads import SUITES, predicted

ROOT = Path(__file__).parents[4]


def test_what_is_measured_as_ours_is_one_file_whatever_it_is_told() -> None:
    file = load_config(ROOT / "examples/policies/shortest-within-tenant.yaml")
    for row in (OURS, OURS_BLIND, OURS_ORACLE):
        same = row.config.model_copy(update={"title": file.title})
        assert same.build_policy() == file.build_policy()
        settings = {"policy"}
        assert same.model_dump(exclude=settings) == file.model_dump(exclude=settings)


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_drawn_by_its_seed(suite: str) -> None:
    drawn = SUITES[suite](0, 0, 0.1)
    assert drawn == SUITES[suite](0, 0, 0.1)
    assert drawn != SUITES[suite](1, 0, 0.1)
    assert all(r.predicted_output_tokens != r.predicted_output_tokens for r in drawn.requests)


def test_the_arena_has_few_tenants_that_send_most() -> None:
    requests = SUITES["arena-like"](0, 0, 1.0).requests
    assert len(requests) == 1500
    assert requests[-1].arrival_s <= 600.0
    counts = np.sort(np.unique([r.tenant for r in requests], return_counts=True)[1])[::-1]
    assert len(counts) == 27
    assert counts[:3].sum() > 0.5 * 1500
    assert 90 < np.mean([r.prompt_tokens for r in requests]) < 140
    assert 240 < np.mean([r.output_tokens for r in requests]) < 300


def test_predictions_are_the_truth_without_noise_and_change_nothing_else() -> None:
    plain = SUITES["arena-like"](0, 0, 0.1)
    for one, told in zip(plain.requests, predicted(plain, 0, 0, 0.0).requests, strict=True):
        assert told.predicted_output_tokens == one.output_tokens
        assert dataclasses.replace(told, predicted_output_tokens=1.0) == dataclasses.replace(
            one, predicted_output_tokens=1.0
        )
    noisy = predicted(plain, 0, 0, 0.6).requests
    logs = np.log([r.predicted_output_tokens / r.output_tokens for r in noisy])
    assert abs(logs.std() - 0.6) < 0.1


def test_it_measures_no_other_engine() -> None:
    with pytest.raises(ConfigError, match="this bench measures 'light', not 'vllm'"):
        FairnessBench().choose_engine("vllm")


@pytest.mark.slow
def test_every_row_of_every_suite_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROWS", {name: ROWS[name] for name in ("on-off", "arena-like")})
    told: list[str] = []
    report = FairnessBench().run(told.append, quick=True)
    tables = {table.title: table for table in report.tables}
    assert list(tables) == ["on-off", "arena-like"]
    for name, table in tables.items():
        assert [row[0] for row in table.rows] == [row.label for row in ROWS[name]]
        assert {len(row) for row in table.rows} == {len(table.columns)}
    figures = {one.what: one for one in report.measurements}
    assert figures["on-off: widest pair gap of any seed over the bound"].met
    assert figures["on-off: pair gap over that of VTC"].met
    assert len(told) == 2 * (len(ROWS["on-off"]) + len(ROWS["arena-like"]))
