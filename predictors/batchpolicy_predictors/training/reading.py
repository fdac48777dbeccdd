"""Files of prompts and answers, in the forms that people have them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from batchpolicy.errors import WorkloadError
from batchpolicy.nearest import near
from batchpolicy.predictor import ENGINE_IDS, Arrivals
from batchpolicy_predictors.training.examples import NO_CEILING, Examples, Source
from batchpolicy_predictors.training.tokens import Tokens

SHOWN_FAULTS = 10


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


_KNOWN: Mapping[str, tuple[tuple[str, ...], Fields]] = {
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


class _Faults:
    """What is wrong with files; the first ten are kept, the others counted."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._count = 0

    def add(self, place: str, text: str) -> None:
        self._count += 1
        if self._count <= SHOWN_FAULTS:
            self._shown.append(f"{place}: {text}")

    def raise_any(self) -> None:
        more = self._count - SHOWN_FAULTS
        if self._count:
            raise WorkloadError(
                "\n".join(self._shown + ([f"... and {more} more"] if more > 0 else []))
            )


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
    faults = _Faults()
    rows, source = _rows(data, faults)
    faults.raise_any()
    if not rows:
        raise WorkloadError(f"{data}: holds no row; expected JSON objects or CSV with a header")
    sources = [source]
    fields = _fields(data, rows[0][1], asked)
    asks: dict[str, dict[str, Any]] = {}
    if questions is not None:
        found, source = _rows(questions, faults)
        sources.append(source)
        for place, row in found:
            key = _at(row, fields.group or "question_id")
            if not isinstance(key, str):
                faults.add(place, f"has no {fields.group or 'question_id'} to join answers by")
            else:
                asks[key] = row
        faults.raise_any()
    elif fields.text and _at(rows[0][1], fields.text[0]) is None:
        raise WorkloadError(
            f"{rows[0][0]}: has no {fields.text[0]}; where prompts stand in a file of their own, "
            "give --questions FILE, else --text-field. "
            f"Found: {', '.join(rows[0][1])}"
        )
    made = _Made(fields, tokens)
    for place, row in rows:
        said: dict[str, Any] | None = row
        if questions is not None:
            key = _at(row, fields.group or "question_id")
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


class _Made:
    """Columns in the making."""

    def __init__(self, fields: Fields, tokens: Tokens) -> None:
        self._fields, self._tokens = fields, tokens
        self.output: list[int] = []
        self._ids: list[Sequence[int]] = []
        self._prompt: list[int] = []
        self._ceiling: list[int] = []
        self._tenant: list[str] = []
        self._group: list[str] = []
        self._session: list[str] = []
        self._time: list[float] = []
        self._temperature: list[float] = []
        self._counted = self._recorded = False
        self._left_out = 0

    def add(self, row: dict[str, Any], said: dict[str, Any]) -> Iterator[str]:
        """Take a row, whose prompt stands in ``said``; yields what is wrong with it."""
        fields, before = self._fields, len(self.output)
        length = _at(row, fields.length)
        if isinstance(length, str):
            self._counted = True
            length = len(self._tokens.ids(length))
        tokens = _whole(length)
        if tokens is None:
            yield f"{fields.length} is {_short(length)}, expected the answer's tokens, or its text"
            return
        if tokens == 0:
            self._left_out += 1
            return
        ids, text = _at(row, fields.prompt_ids), [_at(said, name) for name in fields.text]
        prompt = _whole(_at(row, fields.prompt_tokens))
        if isinstance(ids, list):
            found = cast("Sequence[Any]", ids)
            if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in found):
                yield f"{fields.prompt_ids} are no token ids: expected whole numbers from 0 on"
                return
            self._recorded, known = True, cast("Sequence[int]", found)
        elif fields.text:
            if not isinstance(text[0], str):
                yield f"{fields.text[0]} is {_short(text[0])}, expected the text of the prompt"
                return
            known = self._tokens.ids("\n".join(part for part in text if isinstance(part, str)))
        else:
            known = ()
        if prompt is None and not known and not fields.text:
            found_prompt = _at(row, fields.prompt_tokens)
            yield f"{fields.prompt_tokens} is {_short(found_prompt)}, expected a number of tokens"
            return
        time = _number(_at(row, fields.time)) if fields.time else None
        if fields.time and time is None:
            yield f"{fields.time} is {_short(_at(row, fields.time))}, expected seconds"
            return
        session = _at(row, fields.session)
        group = _at(row, fields.group) if fields.group else None
        own = "\n".join(part for part in text if isinstance(part, str)) or f"row {before}"
        self.output.append(tokens)
        self._ids.append(known)
        self._prompt.append(prompt or max(len(known), 1))
        self._ceiling.append(_whole(_at(row, fields.max_tokens)) or NO_CEILING)
        tenant = _at(row, fields.tenant)
        self._tenant.append("" if tenant is None else str(tenant))
        self._session.append(session if isinstance(session, str) else "")
        self._group.append(group if isinstance(group, str) and group else own)
        self._time.append(0.0 if time is None else time)
        temperature = _number(_at(row, fields.temperature))
        self._temperature.append(np.nan if temperature is None else temperature)

    def examples(self, name: str, sources: list[Source]) -> Examples:
        n, fields = len(self.output), self._fields
        time_s = np.array(self._time) if fields.time else None
        order = np.arange(n) if time_s is None else np.argsort(time_s, kind="stable")
        dated = time_s is not None and bool((time_s > 1e9).all())
        has_ids = self._recorded or any(self._ids)
        arrivals = Arrivals(
            [f"{i}" for i in range(n)],
            np.array(self._prompt, dtype=np.int64),
            np.maximum(np.array(self._ceiling, dtype=np.int64), np.array(self.output)),
            self._tenant,
            prompt_ids=self._ids if has_ids else None,
            id_space=ENGINE_IDS if self._recorded else self._tokens.id_space,
            temperature=_if_any(self._temperature),
            hour=(time_s % 86_400.0) / 3600.0 if time_s is not None and dated else None,
        )
        by_text = self._tokens.said() if fields.text else "not known; only their number is"
        found = Examples(
            name,
            arrivals,
            np.array(self.output, dtype=np.int64),
            self._group,
            time_s,
            sources,
            "token ids as they were recorded" if self._recorded else by_text,
            f"estimated from texts: {self._tokens.said()}"
            if self._counted
            else f"{fields.length}, as given",
            self._left_out,
        ).take(order)
        turns = _turns([self._session[i] for i in order.tolist()])
        return replace(found, arrivals=replace(found.arrivals, turn=turns))


def _turns(sessions: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    if not any(sessions):
        return None
    seen: dict[str, int] = {}
    turns: list[int] = []
    for session in sessions:
        turns.append(seen.get(session, 0) if session else -1)
        seen[session] = turns[-1] + 1
    return np.array(turns, dtype=np.int64)


def _if_any(values: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    found = np.array(values)
    return None if np.isnan(found).all() else found


def _fields(path: Path, row: dict[str, Any], asked: Mapping[str, str | None]) -> Fields:
    """The fields of the form that the first row has, with those that were asked for."""
    known = [fields for keys, fields in _KNOWN.values() if all(key in row for key in keys)]
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
            forms = "; ".join(f"{form} ({', '.join(keys)})" for form, (keys, _) in _KNOWN.items())
            raise WorkloadError(
                f"{path}: of no known form; name its fields with {' and '.join(lacking)}. "
                f"Found: {', '.join(row)}. Known forms: {forms}."
            )
    wrong = [
        f"{path}: no field {field!r} in its first row.{near(field, row)} Found: {', '.join(row)}"
        for name, field in given.items()
        if name != "text" and _at(row, field) is None
    ]
    if wrong:
        raise WorkloadError("\n".join(wrong))
    return named


def _rows(path: Path, faults: _Faults) -> tuple[list[tuple[str, dict[str, Any]]], Source]:
    """Place and value of each row of a file of JSON lines, of one JSON list, or of CSV."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if path.suffix == ".gz" else raw
        text = data.decode("utf-8-sig")
    except FileNotFoundError as e:
        raise WorkloadError(f"{path}: no such file") from e
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise WorkloadError(
            f"{path}:{line}: byte 0x{e.object[e.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from e
    except (OSError, EOFError, zlib.error) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise WorkloadError(f"{path}: cannot be read: {reason}") from e
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "csv":
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = [
            (f"{path}:{reader.line_num}", {str(k): _cell(v) for k, v in row.items()})
            for row in reader
        ]
    elif text.lstrip().startswith("["):
        rows = list(_items(path, text, faults))
    else:
        rows = list(_lines(path, text, faults))
    return rows, Source(path.name, hashlib.sha256(raw).hexdigest(), len(rows))


def _items(path: Path, text: str, faults: _Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        found: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise WorkloadError(f"{path}: no JSON: {e}") from e
    for number, value in enumerate(found, start=1):
        if isinstance(value, dict):
            yield f"{path}: item {number}", cast("dict[str, Any]", value)
        else:
            faults.add(f"{path}: item {number}", f"is {_short(value)}, expected an object")


def _lines(path: Path, text: str, faults: _Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as e:
            faults.add(f"{path}:{number}", f"no JSON: {e}")
            continue
        if isinstance(value, dict):
            yield f"{path}:{number}", cast("dict[str, Any]", value)
        else:
            faults.add(f"{path}:{number}", f"is {_short(value)}, expected an object")


def _at(row: object, path: str) -> Any:
    """What stands at a dotted path, numbers being places in lists; None for nothing."""
    here: Any = row
    for part in path.split(".") if path else ():
        if isinstance(here, dict):
            here = cast("dict[str, Any]", here).get(part)
        elif (
            isinstance(here, list)
            and part.isdecimal()
            and int(part) < len(cast("Sequence[Any]", here))
        ):
            here = cast("Sequence[Any]", here)[int(part)]
        else:
            return None
    return here if path else None


def _cell(text: object) -> object:
    """The number that a cell of CSV holds, else its text."""
    for kind in (int, float):
        try:
            return kind(str(text))
        except ValueError:
            continue
    return text


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 else None


def _whole(value: object) -> int | None:
    found = _number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
