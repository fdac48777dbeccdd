from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from batchpolicy.errors import WorkloadError
from batchpolicy_tuning.workloads.azure import read_azure

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def _message(path: Path) -> str:
    with pytest.raises(WorkloadError) as caught:
        read_azure(path)
    return str(caught.value).replace(str(path), "trace.csv")


def test_rows_become_requests_that_arrive_from_zero(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    found = read_azure(_file(tmp_path, HEADER + rows))
    first, second = found.workload.requests
    assert (first.arrival_s, second.arrival_s) == (0.0, 4.314579)
    assert (first.id, second.id) == ("line-2", "line-3")
    assert (second.prompt_tokens, second.output_tokens) == (396, 109)
    assert found.workload.name == "trace.csv"


def test_the_ceiling_tells_no_policy_the_length(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,1,129\n"
    found = read_azure(_file(tmp_path, HEADER + rows))
    assert [r.max_tokens for r in found.workload.requests] == [256, 256]


def test_a_gzipped_file_reads_the_same(tmp_path: Path) -> None:
    text = HEADER + "2023-11-16 18:15:46.5,10,2\n2023-11-16 18:15:47.25,10,2\n"
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    plain = read_azure(_file(tmp_path, text))
    assert read_azure(packed).workload.requests == plain.workload.requests


def test_zones_letters_and_other_columns_do_no_harm(tmp_path: Path) -> None:
    text = (
        "Id,GeneratedTokens,TIMESTAMP,ContextTokens\n"
        "a,2,2024-05-10 00:00:00.009930+00:00,10\n\nb,3,2024-05-10T00:00:01.009930Z,11\n"
    )
    found = read_azure(_file(tmp_path, text)).workload.requests
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found] == [
        (0.0, 10, 2),
        (1.0, 11, 3),
    ]


def test_rows_without_output_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46,5,0\n2023-11-16 18:15:47,5,1\n2023-11-16 18:15:48,5,0\n"
    found = read_azure(_file(tmp_path, HEADER + rows))
    assert (len(found.workload.requests), found.dropped) == (1, 2)
    assert "has no requests; 1 rows have no output" in _message(
        _file(tmp_path, HEADER + rows.splitlines()[0])
    )


def test_garbled_rows_are_named_with_their_lines_all_at_once(tmp_path: Path) -> None:
    rows = (
        "2023-11-16 18:15:46,5,1\n"
        "yesterday,5,1\n"
        "2023-11-16 18:15:47,many,1\n"
        "2023-11-16 18:15:48,0,1\n"
        "2023-11-16 18:15:49,5,-2\n"
        "2023-11-16 18:15:50,5\n"
        "2023-13-16 18:15:50,5,1\n"
        "2023-11-16 18:15:45,5,1\n"
    )
    assert _message(_file(tmp_path, HEADER + rows)).splitlines() == [
        "trace.csv:3: TIMESTAMP 'yesterday' is no time; expected 2023-11-16 18:15:46.6805900",
        "trace.csv:4: ContextTokens is 'many', expected a whole number",
        "trace.csv:5: ContextTokens is 0, expected at least 1",
        "trace.csv:6: GeneratedTokens is -2, expected 0 or more",
        "trace.csv:7: GeneratedTokens is '', expected a whole number",
        "trace.csv:8: TIMESTAMP '2023-13-16 18:15:50' is no time: month must be in 1..12",
        "trace.csv:9: TIMESTAMP 2023-11-16 18:15:45 is before that of line 2; "
        "sort the trace by time",
    ]


def test_more_than_ten_faults_are_counted(tmp_path: Path) -> None:
    lines = _message(_file(tmp_path, HEADER + "x,1,1\n" * 13)).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "... and 3 more"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty; expected a header, TIMESTAMP,ContextTokens,GeneratedTokens"),
        (HEADER, "the trace has no requests"),
        ("TIMESTAMP,tokens\n", "trace.csv:1: no column ContextTokens and GeneratedTokens; found"),
    ],
)
def test_a_file_without_requests_says_what_it_lacks(tmp_path: Path, text: str, said: str) -> None:
    assert said in _message(_file(tmp_path, text))


def test_what_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    assert "no such file" in _message(tmp_path / "none.csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(b"TIMESTAMP,ContextTokens\n")
    assert "cannot be read as CSV: Not a gzipped file" in _message(broken)
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(HEADER.encode() * 1000)[:40])
    assert "cannot be read as CSV" in _message(cut)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    assert "cannot be read as CSV" in _message(binary)


@pytest.mark.shared
def test_the_conversation_trace_reads_as_published(azure_conversations: Path) -> None:
    found = read_azure(azure_conversations)
    requests = found.workload.requests
    assert (len(requests), found.dropped) == (19366, 0)
    assert found.workload.span_s == pytest.approx(3502, abs=1.0)
    assert sum(r.prompt_tokens for r in requests) / len(requests) == pytest.approx(1155, abs=1)
