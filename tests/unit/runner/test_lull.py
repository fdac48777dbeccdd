from __future__ import annotations

from batchpolicy.runner.lull import Lull


def test_it_lasts_so_many_steps() -> None:
    lull = Lull(3)
    assert not lull.holds(changes=0, index=0)
    lull.begin(changes=5, index=10)
    assert [lull.holds(5, index) for index in (10, 12, 13)] == [True, True, False]


def test_any_change_cuts_it_short() -> None:
    lull = Lull(3)
    lull.begin(changes=5, index=10)
    assert not lull.holds(6, 11)
    lull.begin(changes=6, index=11)
    assert lull.holds(6, 13)
