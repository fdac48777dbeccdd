"""State of a policy, indexed by the dense codes of the request columns."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import FloatArray, IndexArray, IntArray


class StateArray:
    """One float for each slot, tenant or session; grows by itself.

    Index with a column of codes, such as ``requests.tenant``; codes never
    seen hold ``default``. Code -1 (none) has a place of its own.
    """

    __slots__ = ("_values", "default")

    def __init__(self, default: float = 0.0) -> None:
        self.default = default
        self._values = np.full(65, default)

    def __getitem__(self, codes: IndexArray) -> FloatArray:
        self._reach(codes)
        found: FloatArray = self._values[codes]
        return found

    def __setitem__(self, codes: IndexArray, values: FloatArray | float) -> None:
        self._reach(codes)
        self._values[codes] = values

    def add(self, codes: IndexArray, amounts: FloatArray | float) -> None:
        """Add ``amounts``, shape of ``codes`` or one number; repeated codes add up."""
        self._reach(codes)
        np.add.at(self._values, codes, amounts)

    def positive(self) -> IntArray:
        """Codes whose value is above 0, in ascending order, code -1 last."""
        codes = np.flatnonzero(self._values > 0.0)
        return np.where(codes == len(self._values) - 1, -1, codes)

    def _reach(self, codes: IndexArray) -> None:
        # Code -1 is the last element, so that growing must move it.
        top = int(codes.max(initial=-1)) + 2
        if top > len(self._values):
            grown = np.full(max(top, 2 * len(self._values)), self.default)
            grown[: len(self._values) - 1] = self._values[:-1]
            grown[-1] = self._values[-1]
            self._values = grown
