from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchpolicy.cli import main
from tests.support.small_model import saved

pytest.importorskip("sklearn", reason="only training needs scikit-learn")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Answers whose prompts tell their lengths."""
    path = tmp_path / "data.jsonl"
    rows = [
        {"instruction": f"{'count' if k % 2 else 'explain'} thing {k} of {k % 7}",
         "response": "word " * ((5 if k % 2 else 60) + k % 5)}
        for k in range(300)
    ]  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.slow
def test_train_writes_a_model_and_eval_judges_it(data: Path, capsys: Capture) -> None:
    command = ["predictor", "train", "--data", "data.jsonl", "-o", "m.bp", "--licence", "MIT"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "tenant-history" in out
    assert "hashed words" in out
    told = " ".join(out.split())
    assert "serves as the row without token ids says" in told
    assert "predictor: {name: tracked, inner: {name: gradient-boosting, model: m.bp}}" in told
    assert err.splitlines()[-1] == "wrote m.bp"
    assert main(["predictor", "eval", "m.bp", "--data", "data.jsonl", "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    (judged,) = told["judged"]
    figures = judged["predictors"]["the model"]
    assert figures["tau"] > 0.5
    assert figures["pinball_50"] < judged["predictors"]["tenant-history"]["pinball_50"]
    assert err == ""
    assert main(["predictor", "show", "m.bp"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["licence"] == "MIT"
    assert card["metrics"]["the model"]["rows"] == judged["rows"]
    assert card["data"][0]["name"] == "data.jsonl"


def test_a_page_shows_the_calibration(data: Path, capsys: Capture) -> None:
    pytest.importorskip("plotly", reason="an extra of its own")
    saved(data.parent)
    command = ["predictor", "eval", "small.bp", "--data", "data.jsonl", "--html", "page.html"]
    assert main(command) == 0
    page = (data.parent / "page.html").read_text()
    assert "level of the quantile" in page
    assert "plot-0" in page
    assert "tenant-history" in page
    assert "count for nothing" in page  # hashed words are not the ids of an engine
    assert "wrote page.html" in capsys.readouterr().err


def test_a_name_is_judged_from_a_cold_start(data: Path, capsys: Capture) -> None:
    assert main(["predictor", "eval", "template-neighbours", "--data", "data.jsonl"]) == 0
    assert "template-neighbours" in capsys.readouterr().out


def test_rows_of_which_nothing_is_said_are_told_and_only_where_there_are_any(
    data: Path, capsys: Capture
) -> None:
    pytest.importorskip("plotly", reason="an extra of its own")
    (data.parent / "mine.py").write_text(
        "import numpy as np\n"
        "from batchpolicy.predictor import LengthDist, Predictor\n\n\n"
        "class Mine(Predictor):\n"
        "    def predict(self, batch):\n"
        "        odd = np.array([int(i) % 3 == 0 for i in batch.request_id])\n"
        "        return LengthDist.exactly(np.where(odd, np.nan, 9.0))\n"
    )
    note = "mine.py:Mine says nothing of 100 of the 300 rows; its figures are of the others."
    command = ["predictor", "eval", "mine.py:Mine", "--data", "data.jsonl", "-q"]
    assert main([*command, "--html", "page.html"]) == 0
    assert note in " ".join(capsys.readouterr().out.split())
    assert note in (data.parent / "page.html").read_text()
    assert main([*command, "--json"]) == 0
    (judged,) = json.loads(capsys.readouterr().out)["judged"]
    silent = {name: one["silent"] for name, one in judged["predictors"].items()}
    assert silent["mine.py:Mine"] == 100
    assert set(silent.values()) == {0, 100}
    assert judged["note"] == note
    assert main(["predictor", "eval", "tenant-history", "--data", "data.jsonl", "-q"]) == 0
    assert "says nothing" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("1 / 0", "failed: ZeroDivisionError: division by zero (mine.py, line 7)"),
        ("np.ones((1, 9))", "predict returned ndarray, expected a LengthDist"),
        ("LengthDist(np.ones(3))", "quantiles of shape (3,), expected (1, 9)"),
        ("LengthDist(np.full((1, 9), np.inf))", "quantiles that are no numbers"),
    ],
)
def test_a_predictor_that_fails_is_told_in_a_line(
    data: Path, capsys: Capture, returned: str, said: str
) -> None:
    (data.parent / "mine.py").write_text(
        "import numpy as np\n"
        "from batchpolicy.predictor import LengthDist, Predictor\n\n\n"
        "class Mine(Predictor):\n"
        "    def predict(self, batch):\n"
        f"        return {returned}\n"
    )
    assert main(["predictor", "eval", "mine.py:Mine", "--data", "data.jsonl", "-q"]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert "check_predictor" in told


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train", "--data", "data.jsonl", "-o", "m.txt"], "a model's file ends in .bp"),
        (["train", "--data", "data.jsonl", "-o", "no/m.bp"], "no folder"),
        (["train", "--data", "none.jsonl", "-o", "m.bp"], "none.jsonl: no such file"),
        (["train", "--data", "data.jsonl", "-o", "m.bp", "--split", "tim"], "none of auto, group"),
        (["train", "--data", "data.jsonl", "-o", "m.bp", "--held-out", "20"], "write 20%"),
        (["train", "--data", "data.jsonl", "-o", "/proc/m.bp"], "'/proc' takes no file"),
        (["eval", "none.bp", "--data", "data.jsonl"], "none.bp: no such model file"),
        (["eval", "tenant-histori", "--data", "none.jsonl"], "Did you mean 'tenant-history'?"),
        (["eval", "data.jsonl", "--data", "data.jsonl"], "data.jsonl: no model file"),
        (["show", "data.jsonl"], "data.jsonl: no model file"),
        (["eval", "constant", "--data", "data.jsonl"], "output_tokens is missing"),
    ],
)
def test_mistakes_end_with_2_and_say_what_to_do(
    data: Path, capsys: Capture, command: list[str], expected: str
) -> None:
    assert main(["predictor", *command]) == 2
    assert expected in capsys.readouterr().err
    assert not (data.parent / "m.bp").exists()
