"""Dense codes for names of tenants, sessions and LoRA adapters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchpolicy.requests import BoolArray, IntArray

Forget = Callable[[IntArray], BoolArray]
"""Given codes that no live request has: which of them may be given to other names."""
SWEEP = 4096
"""Codes that are looked at when the numbers are used up; a sweep comes at most so often."""


def _keep(codes: IntArray) -> BoolArray:
    return np.zeros(len(codes), dtype=np.bool_)


class Codes:
    """Numbers names 0, 1, ... in order of appearance; the empty name is -1.

    Past ``limit`` names, codes are reused: those that no live request has, longest idle
    first, as far as ``forget`` lets them go. Where it does not, new names share one more
    code, so that a client that invents names cannot make the tables grow.
    """

    def __init__(self, forget: Forget = _keep, limit: int = 65_536) -> None:
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        self._live: list[int] = []
        """Live requests of each code."""
        self._idle: dict[int, None] = {}
        """Codes without live requests, longest idle first."""
        self._free: list[int] = []
        self._forget = forget
        self._limit = limit
        self._unasked = 0
        """New names until ``forget`` is asked again, after it had nothing to give."""

    def __call__(self, name: str) -> int:
        """The code of ``name``, for one more live request."""
        if not name:
            return -1
        code = self._codes.get(name)
        if code is None:
            code = self._new(name)
            if code == self._limit:
                return code
        elif not self._live[code]:
            self._idle.pop(code, None)
        self._live[code] += 1
        return code

    def released(self, code: int) -> None:
        """A request that got this code has ended, and its policy has been told."""
        if 0 <= code < self._limit:
            self._live[code] -= 1
            if not self._live[code]:
                self._idle[code] = None

    def _new(self, name: str) -> int:
        if len(self._names) < self._limit:
            code = len(self._names)
            self._names.append(name)
            self._live.append(0)
        else:
            if not self._free:
                self._sweep()
            if not self._free:
                return self._limit
            code = self._free.pop()
            self._names[code] = name
        self._codes[name] = code
        return code

    def _sweep(self) -> None:
        if self._unasked:
            self._unasked -= 1
            return
        longest = [code for code, _ in zip(self._idle, range(SWEEP), strict=False)]
        gone = self._forget(np.array(longest, dtype=np.int64)) if longest else ()
        for code, is_gone in zip(longest, gone, strict=True):
            del self._idle[code]
            if is_gone:
                del self._codes[self._names[code]]
                self._free.append(code)
            else:
                # Others are looked at next time.
                self._idle[code] = None
        self._free.reverse()
        if not self._free:
            self._unasked = SWEEP // 16
