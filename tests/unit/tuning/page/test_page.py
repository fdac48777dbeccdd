from __future__ import annotations

import builtins
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.cli import main
from batchpolicy.workload import WorkloadRequest
from batchpolicy_tuning.document import document
from batchpolicy_tuning.page import page
from tests.support import pages
from tests.support.comparisons import QUEUE, UNSTRETCHED, Repeated, compared
from tests.support.pages import HOSTILE, Elements

SERIAL = ("--engine", "tests.support.serial_engine:SerialEngine", "--max-num-seqs", "1")


def _hostile(r: WorkloadRequest) -> WorkloadRequest:
    return replace(
        r,
        id=f"{r.id} {HOSTILE}",
        tenant=f"{HOSTILE} %{{x}} {r.tenant}",
        request_class=f"<b>{r.request_class}</b>{HOSTILE}",
    )


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    source = Repeated(QUEUE, notes=("a note",))
    return document(compared(source, "fcfs", "priority", "priority", loads=(1.0, UNSTRETCHED)))


@pytest.fixture(scope="module")
def hostile() -> dict[str, Any]:
    return document(compared(Repeated(tuple(map(_hostile, QUEUE)), name=f'"{HOSTILE}')))


@pytest.fixture(scope="module")
def shown(told: dict[str, Any]) -> Elements:
    return Elements(page(told))


def test_the_page_says_what_the_document_says(told: dict[str, Any], shown: Elements) -> None:
    said = shown.said()
    for at in told["loads"]:
        assert at["title"] in said
        for queue in at["queues"]:
            assert queue in said
        for policy in at["policies"][1:]:
            for scope in policy["scopes"]:
                assert scope["heading"] in said
                for metric in scope["metrics"].values():
                    if metric["shown"]:
                        assert metric["text"] in shown.texts
                        assert metric["against_baseline"]["text"] in shown.texts
            for change in policy["changes"]:
                assert change["text"] in said
    assert set(told["notes"]) <= set(shown.texts)
    for fact in (
        told["workload"]["sha256"],
        told["environment"]["engine"],
        told["profile"]["name"],
        "median 1.8%",
        "max_num_seqs",
        "20 requests, TTFT within 2.05 s",
    ):
        assert fact in said


def test_losers_stand_beside_winners(shown: Elements) -> None:
    said = shown.said()
    assert re.search(r"Gains chat TTFT p50 62% lower .* Pays batch TTFT p50 3\.3% higher", said)


def test_the_plots_are_of_each_class_and_policy(told: dict[str, Any], shown: Elements) -> None:
    plots = shown.plots()
    titles = [plot["title"] for plot in plots]
    for name in ("chat: TTFT", "batch: E2E", "all requests: TTFT", "Single requests"):
        assert titles.count(name) == len(told["loads"])
    ids = [attributes.get("id") for tag, attributes in shown.tags if tag == "div"]
    assert {plot["id"] for plot in plots} == set(filter(None, ids))
    # Requests of one token have no TPOT.
    assert "chat: TPOT" not in titles
    curve = next(plot for plot in plots if plot["title"] == "chat: TTFT")
    names = [trace["name"] for trace in curve["data"] if trace.get("mode") == "lines"]
    assert names == ["fcfs", "priority#1", "priority#2"]
    assert len({t["line"]["dash"] for t in curve["data"] if t.get("mode") == "lines"}) == 3


def test_a_line_tells_exact_quantiles_and_the_target(told: dict[str, Any]) -> None:
    plots = Elements(page(told)).plots()
    curve = [plot for plot in plots if plot["title"] == "chat: TTFT"][-1]
    fcfs = curve["data"][0]
    assert fcfs["x"][fcfs["y"].index(0.5)] == pytest.approx(1.6)
    assert curve["data"][-1]["x"] == [1.0] * 3
    assert "target 1 s" in curve["data"][-1]["text"][1]


def test_plotly_knows_all_that_the_plots_ask_for(shown: Elements) -> None:
    pages.assert_known_to_plotly(shown)


def test_nothing_is_asked_for_outside_and_only_its_own_scripts_may_run(shown: Elements) -> None:
    pages.assert_asks_for_nothing(shown)


def test_names_are_text_wherever_they_come(hostile: dict[str, Any]) -> None:
    found = Elements(page(hostile))
    pages.assert_names_are_text(found)
    assert HOSTILE in found.said()


def test_an_extended_profile_is_marked(told: dict[str, Any]) -> None:
    assert "(extended)" not in Elements(page(told)).said()
    marked = Elements(page({**told, "profile_extended": True}))
    assert "(extended)" in marked.said()
    assert "longer than those that were measured" in marked.said()


def test_the_command_writes_the_page_from_the_json_it_writes(tmp_path: Path) -> None:
    arguments = ["ab", "fcfs", "priority", *SERIAL, "--workload", "chat-and-batch", "--load", "1"]
    arguments += ["--pairs", "2", "--requests", "40", "--jobs", "1", "--quiet"]
    html, js = tmp_path / "out.html", tmp_path / "out.json"
    assert main([*arguments, "--html", str(html), "--json", str(js)]) == 0
    assert html.read_text() == page(json.loads(js.read_text()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json"]


def test_a_page_that_cannot_be_written_is_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ab", "fcfs", "priority", *SERIAL, "--workload", "chat-and-batch", "--load", "1"]
    assert main([*arguments, "--html", str(tmp_path / "none" / "out.html")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_without_what_draws_it_the_page_is_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any, **named: Any) -> Any:
        if name == "batchpolicy_tuning.page":
            raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    arguments = ["ab", "fcfs", "priority", *SERIAL, "--workload", "chat-and-batch", "--load", "1"]
    assert main([*arguments, "--html", str(tmp_path / "out.html")]) == 2
    assert "--html needs jinja2" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("which", ["told", "hostile"])
def test_a_browser_draws_every_plot_offline_and_without_errors(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pages.assert_drawn_in_a_browser(page(request.getfixturevalue(which)), tmp_path)
