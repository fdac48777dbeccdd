"""How much KV the running requests will hold at their worst moment."""

from __future__ import annotations

import numpy as np

from batchpolicy.requests import FloatArray, Requests


class Peak:
    """KV tokens over the rest of the answers, if no more start than are added here.

    A request that has ``left`` tokens to come takes one more with each step, and gives
    all of its own back at its end; what it shares with others stays. With the rows
    sorted by what is left, most first, the most that is ever held is the maximum over
    k of what the first k hold now and ``k * left_k``. Without a prediction a request
    is expected to put out as much again as it has, as its age is all that is known, and
    one that has put out nothing as much as the others on average.

    References
    ----------
    R. Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees",
    ASPLOS 2025, for the peak; ``max_tokens`` is a ceiling here, never a reservation.
    """

    def __init__(self, running: Requests, held_tokens: int, most_tokens: int) -> None:
        """``held_tokens`` in all, of ``most_tokens`` that there are."""
        own = running.computed_tokens + running.prefill_tokens - running.cached_tokens
        self._own = own.astype(np.float64)
        left = expected_left(running)
        known = ~np.isnan(left)
        totals = (running.output_tokens + left)[known]
        self._typical = float(totals.mean()) if len(totals) else 0.0
        self._left = np.where(known, left, np.minimum(self._typical, running.max_tokens))
        self._shared = max(held_tokens - float(self._own.sum()), 0.0)
        self._most = float(most_tokens)

    def takes(self, own: int, left: float, max_tokens: int) -> bool:
        """Add a request with ``own`` tokens now and ``left`` to come, if all fit to the end."""
        left = min(self._typical, max_tokens) if left != left else left
        more_own, more_left = np.append(self._own, own), np.append(self._left, left)
        if len(self._own) and self._shared + peak(more_own, more_left) > self._most:
            return False
        self._own, self._left = more_own, more_left
        return True


def peak(own: FloatArray, left: FloatArray) -> float:
    """Most tokens that rows hold at once, which hold ``own`` and have ``left`` to come."""
    order = np.argsort(-left, kind="stable")
    held = np.cumsum(own[order]) + np.arange(1, len(order) + 1) * left[order]
    return float(held.max(initial=0.0))


def expected_left(rows: Requests) -> FloatArray:
    """Output tokens that each row is expected to put out yet, shape ``(n,)``; NaN if unknown."""
    out, high = rows.output_tokens, rows.predicted_output_high
    total = np.where(np.isnan(high), rows.predicted_output_tokens, high)
    # As much again as there is, where nobody predicts.
    total = np.where(np.isnan(total), np.where(out > 0, 2.0 * out, np.nan), total)
    return np.maximum(np.minimum(total, rows.max_tokens) - out, 0.0)
