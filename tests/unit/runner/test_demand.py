from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.runner.demand import demand
from batchpolicy.runner.table import RequestTable


def rows_of(computed: list[tuple[int, int, int]]) -> RequestTable:
    """Rows of prompt, output and computed tokens."""
    table = RequestTable()
    for i, (prompt, output, done) in enumerate(computed):
        table.add(f"r{i}", prompt_tokens=prompt, output_tokens=output, computed_tokens=done)
    return table


def test_a_decode_takes_a_token_and_a_block_when_its_last_one_is_full() -> None:
    rows = rows_of([(8, 1, 8), (8, 2, 9), (8, 8, 15)]).view()
    got = demand(rows, token_budget=100, block_tokens=8, decode_tokens=1, chunk=None)
    assert got.tokens.tolist() == [1, 1, 1]
    assert got.blocks.tolist() == [1, 0, 0]
    assert got.wanted == 3


def test_a_prefill_takes_its_prompt_or_a_chunk_of_it() -> None:
    rows = rows_of([(100, 0, 20), (100, 0, 90)]).view()
    whole = demand(rows, token_budget=200, block_tokens=16, decode_tokens=1, chunk=None)
    assert whole.tokens.tolist() == [80, 10]
    # 20 tokens lie in 2 blocks and 100 in 7; 90 in 6.
    assert whole.blocks.tolist() == [5, 1]
    chunked = demand(rows, token_budget=200, block_tokens=16, decode_tokens=1, chunk=32)
    assert chunked.tokens.tolist() == [32, 10]
    assert chunked.wanted == 42


def test_a_short_budget_goes_to_decodes_then_to_prefills_in_order() -> None:
    rows = rows_of([(50, 0, 0), (8, 2, 9), (30, 0, 10)]).view()
    got = demand(rows, token_budget=60, block_tokens=16, decode_tokens=3, chunk=None)
    assert got.tokens.tolist() == [50, 3, 7]
    assert got.wanted == 73
    less = demand(rows, token_budget=20, block_tokens=16, decode_tokens=3, chunk=None)
    assert less.tokens.tolist() == [17, 3, 0]
    assert less.blocks.tolist() == [2, 0, 0]


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, int, int]:
    prompt = draw(st.integers(1, 50))
    output = draw(st.integers(0, 20))
    return prompt, output, draw(st.integers(0, prompt + output))


@given(
    computed=st.lists(lives(), max_size=12),
    budget=st.integers(0, 120),
    block=st.integers(1, 16),
    decode=st.integers(1, 4),
    chunk=st.none() | st.integers(1, 40),
)
def test_demand_is_what_handing_out_tokens_row_by_row_gives(
    computed: list[tuple[int, int, int]], budget: int, block: int, decode: int, chunk: int | None
) -> None:
    rows = rows_of(computed).view()
    got = demand(rows, token_budget=budget, block_tokens=block, decode_tokens=decode, chunk=chunk)
    prefill = rows.prefill_tokens.tolist()
    wants = [decode if not p else p if chunk is None else min(p, chunk) for p in prefill]
    expected, left = [0] * len(computed), budget
    for decodes in (True, False):
        for i, want in enumerate(wants):
            if (prefill[i] == 0) == decodes:
                expected[i] = min(want, left)
                left -= expected[i]
    assert got.tokens.tolist() == expected
    assert got.wanted == sum(wants)
    blocks = [
        len(range(0, done + new, block)) - len(range(0, done, block))
        for (_, _, done), new in zip(computed, expected, strict=True)
    ]
    assert got.blocks.tolist() == blocks
    assert np.sum(got.tokens) <= budget
