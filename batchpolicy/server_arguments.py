"""The command line of an engine's server, as far as we have to know it."""

from __future__ import annotations

import json
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from batchpolicy.errors import ConfigError
from batchpolicy.reading import read_document


def read_arguments(parser: ArgumentParser, arguments: Sequence[str], engine: str) -> Namespace:
    """What the arguments say that ``parser`` knows; those of the file ``--config`` come first.

    Raises
    ------
    ConfigError
        When an option lacks its value, or the file cannot be read.
    """
    try:
        said = parser.parse_known_args(arguments)[0]
        if said.config:
            arguments = [*_options(Path(said.config)), *arguments]
        return parser.parse_known_args(arguments)[0]
    except ArgumentError as e:
        raise ConfigError(f"{engine}'s {e}.") from e


def dashed(argument: str) -> str:
    """With dashes for the underscores in the name of an option."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def _options(file: Path) -> Iterator[str]:
    """The options in a file, as the engines take them over."""
    for key, value in cast("dict[str, object]", read_document(file).value).items():
        if isinstance(value, bool):
            yield from [dashed(f"--{key}")] * value
            continue
        for one in cast("list[object]", value) if isinstance(value, list) else [value]:
            yield dashed(f"--{key}={json.dumps(one) if isinstance(one, dict) else one}")
