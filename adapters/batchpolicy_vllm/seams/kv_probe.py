"""Dry runs in the KV cache manager."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from batchpolicy.requests import IntArray
from batchpolicy_vllm.seams.names import RequestStatus


class KvProbe:
    """Dry runs in the KV cache manager, which leave no trace."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def prefix(self, ids: Iterable[str]) -> tuple[IntArray, IntArray]:
        """Cached tokens, and free blocks that starting the whole prompt takes."""
        hits: list[int] = []
        needs: list[int] = []
        manager, size = self._scheduler.kv_cache_manager, self._scheduler.block_size
        # Before 0.30 looking a prefix up counts in the engine's hit rate.
        counts, manager.log_stats = manager.log_stats, False
        try:
            for request_id in ids:
                request = self._scheduler.requests[request_id]
                # A pair, and since 0.30 a third for sparse caches.
                blocks, hit = manager.get_computed_blocks(request)[:2]
                # A hit that nobody holds is taken from the free blocks like any other.
                groups = blocks.blocks
                held = max((sum(b.ref_cnt > 0 for b in group) for group in groups), default=0)
                hits.append(int(hit))
                needs.append(-(-request.num_tokens // size) - held)
        finally:
            manager.log_stats = counts
        return np.array(hits, dtype=np.int64), np.array(needs, dtype=np.int64)

    def held(self, ids: Iterable[str]) -> IntArray:
        """Blocks freed by displacing each; -1 for a request that cannot be freed now."""
        return np.array([self._held(request_id) for request_id in ids], dtype=np.int64)

    def _held(self, request_id: str) -> int:
        scheduler = self._scheduler
        request = scheduler.requests.get(request_id)
        if request is None or request.status != RequestStatus.RUNNING:
            return -1
        # Before 0.30 blocks could always be freed.
        can_be_freed = getattr(scheduler, "_request_blocks_can_be_freed", None)
        if can_be_freed is not None and not can_be_freed(request):
            return -1
        groups = scheduler.kv_cache_manager.get_blocks(request_id).blocks
        return min((sum(b.ref_cnt == 1 for b in group) for group in groups), default=0)
