from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError, WorkloadError
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
    for name in ("trace.txt", "trace.yaml.gz", "trace.tar.gz"):
        other = tmp_path / name
        other.write_text("{}")
        with pytest.raises(ConfigError, match=r"expected a trace ending in \.csv, \.csv\.gz"):
            workload_named(str(other), pairs=2, requests=50)
    with pytest.raises(ConfigError, match="expected a trace ending in"):
        workload_named(str(tmp_path), pairs=2, requests=50)


SERVEGEN = "arrival_s,tenant,input_tokens,output_tokens\n" + "".join(
    f"{i},t{i % 2},10,3\n" for i in range(8)
)
MOONCAKE = "".join(
    json.dumps(
        {
            "timestamp": 3000 * (i // 4),
            "input_length": 1000,
            "output_length": 5,
            "hash_ids": [0, i + 1],
        }
    )
    + "\n"
    for i in range(8)
)
TIMED = MOONCAKE.replace('"timestamp": ', '"timestamp": 0.5').replace("hash_ids", "ignored")
OURS = "".join(
    f'{{"id": "r{i}", "arrival_s": {i}, "prompt_tokens": 9, "output_tokens": 2, '
    f'"max_tokens": 4, "tenant": "acme"}}\n'
    for i in range(8)
)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + ROWS),
        ("servegen.csv", SERVEGEN),
        ("mooncake.jsonl", MOONCAKE),
        ("timed.jsonl", TIMED),
        ("ours.jsonl", OURS),
    ],
)
def test_a_trace_is_told_by_its_content_plain_or_gzipped(
    tmp_path: Path, name: str, text: str, packed: bool
) -> None:
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    source = workload_named(str(path), pairs=2, requests=50)
    assert source.name == path.name
    assert sum(len(source.replication(k, seed=0).requests) for k in range(2)) in (8, 20)


def test_what_a_reader_had_to_assume_is_in_the_notes(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(MOONCAKE)
    notes = list(workload_named(str(path), pairs=2, requests=50).notes)
    assert "whole milliseconds; requests of one instant arrive spread over the time" in notes[0]
    assert "share blocks of 512 tokens, which --prefix-cache reuses" in notes[1]
    path.write_text(TIMED)
    assert list(workload_named(str(path), pairs=2, requests=50).notes) == []


def test_arrivals_of_one_tick_are_spread_over_it_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(MOONCAKE)
    source = workload_named(str(path), pairs=2, requests=50)
    first, second = (source.replication(0, seed=seed).requests for seed in (0, 1))
    arrivals_s = [r.arrival_s for r in first]
    assert arrivals_s == sorted(arrivals_s)
    assert len(set(arrivals_s)) == 4
    # They count from the first of them, and the tick lasts 3 s.
    assert arrivals_s[0] == 0.0
    assert 0.0 < arrivals_s[-1] < 3.0
    assert [r.id for r in first] == ["line-1", "line-2", "line-3", "line-4"]
    assert [r.arrival_s for r in second] != arrivals_s
    assert source.replication(0, seed=0).requests == first


def test_a_csv_of_unknown_columns_is_told_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("prompt,output\n1,2\n")
    with pytest.raises(ConfigError) as caught:
        workload_named(str(path), pairs=2, requests=50)
    assert str(caught.value) == (
        f"{path}:1: columns prompt, output are of no trace that is known here; expected "
        "TIMESTAMP,ContextTokens,GeneratedTokens or arrival_s,tenant,input_tokens,output_tokens."
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "e.csv: the file is empty"),
        ("\0" * 5000, r"e.csv:1: columns '\x00\x00"),
        (",".join(f"c{i}" for i in range(500)), "c8, c9, ... are of no trace"),
    ],
)
def test_a_csv_without_a_header_is_refused_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "e.csv"
    path.write_text(text)
    with pytest.raises((ConfigError, WorkloadError)) as caught:
        workload_named(str(path), pairs=2, requests=50)
    assert said in str(caught.value)
    assert "\0" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_tenants_of_a_trace_get_classes_and_keep_their_names(tmp_path: Path) -> None:
    trace, classes = tmp_path / "s.csv", tmp_path / "c.yaml"
    trace.write_text(SERVEGEN)
    classes.write_text(
        """apiVersion: batchpolicy/v1
kind: Classes
classes:
  gold: {share: 1, priority: -1, of_tenants: [t0], tenants: {never: 1}}
  free: {share: 1, priority: 5, of_tenants: [t1]}
"""
    )
    source = workload_named(str(trace), pairs=2, requests=50, classes=classes)
    laid = [(r.tenant, r.request_class, r.priority) for r in source.replication(0, 0).requests]
    assert laid == [("t0", "gold", -1), ("t1", "free", 5)] * 2
    assert list(source.notes) == [
        "Requests of s.csv keep their tenants; those of c.yaml are for requests without one."
    ]


def test_a_class_of_a_tenant_that_the_trace_lacks_gets_the_nearest(tmp_path: Path) -> None:
    trace, classes = tmp_path / "s.jsonl", tmp_path / "c.yaml"
    trace.write_text(OURS)
    classes.write_text(CLASSES.replace("share: 1", "share: 1, of_tenants: [acne]"))
    with pytest.raises(ConfigError, match=r"'acne', which s\.jsonl does not have\. Did you mean"):
        workload_named(str(trace), pairs=2, requests=50, classes=classes)


@pytest.mark.parametrize("own", ['"class": "chat"', '"priority": 3', '"ttft_slo_s": 1'])
def test_classes_are_not_laid_over_requests_that_say_themselves(tmp_path: Path, own: str) -> None:
    trace, classes = tmp_path / "s.jsonl", tmp_path / "c.yaml"
    trace.write_text(OURS.replace('"tenant": "acme"', own))
    classes.write_text(CLASSES)
    with pytest.raises(ConfigError, match=r"s\.jsonl has classes of its own"):
        workload_named(str(trace), pairs=2, requests=50, classes=classes)


def test_classes_given_as_a_workload_are_pointed_to_their_place(tmp_path: Path) -> None:
    classes = tmp_path / "c.yaml"
    classes.write_text(CLASSES)
    with pytest.raises(ConfigError, match="--workload TRACE --classes"):
        workload_named(str(classes), pairs=2, requests=50)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "count", "span_s"),
    [
        ("mooncake_conversation.jsonl.gz", 12031, 3537),
        ("servegen_m-small_1h.csv.gz", 14948, 3600),
        ("servegen_m-large_noisy_tenant_1h.csv.gz", 14629, 3600),
    ],
)
def test_published_traces_read_as_described(
    shared_trace: Callable[[str], Path], name: str, count: int, span_s: float
) -> None:
    source = workload_named(str(shared_trace(name)), pairs=20, requests=50)
    drawn = [source.replication(k, seed=0) for k in range(20)]
    assert sum(len(one.requests) for one in drawn) == count // 20 * 20
    # The gaps between slices are in none of them.
    assert sum(one.span_s for one in drawn) == pytest.approx(span_s, rel=0.01)
