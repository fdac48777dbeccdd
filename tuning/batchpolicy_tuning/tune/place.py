"""A storage's URL without what nobody else is to read."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
_PARAMETER = re.compile(r"([?&;][^=&;]*(?:pass|pwd|secret)[^=&;]*=)([^&;]*)", re.I)


def shown_place(place: str) -> str:
    """A storage, or any text that ends with one, without its passwords.

    Everything from the colon behind the user to the last ``@``, as a password may hold any
    mark, and values of parameters such as ``?password=``.
    """
    return _PARAMETER.sub(rf"\1{HIDDEN}", _user_only(place)[0])


def is_hidden(shown: str) -> bool:
    """Whether something was taken out of a storage that is shown, so that it opens none."""
    return f":{HIDDEN}@" in shown or f"={HIDDEN}" in shown


def without_secrets(text: str, place: str) -> str:
    """What is said of a storage, by a driver for example, without its passwords."""
    text = text.replace(place, shown_place(place))
    rest, password = _user_only(place)
    # Drivers take it up to the first @ and say it as it was meant.
    secrets = [password, password.partition("@")[0], *(m[2] for m in _PARAMETER.finditer(rest))]
    for secret in {*secrets, *map(unquote, secrets)} - {"", HIDDEN}:
        text = text.replace(secret, HIDDEN)
    return text


def _user_only(place: str) -> tuple[str, str]:
    head, at, host = place.rpartition("@")
    scheme, slashes, user_and_password = head.rpartition("://")
    user, colon, password = user_and_password.partition(":")
    if not (at and colon):
        return place, ""
    return f"{scheme}{slashes}{user}:{HIDDEN}@{host}", password
