"""What a prefill pass of SGLang may take, in tokens, pages and expectations."""

from __future__ import annotations

from collections.abc import Iterable

from batchpolicy_sim.job import Job

_CLIP = 4096
"""Tokens of an answer beyond which SGLang does not look."""
_INIT, _LEAST, _STEPS = 0.7, 0.14, 600
_RETRACT_STEPS = 20


class Ratio:
    """The part of what running requests may still put out that SGLang reserves."""

    def __init__(self) -> None:
        self.value = _INIT
        self._least = _INIT * _LEAST
        self._step = (_INIT - self._least) / _STEPS

    def decay(self) -> None:
        """A step of decodes went well."""
        self.value = max(self.value - self._step, self._least)

    def after_retraction(self, kept: Iterable[Job]) -> None:
        """Some had to go; from now on as much is reserved as the others have used."""
        out = most = count = 0
        for job in kept:
            out += job.out
            most += job.most
            count += 1
        self.value = min(1.0, (out + _RETRACT_STEPS * count) / (most + 1))


class PassBudget:
    """Tokens left in one pass; sums are taken in SGLang's order, as they are not exact."""

    def __init__(
        self,
        free_tokens: int,
        page: int,
        prefill_tokens: int,
        chunk_tokens: int | None,
        ratio: float,
        running: Iterable[Job],
        *,
        ahead: bool,
    ) -> None:
        """``ahead``: a plan has looked ahead, so that only the next token is reserved."""
        self._free = free_tokens
        self._page = page
        self._prefill = prefill_tokens
        self._chunk = chunk_tokens
        self._ahead = ahead
        if ahead:
            self._total: float = sum(page for job in running if job.computed % page == 0)
        else:
            self._total = sum([min(job.most - job.out, _CLIP) * ratio for job in running])
        self._current = 0
        self.chosen: list[tuple[Job, int]] = []
        """Who computes how much."""
        self.partial: Job | None = None
        """Who starts and will be midway."""

    @property
    def exhausted(self) -> bool:
        """Nothing is left of the KV memory."""
        return self._free - self._total <= 0 or self._free - self._current <= 0

    @property
    def spent(self) -> bool:
        """The pass has all the tokens that it may have."""
        if self.exhausted:
            return False
        return self._prefill <= 0 or (self._chunk is not None and self._chunk <= 0)

    def go_on(self, job: Job, cap: int | None) -> bool:
        """The prompt that is midway comes first; whether it is so still."""
        chunk = self._chunk
        assert chunk is not None
        if cap is not None:
            chunk -= max(chunk - cap, 0)
        room = min(chunk, int(self._free - self._total))
        room = room if room > 0 else chunk
        left = job.prompt + job.out - job.computed
        n = min(left, room)
        self._take(job, n, 0 if left > room else min(job.most, _CLIP))
        return left > room

    def fits_whole(self, job: Job) -> bool:
        """Whether a job that waits could be prefilled at once."""
        return self._chunk is None or self._paged(job.prompt + job.out) <= self._chunk

    def start(self, job: Job) -> bool | None:
        """Let a job start; false if the pass is over, None if its KV does not fit."""
        extend = job.prompt + job.out
        most = job.most
        if self._ahead:
            most = min(most, job.out + 1)
        if not extend + min(max(most - job.out, 0), _CLIP) + self._page < self._free - self._total:
            return None
        if self._chunk is None and self.chosen and self._paged(extend) >= self._prefill:
            return False
        reserved = min(most, _CLIP)
        if self._chunk is not None and self._paged(extend) > self._chunk:
            extend = self._chunk // self._page * self._page
            if extend <= 0:
                return False
            self.partial = job
            reserved = 0
        self._take(job, extend, reserved)
        return True

    def _take(self, job: Job, tokens: int, reserved: int) -> None:
        paged = self._paged(tokens)
        if self._ahead:
            reserved = min(reserved, 1)
        self._total += paged + self._page + reserved
        self._current += paged + self._page
        self._prefill -= paged
        if self._chunk is not None:
            self._chunk -= paged
        self.chosen.append((job, tokens))

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page
