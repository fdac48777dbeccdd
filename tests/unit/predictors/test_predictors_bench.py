from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.cli import main
from batchpolicy.errors import ConfigError
from batchpolicy_predictors.training import bench, latency
from batchpolicy_predictors.training.bench import PredictorsBench
from batchpolicy_predictors.training.generated import generated

pytest.importorskip("sklearn", reason="only training needs scikit-learn")


def test_fifths_hold_each_row_out_once_and_differ_from_splitting_to_splitting() -> None:
    rows = generated(103, 1)
    found = bench._in_fifths(rows, 2)  # pyright: ignore[reportPrivateUsage]
    one, other = ([then.group for _, then in splitting] for splitting in found)
    for held in (one, other):
        assert sorted(g for part in held for g in part) == sorted(rows.group)
        assert {len(part) for part in held} == {20, 21}
    assert one != other


def test_made_up_rows_follow_their_seed() -> None:
    one, again, other = (generated(200, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.output_tokens, again.output_tokens)
    assert not np.array_equal(one.output_tokens, other.output_tokens)
    shorter = generated(2000, 1, shifted=True).output_tokens
    assert np.median(shorter) < np.median(generated(2000, 1).output_tokens)


def test_a_part_of_ascending_times() -> None:
    times = [float(k) for k in range(1, 101)]
    assert latency.percentile(times, 0.5) == 51.0
    assert latency.percentile(times, 0.99) == 100.0


def test_a_folder_without_the_texts_is_refused(tmp_path: Path) -> None:
    chosen = PredictorsBench()
    chosen.choose_workload(str(tmp_path))
    with pytest.raises(ConfigError, match="expected generated, or a folder with arena_hard"):
        chosen.run(lambda _: None, quick=True)


def texts(folder: Path) -> Path:
    """Files as the bench looks for them, small, in which prompts say nothing of lengths."""
    rng = np.random.default_rng(0)
    questions = [
        {"question_id": f"q{k}", "turns": [{"content": f"say {k} of {k % 7}"}]} for k in range(130)
    ]
    written: dict[str, list[dict[str, object]]] = {"arena_hard_v0.1_question.jsonl.gz": questions}
    for name in ("gpt-4-0314", "gpt-3.5-turbo-0125"):
        written[f"arena_hard_v0.1_{name}.jsonl.gz"] = [
            {
                "question_id": f"q{k}",
                "choices": [{"turns": [{"token_len": int(rng.lognormal(5.0, 1.0)) + 1}]}],
            }
            for k in range(130)
        ]
    for name, rows in written.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / name).write_bytes(gzip.compress(lines.encode()))
    teacher = [
        {"instruction": f"write {k}", "input": "", "response": "word " * int(rng.integers(1, 90))}
        for k in range(130)
    ]
    packed = gzip.compress(json.dumps(teacher).encode())
    (folder / "gpteacher_codegen_instruct.json.gz").write_bytes(packed)
    return folder


@pytest.mark.slow
def test_the_command_ends_with_a_report_though_a_predictor_falls_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(texts(tmp_path))
    assert main(["bench", "predictors", "--quick", "--quiet", "--workload", folder]) in (0, 4)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    said = " ".join(out.split())
    # Prompts say nothing, so that the model is not followed once a hundred answers are known.
    assert "tracked gradient-boosting says nothing of" in said
    assert "its figures are of the others" in said
    for stream in ("GPTeacher, in distribution", "from gpt-4 to gpt-3.5", "to GPTeacher"):
        assert stream in said


@pytest.mark.slow
def test_a_quick_run_names_every_kind_and_both_shifts() -> None:
    chosen = PredictorsBench()
    chosen.choose_workload("generated")
    report = chosen.run(lambda _: None, quick=True)
    costs, same, shifted = report.tables
    assert {"gradient-boosting", "tenant-history", "oracle", "tracked"} <= {
        r[0] for r in costs.rows
    }
    for table in (same, shifted):
        assert {"gradient-boosting", "tenant-history", "constant"} <= {
            row[0] for row in table.rows
        }
    figures = {one.what: one for one in report.measurements}
    better = [one.met for what, one in figures.items() if "pinball" in what]
    assert better == [True, True]
    assert "made-up prompts: within the .9 quantile after 500 answers" not in figures  # too few
    assert any("other templates" in what and "within" in what for what in figures)
