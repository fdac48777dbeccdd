"""Where the rows of a file say what: forms that are known, and fields that somebody names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchpolicy.errors import WorkloadError
from batchpolicy.nearest import near
from batchpolicy_predictors.training.values import at


@dataclass(frozen=True, slots=True)
class Fields:
    """Where a row says what; dotted paths, and empty where it does not."""

    text: tuple[str, ...] = ()
    """Parts of the prompt."""
    length: str = ""
    """Tokens of the answer, or its text."""
    prompt_tokens: str = "prompt_tokens"
    prompt_ids: str = "prompt_ids"
    max_tokens: str = "max_tokens"
    group: str = ""
    time: str = ""
    tenant: str = "tenant"
    session: str = "session"
    temperature: str = "temperature"


KNOWN: Mapping[str, tuple[tuple[str, ...], Fields]] = {
    "arena-hard answers": (
        ("question_id", "choices"),
        Fields(("turns.0.content",), "choices.0.turns.0.token_len", group="question_id"),
    ),
    "GPTeacher": (
        ("instruction", "response"),
        Fields(("instruction", "input"), "response"),
    ),
    "our workloads": (
        ("prompt_tokens", "output_tokens"),
        Fields((), "output_tokens", group="session", time="arrival_s"),
    ),
    "a log of vLLM": (
        ("input_toks", "output_toks"),
        Fields((), "output_toks", prompt_tokens="input_toks", time="queued_ts"),
    ),
    "ServeGen": (
        ("input_tokens", "output_tokens"),
        Fields((), "output_tokens", prompt_tokens="input_tokens", time="arrival_s"),
    ),
    "an Azure trace": (
        ("ContextTokens", "GeneratedTokens"),
        Fields((), "GeneratedTokens", prompt_tokens="ContextTokens"),
    ),
}
"""Forms that are known by keys of their first row."""


def fields_of(path: Path, row: dict[str, Any], asked: Mapping[str, str | None]) -> Fields:
    """The fields of the form that the first row has, with those that were asked for."""
    known = [fields for keys, fields in KNOWN.values() if all(key in row for key in keys)]
    given = {name: field for name, field in asked.items() if field is not None}
    fields = known[0] if known else Fields()
    text = given.get("text")
    named = replace(
        fields,
        text=fields.text if text is None else (text,),
        **{name: field for name, field in given.items() if name != "text"},
    )
    if not known:
        lacking = [f"--{name}-field" for name in ("text", "length") if name not in given]
        if "text" not in given and ("prompt_ids" in given or "prompt_tokens" in row):
            lacking = [name for name in lacking if name != "--text-field"]
        if lacking:
            forms = "; ".join(f"{form} ({', '.join(keys)})" for form, (keys, _) in KNOWN.items())
            raise WorkloadError(
                f"{path}: of no known form; name its fields with {' and '.join(lacking)}. "
                f"Found: {', '.join(row)}. Known forms: {forms}."
            )
    wrong = [
        f"{path}: no field {field!r} in its first row.{near(field, row)} Found: {', '.join(row)}"
        for name, field in given.items()
        if name != "text" and at(row, field) is None
    ]
    if wrong:
        raise WorkloadError("\n".join(wrong))
    return named
