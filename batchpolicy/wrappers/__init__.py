"""Policies around another policy."""

from batchpolicy.wrappers.wrapper import Inner, Wrapper

__all__ = ["Inner", "Wrapper"]
