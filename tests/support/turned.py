"""The test of turned signs, slowly: every turn of every pair, one by one."""

from __future__ import annotations

import math
from itertools import product


def hall(values: list[float]) -> float:
    """Hall's statistic, step by step as in the paper."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((v - mean) ** 2 for v in values) / n
    if variance <= 1e-12 * math.fsum(v * v for v in values):
        return math.copysign(math.inf, mean) if mean else 0.0
    skewness = math.fsum((v - mean) ** 3 for v in values) / n / variance**1.5
    s = mean / math.sqrt(variance)
    return math.sqrt(n) * (
        s + skewness * s**2 / 3.0 + skewness**2 * s**3 / 27.0 + skewness / (6.0 * n)
    )


def p_negative(values: list[float]) -> float:
    """The one-sided p-value of values below 0."""
    observed = hall(values)
    share = 0.0
    for signs in product((1.0, -1.0), repeat=len(values)):
        turned = hall([sign * value for sign, value in zip(signs, values, strict=True)])
        same = turned == observed or math.isclose(turned, observed, rel_tol=1e-8, abs_tol=1e-8)
        share += 0.5 if same else float(turned < observed)
    return share / 2 ** len(values)
