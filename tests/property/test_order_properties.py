"""The fast order equals the obvious one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy.runner.order import best_first

FEW = st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.0, 1e300])


@st.composite
def queues(
    draw: st.DrawFn,
) -> tuple[list[float], list[int] | None, list[int]]:
    n = draw(st.integers(0, 40))
    some = st.one_of(FEW, st.floats(allow_nan=False, allow_infinity=False))
    benefit = draw(st.lists(draw(st.sampled_from([FEW, some])), min_size=n, max_size=n))
    tier = draw(st.none() | st.lists(st.integers(-2, 3), min_size=n, max_size=n))
    seq = draw(st.permutations(range(100, 100 + n)))
    return benefit, tier, list(seq)


@given(
    st.integers(500, 3000), st.integers(1, 300), st.integers(1, 2000), st.integers(0, 2**32 - 1)
)
def test_long_queues_are_no_different(n: int, k: int, values: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    benefit = rng.integers(0, values, n).astype(np.float64)
    seq = rng.permutation(n)
    got = best_first(benefit, None, seq, k)
    assert got.tolist() == np.lexsort((seq, -benefit))[:k].tolist()


@given(queues(), st.integers(-1, 45))
def test_the_best_rows_are_those_of_a_full_sort(
    queue: tuple[list[float], list[int] | None, list[int]], k: int
) -> None:
    benefit, tier, seq = queue
    got = best_first(
        np.array(benefit, dtype=np.float64),
        None if tier is None else np.array(tier, dtype=np.int64),
        np.array(seq, dtype=np.int64),
        k,
    )
    rows = sorted(
        range(len(seq)), key=lambda i: (0 if tier is None else tier[i], -benefit[i], seq[i])
    )
    assert got.tolist() == rows[: max(k, 0)]
