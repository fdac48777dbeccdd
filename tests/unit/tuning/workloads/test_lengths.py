from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchpolicy.errors import WorkloadError
from batchpolicy_tuning.workloads.lengths import (
    Constant,
    Lengths,
    Lognormal,
    Sample,
    Uniform,
    draw_pair,
)

N = 20_000


def _draw(lengths: Lengths, base: Path = Path()) -> np.ndarray:
    return draw_pair(lengths, Constant(tokens=1), np.random.default_rng(0), N, base)[0]


def test_a_constant_is_always_the_same() -> None:
    assert set(_draw(Constant(tokens=7)).tolist()) == {7}


def test_a_uniform_length_takes_both_its_ends_and_the_mean_between() -> None:
    drawn = _draw(Uniform(low=3, high=12))
    assert set(drawn.tolist()) == set(range(3, 13))
    # Ten values: standard deviation sqrt((10**2 - 1) / 12); four standard errors.
    assert drawn.mean() == pytest.approx(7.5, abs=4 * 2.8723 / N**0.5)


def test_a_lognormal_length_has_its_median_and_sigma_within_its_bounds() -> None:
    drawn = _draw(Lognormal(median=10_000, sigma=0.5, low=1, high=10_000_000))
    logs = np.log(drawn)
    # Standard errors: sigma / sqrt(n) of the mean, sigma / sqrt(2 n) of the deviation.
    assert logs.mean() == pytest.approx(np.log(10_000), abs=4 * 0.5 / N**0.5)
    assert logs.std() == pytest.approx(0.5, abs=4 * 0.5 / (2 * N) ** 0.5)
    cut = _draw(Lognormal(median=10_000, sigma=0.5, low=9_000, high=11_000))
    assert (cut.min(), cut.max()) == (9_000, 11_000)


def test_a_sample_keeps_the_rows_of_one_file_together(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("out,in\n1,10\n2,20\n3,30\n")
    prompt, output = draw_pair(
        Sample(file="l.csv", column="in"),
        Sample(file="l.csv", column="out"),
        np.random.default_rng(0),
        N,
        tmp_path,
    )
    assert np.array_equal(prompt, 10 * output)
    counts = np.bincount(output)[1:]
    # Each third of the draws; four standard deviations of a binomial count.
    assert np.abs(counts - N / 3).max() < 4 * (N * 2 / 9) ** 0.5


def test_what_is_no_length_in_a_sample_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("tokens\n5\n0\nmany\n")
    with pytest.raises(WorkloadError) as caught:
        _draw(Sample(file="l.csv", column="tokens"), tmp_path)
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "l.csv:3: tokens is 0, expected at least 1",
        "l.csv:4: tokens is 'many', expected a whole number",
    ]
