from __future__ import annotations

import numpy as np
import pytest

from batchpolicy_predictors.trees import Trees
from tests.support.small_model import no_trees, one_question


def slow(trees: Trees, row: np.ndarray) -> float:
    """Following each tree from its root."""
    total = 0.0
    for tree in range(len(trees)):
        node = 0
        while node < 7:
            above = row[trees.feature[tree, node]] > trees.threshold[tree, node]
            node = 2 * node + 1 + int(above)
        total += trees.value[tree, node - 7]
    return trees.start + total


def random_trees(seed: int, count: int) -> Trees:
    rng = np.random.default_rng(seed)
    feature = rng.integers(0, 5, (count, 8)).astype(np.int32)
    threshold = np.round(rng.normal(size=(count, 8)), 1).astype(np.float32)
    threshold[rng.random((count, 8)) < 0.2] = np.inf
    feature[:, 7], threshold[:, 7] = 0, np.inf
    return Trees(1.5, feature, threshold, rng.normal(size=(count, 8)))


@pytest.mark.parametrize("seed", range(5))
def test_all_at_once_they_say_what_following_each_says(seed: int) -> None:
    trees = random_trees(seed, 37)
    # Rounded, so that some features are their thresholds.
    rows = np.round(np.random.default_rng(seed).normal(size=(50, 5)), 1).astype(np.float32)
    found = trees.predict(rows)
    assert found == pytest.approx([slow(trees, row) for row in rows])
    # Bit for bit, alone or not.
    assert [trees.predict(rows[k : k + 1])[0] for k in range(50)] == found.tolist()


def test_one_question_by_hand_and_none() -> None:
    tree = one_question("turn", 2.0, no=10.0, yes=20.0, start=1.0)
    rows = np.zeros((3, 10), dtype=np.float32)
    rows[:, 3] = [1.0, 2.0, 3.0]
    assert tree.predict(rows).tolist() == [11.0, 11.0, 21.0]
    assert no_trees(4.0).predict(rows).tolist() == [4.0] * 3
    assert tree.predict(rows[:0]).tolist() == []


@pytest.mark.parametrize("depth_of_leaves", [1, 30])
def test_exported_they_say_what_scikit_learn_says(depth_of_leaves: int) -> None:
    pytest.importorskip("sklearn", reason="only training needs scikit-learn")
    from batchpolicy_predictors.training.boosting import exported, fitted, staged

    rng = np.random.default_rng(depth_of_leaves)
    rows = rng.normal(size=(400, 10)).astype(np.float32)
    rows[:, 4] = np.round(rows[:, 4])
    target = rows[:, 0] * (rows[:, 4] > 0) + 0.3 * rng.normal(size=400)
    ensemble = fitted(rows, target * depth_of_leaves, 50, 3)
    asked = np.concatenate([rows, rng.normal(size=(300, 10)).astype(np.float32)])
    assert exported(ensemble, 50).predict(asked) == pytest.approx(
        ensemble.predict(asked), rel=1e-12, abs=1e-12
    )
    some = staged(ensemble, asked, (0, 20))
    assert exported(ensemble, 20).predict(asked) == pytest.approx(some[1], rel=1e-12, abs=1e-12)
    assert exported(ensemble, 0).predict(asked) == pytest.approx(some[0])
