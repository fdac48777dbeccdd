"""Modules of SGLang, imported when they are first needed; all that ``seams`` touches is in these.

SGLang has no type information, so that everything of it is ``Any``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def _module(name: str) -> Any:
    return import_module(f"sglang.srt.{name}")


def scheduler() -> Any:
    """``Scheduler``."""
    return _module("managers.scheduler")


def schedule_batch() -> Any:
    """``NextBatchPlan``."""
    return _module("managers.schedule_batch")


def schedule_policy() -> Any:
    """``PrefillAdder``, ``AddReqResult``, before 0.5.22 ``match_prefix_for_req``."""
    return _module("managers.schedule_policy")


def io_struct() -> Any:
    """``AbortReq``."""
    return _module("managers.io_struct")


@cache
def match_kv_cache() -> Any:
    """``match_kv_cache``; None before 0.5.22."""
    return getattr(_module("mem_cache.common"), "match_kv_cache", None)


def runtime_context() -> Any:
    """``get_context``, ``get_parallel``, ``get_disagg``."""
    return _module("runtime_context")


def hook_registry() -> Any:
    """``HookRegistry``, ``HookType``."""
    return _module("plugins.hook_registry")


def internal_state() -> Any:
    """``UpdateRejected``, ``_UpdateHandler``."""
    return _module("managers.scheduler_components.internal_state")
