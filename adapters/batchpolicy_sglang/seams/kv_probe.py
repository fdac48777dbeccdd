"""Dry runs in the radix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchpolicy.requests import IntArray
from batchpolicy_sglang.seams import upstream

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
            match = upstream.match_kv_cache()
            if match is not None and not tree.disable:
                match(req, tree)
                hit = min(int(req.prefix_len), tokens - 1) // page * page
                # A hit that nobody holds is taken from the free pages like any other.
                idle = _idle(tree, req.last_node, hit)
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
            alone = _alone(tree, req)
            own = int(req.kv.kv_allocated_len) - int(req.kv.cache_protected_len)
            freed.append(-(-own // page) + alone // page)
        return np.array(freed, dtype=np.int64)


def _idle(tree: Any, node: Any, hit: int) -> int:
    """Of a hit, tokens that nobody holds."""
    if not hasattr(tree, "lock"):
        # Before 0.5.22 it is not looked at: at worst the request is thought to need more.
        return hit
    free = int(tree.evictable_size())
    lock = tree.lock(node)
    idle = free - int(tree.evictable_size())
    tree.unlock(lock)
    return idle


def _alone(tree: Any, req: Any) -> int:
    """Of what a running request shares with the tree, tokens that no other request holds."""
    lock = getattr(req, "lock", None)
    if lock is None or not hasattr(tree, "lock"):
        return 0
    kept = int(tree.evictable_size())
    tree.unlock(lock)
    alone = int(tree.evictable_size()) - kept
    req.lock = tree.lock(lock.node)
    return alone
