"""The ``batchpolicy`` command: policies here, the rest from installed entry points."""

from batchpolicy.cli.output import FAULT, GATE_FAILED, INVALID, USAGE, console, emit_json
from batchpolicy.cli.run import main

__all__ = ["FAULT", "GATE_FAILED", "INVALID", "USAGE", "console", "emit_json", "main"]
