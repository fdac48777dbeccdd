"""Plugins by name: installed entry points, ``module:Class``, or ``path/to/file.py:Class``."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from batchpolicy.component import Component
from batchpolicy.errors import BatchPolicyError, ConfigError, EngineUnavailable, UnknownPlugin
from batchpolicy.policy import Policy
from batchpolicy.predictor import Predictor

if TYPE_CHECKING:
    from batchpolicy.bench import Bench
    from batchpolicy.engine import Engine
    from batchpolicy.serve import Launcher
    from batchpolicy.terms import Term

POLICIES = "batchpolicy.policies"
PREDICTORS = "batchpolicy.predictors"
TERMS = "batchpolicy.terms"
ENGINES = "batchpolicy.engines"
COMMANDS = "batchpolicy.commands"
BENCHES = "batchpolicy.benches"
SERVERS = "batchpolicy.servers"

_FILE_MODULE = "batchpolicy_file_"

_KINDS = {
    POLICIES: "policy",
    PREDICTORS: "predictor",
    TERMS: "term",
    ENGINES: "engine",
    COMMANDS: "command",
    BENCHES: "bench",
    SERVERS: "server",
}

# Validators of terms run deep inside pydantic, where no argument reaches them.
_BASE: ContextVar[Path | None] = ContextVar("batchpolicy_base", default=None)

MOST_NESTED = 8
"""How deep policies may stand in each other."""
_DEPTH: ContextVar[int] = ContextVar("batchpolicy_depth", default=0)


@contextmanager
def relative_to(folder: Path | None) -> Generator[None, None, None]:
    """Paths of plugin files are relative to ``folder`` inside; None for the current one."""
    token = _BASE.set(folder)
    try:
        yield
    finally:
        _BASE.reset(token)


def names(group: str) -> list[str]:
    """Names that installed distributions registered, without importing them."""
    return sorted({found.name for found in entry_points(group=group)})


def load(group: str, name: str) -> object:
    """The plugin called ``name``, or the object at ``module:Attr`` or ``file.py:Class``.

    Raises
    ------
    UnknownPlugin
        When nothing installed has that name.
    ConfigError
        When the file, module or attribute is missing or cannot be imported, or
        when distributions disagree about the name.
    """
    if ":" in name:
        where, _, attribute = name.rpartition(":")
        if where.endswith(".py"):
            return _attribute(_module_of_file(absolute(where)), where, attribute)
        return _attribute(_module(where, name), where, attribute)
    if name.endswith(".py"):
        raise ConfigError(f"{name!r} names a file; name the class in it too, as {name}:MyClass.")
    found = _entry_point(group, name)
    try:
        return found.load()
    except ModuleNotFoundError as e:
        raise ConfigError(
            f"plugin {name!r} ({found.value}) needs {e.name!r}, which is not installed."
        ) from e
    except BatchPolicyError:
        raise  # the plugin says it better
    except Exception as e:
        raise ConfigError(f"plugin {name!r} ({found.value}) cannot be imported: {_said(e)}") from e


def policy_class(name: str, base: Path | None = None) -> type[Policy]:
    """The policy class called ``name``; a file's path is relative to ``base``.

    Raises
    ------
    ConfigError
        Also when what was found is no subclass of ``Policy``.
    """
    with relative_to(base or _BASE.get()):
        found = load(POLICIES, name)
    if _is_class(found) and issubclass(found, Policy):
        return found
    raise _no_subclass(name, found, "Policy")


def predictor_class(name: str, base: Path | None = None) -> type[Predictor]:
    """The predictor of output lengths called ``name``; see ``policy_class``."""
    with relative_to(base or _BASE.get()):
        found = load(PREDICTORS, name)
    if _is_class(found) and issubclass(found, Predictor):
        return found
    raise _no_subclass(name, found, "Predictor")


def term_class(name: str) -> type[Term]:
    """The benefit term called ``name``; see ``policy_class``."""
    from batchpolicy.terms import Term  # the terms' policy imports this module

    found = load(TERMS, name)
    if _is_class(found) and issubclass(found, Term):
        return found
    raise _no_subclass(name, found, "Term")


def build_term(given: object) -> object:
    """A term from ``{name: ..., parameters...}`` or from its bare name; others pass unchanged.

    Made for pydantic's validators, which collect what it raises.
    """
    return _build(given, TERMS, term_class)


def dump_term(term: Term) -> dict[str, object]:
    """What ``build_term`` makes an equal term of."""
    return {"name": name_of(TERMS, type(term)), **term.model_dump(mode="json", by_alias=True)}


def build_policy(given: object) -> object:
    """A policy inside another, as ``build_term`` makes terms."""
    depth = _DEPTH.get()
    if depth >= MOST_NESTED:
        raise ConfigError(f"policies stand in each other more than {MOST_NESTED} deep.")
    token = _DEPTH.set(depth + 1)
    try:
        return _build(given, POLICIES, policy_class)
    finally:
        _DEPTH.reset(token)


def dump_policy(policy: Policy) -> dict[str, object]:
    """What ``build_policy`` makes an equal policy of."""
    parameters = policy.model_dump(mode="json", by_alias=True)
    return {"name": name_of(POLICIES, type(policy)), **parameters}


def build_predictor(given: object) -> object:
    """A predictor inside another, as ``build_term`` makes terms."""
    return _build(given, PREDICTORS, predictor_class)


def dump_predictor(predictor: Predictor) -> dict[str, object]:
    """What ``build_predictor`` makes an equal predictor of."""
    parameters = predictor.model_dump(mode="json", by_alias=True)
    return {"name": name_of(PREDICTORS, type(predictor)), **parameters}


def _build(given: object, group: str, class_named: Callable[[str], type[Component]]) -> object:
    if isinstance(given, str):
        return _made(_KINDS[group], given, class_named(given), {})
    if not isinstance(given, Mapping):
        return given
    params = dict(cast("Mapping[str, object]", given))
    name = params.pop("name", None)
    if not isinstance(name, str):
        known = ", ".join(names(group)) or "none"
        raise ConfigError(f"a {_KINDS[group]} needs a name. Installed: {known}.")
    return _made(_KINDS[group], name, class_named(name), params)


def _made(kind: str, name: str, cls: type[Component], params: Mapping[str, object]) -> Component:
    try:
        return cls.model_validate(params)
    except ValueError:
        raise  # of the parameters; says where
    except Exception as e:
        raise ConfigError(cannot_be_made(name, cls, e, kind)) from e


def cannot_be_made(name: str, cls: type, fault: Exception, kind: str = "policy") -> str:
    """What to say where making an object of a user's class fails by itself."""
    missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
    if missing:
        return f"{kind} {name!r} defines no method {missing}, which every {kind} has to."
    return f"{kind} {name!r} cannot be made: {type(fault).__name__}: {fault}"


def name_of(group: str, cls: type) -> str:
    """The name under which ``load`` finds a class: registered, else where it is."""
    value = f"{cls.__module__}:{cls.__qualname__}"
    for found in entry_points(group=group):
        if found.value == value:
            return found.name
    if cls.__module__.startswith(_FILE_MODULE):
        return f"{sys.modules[cls.__module__].__file__}:{cls.__qualname__}"
    return value


def engine(name: str) -> Engine:
    """The engine called ``name``, ready to replay.

    Raises
    ------
    UnknownPlugin
        When no adapter is installed for it.
    EngineUnavailable
        When the adapter is there and the engine is not.
    """
    from batchpolicy.engine import Engine  # imports the configuration, which imports this module

    try:
        made = load(ENGINES, name)
        if not (_is_class(made) and issubclass(made, Engine)):
            raise _no_subclass(name, made, "Engine")
        return made()
    except (ConfigError, ImportError) as e:
        cause = e if isinstance(e, ImportError) else e.__cause__
        if not isinstance(cause, ImportError):
            raise
        package = (cause.name or str(cause)).partition(".")[0]
        raise lacks_package(name, package) from e


def lacks_package(engine: str, package: str) -> EngineUnavailable:
    """The error for an engine whose adapter is there and a package of which is not."""
    return EngineUnavailable(
        f"engine {engine!r} needs package {package!r}, which is not installed here. Install "
        f"batchpolicy beside your {engine}, or without a GPU: make .venv-{engine}"
    )


def bench_class(name: str) -> type[Bench]:
    """The bench called ``name``; see ``policy_class``."""
    from batchpolicy.bench import Bench  # not needed by what an engine loads

    found = load(BENCHES, name)
    if _is_class(found) and issubclass(found, Bench):
        return found
    raise _no_subclass(name, found, "Bench")


def launcher_class(name: str) -> type[Launcher]:
    """What starts the server of the engine called ``name``; see ``policy_class``."""
    from batchpolicy.serve import Launcher  # imports the configuration, which imports this module

    found = load(SERVERS, name)
    if _is_class(found) and issubclass(found, Launcher):
        return found
    raise _no_subclass(name, found, "Launcher")


def near(word: str, known: Iterable[str]) -> str:
    """The words `` Did you mean '...'?``, or nothing when no known word is near."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.55)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""


def _entry_point(group: str, name: str) -> EntryPoint:
    found = list(entry_points(group=group, name=name))
    if not found:
        known = names(group)
        raise UnknownPlugin(
            f"no {_KINDS.get(group, 'plugin')} named {name!r}.{near(name, known)} "
            f"Installed: {', '.join(known) or 'none'}."
        )
    if len({one.value for one in found}) > 1:
        owners = ", ".join(sorted({one.dist.name for one in found if one.dist}))
        raise ConfigError(
            f"{name!r} in {group} is registered by several distributions: {owners}. "
            "Write module:Class instead."
        )
    return found[0]


def absolute(where: str) -> Path:
    """A path of a parameter: one that is relative starts from the folder of the policy file."""
    return (_BASE.get() or Path.cwd()) / os.path.expanduser(where)


def _module_of_file(path: Path) -> ModuleType:
    """The module in a file, imported once for each content of the file."""
    try:
        source = path.read_bytes()
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a Python file.") from None
    except FileNotFoundError as e:
        beside = path.parent.glob("*.py") if path.parent.is_dir() else ()
        raise ConfigError(
            f"no file {str(path)!r}.{near(path.name, [p.name for p in beside])}"
        ) from e
    except (OSError, ValueError) as e:  # ValueError: a NUL in the path
        raise ConfigError(f"{str(path)!r} cannot be read: {_said(e)}.") from e
    key = hashlib.sha256(str(path.resolve()).encode() + b"\0" + source).hexdigest()[:16]
    name = f"{_FILE_MODULE}{key}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # pydantic and dataclasses look a class's module up by name while it is made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {_said(e, path)}") from e
    return module


def _module(where: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as e:
        if e.name and (where == e.name or where.startswith(f"{e.name}.")):
            raise ConfigError(f"no module named {e.name!r}, asked for by {name!r}.") from e
        raise ConfigError(f"{name!r} needs {e.name!r}, which is not installed.") from e
    except (Exception, SystemExit) as e:
        raise ConfigError(f"module {where!r} cannot be imported: {_said(e)}") from e


def _attribute(module: ModuleType, where: str, attribute: str) -> object:
    try:
        return reduce(getattr, attribute.split("."), cast(object, module))
    except AttributeError as e:
        own = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise ConfigError(
            f"no class {attribute!r} in {where}.{near(attribute, own)} "
            f"Classes: {', '.join(own) or 'none'}."
        ) from e


def _is_class(found: object) -> TypeGuard[type[Any]]:
    return isinstance(found, type)


def _no_subclass(name: str, found: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name!r} is {found!r}, which is no subclass of {wanted}.")


def _said(error: BaseException, path: Path | None = None) -> str:
    """Kind and text of an error in one line, with the line of ``path`` it came from."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if path is None or isinstance(error, SyntaxError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{text} (line {lines[-1]})" if lines else text
