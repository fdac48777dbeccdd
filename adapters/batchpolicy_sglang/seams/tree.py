"""Look-ups and locks in the tree of cached prefixes, as 0.5.22 has them and as before."""

from __future__ import annotations

from typing import Any

from batchpolicy_sglang.seams import upstream


def match(tree: Any, req: Any) -> int:
    """Tokens of a request that are cached, down to ``req.last_node``; to look is to use them."""
    look_up = upstream.match_kv_cache()
    if look_up is not None:
        look_up(req, tree)
        return int(req.prefix_len)
    upstream.schedule_policy().match_prefix_for_req(tree, req)
    return len(req.prefix_indices)


def idle(tree: Any, node: Any) -> int:
    """Of the prefix that ends at a node, tokens that nobody holds."""
    free = int(tree.evictable_size())
    if hasattr(tree, "lock"):
        lock = tree.lock(node)
        held = int(tree.evictable_size())
        tree.unlock(lock)
        return free - held
    lock = tree.inc_lock_ref(node)
    held = int(tree.evictable_size())
    # Trees with a second window want back what they gave.
    params = getattr(lock, "to_dec_params", None)
    tree.dec_lock_ref(node, *(() if params is None else (params(),)))
    return free - held


def alone(tree: Any, req: Any) -> int:
    """Of what a running request shares with the tree, tokens that no other request holds."""
    kept = int(tree.evictable_size())
    if hasattr(tree, "lock"):
        lock = getattr(req, "lock", None)
        if lock is None:
            return 0
        tree.unlock(lock)
        found = int(tree.evictable_size()) - kept
        req.lock = tree.lock(lock.node)
        return found
    node = getattr(req, "last_node", None)
    if node is None or tree.disable or type(tree).__name__ != "RadixCache":
        return 0
    tree.dec_lock_ref(node)
    found = int(tree.evictable_size()) - kept
    tree.inc_lock_ref(node)
    return found


def own(req: Any) -> int:
    """KV of a running request that the tree does not hold, in tokens."""
    # Before 0.5.20 some or all of it stands in the request itself.
    kv = getattr(req, "kv", None)
    allocated = getattr(kv, "kv_allocated_len", None)
    shared = getattr(kv, "cache_protected_len", None)
    allocated = req.kv_allocated_len if allocated is None else allocated
    shared = req.cache_protected_len if shared is None else shared
    return int(allocated) - int(shared)
