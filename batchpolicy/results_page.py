"""A page of results in Markdown: one section for each bench, written by the bench itself."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from batchpolicy.bench import BenchReport
from batchpolicy.errors import ConfigError
from batchpolicy.reading import refuse_device

_HEAD = """# Results

Written by `batchpolicy bench NAME --write FILE`, a section for each bench; do not edit.
"""


def write_section(path: Path, name: str, command: str, report: BenchReport) -> None:
    """Put the report into the page at ``path`` in place of the section that the bench has there.

    The page is made if there is none; all else on it stays as it is.

    Raises
    ------
    ConfigError
        When the page cannot be read or written, or has no place for the section.
    """
    begin, end = _marks(name)
    section = f"{begin}\n{markdown(report, command)}{end}\n"
    with _page_at(path, name) as page:
        if begin in page:
            old = re.escape(begin) + ".*?" + re.escape(end) + "\n?"
            page = re.sub(old, lambda _: section, page, count=1, flags=re.DOTALL)
        else:
            page = f"{page.rstrip()}\n\n{section}"
        # Beside it first, so that no reader finds half a page.
        _beside(path).write_text(page, encoding="utf-8")
        _beside(path).replace(path)


def check_page(path: Path, name: str) -> None:
    """Refuse a page that ``write_section`` could not write, with its errors, before any work."""
    with _page_at(path, name):
        # Permission is not enough: a file is made, and is gone again.
        _beside(path).touch()
        _beside(path).unlink()


@contextmanager
def _page_at(path: Path, name: str) -> Generator[str, None, None]:
    begin, end = _marks(name)
    try:
        refuse_device(path)
        page = path.read_text(encoding="utf-8") if path.exists() else _HEAD
        if (begin in page) != (end in page):
            raise ConfigError(
                f"{path}: the section of {name} begins or ends nowhere; expected both {begin!r} "
                f"and {end!r}. Remove what is left of it."
            )
        yield page
    except OSError as e:
        raise ConfigError(f"{path} cannot be written as a page of results: {e.strerror}.") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} cannot be written as a page of results: {e}.") from e


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- bench {name} -->", f"<!-- end of {name} -->"


def markdown(report: BenchReport, command: str) -> str:
    """The report as a section of a page, from its heading to its notes."""
    parts = [f"## {report.title}", f"`{command}`"]
    rows = [
        (one.what, one.value, one.goal, {None: "", True: "met", False: "**not met**"}[one.met])
        for one in report.measurements
    ]
    parts.append(_table(("what", "measured", "goal", ""), rows))
    reasons = [f"- {one.what}: {one.reason}" for one in report.measurements if one.reason]
    if reasons:
        parts.append("\n".join(reasons))
    for table in report.tables:
        parts += [f"### {table.title}", _table(table.columns, table.rows)]
        if table.note:
            parts.append(table.note)
    return "\n\n".join([*parts, *report.notes]) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
