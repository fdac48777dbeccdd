from __future__ import annotations

import numpy as np

from batchpolicy.runner.losses import recomputed_tokens, would_be_late
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step


def test_what_is_in_the_blocks_that_are_freed_is_computed_again() -> None:
    table = RequestTable()
    table.add("alone", computed_tokens=40)
    # Two of its three blocks are somebody else's as well.
    table.add("shares", computed_tokens=40)
    table.add("all shared", computed_tokens=40)
    loses = recomputed_tokens(table.view(), np.array([3, 1, 0]), block_tokens=16)
    assert loses.tolist() == [40, 16, 0]


def late(step_s: float = 0.1, **facts: float) -> bool:
    """Whether a row that would compute 1,024 tokens again is late, at 100 s."""
    table = RequestTable()
    table.now_s = 100.0
    table.add("row", **facts)
    # 2,048 tokens a step: 1,024 of them take half of one, and the next token another.
    step = make_step(now_s=100.0, step_s=step_s)
    return bool(would_be_late(table.view(), np.array([1024]), step)[0])


def test_a_row_whose_slack_is_less_than_what_it_would_compute_again_would_be_late() -> None:
    decoding = {"first_token_s": 90.0, "output_tokens": 101, "tpot_slo_s": 0.1}
    # The next token is due at 100.1 s, and would come at 100.15 s.
    assert late(**decoding)
    assert not late(**decoding | {"output_tokens": 102})
    assert not late(step_s=0.05, **decoding)


def test_who_is_late_already_or_has_no_target_is_spared_nothing() -> None:
    assert not late(first_token_s=90.0, output_tokens=99, tpot_slo_s=0.1)
    assert not late(first_token_s=90.0, output_tokens=101)
    assert not late(step_s=float("nan"), first_token_s=90.0, output_tokens=101, tpot_slo_s=0.1)


def test_the_first_token_and_the_deadline_of_the_answer_count() -> None:
    assert late(arrival_s=99.0, ttft_slo_s=1.1)
    assert not late(arrival_s=99.0, ttft_slo_s=1.2)
    # 10 tokens are to come, of 0.1 s each: 0.1 s are to spare.
    rest = {"output_tokens": 20, "predicted_output_tokens": 30.0, "first_token_s": 90.0}
    assert late(deadline_s=101.1, **rest)
    assert not late(deadline_s=101.2, **rest)
