from __future__ import annotations

import numpy as np

from batchpolicy_predictors import features, hashing
from batchpolicy_predictors.hashing import HEAD, SHINGLES, TAIL


def test_both_ends_of_a_prompt_are_seen_and_nothing_between() -> None:
    long = list(range(1000))
    found = hashing.ends([long, [5, 6], []])
    assert found[0].tolist() == [*range(HEAD), *range(1000 - TAIL, 1000)]
    assert found[1].tolist() == [5, 6] + [-1] * 60 + [5, 6]
    assert (found[2] == -1).all()
    other = [*range(HEAD), *range(5000, 5900), *range(1000 - TAIL, 1000)]
    assert np.array_equal(hashing.ends([other])[0], found[0])


def test_tokens_and_neighbouring_pairs_are_hashed_of_each_end_for_itself() -> None:
    hashes, there = hashing.shingles(hashing.ends([[5, 6, 5], list(range(200))]))
    assert hashes.shape == there.shape == (2, SHINGLES)
    # Three tokens and two pairs at the head, the same at the tail.
    assert there.sum(axis=1).tolist() == [10, SHINGLES]
    assert len(set(hashes[0, there[0]].tolist())) == 8  # the token 5 twice at either end
    assert hashes[0, 0] == hashes[0, 2]


def test_hashes_are_the_same_wherever_they_are_made() -> None:
    hashes, _ = hashing.shingles(hashing.ends([[17, 4]]))
    # Worked out with whole numbers of any size.
    m, odd, other = 2**64 - 1, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F

    def mixed(x: int) -> int:
        x ^= x >> 32
        x = x * odd & m
        return x ^ (x >> 32)

    first, second = (mixed(token * odd + 1 & m) for token in (17, 4))
    assert [int(hashes[0, 0]), int(hashes[0, 1])] == [first, second]
    assert int(hashes[0, HEAD + TAIL]) == mixed(first * other + second & m)


def test_the_part_of_distinct_tokens() -> None:
    found = features.distinct_share(hashing.ends([[1, 1, 2, 2], list(range(64)), []]))
    # Head and tail of a short prompt are the same: 2 distinct of 8.
    assert found.tolist() == [0.25, 1.0, 1.0]
