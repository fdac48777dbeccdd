"""A study's result on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchpolicy_tuning.tune.result import Conclusion, StudyResult
from batchpolicy_tuning.tune.summary import Rows, finalist_rows, heading, trial_rows

_STYLES = {
    Conclusion.WINNER: "bold green",
    Conclusion.KEEP_BASELINE: "bold",
    Conclusion.INCONCLUSIVE: "bold yellow",
    Conclusion.NOTHING_FEASIBLE: "bold red",
    Conclusion.UNFINISHED: "bold yellow",
}


def show(result: StudyResult, to: Console) -> None:
    """Print trials by outcome, the best of them, the finalists, and the conclusion."""
    to.print(Text(heading(result), style="bold"))
    for note in result.notes:
        to.print(Text(note, style="dim"))
    to.print(_drawn(trial_rows(result)))
    if result.baseline is not None:
        where = f"{len(result.held_out_instances)} slices on {result.final_engine}"
        to.print(Text(f"\nHeld out, {where}", style="bold"))
        to.print(_drawn(finalist_rows(result)))
    to.print()
    for i, line in enumerate(result.summary):
        style = "" if i else _STYLES[result.conclusion]
        to.print(Text(line, style=style), soft_wrap=True)


def _drawn(rows: Rows) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows.columns:
        table.add_column(name)
    for row in rows.rows:
        table.add_row(*map(Text, row))
    return table
