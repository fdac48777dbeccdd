"""The bench of victims ends, and says who pays."""

from __future__ import annotations

import pytest

from batchpolicy import registry
from batchpolicy.config import PolicyConfig, PolicySpec
from batchpolicy.engine import EngineLimits
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.victims import ARMS, LatestGoes, VictimChoice, values, workload


def test_workloads_are_the_same_whenever_they_are_drawn() -> None:
    assert workload(3, 20) == workload(3, 20)
    assert workload(3, 20) != workload(4, 20)


def test_a_policy_that_gives_up_the_latest_can_be_named() -> None:
    (latest,) = {
        arm.config.policy.name for arm in ARMS if arm.config and ":" in arm.config.policy.name
    }
    assert isinstance(PolicyConfig(policy=PolicySpec(name=latest)).build_policy(), LatestGoes)


def test_recomputation_is_told_in_parts_of_the_tokens() -> None:
    # Two of 20 prompt and 30 output tokens in 6 blocks: the second is preempted once.
    requests = tuple(
        WorkloadRequest(id=name, arrival_s=0.0, prompt_tokens=20, output_tokens=30, max_tokens=30)
        for name in ("a", "b")
    )
    limits = EngineLimits(max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=6)
    run = registry.engine("light").replay(
        Workload("two", requests), None, limits, FormulaCost(base_s=1.0)
    )
    found = values(run)
    assert run.preemptions.tolist() == [0, 1]
    # Both hold 3 blocks, for 48 tokens, when the first wants its 49th.
    assert run.recomputed_tokens.tolist() == [0, 48]
    assert found["recompute"] == 48.0
    assert (found["preempted"], found["most"]) == (50.0, 1.0)
    assert found["ttft"] == 1.0


@pytest.mark.slow
def test_every_arm_is_held_against_its_baseline() -> None:
    bench = VictimChoice()
    bench.choose_engine("light")
    told: list[str] = []
    report = bench.run(told.append, quick=True)
    assert len(told) == len(ARMS)
    assert [one.what for one in report.measurements][:4] == [
        "victims alone",
        "victims, where admission looks ahead",
        "victims and look-ahead against the engine",
        "the default policy against the engine",
    ]
    means, changes = report.tables
    assert [row[0] for row in means.rows] == [arm.name for arm in ARMS]
    for table in (means, changes):
        assert {len(row) for row in table.rows} == {len(table.columns)}
