from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import pytest

from batchpolicy import registry
from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.cli import main


class Twice(Bench):
    """Measures how much two is."""

    summary: ClassVar[str] = "how much two is"
    engine: ClassVar[str] = "abacus"

    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        progress("counting")
        return BenchReport(
            "Two against one",
            [
                Measurement("two", "2.0x (1 to 2)", "<= 3x", met=True),
                Measurement("three", "3.0x", "<= 2x", met=False, reason="it is more"),
                Measurement("four", "4 beads"),
            ],
            ["Counted once."],
            [ResultTable("Beads", ("wire", "beads"), [("a|b", "4"), ("c", "5")], "All of them.")],
        )


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("twice", f"{__name__}:Twice", registry.BENCHES)])
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: found.select(**wanted))
    monkeypatch.setattr(registry, "load", lambda group, name: Twice)


def test_figures_stand_beside_their_goals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "twice"]) == 0
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "Two against one"
    assert [line.split() for line in lines[2:5]] == [
        ["two", "2.0x", "(1", "to", "2)", "<=", "3x", "met"],
        ["three", "3.0x", "<=", "2x", "not", "met", "it", "is", "more"],
        ["four", "4", "beads"],
    ]
    assert lines[5:] == [
        "", "Beads", "wire  beads", "a|b   4", "c     5", "All of them.", "Counted once.",
    ]  # fmt: skip
    assert err == "counting\n"


def test_quiet_and_json_are_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "twice", "--json", "--quiet", "--quick"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == ""
    assert (told["bench"], told["quick"], told["title"]) == ("twice", True, "Two against one")
    assert told["measurements"][1]["met"] is False
    assert told["measurements"][2]["met"] is None


def test_a_bench_of_one_engine_takes_that_one_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "twice", "--engine", "abacus", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["bench", "twice", "--engine", "vllm"]) == 2
    assert capsys.readouterr().err == "this bench measures 'abacus', not 'vllm'.\n"


_SECTION = """\
<!-- bench twice -->
## Two against one

`batchpolicy bench twice --engine abacus`

| what | measured | goal |  |
| --- | --- | --- | --- |
| two | 2.0x (1 to 2) | <= 3x | met |
| three | 3.0x | <= 2x | **not met** |
| four | 4 beads |  |  |

- three: it is more

### Beads

| wire | beads |
| --- | --- |
| a\\|b | 4 |
| c | 5 |

All of them.

Counted once.
<!-- end of twice -->
"""


def test_results_are_kept_on_a_page_with_those_of_other_benches(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    command = ["bench", "twice", "--quiet", "--engine", "abacus", "--write", str(page)]
    assert main(command) == 0
    head, section = page.read_text().split("\n\n<!--", 1)
    assert head.startswith("# Results")
    assert f"<!--{section}" == _SECTION

    other = "<!-- bench other -->\nkept\n<!-- end of other -->\n"
    page.write_text(f"# Mine\n\n<!-- bench twice -->\nold\n<!-- end of twice -->\n{other}")
    assert main(command) == 0
    assert page.read_text() == f"# Mine\n\n{_SECTION}{other}"


@pytest.mark.parametrize(
    ("page", "options", "said"),
    [
        (
            None,
            ["--quick"],
            "figures of a quick run are not for keeping: give --quick or --write.",
        ),
        ("", [], "begins or ends nowhere"),
    ],
)
def test_a_page_that_cannot_be_kept_is_left_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    page: str | None,
    options: list[str],
    said: str,
) -> None:
    path = tmp_path / "results.md"
    if page is not None:
        path.write_text("<!-- bench twice -->\nhalf a section\n")
    assert main(["bench", "twice", "--quiet", "--write", str(path), *options]) == 2
    assert said in capsys.readouterr().err
    assert not path.exists() or path.read_text() == "<!-- bench twice -->\nhalf a section\n"


def test_a_page_in_no_folder_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "twice", "--write", str(tmp_path / "none" / "results.md")]) == 2
    err = capsys.readouterr().err
    assert "there is no folder" in err
    assert "counting" not in err


def test_a_page_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page, expected in ((tmp_path, "Is a directory"), (Path("/dev/full"), "a device")):
        assert main(["bench", "twice", "--write", str(page)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and expected in err and "counting" not in err
    assert main(["bench", "twice", "--write", str(tmp_path / "page.md")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
