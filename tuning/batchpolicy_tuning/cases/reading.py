"""Files of cases, read strictly: all mistakes of all files at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

from pydantic import ValidationError

from batchpolicy.document import Document, Loc, dotted, short
from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near
from batchpolicy.workload import WorkloadRequest
from batchpolicy_tuning.cases.check_specs import CHECKS, Check, OfScenario, ShareBetween, patterns
from batchpolicy_tuning.cases.json_lines import read_json
from batchpolicy_tuning.cases.schema import Case
from batchpolicy_tuning.cases.setting import SETTINGS, known_settings
from batchpolicy_tuning.workloads.jsonl import RequestRow

_TOP = ("engine", "timing", "requests")


def read_cases(paths: Iterable[Path]) -> list[Case]:
    """The cases in files and folders, each folder's in the order of their names.

    Raises
    ------
    ConfigError
        With everything that is wrong in any of the files.
    """
    cases: list[Case] = []
    faults: list[str] = []
    file_of: dict[str, Path] = {}
    for path in _files(paths, faults):
        try:
            case = read_case(path)
        except ConfigError as e:
            faults.append(str(e))
            continue
        first = file_of.setdefault(case.id, path)
        if first != path:
            faults.append(f"{path}: id {case.id!r} is used twice, first in {first}.")
        cases.append(case)
    if faults:
        raise ConfigError("\n".join(faults))
    return cases


def read_case(path: Path) -> Case:
    """The case in a file.

    Raises
    ------
    ConfigError
        With everything that is wrong: where in the file, what was found, what was expected.
    """
    document = read_json(path)
    if not _is_mapping(document.value):
        raise ConfigError(f"{path}:1: the file is no mapping; expected a case, {{...}}.")
    checks = _checks(document, document.value)
    case = document.validate(Case, {**document.value, "checks": list(checks.values())})
    _settings(document)
    if document.value.get("kind") == "workload":
        for name in _TOP:
            if not document.value.get(name):
                document.fault((), f"{name} is missing; a case of kind 'workload' needs it.")
        _References(document, document.value.get("requests")).judge(checks)
        for i, check in checks.items():
            if check.kind.startswith("tuning_"):
                at: Loc = ("checks", i, "kind")
                document.fault(at, f"{dotted(at)} is {check.kind!r}; no case of the tuner.")
    if document.value.get("kind") == "tuning" and case is not None:
        _scenarios(document, case, checks)
    document.raise_faults()
    if case is None:
        raise AssertionError("a case that could not be read has a fault")
    return case


def _scenarios(document: Document, case: Case, checks: Mapping[int, Check]) -> None:
    """Faults in what checks of the tuner name."""
    if case.tuning is None:
        document.fault((), "tuning is missing; a case of kind 'tuning' needs it.")
        return
    known = [one.name for one in case.tuning.scenarios]
    for i, check in checks.items():
        if not check.kind.startswith("tuning_"):
            at: Loc = ("checks", i, "kind")
            document.fault(at, f"{dotted(at)} is {check.kind!r}; this case is of the tuner.")
        elif isinstance(check, OfScenario) and check.scenario not in known:
            at = ("checks", i, "scenario")
            hint = near(check.scenario, known)
            document.fault(at, f"{dotted(at)} is {check.scenario!r}; no such scenario.{hint}")


def _files(paths: Iterable[Path], faults: list[str]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            faults.append(f"{path}: no case in this folder; expected files *.json.")
        found += [one for one in inside if one not in found]
    return found


def _is_mapping(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _checks(document: Document, whole: dict[str, object]) -> dict[int, Check]:
    """The checks that can be read, by their place; each is told by its kind."""
    given = whole.get("checks")
    if not _is_list(given) or not given:
        found = "missing" if given is None else short(given) if given else "empty"
        document.fault(("checks",), f"checks is {found}; expected a list of one or more checks.")
        return {}
    return {
        i: check
        for i, one in enumerate(given)
        if (check := _check(document, ("checks", i), one)) is not None
    }


def _check(document: Document, loc: Loc, given: object) -> Check | None:
    kind = given.get("kind") if _is_mapping(given) else None
    if not _is_mapping(given):
        document.fault(loc, f"{dotted(loc)} is {short(given)}; expected a mapping with a kind.")
        return None
    at = (*loc, "kind")
    if not isinstance(kind, str) or kind not in CHECKS:
        found = "missing" if kind is None else short(kind)
        hint = near(kind, CHECKS) if isinstance(kind, str) else ""
        known = ", ".join(CHECKS)
        document.fault(at, f"{dotted(at)} is {found}; expected a check.{hint} Known: {known}.")
        return None
    return document.validate(CHECKS[kind], given, loc)


def _settings(document: Document) -> None:
    """Faults in names and values of operator settings, the case's and its variants'."""
    whole = document.value if _is_mapping(document.value) else dict[str, object]()
    places: list[tuple[Loc, object]] = [(("operator_settings",), whole.get("operator_settings"))]
    variants = whole.get("variants")
    for i, one in enumerate(variants if _is_list(variants) else []):
        if _is_mapping(one):
            places.append((("variants", i, "operator_settings"), one.get("operator_settings")))
    for loc, given in places:
        if not _is_mapping(given):
            continue
        for model in SETTINGS:
            inside = {k: v for k, v in given.items() if k in model.model_fields}
            document.validate(model, inside, loc)
        for name in given.keys() - known_settings():
            at = (*loc, name)
            hint = near(name, known_settings())
            listed = ", ".join(known_settings())
            document.fault(at, f"unknown key {dotted(at)!r}.{hint} Known: {listed}.")


class _References:
    """What requests and checks say of requests: ids, tenants, times."""

    def __init__(self, document: Document, rows: object) -> None:
        self._document = document
        self._first_of: dict[str, int] = {}
        self._requests: list[WorkloadRequest] = []
        self._rows: list[tuple[int, RequestRow]] = []
        for i, given in enumerate(rows if _is_list(rows) else []):
            try:
                row = RequestRow.model_validate(given)
            except ValidationError:
                # Its faults are noted; others may name it even so.
                given_id = given.get("id") if _is_mapping(given) else None
                self._known(i, [given_id] if isinstance(given_id, str) else [])
                continue
            self._rows.append((i, row))
            stands_for = list(row.requests())
            self._requests += stands_for
            self._known(i, [r.id for r in stands_for])

    def judge(self, checks: Mapping[int, Check]) -> None:
        """Note what is wrong."""
        document, known = self._document, list(self._first_of)
        for i, row in self._rows:
            at: Loc = ("requests", i)
            if row.repeat is None and row.cancel_at_s < row.arrival_s:
                document.fault(
                    (*at, "cancel_at_s"),
                    f"requests[{i}].cancel_at_s is {row.cancel_at_s:g}; expected a time from "
                    f"the arrival at {row.arrival_s:g} on.",
                )
            if row.arrival_after is not None:
                _names(document, (*at, "arrival_after", "id"), row.arrival_after.id, known)
        for i in dict.fromkeys(self._first_of[name] for name in _circles(self._requests)):
            document.fault(
                ("requests", i, "arrival_after"),
                f"requests[{i}].arrival_after: it follows itself, by way of others or not.",
            )
        tenants = {r.tenant for r in self._requests}
        for i, check in checks.items():
            for field, ids in patterns(check):
                for k, pattern in enumerate(ids):
                    _names(document, ("checks", i, field, k), pattern, known)
            for k, tenant in enumerate(check.tenants if isinstance(check, ShareBetween) else ()):
                place: Loc = ("checks", i, "tenants", k)
                if tenant not in tenants:
                    hint = near(tenant, tenants)
                    document.fault(
                        place, f"{dotted(place)} is {tenant!r}; no request has it.{hint}"
                    )

    def _known(self, i: int, ids: Iterable[str]) -> None:
        for name in ids:
            first = self._first_of.setdefault(name, i)
            if first != i:
                self._document.fault(
                    ("requests", i, "id"),
                    f"requests[{i}].id: {name!r} is used twice, first in requests[{first}].",
                )


def _names(document: Document, loc: Loc, pattern: str, known: list[str]) -> None:
    if next(_matching(pattern, known), None) is None:
        found = difflib.get_close_matches(pattern.rstrip("*"), known, n=1, cutoff=0.4)
        hint = f" Did you mean {found[0]!r}?" if found else ""
        document.fault(loc, f"{dotted(loc)} is {pattern!r}; no request has such an id.{hint}")


def _matching(pattern: str, known: Iterable[str]) -> Iterator[str]:
    if pattern.endswith("*"):
        return (name for name in known if name.startswith(pattern[:-1]))
    return (name for name in known if name == pattern)


def _circles(requests: Iterable[WorkloadRequest]) -> list[str]:
    """Ids of requests that come after themselves."""
    after = {r.id: r.arrival_after for r in requests if r.arrival_after}
    found: list[str] = []
    for start in after:
        at, steps = after[start], 0
        while at in after and at != start and steps < len(after):
            at, steps = after[at], steps + 1
        if at == start:
            found.append(start)
    return found
