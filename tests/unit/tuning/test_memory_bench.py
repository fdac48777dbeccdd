from __future__ import annotations

import pytest

from batchpolicy_tuning import memory_bench as bench
from batchpolicy_tuning.memory_bench import MemoryFrontier, at_evicted, at_use

POINTS = [(0.90, 0.01), (0.94, 0.04), (0.88, 0.005)]
"""Use and evicted part of settings."""


def test_use_and_evictions_are_read_off_the_line_between_settings() -> None:
    assert at_evicted(POINTS, 0.01) == pytest.approx(0.90)
    # In logarithms 0.02 is half way from 0.01 to 0.04.
    assert at_evicted(POINTS, 0.02) == pytest.approx(0.92)
    assert at_use(POINTS, 0.92) == pytest.approx(0.02)


def test_beyond_the_settings_the_line_goes_on() -> None:
    # From 0.005 to 0.01 it is 0.02 of use to a factor of 2.
    assert at_evicted(POINTS, 0.0025) == pytest.approx(0.86)
    assert at_use(POINTS, 0.96) == pytest.approx(0.08)


def test_workloads_follow_their_seed_and_stay_in_their_range() -> None:
    lengths = bench.DISTRIBUTIONS[1]
    one, again, other = (bench.workload_of(lengths, 500, seed) for seed in (1, 1, 2))
    assert one == again != other
    prompts = [r.prompt_tokens for r in one.requests]
    assert min(prompts) >= 3000 // bench.SCALE
    assert max(prompts) <= 5000 // bench.SCALE
    assert all(r.output_tokens <= r.max_tokens for r in one.requests)


@pytest.mark.slow
def test_a_quick_run_names_all_ways_and_the_oracle_evicts_nobody() -> None:
    told: list[str] = []
    report = MemoryFrontier().run(told.append, quick=True)
    assert len(report.tables) == 3
    assert len(report.measurements) == 12
    for table in report.tables:
        rows = {row[0]: row for row in table.rows}
        assert rows["oracle"][2] == rows["max-tokens"][2] == "0.00"
        assert float(rows["stock"][2].split()[0]) > 20
        assert {"published: Past-Future", "no predictor, 1%", "noisy-oracle, 2%"} <= set(rows)
    assert len(told) == 3 * 9 * 2
