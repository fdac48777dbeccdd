"""Places of a request that may name its tenant, as policy files write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from batchpolicy.nearest import near

# What the engines call the parameters of a request that they pass on unread.
_SOURCES = ("vllm_xargs", "custom_params")
# The characters of RFC 9110, section 5.6.2, but for the dot that other places have.
_HEADER = re.compile(r"[!#$%&'*+^_`|~0-9A-Za-z-]+")


class TenantKeys(NamedTuple):
    """Keys of a request's own parameters that may name the tenant."""

    all: tuple[str, ...]
    """In the order in which they are looked at."""
    headers: tuple[str, ...]
    """Those that stand for the header of that name, in lower case."""


def check_place(place: str) -> str:
    """The place as it is.

    Raises
    ------
    ValueError
        When no engine has it.
    """
    source, dot, key = place.partition(".")
    header = _HEADER.fullmatch(place)
    # Without its dot, what was meant as a key would be the name of a header that nobody sends.
    if (dot and source in _SOURCES and key) or (header and not place.startswith(_SOURCES)):
        return place
    raise ValueError(
        f"engines cannot read it; expected {_SOURCES[0]}.KEY or {_SOURCES[1]}.KEY, such as "
        f"{_SOURCES[0]}.tenant, or the name of a header, such as x-tenant.{_hint(source, key)}"
    )


def tenant_keys(places: Iterable[str]) -> TenantKeys:
    """Where places that were checked look for the tenant.

    ``vllm_xargs.KEY`` and ``custom_params.KEY`` are one place under two names, so that a
    policy file serves both engines.
    """
    keys: list[str] = []
    headers: list[str] = []
    for place in places:
        _, dot, key = place.partition(".")
        keys.append(key if dot else place.lower())
        if not dot:
            headers.append(place.lower())
    return TenantKeys(tuple(keys), tuple(headers))


def _hint(source: str, key: str) -> str:
    if source.lower() in ("header", "headers") and _HEADER.fullmatch(key):
        return f" Did you mean {key!r}?"
    for one in _SOURCES:
        if source.startswith(one):
            rest = source.removeprefix(one).lstrip("_-:")
            return f" Did you mean '{one}.{key or rest or 'tenant'}'?"
    return near(f"{source}.{key}", [f"{one}.{key}" for one in _SOURCES]) if key else ""
