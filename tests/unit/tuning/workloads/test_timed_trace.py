from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.errors import WorkloadError
from batchpolicy_tuning.workloads.ticks import spread
from batchpolicy_tuning.workloads.timed_trace import TimedTrace, read_timed_trace


def _row(timestamp: object, prompt: object, output: object, ids: object = None) -> str:
    row = {"timestamp": timestamp, "input_length": prompt, "output_length": output}
    return json.dumps(row if ids is None else {**row, "hash_ids": ids})


def _read(folder: Path, *lines: str) -> TimedTrace:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return read_timed_trace(path)


def _message(folder: Path, *lines: str) -> list[str]:
    with pytest.raises(WorkloadError) as caught:
        _read(folder, *lines)
    return str(caught.value).replace(str(folder / "trace.jsonl"), "trace.jsonl").splitlines()


def test_whole_timestamps_are_milliseconds_and_512_tokens_a_block(tmp_path: Path) -> None:
    found = _read(tmp_path, _row(3000, 1024, 5, [0, 1]), _row(6001, 1025, 9, [0, 1, 2]))
    first, second = found.trace.workload.requests
    assert (found.whole_ms, found.block_tokens) == (True, 512)
    assert (first.arrival_s, second.arrival_s) == (0.0, 3.001)
    assert (second.prompt_tokens, second.output_tokens, second.max_tokens) == (1025, 9, 16)
    assert (second.prefix_blocks, second.prefix_block_tokens) == ((0, 1, 2), 512)


def test_timestamps_with_fractions_are_seconds_and_blocks_may_be_of_16(tmp_path: Path) -> None:
    # As in the traces of Qwen's servers, with more keys; the cut block has an id or none.
    rows = [
        _row(61, 40, 5, [7, 8, 9]).replace("{", '{"chat_id": 159, "turn": 1, ', 1),
        _row(61.5, 40, 5, [7, 8]),
    ]
    found = _read(tmp_path, *rows)
    assert (found.whole_ms, found.block_tokens) == (False, 16)
    assert [r.arrival_s for r in found.trace.workload.requests] == [0.0, 0.5]


def test_without_hash_ids_prompts_share_nothing(tmp_path: Path) -> None:
    found = _read(tmp_path, _row(0.5, 1000, 5), _row(1, 10, 0), _row(2, 10, 1, []))
    assert found.block_tokens == 0
    assert found.trace.dropped == 1
    assert [r.prefix_blocks for r in found.trace.workload.requests] == [(), ()]


def test_hash_ids_that_fit_no_size_of_block_are_refused(tmp_path: Path) -> None:
    assert _message(tmp_path, _row(0, 1024, 5, [0, 1]), _row(1, 1024, 5, [0, 1, 2])) == [
        "trace.jsonl:2: 3 hash_ids for 1024 tokens; expected one for each 512 or 16 of them, "
        "the same in all lines."
    ]


def test_garbled_lines_are_named_all_at_once(tmp_path: Path) -> None:
    found = _message(
        tmp_path,
        _row(5, 10, 5),
        '{"a" 1}',
        "[1]",
        _row("now", 0, -1),
        _row(True, 1.5, 1, ["a"]),
        '{"timestamp": 1, "timestamp": 2}',
        '{"timestamp": 7, "input_length": 3}',
        _row(4, 10, 5),
    )
    assert found == [
        "trace.jsonl:2: not JSON: Expecting ':' delimiter at column 6.",
        "trace.jsonl:3: the line is a list; expected an object.",
        "trace.jsonl:4: timestamp is 'now'; expected a number.",
        "trace.jsonl:4: input_length is 0; expected a number greater than 0.",
        "trace.jsonl:4: output_length is -1; expected a number greater than or equal to 0.",
        "trace.jsonl:5: timestamp is true; expected a number.",
        "trace.jsonl:5: input_length is 1.5; expected an integer.",
        "trace.jsonl:5: hash_ids[0] is 'a'; expected an integer.",
        "trace.jsonl:6: key 'timestamp' is set twice.",
        "trace.jsonl:7: output_length is missing.",
        "... and 1 more",
    ]


def test_a_spread_tick_is_even_in_order_and_ends_where_the_next_begins() -> None:
    ticks_s = np.repeat([0.0, 3.0, 5.0], [2000, 1000, 1000])
    arrivals_s = spread(ticks_s, seed=0)
    assert np.all(np.diff(arrivals_s) >= 0.0)
    for tick_s, lasts_s, within in (
        (0.0, 3.0, arrivals_s[:2000]),
        (3.0, 2.0, arrivals_s[2000:3000]),
    ):
        assert tick_s <= within.min() and within.max() < tick_s + lasts_s
        # An even draw over a second has mean 1/2 and standard deviation sqrt(1/12).
        evenly = (within - tick_s) / lasts_s
        assert evenly.mean() == pytest.approx(0.5, abs=4 * 0.2887 / 1000**0.5)
        assert evenly.std() == pytest.approx(0.2887, rel=0.05)
    # The last one lasts as long as the median of the others: 2.5 s.
    assert 7.4 < arrivals_s[-1] < 7.5
    assert np.array_equal(spread(ticks_s, seed=0), arrivals_s)
    assert not np.array_equal(spread(ticks_s, seed=1), arrivals_s)


def test_a_single_tick_has_no_time_to_spread_over() -> None:
    assert spread(np.array([2.0, 2.0]), seed=0).tolist() == [2.0, 2.0]


@pytest.mark.shared
def test_the_mooncake_trace_shares_a_third_of_its_blocks(
    shared_trace: Callable[[str], Path],
) -> None:
    found = read_timed_trace(shared_trace("mooncake_conversation.jsonl.gz"))
    assert (found.whole_ms, found.block_tokens, found.trace.dropped) == (True, 512, 0)
    blocks = [b for r in found.trace.workload.requests for b in r.prefix_blocks]
    assert 1 - len(set(blocks)) / len(blocks) == pytest.approx(0.366, abs=0.001)
