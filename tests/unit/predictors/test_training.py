from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.errors import ConfigError, WorkloadError
from batchpolicy.predictor import LEVELS
from batchpolicy_predictors.model_file import read_model, write_model
from batchpolicy_predictors.training import boosting, evaluation, fit
from batchpolicy_predictors.training.examples import Examples, group_hash
from batchpolicy_predictors.training.generated import generated
from batchpolicy_predictors.training.judging import pinball, quality
from batchpolicy_predictors.training.train import split_of, train

pytest.importorskip("sklearn", reason="only training needs scikit-learn")
pytestmark = pytest.mark.slow


def trained(rows: Examples, folder: Path, share: float = 0.3) -> tuple[Path, Examples, Examples]:
    fitted, judged = split_of(rows, "auto", share, 0)
    path = folder / "made.bp"
    about = {"by": "group", "held_out": share, "seed": 0}
    write_model(train(rows, fitted, about, "CC0-1.0", lambda _: None), path)
    return path, fitted, judged


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Examples, Examples]:
    return trained(generated(1500, 3), tmp_path_factory.mktemp("made"))


def test_figures_by_hand() -> None:
    assert pinball(np.array([10.0, 20.0]), np.array([14.0, 10.0]), 0.9) == pytest.approx(
        (0.1 * 4 + 0.9 * 10) / 2
    )
    quantiles = np.tile(np.arange(10.0, 100.0, 10.0), (3, 1))
    found = quality(quantiles, np.array([25, 50, 1000]))
    # The median is 50, the 0.9 quantile 80.
    assert found.mae == pytest.approx((25 + 0 + 950) / 3)
    assert found.pinball_50 == pytest.approx(found.mae / 2)
    assert found.pinball_90 == pytest.approx((0.1 * 55 + 0.1 * 30 + 0.9 * 920) / 3)
    assert found.coverage_90 == pytest.approx(2 / 3)
    assert found.coverage[int(np.flatnonzero(LEVELS == 0.25)[0])] == pytest.approx(1 / 3)
    # 25 lies below 32, 50 from there to 64.
    assert found.bucket_accuracy == pytest.approx(1 / 3)
    assert found.document()["tau"] is None


def test_a_model_learns_what_templates_and_words_say(
    made: tuple[Path, Examples, Examples],
) -> None:
    path, fitted, judged = made
    found = evaluation.judged_after_training(path, fitted, judged).by_predictor
    model, history, blind = (
        found[name] for name in ("the model", "tenant-history", "without token ids")
    )
    assert model.tau > 0.6
    assert model.pinball_50 < 0.7 * history.pinball_50
    assert model.pinball_90 < 0.7 * history.pinball_90
    assert abs(model.coverage_90 - 0.9) < 0.05
    assert abs(blind.coverage_90 - 0.9) < 0.05
    assert blind.tau < 0.3


def test_the_card_says_where_it_comes_from(made: tuple[Path, Examples, Examples]) -> None:
    path, fitted, _ = made
    card = read_model(path).card
    assert card["data"][0]["sha256"] == fitted.sources[0].sha256
    assert card["licence"] == "CC0-1.0"
    assert card["rows"]["fitted"] == len(fitted)
    assert {"python", "numpy", "scikit-learn", "batchpolicy"} <= set(card["versions"])
    assert card["features"]["with_ids"]["importance"]["ngram_score"] > 0.1
    assert card["tokens"]["id_space"] == "generated"


def test_training_twice_makes_equal_files(tmp_path: Path) -> None:
    rows = generated(300, 4)
    files: list[bytes] = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        files.append(trained(rows, folder)[0].read_bytes())
    assert files[0] == files[1]


def test_no_word_of_a_prompt_enters_the_file(tmp_path: Path) -> None:
    rows = generated(300, 5)
    secret = "the launch code is 0000"
    rows = replace(rows, group=[f"{secret} {k}" for k in range(300)])
    path, fitted, _ = trained(rows, tmp_path)
    found = read_model(path)
    assert secret.encode() not in path.read_bytes()
    assert secret not in str(found.card)
    assert group_hash(fitted.group[0]) in found.groups.tolist()


def test_without_ids_the_model_is_the_plain_one(tmp_path: Path) -> None:
    rows = generated(400, 6)
    rows = replace(rows, arrivals=replace(rows.arrivals, prompt_ids=None))
    found = read_model(trained(rows, tmp_path)[0])
    assert found.with_ids is None
    assert found.uses_history  # there are tenants


def test_by_time_the_last_part_is_held_out_and_by_group_whole_groups() -> None:
    rows = replace(generated(200, 7), time_s=np.arange(200.0))
    fitted, judged = split_of(rows, "auto", 0.25, 0)
    assert fitted.time_s is not None
    assert judged.time_s is not None
    assert (fitted.time_s.max(), judged.time_s.min(), len(judged)) == (149.0, 150.0, 50)
    rows = replace(rows, group=[f"{k // 4}" for k in range(200)])
    fitted, judged = split_of(rows, "group", 0.25, 0)
    assert not set(fitted.group) & set(judged.group)


def test_too_few_rows_and_no_times_are_refused() -> None:
    with pytest.raises(WorkloadError, match="expected at least 50 and 10"):
        split_of(generated(40, 8), "auto", 0.2, 0)
    one = generated(400, 8)
    with pytest.raises(WorkloadError, match="Groups stay whole, and there are 1"):
        split_of(replace(one, group=["same"] * len(one)), "group", 0.2, 0)
    with pytest.raises(WorkloadError, match="--time-field"):
        split_of(generated(400, 8), "time", 0.2, 0)


def test_rows_of_the_training_count_only_where_they_were_held_out(
    made: tuple[Path, Examples, Examples],
) -> None:
    path, _, judged = made
    rows = generated(1500, 3)
    (found,) = evaluation.judged_model(path, rows, lambda _: None)
    assert found.rows == len(judged)
    # The same prompts with other answers: both parts are shown, each for itself.
    other = replace(rows, sources=[replace(rows.sources[0], sha256="0" * 64)])
    parts = evaluation.judged_model(path, other.take(np.arange(0, 1500, 5)), lambda _: None)
    assert [one.title for one in parts] == [
        "prompts that it was not trained on",
        "prompts that it was trained on, with other answers",
    ]
    assert sum(one.rows for one in parts) == 300


def test_ids_of_another_tokenizer_are_said_to_count_for_nothing(
    made: tuple[Path, Examples, Examples],
) -> None:
    path, _, judged = made
    foreign = replace(judged, arrivals=replace(judged.arrivals, id_space="words-1"))
    (found,) = evaluation.judged_model(path, foreign, lambda _: None)
    assert "count for nothing" in found.note
    blind, model = found.by_predictor["without token ids"], found.by_predictor["the model"]
    assert model.tau == blind.tau


def test_a_predictor_is_judged_by_its_name_too() -> None:
    rows = generated(300, 9)
    (found,) = evaluation.judged_by_name(
        "oracle", evaluation.made_by_name("oracle"), rows, lambda _: None
    )
    assert found.by_predictor["oracle"].mae == 0.0
    assert list(found.by_predictor)[1] == "tenant-history"


def test_without_scikit_learn_training_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    with pytest.raises(ConfigError, match=r"pip install 'batchpolicy\[predictors\]'"):
        boosting.library("sklearn.ensemble")


def test_errors_of_a_row_are_judged_by_those_of_other_folds() -> None:
    # One fold has errors of its own; for it nothing of them is known.
    fold = np.arange(100) % fit.FOLDS
    residuals = np.where(fold == 0, 50.0, np.linspace(0.0, 1.0, 100))
    found = fit._of_others(residuals, fold)  # pyright: ignore[reportPrivateUsage]
    assert found.shape == (100, len(LEVELS))
    assert (found[fold == 0] <= 1.0).all()
    # The others know it: a fourth of what they hear is 50.
    assert found[fold == 1][0, LEVELS >= 0.9].tolist() == [50.0, 50.0]
    alone = fit._of_others(residuals[fold == 0], fold[fold == 0])  # pyright: ignore[reportPrivateUsage]
    assert (alone == 50.0).all()


def test_training_says_what_the_history_was_worth(made: tuple[Path, Examples, Examples]) -> None:
    model = read_model(made[0])
    assert model.with_ids is not None
    weights = model.card["features"]["with_ids"]["weights_beside_history"]
    # Templates tell more than the six tenants that use them.
    assert min(weights) > 0.6
    assert model.lengths[4] == pytest.approx(np.median(made[1].output_tokens), rel=0.02)
    lost = model.with_ids.losses
    assert lost[-1, 4] < lost[0, 4]
