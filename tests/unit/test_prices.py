from __future__ import annotations

import numpy as np

from batchpolicy.policies.benefit import Benefit
from batchpolicy.policy import Step, Work
from batchpolicy.prices import Prices
from batchpolicy.requests import Requests, Status
from batchpolicy.runner.table import RequestTable
from batchpolicy.testing import make_step
from batchpolicy.testing.data import rows_with

ENGINE = {"max_running": 10, "max_token_budget": 100, "total_kv_blocks": 50, "kv_block_tokens": 20}


def batch(n: int, computed: int) -> Requests:
    """``n`` running requests that hold so many tokens each."""
    table = RequestTable()
    for i in range(n):
        table.add(f"r{i}", computed_tokens=computed, status=int(Status.RUNNING))
    return rows_with(table, Status.RUNNING)


def step_of(running: Requests, index: int = 1) -> Step:
    return make_step(running=running, index=index, **ENGINE)


def compute(prices: Prices, step: Step, prefill: int, output: int) -> None:
    n = len(step.running)
    prices.on_computed(step.running, Work(np.full(n, prefill), np.full(n, output), 1, 0.1), step)


def test_nothing_in_use_leaves_every_price_at_its_floor() -> None:
    prices = Prices()
    assert (prices.time, prices.kv, prices.seats) == (0.01, 0.01, 0.01)


def test_a_price_is_the_fourth_power_of_the_part_in_use() -> None:
    prices = Prices(recent_steps=1e-9)
    # 5 of 10 seats, 800 of 1,000 tokens of KV; then 60 of 100 tokens of a step.
    running = batch(5, computed=160)
    compute(prices, step_of(running, index=1), prefill=11, output=1)
    compute(prices, step_of(running, index=2), prefill=0, output=1)
    floor, rest = 0.01, 0.99
    assert np.isclose(prices.seats, floor + rest * 0.5**4)
    assert np.isclose(prices.kv, floor + rest * 0.8**4)
    assert np.isclose(prices.time, floor + rest * 0.6**4)


def test_a_new_sample_counts_by_the_steps_that_it_stands_for() -> None:
    prices = Prices(recent_steps=30.0)
    compute(prices, step_of(batch(10, computed=0), index=10), prefill=0, output=1)
    # One step against 30, then 10 against 30.
    use = 1 / 31
    assert np.isclose(prices.seats, 0.01 + 0.99 * use**4)
    compute(prices, step_of(batch(10, computed=0), index=20), prefill=0, output=1)
    use += 10 / 40 * (1.0 - use)
    assert np.isclose(prices.seats, 0.01 + 0.99 * use**4)


def test_a_request_is_charged_for_tokens_token_steps_and_seats_to_its_end() -> None:
    table = RequestTable()
    table.add("r", prompt_tokens=300, max_tokens=50, predicted_output_tokens=40.0)
    step = step_of(batch(0, 0))
    # 340 tokens of 100 a step; 40 steps with 300 to 340 tokens of 1,000; 43 steps on one seat
    # of 10. All at the floor's price.
    expected = 0.01 * (340 / 100 + 40 * 320 / 1000 + 43 / 10)
    assert np.isclose(Prices().cost(table.view(), step), [expected])


def test_without_a_prediction_an_answer_is_as_long_as_answers_were_and_its_ceiling() -> None:
    ended = RequestTable()
    for i, tokens in enumerate((10, 30, 0)):
        ended.add(f"e{i}", output_tokens=tokens, status=int(Status.FINISHED))
    prices = Prices()
    prices.on_finished(ended.view())
    table = RequestTable()
    table.add("unknown", prompt_tokens=100, max_tokens=500)
    table.add("said to be 20", prompt_tokens=100, max_tokens=500, predicted_output_tokens=20.0)
    table.add("at most 5", prompt_tokens=100, max_tokens=5)
    table.add("said to be 5", prompt_tokens=100, max_tokens=500, predicted_output_tokens=5.0)
    cost = prices.cost(table.view(), step_of(batch(0, 0)))
    assert cost[0] == cost[1]
    assert cost[2] == cost[3]


def test_what_is_scarce_decides_between_requests_that_gain_the_same() -> None:
    table = RequestTable()
    for name, prompt, out in [("holds much for long", 500, 90), ("computes much", 900, 2)]:
        table.add(name, prompt_tokens=prompt, max_tokens=out, predicted_output_tokens=float(out))
    waiting = table.view()
    policy = Benefit(prices=Prices(recent_steps=1e-9), shortness={"weight": 0.0})  # type: ignore[arg-type]
    full = step_of(batch(2, computed=500))
    for index in (1, 2):
        compute(policy.prices, step_of(full.running, index), prefill=0, output=1)  # type: ignore[arg-type]
    benefit = policy.benefit(waiting, full)
    assert benefit[0] < benefit[1]
    busy = step_of(batch(2, computed=0))
    for index in (3, 4):
        compute(policy.prices, step_of(busy.running, index), prefill=50, output=0)  # type: ignore[arg-type]
    benefit = policy.benefit(waiting, busy)
    assert benefit[0] > benefit[1]


def test_one_request_that_gains_more_than_all_that_fit_before_it_goes_first() -> None:
    table = RequestTable()
    # Eight times the KV for six times the gain: the small one is denser.
    table.add("small", prompt_tokens=100, max_tokens=10, need_kv_blocks=5)
    table.add(
        "large", prompt_tokens=800, max_tokens=10, need_kv_blocks=40, arrival_s=99.0,
        ttft_slo_s=1.0,
    )  # fmt: skip
    waiting = table.view()
    policy = Benefit(prices=Prices())
    for free, tiers in ((44, [1, 0]), (45, None), (39, None)):
        step = make_step(waiting=waiting, cost=None, **(ENGINE | {"free_kv_blocks": free}))
        ranking = policy.rank(waiting, step)
        assert ranking.benefit[0] > ranking.benefit[1]
        assert (None if ranking.tier is None else ranking.tier.tolist()) == tiers
