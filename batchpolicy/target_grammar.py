"""The one grammar of targets and gates in policy files, options and reports.

``ttft.p99<=500ms@class=chat`` is a metric, a statistic, a direction, a bound with
its unit, and the class or tenant that it is for (without one, all requests). A gate,
``ttft.p99<=+5%@class=chat``, has a signed change against a baseline as its bound.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from typing import TypeVar, cast, get_args

from batchpolicy.errors import ConfigError
from batchpolicy.metrics import METRICS, STATISTICS, Measure, Metric
from batchpolicy.quantities import parse_seconds
from batchpolicy.targets import Gate, Measurand, ScopeKind, Target

T = TypeVar("T", Target, Gate)
Read = TypeVar("Read", Target, Gate, Measurand)

_SPOKEN = {"median": "p50", "avg": "mean", "average": "mean", "p100": "max", "p0": "min"}
_PARTS = re.compile(r"(?P<head>[^<>=@]*)(?P<sign>[<>=]+)(?P<bound>[^@]*)(?:@(?P<scope>.*))?", re.S)
_PERCENTILE = re.compile(r"p([1-9]\d?)(?:\.(\d))?")
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(\S*)", re.IGNORECASE)


def parse_target(text: str) -> Target:
    """The target that ``text`` states; ``p99_ttft<=1s`` is read as ``ttft.p99<=1s``.

    Raises
    ------
    ConfigError
        When any part is unknown, missing or makes no sense; all of them are named.
    """
    target, faults = _parse(text, _read_bound, Target)
    if target is None:
        raise ConfigError(f"target {text!r}: {'; '.join(faults)}")
    return target


def parse_targets(texts: Iterable[str]) -> list[Target]:
    """The targets that the texts state, in order.

    Raises
    ------
    ConfigError
        Names the mistakes of all texts at once.
    """
    return _each("targets", texts, lambda text: _parse(text, _read_bound, Target))


def parse_gates(texts: Iterable[str]) -> list[Gate]:
    """The gates that the texts state, in order: ``ttft.p99<=+5%``, ``attainment>=-1%``.

    Raises
    ------
    ConfigError
        Names the mistakes of all texts at once.
    """
    return _each("gates", texts, lambda text: _parse(text, _read_change, Gate))


def parse_measurands(texts: Iterable[str]) -> list[Measurand]:
    """What the texts name, without bounds: ``goodput``, ``ttft.p99@class=chat``.

    Raises
    ------
    ConfigError
        Names the mistakes of all texts at once.
    """
    return _each("objectives", texts, _parse_measurand)


def _parse_measurand(text: str) -> tuple[Measurand | None, list[str]]:
    faults: list[str] = []
    head, mark, where = (part.strip() for part in text.partition("@"))
    bare = re.split("[<>=]", head)[0].strip()
    if bare != head:
        faults.append("an objective has no bound; put it among the targets, or write it without")
    name, statistic = _read_head(bare, faults)
    kind, scope = _read_scope(where, faults) if mark else (None, "")
    if kind == "tenant" and name in METRICS and METRICS[name].compares_tenants:
        faults.append(f"{name} compares tenants, so there is none for a single one")
    return (None, faults) if faults else (Measurand(name, statistic, kind, scope), [])


_ReadBound = Callable[[str, str, Metric | None, list[str]], float]


def _each(
    what: str, texts: Iterable[str], parse: Callable[[str], tuple[Read | None, list[str]]]
) -> list[Read]:
    found: list[Read] = []
    lines: list[str] = []
    for text in texts:
        one, faults = parse(text)
        if one is None:
            lines.append(f"  {text!r}: {'; '.join(faults)}")
        else:
            found.append(one)
    if lines:
        raise ConfigError(f"{what} that cannot be read:\n" + "\n".join(lines))
    return found


def _parse(text: str, read_bound: _ReadBound, make: type[T]) -> tuple[T | None, list[str]]:
    found = _PARTS.fullmatch(text.strip())
    if found is None:
        such = "500ms" if make is Target else "+5%"
        return None, [f"expected metric.statistic<=bound, such as ttft.p99<={such}@class=chat"]
    faults: list[str] = []
    head, sign, bound_text = (found[part].strip() for part in ("head", "sign", "bound"))
    name, statistic = _read_head(head, faults)
    metric = METRICS.get(name)
    if sign not in {"<=", ">="}:
        faults.append(f"{sign!r} is no direction, write <= or >=")
    elif metric is not None and (sign == "<=") != metric.low_is_good:
        good, other = ("low", "<=") if metric.low_is_good else ("high", ">=")
        faults.append(f"{name} is good when it is {good}, write {other} instead of {sign}")
    bound = read_bound(bound_text, f"{head}{sign}", metric, faults)
    kind, scope = None, ""
    if found["scope"] is not None:
        kind, scope = _read_scope(found["scope"].strip(), faults)
        if kind == "tenant" and metric is not None and metric.compares_tenants:
            faults.append(f"{name} compares tenants, so there is none for a single one")
    if faults:
        return None, faults
    return make(name, statistic, bound, sign == "<=", kind, scope), []


def _read_head(head: str, faults: list[str]) -> tuple[str, str | None]:
    """Metric and statistic; the metric is no key of ``METRICS`` when it is unknown."""
    lowered = head.lower()
    first, mark, rest = lowered.partition("_")
    if lowered in METRICS:
        name, statistic = lowered, None
    elif mark and _statistic(first) is not None:
        name, statistic = rest, first
    else:
        name, mark, rest = lowered.partition(".")
        statistic = rest if mark else None
    if name not in METRICS:
        faults.append(_unknown("metric", name, METRICS))
        return name, None
    if METRICS[name].measure is not Measure.SECONDS:
        if statistic is not None:
            faults.append(f"{name} is one number for a run, write it without {statistic!r}")
        return name, None
    if statistic is None:
        faults.append(f"{name} needs a statistic, such as {name}.p99 or {name}.mean")
        return name, None
    known = _statistic(statistic)
    if known is None:
        faults.append(_unknown("statistic", statistic, STATISTICS, _SPOKEN.get(statistic)))
    return name, known


def _statistic(text: str) -> str | None:
    """The statistic in its one spelling, or None."""
    if text in {"mean", "min", "max"}:
        return text
    found = _PERCENTILE.fullmatch(text)
    if found is None:
        return None
    return f"p{found[1]}.{found[2]}" if found[2] not in {None, "0"} else f"p{found[1]}"


def _read_bound(text: str, before: str, metric: Metric | None, faults: list[str]) -> float:
    found = _NUMBER.fullmatch(text)
    if found is None:
        faults.append(f"{text!r} is no bound, expected a number, such as 500ms")
        return math.nan
    number, unit = found.groups()
    if unit == "%" and number[0] in "+-":
        faults.append(f"{text!r} is relative to another run, a target needs a bound of its own")
        return math.nan
    if metric is None:
        return math.nan
    match metric.measure:
        case Measure.SECONDS:
            bound = _read_duration(number, unit, before, faults)
            in_range, expected = 0.0 < bound < math.inf, "a finite time over 0"
        case Measure.SHARE:
            bound = _read_share(number, unit, before, faults)
            in_range, expected = 0.0 <= bound <= 1.0, "0 to 1 or 0% to 100%"
        case Measure.RATE | Measure.COUNT:
            bound = float(number)
            if unit and unit not in metric.units:
                faults.append(_unknown("unit", unit, metric.units))
            in_range, expected = 0.0 <= bound < math.inf, "a finite number, 0 or more"
    if not math.isnan(bound) and not in_range:
        faults.append(f"the bound is {text}, expected {expected}")
    return bound


def _read_change(text: str, before: str, metric: Metric | None, faults: list[str]) -> float:
    found = _NUMBER.fullmatch(text)
    number, unit = found.groups() if found else ("", "")
    good = "+5%" if metric is None or metric.low_is_good else "-5%"
    if unit != "%" or number[0] not in "+-":
        meant = f"{before}+{number}% or {before}-{number}%" if unit == "%" else f"{before}{good}"
        faults.append(
            f"{text!r} is no change against the baseline, which has a sign and a percent sign; "
            f"write {meant}"
        )
        return math.nan
    change = float(number) / 100.0
    lowest, highest = -1.0, math.inf
    if metric is not None and metric.measure is Measure.SHARE:
        highest = 1.0
    if not lowest < change < highest:
        expected = "over -100%" + (" and under +100%" if highest == 1.0 else "")
        faults.append(f"the change is {text}, expected {expected}")
    return change


def _read_duration(number: str, unit: str, before: str, faults: list[str]) -> float:
    if not unit:
        faults.append(
            f"{number} of what? Write {before}{number}s for seconds "
            f"or {before}{number}ms for milliseconds"
        )
        return math.nan
    try:
        return parse_seconds(number + unit)
    except ValueError as e:
        faults.append(str(e))
        return math.nan


def _read_share(number: str, unit: str, before: str, faults: list[str]) -> float:
    if unit not in {"", "%"}:
        faults.append(f"unknown unit {unit!r}, a share is written 0.99 or 99%")
        return math.nan
    value = float(number)
    if not unit and 1.0 < value <= 100.0:
        faults.append(f"{number} is more than all; write {before}{number}% for percent")
        return math.nan
    return value / 100.0 if unit else value


def _read_scope(text: str, faults: list[str]) -> tuple[ScopeKind | None, str]:
    kinds = get_args(ScopeKind)
    kind, mark, name = (part.strip() for part in text.partition("="))
    if not mark:
        faults.append(f"@{text} names no scope, write @class={text} or @tenant={text}")
    elif kind not in kinds:
        faults.append(_unknown("scope", kind, kinds))
    elif not name:
        faults.append(f"@{kind}= lacks the name of a {kind}")
    elif any(f"@{other}=" in name for other in kinds):
        faults.append("a target has one scope, class or tenant")
    else:
        return cast(ScopeKind, kind), name
    return None, ""


def _unknown(what: str, name: str, known: Iterable[str], meant: str | None = None) -> str:
    known = list(known)
    near = [meant] if meant else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(known) or 'none'}"
