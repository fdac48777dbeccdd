"""Whatever a table holds, the tuner keeps its promises."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy_tuning.tune.judging import best_of, closest_of
from batchpolicy_tuning.tune.landscape import Key, Row
from batchpolicy_tuning.tune.records import Outcome
from batchpolicy_tuning.tune.sampler import SamplerName
from tests.support.tables import GOAL, LIMIT, ledger, search, table

KEYS: list[Key] = [(a, b) for a in range(3) for b in range(4)]
NUMBERS = st.floats(0.0, 100.0)
ROWS = st.one_of(
    st.builds(lambda g, t: {"goodput": g, "ttft.p99": t}, NUMBERS, st.floats(0.1, 2.0)),
    st.builds(lambda g: {"goodput": g}, NUMBERS),
    st.builds(lambda t: {"ttft.p99": t}, st.floats(0.1, 2.0)),
    st.just("out of memory"),
)
SAMPLERS: st.SearchStrategy[SamplerName] = st.sampled_from(["tpe", "random", "grid", "nsga2"])


def _is_feasible(row: Row) -> bool:
    return (
        not isinstance(row, str)
        and "goodput" in row
        and row.get(LIMIT.key, float("inf")) <= LIMIT.bound
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=12, max_size=12), SAMPLERS, st.integers(1, 20), st.integers(0, 99))
def test_promises(rows: list[Row], sampler: SamplerName, trials: int, seed: int) -> None:
    problem = table({key: [row] for key, row in zip(KEYS, rows, strict=True)})
    kept = ledger(problem)
    search(problem, kept, trials, sampler=sampler, seed=seed).run()
    found = kept.trials()
    # As many as asked for or as there are, none twice.
    assert len(found) == len(problem.asked) == min(trials, len(KEYS))
    assert len(set(problem.asked)) == len(problem.asked)
    asked = {key: problem.rows[key][0] for key in problem.asked}
    feasible = {k: r["goodput"] for k, r in asked.items() if _is_feasible(r)}  # type: ignore[index]
    best = best_of([GOAL], found)
    if feasible:
        # The best of those that keep the limit, and nothing that was not measured.
        assert best is not None
        assert best.values["goodput"] == max(feasible.values())
        assert _is_feasible(problem.rows[problem.key(best.parameters)][0])
    else:
        assert best is None
    for one in found:
        row = problem.rows[problem.key(one.parameters)][0]
        if isinstance(row, str) or "goodput" not in row:
            assert one.outcome is Outcome.FAILED
        else:
            assert (one.outcome is Outcome.FEASIBLE) == _is_feasible(row)
    closest = closest_of(found)
    infeasible = [one for one in found if one.outcome is Outcome.INFEASIBLE]
    assert (closest is None) == (not infeasible)
    if closest is not None:
        assert closest.worst_miss == min(one.worst_miss for one in infeasible)
