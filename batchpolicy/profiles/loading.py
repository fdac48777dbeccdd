"""Profiles by name, file or callable."""

from __future__ import annotations

import difflib
import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from batchpolicy.errors import ConfigError
from batchpolicy.profiles.profile import FORMS, Origin, Profile
from batchpolicy.reading import refuse_device
from batchpolicy.step_costs.callables import CallableCost, is_place

_PACKAGE = "batchpolicy.profiles"


def profile_names() -> list[str]:
    """Names of the profiles that are shipped."""
    files = resources.files(_PACKAGE).iterdir()
    return sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json"))


def load_profile(name_or_path: str | Path) -> Profile:
    """The shipped profile of that name, the one in a JSON file, or one around a callable.

    A callable is named as ``module:name`` or ``path.py:name``; of its KV tokens and of what was
    measured such a profile knows nothing.

    Raises
    ------
    ConfigError
        When there is no such profile, file or callable, or the file is not a profile; all
        that is wrong with it is named at once.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".json"):
        file: Path | Traversable = Path(name_or_path)
    elif is_place(text):
        return _around(text)
    elif "/" in text or "\\" in text:
        file = Path(name_or_path)
    elif text in profile_names():
        file = resources.files(_PACKAGE) / f"{text}.json"
    else:
        known = profile_names()
        near = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"no profile named {text!r}.{hint} Shipped: {', '.join(known) or 'none'}; "
            "or give the path of a .json file, or a step cost as path.py:function."
        )
    try:
        if isinstance(file, Path):
            refuse_device(file)
        found = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"profile {text} cannot be read: {reason}") from e
    folder = str(file.resolve().parent) if isinstance(file, Path) else None
    try:
        return Profile.model_validate_json(found, strict=True, context={"folder": folder})
    except ValidationError as e:
        raise ConfigError(f"profile {text} cannot be used:\n{_faults(e)}") from e


def _around(place: str) -> Profile:
    try:
        cost = CallableCost(callable=place)
    except ValidationError as e:
        raise ConfigError(f"profile {place} cannot be used:\n{_faults(e)}") from e
    source = Path(cost.callable.rpartition(":")[0])
    return Profile(
        name=place,
        hardware="not stated",
        model="not stated",
        tp=1,
        cost=cost,
        origin=Origin(
            data=f"the callable {place}",
            data_sha256=(
                hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
            ),
            licence="not stated",
            engine="not stated",
            date=None,
            measures="what the callable says",
        ),
    )


def _faults(error: ValidationError) -> str:
    return "\n".join(
        f"  {_told(fault['loc'])}: {fault['msg'].removeprefix('Value error, ')}"
        for fault in error.errors()
    )


def _told(place: tuple[int | str, ...]) -> str:
    # The form of a cost is no key of the file.
    parts = [
        str(part)
        for i, part in enumerate(place)
        if not (i and place[i - 1] == "cost" and part in FORMS)
    ]
    return ".".join(parts) or "file"
