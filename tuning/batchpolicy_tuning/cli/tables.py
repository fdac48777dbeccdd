"""Results of a comparison on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchpolicy_tuning import ab, table

_STYLES = {"": "", "better": "green", "worse": "red", "dim": "dim", "bold": "bold"}


def show(results: ab.Results, console: Console) -> None:
    """Print tables, then who gains and who pays, for each load."""
    for at in results.loads:
        console.print()
        console.print(Text(table.title(results, at), style="bold"))
        console.print(Text(table.legend(results), style="dim"))
        for sheet in table.sheets(results, at, console.width):
            console.print(_drawn(sheet))
        for arm in range(1, len(results.plan.arms)):
            for line in table.summary(results, at, arm):
                indent = len(line.text) - len(line.text.lstrip())
                text = Text(line.text.strip(), style=_STYLES[line.mood])
                console.print(Padding(text, (0, 0, 0, indent)))
            for judged in table.gate_lines(results, at, arm):
                console.print(Text(judged.text, style=_STYLES[judged.mood]))
        for queue in table.queues(results, at):
            console.print(Text(queue, style="dim"))
        for warning in table.warnings(results, at):
            console.print(Text(warning, style="bold red"))
    console.print()
    for note in table.notes(results):
        console.print(Text(note, style="dim"))


def _drawn(sheet: table.Sheet) -> Table:
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, header in enumerate(sheet.headers):
        drawn.add_column(header, justify="left" if i == 0 or header == "gain" else "right")
    for section in sheet.sections:
        drawn.add_row(Text(section.name, style="bold"))
        for row in section.rows:
            first, *others = (Text(cell.text, style=_STYLES[cell.mood]) for cell in row)
            drawn.add_row(Text("  ") + first, *others)
    return drawn
