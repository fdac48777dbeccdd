"""The word that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: str, known: Iterable[str]) -> str:
    """The words `` Did you mean '...'?``, or nothing when no known word is near."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.55)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""
