"""State of a policy, indexed by the dense codes of the request columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchpolicy.requests import FloatArray, IndexArray

_FEW = 16
"""So many codes are added to one by one, as the first ``np.add.at`` of a step is slow."""


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
        few = len(codes) <= _FEW
        if few and isinstance(amounts, np.ndarray) and amounts.shape == codes.shape:
            for code, amount in zip(codes.tolist(), amounts.tolist(), strict=True):
                self.put(code, self.at(code) + amount)
            return
        self._reach(codes)
        np.add.at(self._values, codes, amounts)

    def lower(self, codes: IndexArray, amounts: IndexArray) -> FloatArray:
        """Take ``amounts`` off and return what is left; codes are distinct."""
        self._reach(codes)
        left: FloatArray = self._values[codes]
        left -= amounts
        self._values[codes] = left
        return left

    def mapped(
        self, function: Callable[[FloatArray], FloatArray], codes: IndexArray
    ) -> FloatArray:
        """``function`` of the values of the codes; it must be pointwise."""
        self._reach(codes)
        found: FloatArray = function(self._values)[codes]
        return found

    def at(self, code: int) -> float:
        """The value of one code."""
        if code >= len(self._values) - 1:
            return self.default
        return float(self._values[code])

    def put(self, code: int, value: float) -> None:
        """Set the value of one code."""
        if code >= len(self._values) - 1:
            self._grow(code + 2)
        self._values[code] = value

    def least_where_positive(self, other: StateArray) -> float | None:
        """Least value among the codes that are above 0 in ``other``; None without one."""
        size = max(len(self._values), len(other._values))
        self._grow(size)
        other._grow(size)
        found = self._values[other._values > 0.0]
        return float(np.minimum.reduce(found)) if len(found) else None

    def _reach(self, codes: IndexArray) -> None:
        if len(codes):
            self._grow(int(np.maximum.reduce(codes)) + 2)

    def _grow(self, size: int) -> None:
        # Code -1 is the last element, so that growing must move it.
        if size > len(self._values):
            # Doubled, so that two of one reach have one length.
            length = len(self._values)
            while length < size:
                length *= 2
            grown = np.full(length, self.default)
            grown[: len(self._values) - 1] = self._values[:-1]
            grown[-1] = self._values[-1]
            self._values = grown
