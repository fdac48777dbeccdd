"""Dense codes for names of tenants, sessions and LoRA adapters."""

from __future__ import annotations


class Codes:
    """Numbers names 0, 1, ... in order of appearance; the empty name is -1.

    Past ``limit`` names, all new ones share the last code, so that a client that
    invents names cannot make the tables grow.
    """

    def __init__(self, limit: int = 65_536) -> None:
        self._codes: dict[str, int] = {}
        self._limit = limit

    def __call__(self, name: str) -> int:
        """The code of ``name``."""
        if not name:
            return -1
        code = self._codes.get(name)
        if code is None:
            if len(self._codes) >= self._limit:
                return self._limit
            code = self._codes[name] = len(self._codes)
        return code
