"""Rows of files become columns, each of them checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from batchpolicy.predictor import ENGINE_IDS, Arrivals
from batchpolicy.requests import FloatArray, IntArray
from batchpolicy_predictors.training.examples import NO_CEILING, Examples, Source
from batchpolicy_predictors.training.forms import Fields
from batchpolicy_predictors.training.tokens import Tokens
from batchpolicy_predictors.training.values import at, number, short, whole


class Columns:
    """What the rows of a file say, column by column, as they are taken."""

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
        length = at(row, fields.length)
        if isinstance(length, str):
            self._counted = True
            length = len(self._tokens.ids(length))
        tokens = whole(length)
        if tokens is None:
            yield f"{fields.length} is {short(length)}, expected the answer's tokens, or its text"
            return
        if tokens == 0:
            self._left_out += 1
            return
        ids, text = at(row, fields.prompt_ids), [at(said, name) for name in fields.text]
        prompt = whole(at(row, fields.prompt_tokens))
        if isinstance(ids, list):
            found = cast("Sequence[Any]", ids)
            if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in found):
                yield f"{fields.prompt_ids} are no token ids: expected whole numbers from 0 on"
                return
            self._recorded, known = True, cast("Sequence[int]", found)
        elif fields.text:
            if not isinstance(text[0], str):
                yield f"{fields.text[0]} is {short(text[0])}, expected the text of the prompt"
                return
            known = self._tokens.ids("\n".join(part for part in text if isinstance(part, str)))
        else:
            known = ()
        if prompt is None and not known and not fields.text:
            found_prompt = at(row, fields.prompt_tokens)
            yield f"{fields.prompt_tokens} is {short(found_prompt)}, expected a number of tokens"
            return
        time = number(at(row, fields.time)) if fields.time else None
        if fields.time and time is None:
            yield f"{fields.time} is {short(at(row, fields.time))}, expected seconds"
            return
        session = at(row, fields.session)
        group = at(row, fields.group) if fields.group else None
        own = "\n".join(part for part in text if isinstance(part, str)) or f"row {before}"
        self.output.append(tokens)
        self._ids.append(known)
        self._prompt.append(prompt or max(len(known), 1))
        self._ceiling.append(whole(at(row, fields.max_tokens)) or NO_CEILING)
        tenant = at(row, fields.tenant)
        self._tenant.append("" if tenant is None else str(tenant))
        self._session.append(session if isinstance(session, str) else "")
        self._group.append(group if isinstance(group, str) and group else own)
        self._time.append(0.0 if time is None else time)
        temperature = number(at(row, fields.temperature))
        self._temperature.append(np.nan if temperature is None else temperature)

    def examples(self, name: str, sources: list[Source]) -> Examples:
        """The rows that were taken, by their times if they have any."""
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


def _turns(sessions: list[str]) -> IntArray | None:
    if not any(sessions):
        return None
    seen: dict[str, int] = {}
    turns: list[int] = []
    for session in sessions:
        turns.append(seen.get(session, 0) if session else -1)
        seen[session] = turns[-1] + 1
    return np.array(turns, dtype=np.int64)


def _if_any(values: list[float]) -> FloatArray | None:
    found = np.array(values)
    return None if np.isnan(found).all() else found
