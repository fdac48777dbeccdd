"""Files of prompts and answers, in the forms that people have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchpolicy.errors import WorkloadError
from batchpolicy_predictors.training.columns import Columns
from batchpolicy_predictors.training.examples import Examples
from batchpolicy_predictors.training.forms import fields_of
from batchpolicy_predictors.training.row_files import Faults, rows_of
from batchpolicy_predictors.training.tokens import Tokens
from batchpolicy_predictors.training.values import at


def read_examples(
    data: Path, questions: Path | None, asked: Mapping[str, str | None], tokens: Tokens
) -> Examples:
    """The rows of a file that have an answer, joined with their questions where those stand apart.

    ``asked`` names fields where they are not those of a known form: ``text``, ``length``,
    ``group``, ``time``, ``tenant``, ``prompt_ids``.

    Raises
    ------
    WorkloadError
        With what is wrong with the files: file, line and what was expected; up to ten.
    """
    faults = Faults()
    rows, source = rows_of(data, faults)
    faults.raise_any()
    if not rows:
        raise WorkloadError(f"{data}: holds no row; expected JSON objects or CSV with a header")
    sources = [source]
    fields = fields_of(data, rows[0][1], asked)
    asks: dict[str, dict[str, Any]] = {}
    if questions is not None:
        found, source = rows_of(questions, faults)
        sources.append(source)
        for place, row in found:
            key = at(row, fields.group or "question_id")
            if not isinstance(key, str):
                faults.add(place, f"has no {fields.group or 'question_id'} to join answers by")
            else:
                asks[key] = row
        faults.raise_any()
    elif fields.text and at(rows[0][1], fields.text[0]) is None:
        raise WorkloadError(
            f"{rows[0][0]}: has no {fields.text[0]}; where prompts stand in a file of their own, "
            "give --questions FILE, else --text-field. "
            f"Found: {', '.join(rows[0][1])}"
        )
    made = Columns(fields, tokens)
    for place, row in rows:
        said: dict[str, Any] | None = row
        if questions is not None:
            key = at(row, fields.group or "question_id")
            said = asks.get(key) if isinstance(key, str) else None
            if said is None:
                faults.add(place, f"answers {key!r}, which {questions} does not ask")
                continue
        for text in made.add(row, said or row):
            faults.add(place, text)
    faults.raise_any()
    if not made.output:
        raise WorkloadError(f"{data}: none of its {len(rows)} rows has an answer")
    return made.examples(data.name, sources)
