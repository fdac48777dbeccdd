from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.cases.expected import differences, read_expected
from batchpolicy_tuning.cases.outcome import Failure, Outcome, Verdict

PASSED = Outcome("T1", "", Verdict.PASSED)
FAILED = Outcome(
    "T2", "", Verdict.FAILED, (Failure("wait_max", "1 s", "2 s"), Failure("I4", "", ""))
)
LACKING = Outcome("T3", "", Verdict.NOT_APPLICABLE, lacking=("lora",))


def _file(folder: Path, *lines: str) -> Path:
    path = folder / "some.expected"
    path.write_text("\n".join(lines))
    return path


def test_what_outcomes_say_of_themselves_is_what_the_file_expects(tmp_path: Path) -> None:
    outcomes = [PASSED, FAILED, LACKING]
    path = _file(tmp_path, "# why", "", *(f"{one}  # so it is" for one in outcomes))
    assert list(differences(read_expected(path), outcomes)) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("T1 passed", "T2 failed", "T3 not applicable"), []),
        (
            ("T1 failed", "T2 failed I4", "T3 passed"),
            [
                "T1 passed: expected failed",
                "T2 failed wait_max I4: expected failed I4",
                "T3 not applicable: expected passed",
            ],
        ),
        (
            ("T1 passed", "T2 failed I4 wait_max", "T4 passed"),
            [
                "T3 not applicable: the case is not among those expected",
                "T4: expected passed, and there is no such case",
            ],
        ),
    ],
)
def test_every_case_has_to_be_in_the_file_and_end_as_it_says(
    tmp_path: Path, lines: tuple[str, ...], said: list[str]
) -> None:
    expected = read_expected(_file(tmp_path, *lines))
    assert list(differences(expected, [PASSED, FAILED, LACKING])) == said


def test_all_mistakes_come_at_once_with_their_lines(tmp_path: Path) -> None:
    path = _file(tmp_path, "T1 pased", "T2 failed wait_mx", "# T", "T3", "T4 passed", "T4 failed")
    with pytest.raises(ConfigError) as raised:
        read_expected(path)
    assert str(raised.value).replace(f"{path}", "f").splitlines() == [
        "f:1: found 'pased' behind T1; expected 'passed', 'failed CHECK...' or 'not applicable'. "
        "Did you mean 'passed'?",
        "f:2: 'wait_mx' is neither a check nor an invariant. Did you mean 'wait_max'?",
        "f:4: found 'nothing' behind T3; expected 'passed', 'failed CHECK...' or "
        "'not applicable'.",
        "f:6: case T4 also in line 5.",
    ]
    with pytest.raises(ConfigError, match=r"no file .* Did you mean 'some\.expected'\?"):
        read_expected(tmp_path / "som.expected")
