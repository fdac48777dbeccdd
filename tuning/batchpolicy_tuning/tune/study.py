"""A study file, read and understood: everything that is known before an engine runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from batchpolicy import registry
from batchpolicy.config import PolicyConfig, config_named
from batchpolicy.document import Document
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.nearest import near
from batchpolicy.profiles import Profile, load_profile
from batchpolicy.reading import read_document
from batchpolicy.target_grammar import parse_measurands, parse_target
from batchpolicy.targets import Measurand, Target
from batchpolicy_tuning.tune.engine_limits import (
    has_prefix_cache,
    refuse_part_blocks,
    refuse_what_engines_lack,
    search_engine,
)
from batchpolicy_tuning.tune.judging import Goal, Limit
from batchpolicy_tuning.tune.measuring import cannot_measure
from batchpolicy_tuning.tune.sampler import check_sampler
from batchpolicy_tuning.tune.settings import (
    Setting,
    Settings,
    config_beside,
    read_policies,
    read_settings,
)
from batchpolicy_tuning.tune.study_file import StudyFile
from batchpolicy_tuning.workloads.catalog import EMBEDDED

BASELINE = "fcfs"
_MEASURED_BY = (
    *("workloads", "profile", "limits", "targets", "objectives", "price_per_hour"),
    *("search.seed", "search.engine"),
)
"""Parts of a study on which what was measured depends."""


@dataclass(frozen=True, slots=True)
class Study:
    """What to search, for what, and on what."""

    path: Path
    file: StudyFile
    targets: tuple[Target, ...]
    objectives: tuple[Measurand, ...]
    profile: Profile
    settings: Settings
    baseline: Setting
    """The engine's default: first come, first served, at the limits it is started with."""
    given: Mapping[str, Setting]
    """By name, policies that are measured first."""

    @property
    def name(self) -> str:
        """What the study is called in a storage."""
        return self.path.stem

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What must hold."""
        return tuple(Limit.of(target) for target in self.targets)

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What is to be improved."""
        return tuple(Goal.of(objective) for objective in self.objectives)

    @property
    def measurands(self) -> tuple[Measurand, ...]:
        """All that is measured, the objectives first."""
        return tuple(dict.fromkeys([*self.objectives, *(t.measurand for t in self.targets)]))

    @property
    def search_engine(self) -> str:
        """Engine that trials run on."""
        return search_engine(self.file)

    def beside(self, name: str) -> str:
        """A workload or class file, from where the study file is; names stay as they are."""
        return name if name in EMBEDDED else str(self.path.parent / name)

    def fingerprint(self) -> dict[str, str]:
        """A digest of each part of the file; the number of trials takes no part."""
        said: dict[str, Any] = self.file.model_dump(mode="json")
        search = said.pop("search")
        said |= {f"search.{key}": value for key, value in search.items() if key != "trials"}
        said["search.engine"] = self.search_engine
        for name in ("classes", "workload"):
            for spec in said["workloads"]:
                path = Path(self.beside(spec[name])) if spec[name] else None
                if path is not None and path.is_file():
                    spec[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return {
            key: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
            for key, part in said.items()
        }


def changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[list[str], bool]:
    """Parts of a study that differ, and whether trials measured before still mean the same."""
    parts = [key for key in now if before.get(key) != now[key]]
    return parts, not any(part in _MEASURED_BY for part in parts)


def read_study(path: Path) -> Study:
    """The study in a YAML or JSON file.

    Raises
    ------
    ConfigError
        With everything that is wrong with the file.
    """
    document = read_document(path)
    read = document.validate(StudyFile, document.value)
    if read is None:
        read = _usable(document.value)
    targets = _targets(document, read)
    objectives = _objectives(document, read)
    profile = _profile(document, read.profile)
    _files(document)
    try:
        check_sampler(read.search.sampler)
    except ConfigError as fault:
        document.fault(("search", "sampler"), str(fault))
    if read.search.engine is not None:
        _engine(document, ("search", "engine"), read.search.engine)
    _engine(document, ("engine",), read.engine)
    refuse_what_engines_lack(document, read)
    limits = _limits(document, read, profile)
    settings = None
    if profile is not None and limits is not None:
        settings = read_settings(document, read.space, profile, limits)
        searched = () if settings is None else settings.space.parameters
        refuse_part_blocks(document, read, searched)
    else:
        read_policies(document, read.space)
    given = {
        name: config
        for i, name in _texts(document, "policies", read.policies)
        if (config := _given(document, i, name)) is not None
    }
    document.raise_faults()
    if profile is None or limits is None or settings is None:
        raise AssertionError("a part that could not be read has a fault")
    return Study(
        path=path,
        file=read,
        targets=tuple(targets),
        objectives=tuple(objectives),
        profile=profile,
        settings=settings,
        baseline=Setting(config_named(BASELINE), limits),
        given={name: Setting(config, limits) for name, config in given.items()},
    )


def with_search(study: Study, *, trials: int | None, seed: int | None) -> Study:
    """The study with what a command line says in place of what the file says."""
    asked = {"trials": trials, "seed": seed}
    given = {key: value for key, value in asked.items() if value is not None}
    search = study.file.search.model_copy(update=given)
    return replace(study, file=study.file.model_copy(update={"search": search}))


def _usable(given: object) -> StudyFile:
    """The parts of a study that can be read, so that faults in these are told as well."""
    parts = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    kept: dict[str, object] = {
        "apiVersion": "batchpolicy/v1",
        "kind": "Study",
        "workloads": [{"workload": next(iter(EMBEDDED))}],
        "space": {},
    }
    for key, part in parts.items():
        with suppress(ValidationError, BatchPolicyError):
            StudyFile.model_validate({**kept, key: part})
            kept[key] = part
    return StudyFile.model_validate(kept)


def _listed(document: Document, key: str, default: Sequence[object]) -> Sequence[object]:
    """The items of a list as the file has them, also where another of them is no item."""
    value: object = document.value
    parts = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    given = parts.get(key)
    return cast("list[object]", given) if isinstance(given, list) else default


def _texts(document: Document, key: str, default: Sequence[str]) -> list[tuple[int, str]]:
    """Place and text of all items that are texts; the others have their faults already."""
    listed = enumerate(_listed(document, key, default))
    return [(i, one) for i, one in listed if isinstance(one, str) and one]


def _targets(document: Document, read: StudyFile) -> list[Target]:
    found: list[Target] = []
    for i, text in _texts(document, "targets", read.targets):
        at = ("targets", i)
        try:
            one = parse_target(text)
        except ConfigError as fault:
            document.fault(at, str(fault))
            continue
        why = cannot_measure(one.measurand, read.price_per_hour is not None)
        if why:
            document.fault(at, f"target {text!r}: {why}.")
        elif one in found:
            document.fault(at, f"target {text!r} is given twice.")
        found.append(one)
    return found


def _objectives(document: Document, read: StudyFile) -> list[Measurand]:
    found: list[Measurand] = []
    for i, text in _texts(document, "objectives", read.objectives):
        at = ("objectives", i)
        try:
            one = parse_measurands([text])[0]
        except ConfigError as fault:
            document.fault(at, str(fault).splitlines()[-1].strip())
            continue
        why = cannot_measure(one, read.price_per_hour is not None)
        if why:
            document.fault(at, f"objective {text!r}: {why}.")
        elif one in found:
            document.fault(at, f"objective {text!r} is given twice.")
        found.append(one)
    return found


def _profile(document: Document, name: str) -> Profile | None:
    beside = document.path.parent / name
    try:
        return load_profile(str(beside) if beside.is_file() else name)
    except BatchPolicyError as fault:
        document.fault(("profile",), str(fault))
        return None


def _engine(document: Document, at: tuple[str, ...], name: str) -> None:
    known = registry.names(registry.ENGINES)
    if name not in known and ":" not in name:
        document.fault(
            at,
            f"{'.'.join(at)} is {name!r}; expected one of {', '.join(known)}.{near(name, known)}",
        )


def _files(document: Document) -> None:
    for i, spec in enumerate(_listed(document, "workloads", ())):
        given = cast("dict[str, object]", spec) if isinstance(spec, dict) else {}
        for key in ("workload", "classes"):
            name = given.get(key)
            if not isinstance(name, str) or not name or (key == "workload" and name in EMBEDDED):
                continue
            if not (document.path.parent / name).exists():
                hint = near(name, EMBEDDED) if key == "workload" else ""
                known = f" Embedded: {', '.join(EMBEDDED)}." if key == "workload" else ""
                document.fault(
                    ("workloads", i, key),
                    f"workloads[{i}].{key}: no file {str(document.path.parent / name)!r}."
                    f"{hint}{known}",
                )


def _limits(document: Document, read: StudyFile, profile: Profile | None) -> EngineLimits | None:
    before, start = len(document.faults), read.limits
    if start.max_num_batched_tokens < start.max_num_seqs:
        document.fault(
            ("limits", "max_num_batched_tokens"),
            f"limits.max_num_batched_tokens {start.max_num_batched_tokens} is below "
            f"max_num_seqs {start.max_num_seqs}; no engine starts so.",
        )
    if profile is None:
        return None
    try:
        tokens = profile.kv_tokens if start.kv_tokens is None else start.kv_tokens
    except ConfigError as fault:
        said = str(fault).replace("--kv-tokens", "limits.kv_tokens")
        document.fault(("limits",), f"limits.kv_tokens: {said}")
        return None
    if start.block_size > tokens:
        document.fault(
            ("limits", "block_size"),
            f"limits: one block of {start.block_size:,} tokens is more than the KV pool of "
            f"{tokens:,}.",
        )
    limits = EngineLimits(
        max_num_seqs=start.max_num_seqs,
        max_num_batched_tokens=start.max_num_batched_tokens,
        kv_blocks=tokens // start.block_size,
        kv_block_tokens=start.block_size,
        prefix_cache=has_prefix_cache(read),
        long_prefill_token_threshold=start.long_prefill_token_threshold,
        async_scheduling=start.async_scheduling,
        max_loras=start.max_loras,
        watermark=start.watermark,
    )
    try:
        profile.check_limits(limits)
    except ConfigError as fault:
        document.fault(("limits",), f"limits: {fault}")
    return limits if len(document.faults) == before else None


def _given(document: Document, i: int, name: str) -> PolicyConfig | None:
    try:
        return config_beside(document, name)
    except BatchPolicyError as fault:
        document.fault(("policies", i), str(fault))
        return None
