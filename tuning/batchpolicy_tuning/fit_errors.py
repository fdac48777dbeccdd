"""How far a fitted step cost is from the steps it was fitted to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpolicy.profiles import Errors
from batchpolicy.requests import FloatArray


def summary(errors: FloatArray) -> Errors:
    """Relative errors of single steps, signed, shape ``(n,)``, in a few numbers."""
    size = np.abs(errors)
    return Errors(
        rows=len(size),
        median=round(float(np.median(size)), 4),
        p95=round(float(np.percentile(size, 95)), 4),
        worst=round(float(size.max()), 4),
        bias=round(float(errors.mean()), 4),
    )


def by_kind(kinds: Sequence[str], errors: FloatArray, names: Sequence[str]) -> dict[str, Errors]:
    """The same for each kind of step; ``kinds`` names that of each."""
    of = np.array(kinds)
    return {name: summary(errors[of == name]) for name in names}
