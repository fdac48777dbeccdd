"""The ``tune`` command."""

from batchpolicy_tuning.tune.cli.commands import app

__all__ = ["app"]
