from __future__ import annotations

from typing import Any

import pytest

from batchpolicy_tuning.document import document
from batchpolicy_tuning.page import forest
from tests.support.comparisons import QUEUE, Repeated, compared


@pytest.fixture(scope="module")
def at() -> dict[str, Any]:
    (load,) = document(compared(Repeated(QUEUE)))["loads"]
    return load


def _line(at: dict[str, Any], scope: int, label: str) -> forest.Line:
    (group,) = (group for group in forest.forests(at)[scope].groups if group.label == label)
    (line,) = group.lines
    return line


def test_a_gain_lies_right_of_the_middle_and_a_loss_left_at_the_same_scale(
    at: dict[str, Any],
) -> None:
    # The largest change is of 100 points, so that the axis goes from -100% to +100%.
    chat = _line(at, 0, "TTFT p50")
    assert (chat.verdict, chat.gain) == ("better", at_gain(at, 0))
    assert chat.mark is not None
    assert chat.mark.place == pytest.approx(50 + 50 * 1.0 / 1.6, abs=0.01)
    batch = _line(at, 1, "TTFT p50")
    assert batch.verdict == "worse"
    assert batch.mark is not None
    assert batch.mark.place == pytest.approx(50 - 50 * 0.05 / 1.5, abs=0.01)
    assert [text for _, text in forest.forests(at)[0].ticks] == [
        "\u2212100%", "\u221250%", "0", "+50%", "+100%",
    ]  # fmt: skip


def at_gain(at: dict[str, Any], scope: int) -> str:
    """What the terminal prints for TTFT p50."""
    metric = at["policies"][1]["scopes"][scope]["metrics"]["ttft.p50"]
    text: str = metric["against_baseline"]["text"]
    return text


def test_what_lies_beyond_the_axis_gets_an_arrow() -> None:
    against = {
        "relative_improvement": -3.0,
        "relative_interval": [-4.0, -0.5],
        "text": "-300% [-400, -50] worse",
        "mood": "worse",
        "verdict": "worse",
    }
    metric = {"label": "m", "unit": "seconds", "shown": True, "text": "8 s"}
    scope = {"heading": "all", "name": "all"}
    baseline = {"label": "a", "scopes": [{**scope, "metrics": {"m": metric}}]}
    other = {**metric, "against_baseline": against}
    policy = {"label": "b", "scopes": [{**scope, "metrics": {"m": other}}]}
    ((group,),) = (found.groups for found in forest.forests({"policies": [baseline, policy]}))
    mark = group.lines[0].mark
    assert mark == forest.Mark(0.0, 0.0, 37.5, beyond_low=True, beyond_high=False)


def test_the_matrix_has_a_row_for_each_class_winners_and_losers_alike(
    at: dict[str, Any],
) -> None:
    found = forest.matrix(at)
    assert [(row.label, row.scope) for row in found.rows] == [
        ("priority", "chat"), ("priority", "batch"), ("priority", "all requests"),
    ]  # fmt: skip
    column = found.metrics.index("TTFT p50")
    chat, batch, _ = (row.cells[column] for row in found.rows)
    assert (chat.mood, chat.text) == ("better", "+62%")
    assert (batch.mood, batch.text) == ("worse", "-3.3%")
    jain = found.metrics.index("Jain, tenants")
    assert [row.cells[jain].hint == "" for row in found.rows] == [True, True, False]


def test_gains_and_losses_are_told_side_by_side_in_the_order_of_the_classes(
    at: dict[str, Any],
) -> None:
    gains, pays = forest.sides(at["policies"][1])
    assert list(gains.changes) == ["chat"]
    assert list(pays.changes) == ["batch"]
    assert pays.changes["batch"][0] == "TTFT p50 3.3% higher (1.5 s to 1.55 s)"
