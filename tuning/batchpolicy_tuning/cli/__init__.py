"""The ``ab`` command."""

from batchpolicy_tuning.cli.compare import app

__all__ = ["app"]
