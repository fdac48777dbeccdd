from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

from batchpolicy import registry
from batchpolicy.cli import main
from batchpolicy.workload import Workload
from batchpolicy_tuning.aa import AgainstItself, holds, jittered, resampled
from batchpolicy_tuning.metrics import METRICS
from batchpolicy_tuning.statistics import Verdict, compare
from tests.support.serial_engine import request

METRIC = {metric.key: metric for metric in METRICS}
SERIAL = "tests.support.serial_engine:SerialEngine"


def test_jitter_moves_each_arrival_by_up_to_a_mean_gap_and_changes_nothing_else() -> None:
    workload = Workload("w", tuple(request(f"r{i}", 2.0 * i, 10 + i) for i in range(50)))
    moved = jittered(workload, (1, 2))
    assert moved == jittered(workload, (1, 2))
    assert moved != jittered(workload, (1, 3))
    before, after = ({r.id: r for r in w.requests} for w in (workload, moved))
    shifts = [after[id].arrival_s - r.arrival_s for id, r in before.items()]
    assert max(map(abs, shifts)) <= 2.0
    assert np.std(shifts) > 0.5
    assert all(after[id].prompt_tokens == r.prompt_tokens for id, r in before.items())


def test_a_repetition_pairs_two_different_runs_of_one_replication() -> None:
    values = np.array([[10.0 * k + run for run in range(3)] for k in range(7)])
    baseline, policy = resampled(values, 400, np.random.default_rng(0))
    assert baseline.shape == policy.shape == (20, 400)
    assert (baseline // 10 == policy // 10).all()
    assert (baseline != policy).all()
    pairs = {(int(b), int(p)) for b, p in zip(baseline.flat, policy.flat, strict=True)}
    assert len(pairs) == 7 * 3 * 2


@pytest.mark.parametrize(("key", "truth"), [("ttft.p99", 1.0), ("attainment", 0.0)])
def test_what_is_counted_is_what_a_comparison_says(key: str, truth: float) -> None:
    rng = np.random.default_rng(3)
    common = np.exp(rng.normal(size=(20, 60)))
    baseline, policy = (common * np.exp(0.2 * rng.normal(size=common.shape)) for _ in range(2))
    policy[:, :30] *= 1.2
    metric = METRIC[key]
    verdicts = [
        compare(baseline[:, k].tolist(), policy[:, k].tolist(), in_points=metric.in_points).verdict
        for k in range(60)
    ]
    shown = sum(verdict in (Verdict.BETTER, Verdict.WORSE) for verdict in verdicts)
    assert 0 < shown < 60
    assert holds((baseline, policy), truth, metric).ours == pytest.approx(1.0 - shown / 60)


def test_a_known_effect_is_held_and_another_is_not() -> None:
    rng = np.random.default_rng(4)
    common = np.exp(rng.normal(size=(20, 2000)))
    baseline, policy = (common * np.exp(0.1 * rng.normal(size=common.shape)) for _ in range(2))
    held = holds((baseline, 0.8 * policy), 0.8, METRIC["ttft.p99"])
    assert abs(held.ours - 0.95) < 0.0146  # three standard errors
    assert holds((baseline, 0.8 * policy), 1.0, METRIC["ttft.p99"]).ours < 0.01


@pytest.mark.slow
def test_the_bench_runs_on_any_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "aa", "--quick", "--json", "--engine", SERIAL]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["bench"], told["quick"]) == ("aa", True)
    what = {one["what"]: one for one in told["measurements"]}
    assert what["TTFT p99: false positives"]["goal"] == "4% to 6%"
    assert what["TTFT p99: coverage of 10% less"]["met"] in (True, False)
    assert "fcfs: replication 10 of 10" in err
    assert "serial 1" in told["notes"][0]


def test_an_engine_that_is_not_there_ends_in_2_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "aa", "--engine", "vlm", "--quick"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Did you mean 'vllm'?" in err


def test_benches_are_listed_and_one_that_cannot_run_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = EntryPoints(
        [
            EntryPoint("aa", "batchpolicy_tuning.aa:AgainstItself", registry.BENCHES),
            EntryPoint("far", "no_such_library:X", registry.BENCHES),
            EntryPoint("odd", "batchpolicy_tuning.aa:jittered", registry.BENCHES),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: found.select(**wanted))
    assert main(["bench", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["aa"]["summary"] == AgainstItself.summary
    assert "needs 'no_such_library'" in listed["far"]["error"]
    assert main(["bench"]) == 0
    assert "cannot be run here" in capsys.readouterr().out
    assert main(["bench", "odd"]) == 2
    assert "no subclass of Bench" in capsys.readouterr().err
    assert main(["bench", "odds"]) == 2
    assert "Did you mean 'odd'?" in capsys.readouterr().err
