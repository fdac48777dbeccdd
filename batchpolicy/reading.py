"""YAML and JSON files to documents: plain values with their lines, through one strict parser."""

from __future__ import annotations

import errno
import gzip
import re
import zlib
from pathlib import Path
from typing import Any, cast

import yaml

from batchpolicy.document import Document, Loc, short
from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near

SUFFIXES = (".yaml", ".yml", ".json")
_MOST_VALUES = 10_000


def read_document(path: Path) -> Document:
    """The one mapping in a YAML or JSON file, with its lines; duplicate keys are faults.

    Raises
    ------
    ConfigError
        When there is no such file, or it is not YAML, empty, or no mapping.
    """
    document = Document(path)
    text = _text_of(path)
    # JSON may be indented with tabs, and has them nowhere else; YAML refuses them.
    text = text.replace("\t", " ") if path.suffix == ".json" else text
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        said = ": ".join(part for part in (e.context, e.problem) if part)
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: not YAML: {said}.") from e
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        raise ConfigError(f"{path}:{line}: character {e.character!r} is not allowed.") from e
    except RecursionError as e:
        raise ConfigError(f"{path}: nested too deeply.") from e
    if root is None:
        raise ConfigError(f"{path}:1: the file is empty; expected a mapping.")
    document.value = _plain(root, document, (), ())
    if not isinstance(document.value, dict):
        raise ConfigError(f"{path}:1: the file is {short(document.value)}; expected a mapping.")
    return document


def refuse_device(path: Path) -> None:
    """Raise OSError if the file is a device, which may never end; a pipe ends with its writer."""
    if path.exists() and (path.is_char_device() or path.is_block_device()):
        raise OSError(errno.EINVAL, "it is a device, no ordinary file", str(path))


def unpacked(path: Path) -> bytes:
    """What a file holds, that of a ``.gz`` unpacked; every fault is an OSError with its words."""
    refuse_device(path)
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as e:
        raise OSError(errno.EINVAL, str(e), str(path)) from e


def _text_of(path: Path) -> str:
    try:
        # A device or a pipe may never end.
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path} is no ordinary file.")
        raw = path.read_bytes()
    except FileNotFoundError as e:
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        hint = near(path.name, [p.name for p in beside if p.suffix in SUFFIXES])
        raise ConfigError(f"no file {str(path)!r}.{hint}") from e
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}.") from e
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise ConfigError(f"{path}:{line}: byte 0x{raw[e.start]:02x} is not UTF-8.") from e


class _Loader(yaml.SafeLoader):
    """Scalars as in YAML 1.2 and JSON: ``no`` is a word, ``1e3`` a number, ``1:30`` neither."""


# Not in the class body, where type checkers take it for a variable of instances.
_Loader.yaml_implicit_resolvers = {}


_INT, _FLOAT, _BOOL, _NULL, _STR = (
    f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null", "str")
)
_TAGS = {_INT, _FLOAT, _BOOL, _NULL, _STR, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
for _tag, _pattern, _first in (
    (_INT, r"[-+]?[0-9]+", "-+0123456789"),
    (_FLOAT, r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    (_FLOAT, r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    cast(Any, _Loader).add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))


def _plain(node: yaml.Node, document: Document, loc: Loc, above: tuple[yaml.Node, ...]) -> object:
    """The value of a node; notes its line, and as faults what files may not contain."""
    document.lines.setdefault(loc, node.start_mark.line + 1)
    # Aliases to aliases multiply, and an alias may contain itself.
    if len(document.lines) > _MOST_VALUES or node in above:
        raise ConfigError(
            f"{document.path}: more than {_MOST_VALUES:,} values, or an alias in itself."
        )
    above = (*above, node)
    if node.tag not in _TAGS:
        document.fault(loc, f"tag {node.tag!r} is not allowed; write a plain value.")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, document, loc)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(one, document, (*loc, i), above) for i, one in enumerate(node.value)]
    found: dict[str, object] = {}
    for key, value in cast(yaml.MappingNode, node).value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            document.faults.append((line, "a key is a list or a mapping; expected a name."))
            continue
        name = str(key.value)
        place = (*loc, name)
        if name in found:
            first = document.lines[place]
            document.faults.append((line, f"key {name!r} is set twice, first in line {first}."))
            continue
        document.lines[place] = line
        found[name] = _plain(value, document, place, above)
    return found


def _scalar(node: yaml.ScalarNode, document: Document, loc: Loc) -> object:
    text = str(node.value)
    try:
        if node.tag == _INT:
            return int(text)
        if node.tag == _FLOAT:
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if node.tag == _BOOL:
            return text.lower() == "true"
        if node.tag == _NULL:
            return None
    except ValueError:
        return text  # as after !!int, or thousands of digits: whoever reads it says what it wants
    try:
        # JSON writes characters beyond the basic plane as two escapes.
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except ValueError:
        document.fault(loc, "half of a surrogate pair is no character.")
        return ""
