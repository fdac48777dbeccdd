"""Plugins by name: installed entry points, ``module:Class``, or ``path/to/file.py:Class``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from batchpolicy.component import Component
from batchpolicy.errors import BatchPolicyError, ConfigError, EngineUnavailable, UnknownPlugin
from batchpolicy.nearest import near
from batchpolicy.plugin_modules import (
    FILE_MODULE,
    absolute,
    attribute_of,
    module_named,
    module_of_file,
    relative_to,
    said,
)
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

_KINDS = {
    POLICIES: "policy",
    PREDICTORS: "predictor",
    TERMS: "term",
    ENGINES: "engine",
    COMMANDS: "command",
    BENCHES: "bench",
    SERVERS: "server",
}

MOST_NESTED = 8
"""How deep policies may stand in each other."""
_DEPTH: ContextVar[int] = ContextVar("batchpolicy_depth", default=0)


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
            return attribute_of(module_of_file(absolute(where)), where, attribute)
        return attribute_of(module_named(where, name), where, attribute)
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
    except (Exception, SystemExit) as e:
        raise ConfigError(f"plugin {name!r} ({found.value}) cannot be imported: {said(e)}") from e


def policy_class(name: str, base: Path | None = None) -> type[Policy]:
    """The policy class called ``name``; a file's path is relative to ``base``.

    Raises
    ------
    ConfigError
        Also when what was found is no subclass of ``Policy``.
    """
    with nullcontext() if base is None else relative_to(base):
        found = load(POLICIES, name)
    if _is_class(found) and issubclass(found, Policy):
        return found
    raise _no_subclass(name, found, "Policy")


def predictor_class(name: str, base: Path | None = None) -> type[Predictor]:
    """The predictor of output lengths called ``name``; see ``policy_class``."""
    with nullcontext() if base is None else relative_to(base):
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
    if cls.__module__.startswith(FILE_MODULE):
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


def _is_class(found: object) -> TypeGuard[type[Any]]:
    return isinstance(found, type)


def _no_subclass(name: str, found: object, wanted: str) -> ConfigError:
    # A module that was read from a file has an internal name, which tells nobody anything.
    what = f"class {found.__qualname__}" if isinstance(found, type) else repr(found)
    return ConfigError(f"{name!r} is {what}, which is no subclass of {wanted}.")
