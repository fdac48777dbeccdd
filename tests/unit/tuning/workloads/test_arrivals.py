"""Moments of the processes against theory; tolerances are four standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from batchpolicy_tuning.workloads.arrivals import Gamma, OnOff, Poisson, draw_senders

RATE, SPAN_S = 5.0, 4000.0
EXPECTED = RATE * SPAN_S


def test_poisson_gaps_have_the_rate_and_a_variation_of_1() -> None:
    arrivals_s = Poisson().draw(np.random.default_rng(1), RATE, SPAN_S)
    assert len(arrivals_s) == pytest.approx(EXPECTED, abs=4 * EXPECTED**0.5)
    gaps_s = np.diff(arrivals_s)
    # The standard error of the variation of exponential gaps is about 1 / sqrt(n).
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=4 / EXPECTED**0.5)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gamma_gaps_have_the_rate_and_the_variation_asked_for(cv: float) -> None:
    arrivals_s = Gamma(cv=cv).draw(np.random.default_rng(2), RATE, SPAN_S)
    assert np.all(np.diff(arrivals_s) >= 0.0)
    assert 0.0 <= arrivals_s[0] and arrivals_s[-1] < SPAN_S
    # The count of a renewal process has variance cv^2 n.
    assert len(arrivals_s) == pytest.approx(EXPECTED, abs=4 * cv * EXPECTED**0.5)
    gaps_s = np.diff(arrivals_s)
    # By the delta method from the gamma's moments: cv sqrt((1 + cv^2) / 2 n), and the kurtosis
    # adds to it; twice that covers it.
    error = cv * math.sqrt((1 + cv**2) / 2 / EXPECTED)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, abs=8 * error)


def test_a_gamma_process_begins_in_mid_gap() -> None:
    rng = np.random.default_rng(3)
    n = 3000
    counts = [len(Gamma(cv=3.0).draw(rng, 1.0, 2.0)) for _ in range(n)]
    # However bursty, a window of 2 s sees 2 arrivals on average, from its first moment on.
    assert np.mean(counts) == pytest.approx(2.0, abs=4 * np.std(counts) / n**0.5)


def test_an_on_off_tenant_has_the_rate_on_average_and_is_bursty() -> None:
    rng = np.random.default_rng(4)
    process = OnOff(on_s=10.0, off_s=20.0)
    window_s, n = 2000.0, 300
    counts = np.array([len(process.draw(rng, 1.0, window_s)) for _ in range(n)])
    # While on, 3 a second; switching relaxes with 1 / (1/10 + 1/20) = 6.67 s. Over long windows
    # variance / mean is 1 + 2 * 3 * (2/3) * 6.67 = 27.7.
    assert counts.mean() == pytest.approx(window_s, abs=4 * (27.7 * window_s / n) ** 0.5)
    # The standard error of a variance is sqrt(2 / n) of it.
    assert counts.var() / counts.mean() == pytest.approx(27.7, rel=4 * (2 / n) ** 0.5)


def test_an_on_off_tenant_is_silent_for_its_share_of_the_time() -> None:
    arrivals_s = OnOff(on_s=30.0, off_s=30.0).draw(np.random.default_rng(5), 20.0, 20_000.0)
    gaps_s = np.diff(arrivals_s)
    # At 40 a second while on, gaps over 1 s are silences; a few of those are shorter.
    assert gaps_s[gaps_s > 1.0].sum() / 20_000 == pytest.approx(0.5, abs=0.08)


def test_tenants_share_a_process_or_go_on_and_off_by_themselves() -> None:
    shares = {"a": 3.0, "b": 1.0}
    times_s, who = draw_senders(Poisson(), np.random.default_rng(6), RATE, SPAN_S, shares)
    assert who.count("a") / len(who) == pytest.approx(0.75, abs=4 * (0.1875 / len(who)) ** 0.5)
    times_s, who = draw_senders(
        OnOff(on_s=10.0, off_s=10.0), np.random.default_rng(7), RATE, SPAN_S, shares
    )
    assert np.all(np.diff(times_s) >= 0.0)
    seconds = {name: set() for name in shares}
    for time_s, name in zip(times_s, who, strict=True):
        seconds[name].add(int(time_s))
    # Each is on for half of the time; both at once for a quarter.
    both = len(seconds["a"] & seconds["b"]) / SPAN_S
    assert both == pytest.approx(0.25, abs=0.06)
    assert who.count("a") / len(who) == pytest.approx(0.75, abs=0.06)
