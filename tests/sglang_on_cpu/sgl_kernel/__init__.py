"""Test-only stand-in for SGLang's compiled kernel package on a machine without one.

No CPU build of the kernel package is on PyPI (the published wheels are CUDA builds), yet
SGLang's CPU path imports names from it at module level.  Names used on the plain
dense-model path are written here in torch; every other name imports, and raises if called.
"""

import importlib.abc
import importlib.machinery
import sys

__version__ = "0.0.0+stub"


def assign_req_to_token_pool_cpu(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len
):
    done = 0
    spans = (req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist())
    for row, lo, hi in zip(*spans, strict=True):
        req_to_token[row, lo:hi] = out_cache_loc[done : done + hi - lo].to(req_to_token.dtype)
        done += hi - lo


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*a, **k):
        raise NotImplementedError(f"sgl_kernel.{name} is not available on this CPU-only set-up")

    missing.__name__ = name
    return missing


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Only the submodule that older releases import unguarded; others must go on failing to
    import, since SGLang's guards rely on that."""

    def find_spec(self, name, path=None, target=None):
        if name == "sgl_kernel.kvcacheio":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = __getattr__


sys.meta_path.append(_Submodules())
