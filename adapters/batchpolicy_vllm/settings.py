"""Where a server's policy file is named, and where its requests name their tenant."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from batchpolicy.config import PolicyConfig, RequestDefaults, load_config
from batchpolicy.errors import ConfigError

VARIABLE = "BATCHPOLICY_CONFIG"
KEY = "batchpolicy"

_SOURCE = "vllm_xargs."
# The characters of RFC 9110, section 5.6.2, but for the dot that other places have.
_HEADER = re.compile(r"[!#$%&'*+^_`|~0-9A-Za-z-]+")


class TenantKeys(NamedTuple):
    """Keys of ``vllm_xargs`` that may name the tenant."""

    all: tuple[str, ...]
    """In the order in which they are looked at."""
    headers: tuple[str, ...]
    """Those that ``HeaderMiddleware`` sets from the header of that name, in lower case."""


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


def tenant_keys(defaults: RequestDefaults) -> TenantKeys:
    """Where ``requests.tenant_from`` looks for the tenant.

    Raises
    ------
    ConfigError
        When it looks in a place that vLLM does not have.
    """
    unknown: list[str] = []
    keys: list[str] = []
    headers: list[str] = []
    for place in defaults.tenant_from:
        key = place.removeprefix(_SOURCE)
        if key and key != place:
            keys.append(key)
        elif _HEADER.fullmatch(place):
            keys.append(place.lower())
            headers.append(place.lower())
        else:
            unknown.append(place)
    if unknown:
        raise ConfigError(
            f"requests.tenant_from: vLLM cannot read {', '.join(map(repr, unknown))}; expected "
            f"{_SOURCE}KEY, such as {_SOURCE}tenant, or the name of a header, such as x-tenant."
        )
    return TenantKeys(tuple(keys), tuple(headers))
