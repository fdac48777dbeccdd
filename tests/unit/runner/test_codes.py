from __future__ import annotations

import numpy as np
import pytest

from batchpolicy.requests import BoolArray, IntArray
from batchpolicy.runner import codes as codes_module
from batchpolicy.runner.codes import Codes


def everybody(codes: IntArray) -> BoolArray:
    return np.ones(len(codes), dtype=np.bool_)


def ended(codes: Codes, *names: str) -> None:
    """A request of each name came and has ended."""
    for name in names:
        codes.released(codes(name))


def test_codes_of_the_longest_idle_go_first() -> None:
    codes = Codes(everybody, limit=3)
    ended(codes, "a", "b", "c", "a")
    assert [codes("d"), codes("e"), codes("f")] == [1, 2, 0]


def test_a_name_that_comes_back_in_time_keeps_its_code() -> None:
    codes = Codes(everybody, limit=3)
    ended(codes, "a", "b", "c")
    assert codes("a") == 0
    assert [codes("d"), codes("e"), codes("f")] == [1, 2, 3]
    assert codes("a") == 0


def test_who_has_a_live_request_keeps_its_code() -> None:
    codes = Codes(everybody, limit=2)
    assert [codes("a"), codes("a"), codes("b")] == [0, 0, 1]
    codes.released(0)
    codes.released(1)
    assert [codes("c"), codes("d")] == [1, 2]


def test_who_must_be_remembered_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes_module, "SWEEP", 8)
    indebted = {0}
    codes = Codes(lambda asked: np.array([c not in indebted for c in asked.tolist()]), limit=2)
    ended(codes, "a", "b")
    assert [codes("c"), codes("d"), codes("a")] == [1, 2, 0]
    codes.released(0)
    indebted.clear()
    assert codes("e") == 0


def test_after_a_sweep_in_vain_nobody_is_asked_for_a_while() -> None:
    asked: list[int] = []

    def nobody(codes: IntArray) -> BoolArray:
        asked.append(len(codes))
        return np.zeros(len(codes), dtype=np.bool_)

    codes = Codes(nobody, limit=2)
    ended(codes, "a", "b")
    assert {codes(f"n{i}") for i in range(1000)} == {2}
    assert asked == [2] * 4


def test_a_code_that_is_shared_is_nobodys_to_release() -> None:
    codes = Codes(everybody, limit=1)
    assert [codes("a"), codes("b")] == [0, 1]
    codes.released(1)
    codes.released(-1)
    assert [codes("a"), codes("b")] == [0, 1]


def test_many_that_come_and_go_take_no_more_than_the_limit() -> None:
    codes = Codes(everybody, limit=50)
    given = set()
    for i in range(10_000):
        given.add(code := codes(f"n{i}"))
        codes.released(code)
    assert given == set(range(50))
    assert len(codes._codes) == 50
