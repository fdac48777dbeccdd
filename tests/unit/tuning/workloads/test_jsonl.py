from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from batchpolicy.errors import WorkloadError
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.jsonl import read_jsonl, write_jsonl

PLAIN = {"id": "r", "arrival_s": 1.5, "prompt_tokens": 30, "output_tokens": 4, "max_tokens": 8}


def _file(folder: Path, *rows: object) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _message(path: Path) -> list[str]:
    with pytest.raises(WorkloadError) as caught:
        read_jsonl(path)
    return str(caught.value).replace(str(path), "requests.jsonl").splitlines()


def test_a_line_with_every_field_becomes_a_request(tmp_path: Path) -> None:
    row = {
        **PLAIN,
        "priority": -3,
        "tenant": "acme",
        "class": "chat",
        "cancel_at_s": 9.0,
        "queue_ttl_s": "500ms",
        "deadline_s": 7.0,
        "ttft_slo_s": 0.5,
        "tpot_slo_s": 0.05,
        "weight": 2.0,
        "lora": "A",
        "prefix_id": "sys",
        "prefix_tokens": 20,
        "session": "s1",
        "predicted_output_tokens": -7,
    }
    assert read_jsonl(_file(tmp_path, row)).requests == (
        WorkloadRequest(
            id="r",
            arrival_s=1.5,
            prompt_tokens=30,
            output_tokens=4,
            max_tokens=8,
            priority=-3,
            tenant="acme",
            request_class="chat",
            cancel_at_s=9.0,
            queue_ttl_s=0.5,
            deadline_s=7.0,
            ttft_slo_s=0.5,
            tpot_slo_s=0.05,
            weight=2.0,
            lora="A",
            prefix_id="sys",
            prefix_tokens=20,
            session="s1",
            predicted_output_tokens=-7.0,
        ),
    )


def test_what_a_line_leaves_out_or_sets_to_null_has_its_default(tmp_path: Path) -> None:
    row = {**PLAIN, "priority": None, "predicted_output_tokens": None}
    (found,) = read_jsonl(_file(tmp_path, row)).requests
    assert (found.priority, found.tenant, found.weight) == (0, "", 1.0)
    assert (found.ttft_slo_s, found.cancel_at_s) == (math.inf, math.inf)
    assert math.isnan(found.predicted_output_tokens)


def test_a_repeated_line_stands_for_many_of_which_every_third_is_cancelled(tmp_path: Path) -> None:
    row = {
        **PLAIN,
        "repeat": {"count": 5, "every_s": 0.25},
        "cancel_every": 3,
        "cancel_at_s": 8.0,
    }
    found = read_jsonl(_file(tmp_path, row)).requests
    assert [(r.id, r.arrival_s, r.cancel_at_s) for r in found] == [
        ("r-0000", 1.5, 8.0),
        ("r-0001", 1.75, math.inf),
        ("r-0002", 2.0, math.inf),
        ("r-0003", 2.25, 8.0),
        ("r-0004", 2.5, math.inf),
    ]
    row["cancel_every"] = 1
    assert {r.cancel_at_s for r in read_jsonl(_file(tmp_path, row)).requests} == {8.0}


def test_requests_are_sorted_by_arrival_and_ties_keep_the_order_of_the_file(
    tmp_path: Path,
) -> None:
    many = {**PLAIN, "id": "m", "repeat": {"count": 2, "every_s": 1}}
    path = _file(tmp_path, {**PLAIN, "id": "z", "arrival_s": 2.5}, many, {**PLAIN, "id": "a"})
    assert [r.id for r in read_jsonl(path).requests] == ["m-0000", "a", "z", "m-0001"]


def test_a_request_can_follow_another_be_held_back_and_need_encoder_space(
    tmp_path: Path,
) -> None:
    after = {**PLAIN, "id": "b", "arrival_after": {"id": "c", "gap_s": 1}}
    del after["arrival_s"]
    third = {**after, "id": "c", "arrival_after": {"id": "a"}}
    held = {**PLAIN, "id": "a", "ready_at_s": 3, "encoder_tokens": 100}
    found = read_jsonl(_file(tmp_path, after, third, held)).requests
    assert [(r.id, r.arrival_s, r.arrival_after, r.gap_s) for r in found] == [
        ("a", 1.5, "", 0.0),
        ("c", 0.0, "a", 0.0),
        ("b", 0.0, "c", 1.0),
    ]
    assert (found[0].ready_at_s, found[0].encoder_tokens) == (3.0, 100)


def test_requests_that_follow_in_a_row_come_one_by_one_behind_the_end(tmp_path: Path) -> None:
    after = {**PLAIN, "id": "b", "arrival_after": {"id": "r", "gap_s": 1}}
    after["repeat"] = {"count": 3, "every_s": 0.5}
    del after["arrival_s"]
    found = read_jsonl(_file(tmp_path, PLAIN, after)).requests
    assert [(r.id, r.gap_s) for r in found[1:]] == [("b-0000", 1), ("b-0001", 1.5), ("b-0002", 2)]


def test_one_that_follows_nobody_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="arrival_after is 'x', expected the id of a request"):
        read_jsonl(_file(tmp_path, {**PLAIN, "arrival_after": {"id": "x"}}))


def test_all_mistakes_come_at_once_with_their_lines_and_the_nearest_field(
    tmp_path: Path,
) -> None:
    found = _message(
        _file(
            tmp_path,
            PLAIN,
            {**PLAIN, "id": "b", "tenent": "x", "prompt_tokens": 0},
            {**PLAIN, "id": "c", "request_class": "chat"},
            {**PLAIN, "id": "d", "cancel_every": 2},
            {**PLAIN, "id": "e", "repeat": {"count": 0, "evry_s": 1}},
            {"id": "f"},
            PLAIN,
        )
    )
    near = "requests.jsonl:2: unknown key 'tenent'. Did you mean 'tenant'?"
    assert any(line.startswith(near) for line in found)
    assert "requests.jsonl:2: prompt_tokens is 0; expected a number greater than 0." in found
    assert any(line.startswith("requests.jsonl:3: unknown key 'request_class'") for line in found)
    assert any("requests.jsonl:4" in x and "needs repeat and cancel_at_s" in x for x in found)
    assert any("unknown key 'repeat.evry_s'. Did you mean 'every_s'?" in line for line in found)
    assert len(found) == 11
    assert found[-1] == "... and 2 more"


def test_an_id_that_is_used_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    assert _message(_file(tmp_path, PLAIN, {**PLAIN, "id": "x"}, PLAIN)) == [
        "requests.jsonl:3: id 'r' is used twice, first in line 1."
    ]


def test_a_file_without_requests_says_so(tmp_path: Path) -> None:
    assert _message(_file(tmp_path)) == [
        "requests.jsonl: the file has no requests; expected one a line"
    ]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_what_is_written_reads_the_same(tmp_path: Path, name: str) -> None:
    plain = WorkloadRequest(
        id="a", arrival_s=0.1 + 0.2, prompt_tokens=40, output_tokens=3, max_tokens=8
    )
    full = WorkloadRequest(
        id="b",
        arrival_s=1.0,
        prompt_tokens=40,
        output_tokens=3,
        max_tokens=8,
        priority=2,
        tenant="t",
        request_class="c",
        ttft_slo_s=1.0,
        tpot_slo_s=0.1,
        deadline_s=30.0,
        weight=3.0,
        session="s",
        prefix_blocks=(5, 6, 7),
        prefix_block_tokens=16,
        lora="A",
        queue_ttl_s=4.0,
        cancel_at_s=9.0,
        predicted_output_tokens=5.5,
        ready_at_s=1.5,
        encoder_tokens=7,
    )
    prefixed = WorkloadRequest(
        id="c",
        arrival_s=2.0,
        prompt_tokens=40,
        output_tokens=3,
        max_tokens=8,
        prefix_id="p",
        prefix_tokens=16,
    )
    follower = replace(plain, id="d", arrival_s=0.0, arrival_after="a", gap_s=0.5)
    workload = Workload(name, (plain, full, prefixed, follower))
    path = tmp_path / name
    write_jsonl(workload, path)
    found = read_jsonl(path)
    # NaN, a prediction that is missing, is not equal to itself.
    assert repr(found) == repr(workload)
    assert found.digest() == workload.digest()
    first = path.read_bytes()
    write_jsonl(workload, path)
    assert path.read_bytes() == first
    text = gzip.decompress(first) if name.endswith(".gz") else first
    assert json.loads(text.splitlines()[0]) == {
        "id": "a", "arrival_s": 0.1 + 0.2, "prompt_tokens": 40, "output_tokens": 3, "max_tokens": 8
    }  # fmt: skip
