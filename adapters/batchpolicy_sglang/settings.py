"""Where a server's policy file is named, and what SGLang must not be told beside it."""

from __future__ import annotations

import os

from batchpolicy.config import PolicyConfig, load_config
from batchpolicy.metadata import VARIABLE

KEY = "batchpolicy"
"""Key of ``custom_params`` under which a request says what it is."""


def configured() -> PolicyConfig | None:
    """The policy file that ``BATCHPOLICY_CONFIG`` names, or None.

    Raises
    ------
    ConfigError
        When the file cannot be used.
    """
    path = os.environ.get(VARIABLE)
    return load_config(path) if path else None
