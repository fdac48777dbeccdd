"""Files of expected outcomes: a line for each case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near
from batchpolicy.reading import refuse_device
from batchpolicy_tuning.cases.check_specs import CHECKS
from batchpolicy_tuning.cases.invariants import INVARIANTS
from batchpolicy_tuning.cases.outcome import Outcome, Verdict

_OTHERS = ("I7", "I8", "variant", "run")
FAILURES = (*CHECKS, *INVARIANTS, *_OTHERS)
"""What can stand behind ``failed``."""


@dataclass(frozen=True, slots=True)
class Expected:
    """How one case should end."""

    case: str
    verdict: Verdict
    kinds: frozenset[str] = frozenset()
    """What fails, no more and no less; empty for anything."""

    def __str__(self) -> str:
        return " ".join([self.verdict.value, *sorted(self.kinds)])


def read_expected(path: Path) -> list[Expected]:
    """The expected outcomes in a file; what stands behind ``#`` is not read.

    Raises
    ------
    ConfigError
        When the file cannot be read, or with all lines that are wrong.
    """
    try:
        refuse_device(path)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        beside = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ConfigError(f"no file {str(path)!r}.{near(path.name, beside)}") from e
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {e}.") from e
    found: dict[str, Expected] = {}
    faults: list[str] = []
    line_of: dict[str, int] = {}
    for line, whole in enumerate(text.splitlines(), start=1):
        words = whole.partition("#")[0].split()
        if not words:
            continue
        try:
            one = _parsed(words)
        except ConfigError as e:
            faults.append(f"{path}:{line}: {e}")
            continue
        if one.case in line_of:
            faults.append(f"{path}:{line}: case {one.case} also in line {line_of[one.case]}.")
        line_of[one.case], found[one.case] = line, one
    if faults:
        raise ConfigError("\n".join(faults))
    return list(found.values())


def _parsed(words: Sequence[str]) -> Expected:
    case, rest = words[0], list(words[1:])
    if rest == ["passed"]:
        return Expected(case, Verdict.PASSED)
    if rest == ["not", "applicable"]:
        return Expected(case, Verdict.NOT_APPLICABLE)
    if rest[:1] == ["failed"]:
        for kind in rest[1:]:
            if kind not in FAILURES:
                raise ConfigError(
                    f"{kind!r} is neither a check nor an invariant.{near(kind, FAILURES)}"
                )
        return Expected(case, Verdict.FAILED, frozenset(rest[1:]))
    said = " ".join(rest) or "nothing"
    hint = near(said, [verdict.value for verdict in Verdict])
    raise ConfigError(
        f"found {said!r} behind {case}; expected 'passed', 'failed CHECK...' or "
        f"'not applicable'.{hint}"
    )


def differences(expected: Iterable[Expected], outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Where outcomes are not as expected; every case has to be in both."""
    asked = {one.case: one for one in expected}
    for outcome in outcomes:
        one = asked.pop(outcome.case, None)
        if one is None:
            yield f"{outcome}: the case is not among those expected"
        elif not _agrees(one, outcome):
            yield f"{outcome}: expected {one}"
    for one in asked.values():
        yield f"{one.case}: expected {one}, and there is no such case"


def _agrees(one: Expected, outcome: Outcome) -> bool:
    kinds = frozenset(failure.kind for failure in outcome.failures)
    return one.verdict is outcome.verdict and (not one.kinds or one.kinds == kinds)
