from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from batchpolicy_tuning.tune.page import page
from batchpolicy_tuning.tune.records import Outcome
from batchpolicy_tuning.tune.result import Conclusion, StudyResult
from batchpolicy_tuning.tune.verdict_text import summary_of
from tests.support import pages
from tests.support.pages import HOSTILE, Elements
from tests.support.studies import MET, TRIALS, WAIT, study, targets, trial, unfinished


def _drawn(result: StudyResult) -> Elements:
    return Elements(page(result))


@pytest.fixture(scope="module")
def shown() -> Elements:
    return _drawn(study())


def _plot(found: Elements, title: str) -> dict[str, Any]:
    return next(plot for plot in found.plots() if plot["title"] == title)


def _traces(plot: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{one.get('name')} {one.get('yaxis', 'y')}": one for one in plot["data"]}


def _row(found: Elements, start: str) -> str:
    """What follows a text on the page."""
    return found.said().split(start, 1)[1][:400].strip()


def test_the_page_says_what_the_result_says(shown: Elements) -> None:
    told, said = study(), shown.said()
    for text in (
        *(line.strip() for line in told.summary),
        *(told.notes + told.targets + told.held_out_instances + told.search_instances),
        *(told.workload_sha256, told.storage, told.fingerprint["targets"]),
        *("light 1", "vllm 2", "3.12.0", "--max-running-requests 16", "5.5 requests/s"),
        *("batchpolicy tune evening.yaml", "seed 41", "search: trials: 9"),
    ):
        assert text in said


def test_history_tells_outcomes_apart_by_colour_and_shape_in_order(shown: Elements) -> None:
    traces = _traces(_plot(shown, "goodput by trial"))
    assert traces["feasible y"]["x"] == [0, 1, 7]
    assert traces["feasible y"]["y"] == [2.0, 3.0, 4.0]
    assert (traces["infeasible y"]["x"], traces["infeasible y"]["y"]) == ([2], [9.0])
    assert traces["pruned y"]["x"] == [6]
    # Without a value they stand in the strip below.
    assert traces["failed y2"]["x"] == [3]
    assert traces["timed out y2"]["x"] == [4]
    looks = [one["marker"] for one in traces.values() if "marker" in one]
    assert len({look["symbol"] for look in looks}) == len({look["color"] for look in looks}) == 5
    # 9.0 is infeasible, and never the best.
    assert traces["best so far y"]["x"] == [0, 1, 7, 7]
    assert traces["best so far y"]["y"] == [2.0, 3.0, 4.0, 4.0]
    assert traces["baseline y"]["y"] == [2.0, 2.0]


def test_the_best_so_far_of_what_is_to_be_low_falls(shown: Elements) -> None:
    traces = _traces(_plot(shown, "ttft.p99 by trial"))
    assert traces["best so far y"]["y"] == [8.0, 4.0, 4.0, 4.0]


def test_an_infeasible_trial_tells_the_target_that_bound(shown: Elements) -> None:
    traces = _traces(_plot(shown, "goodput by trial"))
    facts = traces["infeasible y"]["hovertext"][0]
    assert "bound by queue.max&lt;=60s: 61.2 s, 2.0% off" in facts
    assert "jain" not in facts
    assert "queue.max<=60s: 61.2 s, 2.0% off; and 1 more missed" in shown.texts
    assert "engine refused it" in traces["failed y2"]["hovertext"][0]
    assert "goodput is worse than in trial 1 in 2 of 2 after 2 of 2 slices" in shown.texts
    distance = _traces(_plot(shown, "Distance to the targets by trial"))
    assert distance["infeasible y"]["y"] == [pytest.approx(2.0)]
    # The farthest target of those that meet all: 0.95 is 5.6% above 0.9, and 30 s half of 60 s.
    assert distance["feasible y"]["y"] == [pytest.approx(-100.0 * 0.05 / 0.9, rel=1e-4)] * 3


def test_the_front_has_what_nothing_feasible_beats(shown: Elements) -> None:
    plot = _plot(shown, "ttft.p99 against goodput")
    assert (plot["data"][0]["x"], plot["data"][0]["y"]) == ([3.0, 4.0], [4.0, 5.0])
    labels = {one["text"][0] for one in plot["data"] if one["mode"] == "text"}
    assert labels == {"baseline", "trial 7 (winner)", "trial 1"}
    assert "On the front: trials 7 and 1." in shown.said()
    one = study(objectives=study().objectives[:1])
    assert "There is one objective, and so no front." in _drawn(one).said()


def test_losers_stand_beside_winners_with_their_intervals(shown: Elements) -> None:
    said = shown.said()
    assert re.search(
        r"goodput 2\.5 req/s trial 7 \(winner\) 3\.5 req/s \+40\.0% \[\+30\.0%, \+50\.0%\]"
        r" trial 1 1\.5 req/s -25\.0% \[-35\.0%, -15\.0%\]",
        said,
    )
    moods = [a.get("class") for _, a in shown.tags if str(a.get("class")).startswith("gain ")]
    assert moods == ["gain better", "gain worse", "gain better", "gain worse"]
    # On an axis to 50%: 40% is at nine tenths, -25% at a quarter.
    places = [a["x"] for tag, a in shown.tags if tag == "svg" and "x" in a]
    assert places[:2] == ["90.0%", "25.0%"]
    assert "trial 7 (winner) p = 0.004; trial 1 p = 0.004." in said


def test_classes_and_tenants_are_shown_with_losses(shown: Elements) -> None:
    # Attainment of trial n: 0.5 + 0.05 n of all requests, 0.9 - 0.02 n of chat.
    chat = _row(shown, "class chat 20")
    assert chat.startswith(
        "baseline 90.0% 250 ms no end - 12.5 s "
        "trial 7 (winner) 76.0% \u221214.0 250 ms no end - 12.5 s trial 1 88.0% \u22122.0"
    )
    assert _row(shown, "all requests 30").startswith(
        "baseline 50.0% 250 ms no end - 12.5 s trial 7 (winner) 85.0% +35.0"
    )
    moods = [a.get("class") for tag, a in shown.tags if tag == "span"]
    assert moods.count("worse") == moods.count("better") == 2
    assert _row(shown, "tenant acme 10").startswith("baseline - 250 ms")


def test_targets_say_how_each_setting_stands_to_them(shown: Elements) -> None:
    row = _row(shown, f"trial 7 (winner) trial 1 {WAIT}")
    # Of four trials measured to the end, one misses both and is bound by this.
    assert row.startswith("3 of 4 1 30 s, 50% to spare 30 s, 50% to spare")
    assert "jain>=0.9 3 of 4 0 95.00%, 6% to spare" in row


def test_slices_are_of_the_finalists_and_the_baseline_seen_and_held_out(shown: Elements) -> None:
    seen = _traces(_plot(shown, "goodput, in the search"))
    held = _traces(_plot(shown, "goodput, held out"))
    assert list(held) == ["baseline y", "trial 7 (winner) y", "trial 1 y"]
    assert seen["trial 7 (winner) y"]["y"] == [2.0, 6.0]
    assert seen["trial 7 (winner) y"]["x"] == ["trace, slice 0", "trace, slice 2"]
    assert held["baseline y"]["y"] == [1.25, 3.75]
    assert held["baseline y"]["x"] == ["trace, slice 1", "trace, slice 3"]
    assert len({one["line"]["dash"] for one in held.values()}) == 3
    layout = _plot(shown, "goodput, held out")["layout"]
    assert layout["xaxis"]["ticktext"] == ["slice 1", "slice 3"]


def test_importance_says_when_trials_are_too_few(shown: Elements) -> None:
    assert (
        "goodput, among 3 trials: too few trials: 3 were measured to the end, 20 are needed."
        in shown.said()
    )
    many = [
        trial(k, Outcome.FEASIBLE, float(k % 2), told=MET,
              parameters={"policy": "fcfs", "max_num_seqs": 16 if k % 2 else 8})
        for k in range(24)
    ]  # fmt: skip
    plot = _plot(_drawn(unfinished(many)), "goodput, among 24 trials")
    bars, chance = plot["data"]
    assert bars["y"] == ["max_num_seqs", "policy"]
    assert bars["x"] == pytest.approx([1.0, 0.0], abs=0.01)
    assert bars["x"][0] > chance["x"][0]
    assert bars["marker"]["color"] == ["--arm-1", "--rule"]


def test_parameters_are_shown_against_the_objective(shown: Elements) -> None:
    plot = _plot(shown, "benefit:lambda")
    assert plot["layout"]["xaxis"]["type"] == "log"
    assert _traces(plot)["feasible y"]["y"] == [3.0, 4.0]
    assert _plot(shown, "max_num_seqs")["layout"]["xaxis"]["categoryarray"] == ["8", "16"]


def test_nothing_feasible_shows_the_closest_and_the_binding_target() -> None:
    far = [
        trial(0, Outcome.INFEASIBLE, 5.0, told=targets(90.0, 0.95), origin="baseline"),
        trial(1, Outcome.INFEASIBLE, 3.0, told=targets(66.0, 0.89)),
    ]
    result = unfinished(far, conclusion=Conclusion.NOTHING_FEASIBLE, exit_code=3)
    found = _drawn(result.model_copy(update={"summary": summary_of(result, None)}))
    said = found.said()
    assert "Nothing feasible in 2 trials. Exit code 3." in said
    assert "trial 1 (closest in the search)" in said
    assert "queue.max<=60s: 66 s, 10.0% off (binding)" in said
    assert f"{WAIT} (binding)" in said
    assert "no trial met all targets in the search" in said
    assert "No feasible trial, and so no front." in said
    distance = _traces(_plot(found, "Distance to the targets by trial"))
    assert distance["closest so far y"]["y"] == [50.0, 10.0, 10.0]


def test_a_study_without_trials_targets_or_results_has_a_page() -> None:
    found = _drawn(unfinished((), targets=(), flags={}))
    assert "No trial has ended yet." in found.said()
    assert "The study has no targets." in found.said()
    failed = _drawn(unfinished([one for one in TRIALS if not one.values], targets=()))
    assert "engine refused it" in failed.texts
    assert "Not at its end." in failed.said()


def test_what_is_shown_is_in_the_file(shown: Elements) -> None:
    again = StudyResult.model_validate_json(study().model_dump_json())
    assert page(again) == page(study())


def test_plotly_knows_all_that_the_plots_ask_for(shown: Elements) -> None:
    pages.assert_known_to_plotly(shown)


def test_nothing_is_asked_for_outside_and_only_its_own_scripts_may_run(shown: Elements) -> None:
    pages.assert_asks_for_nothing(shown)


def _hostile() -> StudyResult:
    """The study with a hostile text in every name."""
    text = study().model_dump_json()
    spoilt = json.dumps(f"{HOSTILE} %{{x}}")[1:-1]
    for name in ("chat", "acme", "trace", "benefit", "engine refused it", "evening", "light 1"):
        text = text.replace(name, name + spoilt)
    return StudyResult.model_validate_json(text)


def test_names_are_text_wherever_they_come() -> None:
    found = _drawn(_hostile())
    pages.assert_names_are_text(found)
    for name in ("chat", "acme", "evening", "engine refused it"):
        assert name + HOSTILE in found.said()


@pytest.mark.slow
@pytest.mark.parametrize("result", [study(), _hostile(), unfinished(())])
def test_a_browser_draws_every_plot_offline_and_without_errors(
    result: StudyResult, tmp_path: Path
) -> None:
    pages.assert_drawn_in_a_browser(page(result), tmp_path)
