from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchpolicy.cli import main
from batchpolicy.config import load_config
from batchpolicy.engine import EngineLimits
from batchpolicy.wrappers.regimes import Regimes
from batchpolicy_tuning.tune.regimes import mean_load
from batchpolicy_tuning.tune.result import FILE, Conclusion, read_result

STUDY = """\
apiVersion: batchpolicy/v1
kind: Study
workloads: [{workload: chat-and-batch, load: LOAD, slices: 2, held_out: 8, requests: 60}]
limits: {max_num_seqs: 8, max_num_batched_tokens: TOKENS}
targets: [ttft.p99<=600s]
policies: [priority]
space: {policies: {fcfs: }, limits: {max_num_seqs: [4, 8]}}
search: {trials: 2}
finalists: {count: 1}
"""


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies that were run, in the folders ``low`` and ``peak``."""
    folder = tmp_path_factory.mktemp("studies")
    for name, load, tokens in (("low", 0.4, 256), ("peak", 2.0, 512)):
        path = folder / f"{name}.yaml"
        path.write_text(STUDY.replace("LOAD", str(load)).replace("TOKENS", str(tokens)))
        main(["tune", str(path), "--out", str(folder / name), "-q"])
        # Which of them wins is not the point here.
        result = read_result(folder / name)
        won = {"winner": result.trials[0].number, "conclusion": Conclusion.KEEP_BASELINE}
        _write(folder / name, won)
    return folder


def _write(folder: Path, changes: dict[str, Any]) -> None:
    result = read_result(folder).model_copy(update=changes)
    (folder / FILE).write_text(result.model_dump_json())


def _join(folder: Path, *studies: str, safe: str = "") -> int:
    given = [f"{name}={folder / where}" for name, _, where in (s.partition("=") for s in studies)]
    more = ["--safe", safe] if safe else []
    return main(["tune", "regimes", *given, "-o", str(folder / "regimes.yaml"), *more])


def test_winners_become_rows_of_one_file(
    studies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _join(studies, "low=low", "peak=peak") == 0
    told = capsys.readouterr().out
    assert "Start vLLM with --max-num-seqs 8 --max-num-batched-tokens 512" in told
    policy = load_config(studies / "regimes.yaml").build_policy()
    assert isinstance(policy, Regimes)
    low, peak = policy.rows
    # The last is the safe one; the first is cut to the tokens that it was tuned with.
    assert (low.name, low.above, low.max_num_batched_tokens) == ("low", 0.0, 256)
    assert (peak.name, peak.differs, policy.safe.max_num_batched_tokens) == ("peak", False, None)
    assert 0.05 < peak.above < 5.0


def test_another_row_may_be_the_safe_one(studies: Path) -> None:
    assert _join(studies, "low=low", "peak=peak", safe="low") == 0
    policy = load_config(studies / "regimes.yaml").build_policy()
    assert isinstance(policy, Regimes)
    assert policy.safe.max_num_batched_tokens == 256
    assert [row.differs for row in policy.rows] == [False, True]


@pytest.mark.parametrize(
    ("given", "safe", "said"),
    [
        (["peak=peak", "low=low"], "", ["load: peak was tuned at 2 and low after it at 0.4"]),
        (["low=low"], "", ["expected two or more"]),
        (["a=low", "a=peak"], "b", ["'a' is given twice", "--safe 'b' is none of a, a"]),
        (["low", "peak=peak"], "", ["expected NAME=DIR"]),
        (["low=nowhere", "peak=peak"], "", ["nowhere"]),
    ],
)
def test_studies_that_do_not_go_together_are_refused(
    studies: Path, capsys: pytest.CaptureFixture[str], given: list[str], safe: str, said: list[str]
) -> None:
    if given[0] == "low":
        assert main(["tune", "regimes", *given, "-o", str(studies / "r.yaml")]) == 2
    else:
        assert _join(studies, *given, safe=safe) == 2
    told = capsys.readouterr().err
    assert all(one in told for one in said)


def test_what_an_engine_starts_with_has_to_be_the_same(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = read_result(studies / "peak")
    (tmp_path / FILE).write_text(
        result.model_copy(
            update={"study": {**result.study, "profile": "other", "engine": "vllm"}}
        ).model_dump_json()
    )
    assert _join(studies, "low=low", f"peak={tmp_path}") == 2
    told = capsys.readouterr().err
    assert "profile: low was tuned for h100-llama-3.1-8b, peak for other" in told
    assert "engine: low was tuned for light, peak for vllm" in told


def test_a_study_without_a_winner_is_refused(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"winner": None, "conclusion": Conclusion.NOTHING_FEASIBLE}
    result = read_result(studies / "peak").model_copy(update=changes)
    (tmp_path / FILE).write_text(result.model_dump_json())
    assert _join(studies, "low=low", f"peak={tmp_path}") == 2
    assert "nothing feasible, so that there is nothing to deploy" in capsys.readouterr().err


def test_the_mean_load_is_that_of_what_lives_over_time() -> None:
    requests = tuple(SimpleNamespace(arrival_s=float(t), prompt_tokens=100) for t in (0, 0, 10))
    run: Any = SimpleNamespace(
        workload=SimpleNamespace(requests=requests),
        finished_s=np.array([5.0, 20.0, 12.0]),
        first_token_s=np.array([1.0, 6.0, 11.0]),
        output_tokens=np.array([10, 50, 9]),
        end_s=20.0,
    )
    seats = EngineLimits(max_num_seqs=3, max_num_batched_tokens=64, kv_blocks=10_000)
    # From 0 to 10 s: one for 5 s, one for all of it.
    assert math.isclose(mean_load(run, seats), 1.5 / 3)
    kv = EngineLimits(max_num_seqs=300, max_num_batched_tokens=64, kv_blocks=10)
    # 100 tokens for 15 s, 5 more for 4 s, 25 more for 4 s; of 160.
    assert math.isclose(mean_load(run, kv), (1500 + 20 + 100) / 10 / 160)


def test_a_study_that_is_not_here_or_has_changed_is_told_with_what_to_do(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = read_result(studies / "peak")
    for file, said in (
        (tmp_path / "moved.yaml", "is not here; expected this command where tune ran"),
        (tmp_path / "other.yaml", "has changed since, in objectives; tune it again"),
    ):
        changed = Path(result.file).read_text() + "objectives: [throughput]\n"
        (tmp_path / "other.yaml").write_text(changed)
        (tmp_path / FILE).write_text(
            result.model_copy(update={"file": str(file)}).model_dump_json()
        )
        assert _join(studies, "low=low", f"peak={tmp_path}") == 2
        assert said in capsys.readouterr().err
