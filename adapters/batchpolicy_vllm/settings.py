"""Where a server's policy file is named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from batchpolicy.config import PolicyConfig, load_config
from batchpolicy.errors import ConfigError
from batchpolicy.metadata import VARIABLE

KEY = "batchpolicy"


def configured(additional_config: Any) -> PolicyConfig | None:
    """The policy file that ``--additional-config`` or ``BATCHPOLICY_CONFIG`` names, or None.

    The option looks like ``--additional-config '{"batchpolicy": "policy.yaml"}'`` and
    goes before the variable.

    Raises
    ------
    ConfigError
        When the file cannot be used.
    """
    given: object = None
    if isinstance(additional_config, Mapping):
        given = cast(Mapping[str, object], additional_config).get(KEY)
    if given is not None and not isinstance(given, str):
        raise ConfigError(
            f"additional_config.{KEY} is {given!r}, expected the path of a policy file."
        )
    path = given or os.environ.get(VARIABLE)
    return load_config(path) if path else None
