from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.workloads.catalog import workload_named

ROWS = "".join(f"2023-11-16 18:15:{i:02},5,{i % 2}\n" for i in range(40))
CLASSES = "apiVersion: batchpolicy/v1\nkind: Classes\nclasses: {a: {share: 1}}\n"


def test_an_embedded_workload_goes_by_its_name() -> None:
    source = workload_named("noisy-tenant", pairs=3, requests=50)
    assert source.replications is None
    assert len(source.replication(2, seed=0).requests) == 50


def test_a_trace_goes_by_its_file_and_is_cut_into_one_slice_a_pair(tmp_path: Path) -> None:
    trace, classes = tmp_path / "t.csv", tmp_path / "c.yaml"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + ROWS)
    classes.write_text(CLASSES)
    source = workload_named(str(trace), pairs=4, requests=50, classes=classes)
    assert source.replications == 4
    assert [r.request_class for r in source.replication(3, seed=0).requests] == ["a"] * 5
    assert list(source.notes) == ["20 rows of t.csv without output tokens were left out."]


def test_a_name_that_is_not_known_gets_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"no workload named 'chat-and-bach'.*'chat-and-batch'\?"
    ):
        workload_named("chat-and-bach", pairs=2, requests=50)


def test_classes_are_refused_for_a_workload_that_has_its_own() -> None:
    with pytest.raises(ConfigError, match="has classes of its own"):
        workload_named("noisy-tenant", pairs=2, requests=50, classes=Path("c.yaml"))


def test_other_kinds_of_file_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "trace.jsonl"
    other.write_text("{}")
    for path in (other, tmp_path):
        with pytest.raises(ConfigError, match=r"expected a trace ending in \.csv or \.csv\.gz"):
            workload_named(str(path), pairs=2, requests=50)
