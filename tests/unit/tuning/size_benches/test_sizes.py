from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batchpolicy import registry
from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import ConfigError, WorkloadError
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sim import LightEngine
from batchpolicy_tuning.ratio import Ratio
from batchpolicy_tuning.saturation import Saturate, backlog
from batchpolicy_tuning.size_benches import setting
from batchpolicy_tuning.size_benches.arms import Arm, noisy_oracle, tau_of
from batchpolicy_tuning.size_benches.latencies import latencies, served
from batchpolicy_tuning.size_benches.setting import draws_at
from batchpolicy_tuning.size_benches.sizes import ARMS, FCFS, SizesBench
from batchpolicy_tuning.size_benches.tail import ARMS as TAIL_ARMS
from batchpolicy_tuning.size_benches.tail import BASELINE, OURS, TailBench
from batchpolicy_tuning.workloads.source import arrival_rate


def test_a_ratio_is_of_the_means_and_has_no_interval_where_there_are_few_pairs() -> None:
    found = Ratio.of([2.0, 4.0], [1.0, 3.0])
    assert (found.over, found.under, found.value) == (3.0, 2.0, 1.5)
    assert str(found) == "1.50x"
    assert Ratio.of([0.0], [0.0]).value == 1.0
    assert Ratio.of([3.0], [0.0]).value == np.inf
    many = Ratio.of([2.0 + k % 3 for k in range(12)], [1.0 + k % 2 for k in range(12)])
    assert many.low < many.value < many.high


def test_latencies_of_two_requests_on_one_seat_are_those_worked_out_by_hand() -> None:
    def request(name: str, output: int) -> WorkloadRequest:
        return WorkloadRequest(
            id=name, arrival_s=0.0, prompt_tokens=1, output_tokens=output, max_tokens=output
        )

    run = LightEngine().replay(
        Workload("two", (request("long", 2), request("short", 1))),
        None,
        EngineLimits(max_num_seqs=1, max_num_batched_tokens=16, kv_blocks=16),
        FormulaCost(base_s=1.0),
    )
    # A token a second: the first has its tokens at 1 and 2 s, the second at 3 s.
    found = latencies(run)
    assert found.per_token_s == pytest.approx((2 / 2 + 3 / 1) / 2)
    assert (found.mean_s, found.longest_wait_s) == pytest.approx((2.5, 3.0))
    assert (found.long_s, found.recomputed, found.tokens_per_s) == pytest.approx((2.0, 0.0, 1.0))


def test_workloads_that_orders_by_size_cannot_be_measured_on_are_refused(tmp_path: Path) -> None:
    def line(k: int, **more: int) -> str:
        row = {"id": f"r{k}", "arrival_s": 0.1 * k, "prompt_tokens": 20, "max_tokens": 90}
        return json.dumps({**row, "output_tokens": 50, **more}) + "\n"

    engine, path = registry.engine("light"), tmp_path / "w.jsonl"
    path.write_text("".join(line(k) for k in range(400)))
    with pytest.raises(WorkloadError, match="all answers have 50 tokens"):
        draws_at(engine, str(path), 1.0, seeds=2, requests=10)
    # Clients that would leave stay, so that latencies are of all.
    path.write_text(
        "".join(line(k, output_tokens=1 + k % 80, cancel_at_s=k // 9) for k in range(400))
    )
    draws = draws_at(engine, str(path), 1.0, seeds=2, requests=10)
    assert {r.cancel_at_s for w in draws.measured for r in w.requests} == {np.inf}
    (first, *_) = draws.measured[0].requests
    leaves = replace(first, id="leaves", output_tokens=80, cancel_at_s=first.arrival_s + 1e-3)
    never = Workload("never", (first, leaves))
    with pytest.raises(WorkloadError, match="1 of 2 requests did not finish"):
        served(engine, PolicyConfig(policy=PolicySpec(name="fcfs")), never)


def test_each_draw_has_the_load_that_is_asked_for_and_those_to_choose_on_are_others() -> None:
    engine = registry.engine("light")
    draws = draws_at(engine, "chats", 1.2, seeds=2, requests=200)
    assert (len(draws.measured), len(draws.told)) == (2, setting.TOLD)
    assert not {w.digest() for w in draws.told} & {w.digest() for w in draws.measured}
    for workload in draws.measured:
        queue = backlog([workload], setting.SEATS)
        saturated = Saturate(queue, setting.LIMITS, setting.COST, setting.SEED)(engine)
        assert arrival_rate([workload]) == pytest.approx(1.2 * saturated.requests_per_s)


def test_classes_tenants_and_targets_are_taken_off() -> None:
    draws = draws_at(registry.engine("light"), "chat-and-batch", 1.0, seeds=1, requests=200)
    for r in draws.measured[0].requests:
        assert (r.priority, r.tenant, r.request_class) == (0, "", "")
        assert np.isinf([r.ttft_slo_s, r.tpot_slo_s]).all()


def test_predictions_are_about_as_good_as_they_are_called() -> None:
    draws = draws_at(registry.engine("light"), "chats", 1.1, seeds=2, requests=400)
    for tau in (0.0, 0.3, 0.6, 1.0):
        assert tau_of(noisy_oracle(draws, tau), draws) == pytest.approx(tau, abs=0.07)


def test_fcfs_is_the_engines_own_and_the_others_have_an_end_to_waits() -> None:
    draws = draws_at(registry.engine("light"), "chats", 1.1, seeds=1, requests=100)
    assert len({arm.label for arm in ARMS}) == len(ARMS)
    for arm in ARMS:
        config = arm.config(draws, 7.5)
        policy = config.build_policy()
        bounded = config.bounds.max_wait_s == 7.5 or getattr(policy, "promote_s", None) == 7.5
        assert bounded == (arm != FCFS and arm.bounded)
        assert (policy.native_order() == "fcfs") == (arm == FCFS)
    assert Arm("shortest-first", 0.3, bounded=False).label == "shortest-first, tau 0.3, no bound"


def test_what_is_no_workload_is_refused() -> None:
    for bench in (SizesBench(), TailBench()):
        bench.choose_workload("chat-and-batsh")
        with pytest.raises(ConfigError, match="Did you mean 'chat-and-batch'"):
            bench.run(lambda told: None, quick=True)
        with pytest.raises(ConfigError, match="this bench measures 'light', not 'vllm'"):
            bench.choose_engine("vllm")


@pytest.mark.slow
def test_a_quick_run_of_sizes_has_all_orders_beside_fcfs() -> None:
    told: list[str] = []
    report = SizesBench().run(told.append, quick=True)
    assert [one.goal for one in report.measurements] == [">= 2.8x", "<= 1.2x", ">= 0.95x"] * 2
    (table,) = report.tables
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == [arm.label for arm in ARMS]
    assert rows["fcfs"]["times lower"] == "1.00x"
    assert float(rows["shortest-remaining, tau 1"]["times lower"][:-1]) > 1.2
    assert rows["shortest-first, tau 0.6"]["recomputed"] == "0%"
    assert len(told) == 1 + len(ARMS)


@pytest.mark.slow
def test_a_quick_run_of_tail_sweeps_the_boost_beside_shortest_remaining() -> None:
    bench = TailBench()
    bench.choose_workload("chats")
    report = bench.run(lambda told: None, quick=True)
    assert [one.goal for one in report.measurements] == ["<= 0.75x", "<= 1.1x"]
    (table,) = report.tables
    assert [row[0] for row in table.rows] == list(TAIL_ARMS)
    assert table.rows[0][0] == BASELINE
    assert OURS in TAIL_ARMS
    boosts = [row for row in table.rows if row[0].startswith("boosted-arrival")][:-1]
    means = [float(row[1].split()[0]) for row in boosts]
    # From the order of arrival to the shortest first the mean falls.
    assert means[0] > means[-1]


def test_all_whose_tails_are_compared_are_told_the_truth() -> None:
    for config in TAIL_ARMS.values():
        assert config.predictor is not None
        assert config.predictor.name == "oracle"
