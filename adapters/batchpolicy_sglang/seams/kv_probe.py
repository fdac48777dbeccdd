"""Dry runs in the radix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchpolicy.requests import IntArray
from batchpolicy_sglang.seams.tree import alone, match, own
from batchpolicy_sglang.seams.tree import idle as idle_of

START_BLOCKS = 1
"""Pages beside those of its prompt that SGLang wants free for a request to start."""


class KvProbe:
    """Looks prefixes up, and what a running request holds.

    A look-up is SGLang's own: it counts as a use of what it finds, for eviction.
    """

    def __init__(self, scheduler: Any, req_of: Callable[[str], Any]) -> None:
        self._scheduler = scheduler
        self._req_of = req_of
        self.running_batch: Any = None

    def prefix(self, ids: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Cached tokens, and free pages that starting the whole prompt takes."""
        tree, page = self._scheduler.tree_cache, int(self._scheduler.page_size)
        hits: list[int] = []
        needs: list[int] = []
        for rid in ids:
            req = self._req_of(rid)
            tokens = len(req.origin_input_ids) + len(req.output_ids)
            hit = idle = 0
            if not tree.disable:
                hit = min(match(tree, req), tokens - 1) // page * page
                # A hit that nobody holds is taken from the free pages like any other.
                idle = idle_of(tree, req.last_node)
            hits.append(hit)
            needs.append(-(-(tokens - hit) // page) + -(-idle // page) + START_BLOCKS)
        return np.array(hits, dtype=np.int64), np.array(needs, dtype=np.int64)

    def held(self, ids: Sequence[str]) -> IntArray:
        """Pages freed by displacing each; -1 for a request that cannot be freed now."""
        tree, page = self._scheduler.tree_cache, int(self._scheduler.page_size)
        batch = self.running_batch
        here = {} if batch is None else {r.rid: r for r in batch.reqs if not r.finished()}
        freed: list[int] = []
        for rid in ids:
            req = here.get(rid)
            if req is None:
                freed.append(-1)
                continue
            freed.append(-(-own(req) // page) + alone(tree, req) // page)
        return np.array(freed, dtype=np.int64)
