"""Settings measured by replaying workloads on an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from batchpolicy.engine import Engine
from batchpolicy.errors import ConfigError
from batchpolicy.nearest import near
from batchpolicy.workload import Workload
from batchpolicy_tuning.ab import check_fit
from batchpolicy_tuning.prefix_cache import on
from batchpolicy_tuning.replay import Replay
from batchpolicy_tuning.saturation import Saturate, backlog
from batchpolicy_tuning.tune.engine_limits import check_prefixes, note_of_cache
from batchpolicy_tuning.tune.judging import Goal, Limit
from batchpolicy_tuning.tune.measuring import Sample, value_of
from batchpolicy_tuning.tune.records import Value
from batchpolicy_tuning.tune.search import Candidate, TrialFailed
from batchpolicy_tuning.tune.settings import Setting
from batchpolicy_tuning.tune.space import Space
from batchpolicy_tuning.tune.study import Study
from batchpolicy_tuning.tune.study_file import WorkloadSpec
from batchpolicy_tuning.workloads.catalog import workload_named
from batchpolicy_tuning.workloads.source import TraceSlices, WorkloadSource, arrival_rate

_FAIR = ("jain", "service_gap")


@dataclass(frozen=True, slots=True)
class Instance:
    """One slice or seed of a workload, at its load."""

    name: str
    workload: Workload


@dataclass(frozen=True, slots=True)
class Drawn:
    """The workloads of a study, for the search and held out from it."""

    search: tuple[Instance, ...]
    held_out: tuple[Instance, ...]
    saturation: Mapping[str, float]
    """Requests per second that are load 1, by workload."""
    extended: bool
    """Whether some request is longer than the contexts that the profile was fitted to."""
    notes: tuple[str, ...]

    @property
    def every(self) -> tuple[Instance, ...]:
        """Both together."""
        return (*self.search, *self.held_out)

    def digest(self) -> str:
        """SHA-256 over all requests, in hex."""
        sha = hashlib.sha256()
        for one in self.every:
            sha.update(one.workload.digest().encode())
        return sha.hexdigest()


def draw(study: Study, engine: Engine) -> Drawn:
    """The slices and seeds of a study.

    Which slices the search sees and which are held out is drawn by the study's seed: both
    are from all over a trace. All keep their bursts and are stretched by one factor to the
    load, which counts in what the engine's own order sustains at the baseline's limits.

    Raises
    ------
    WorkloadError
        When a trace is too short, a request can never fit, or no load can be set.
    ConfigError
        When a target or objective is about what no request has.
    """
    search: list[Instance] = []
    held_out: list[Instance] = []
    saturation: dict[str, float] = {}
    notes: list[str] = list(note_of_cache(study.file))
    for i, spec in enumerate(study.file.workloads):
        source = _source(study, spec)
        wanted = spec.slices + spec.held_out
        picked = _picked(source, wanted, study.file.search.seed)
        drawn = [source.replication(k, study.file.search.seed) for k in picked]
        check_fit(drawn, study.baseline.limits)
        seats = study.baseline.limits.max_num_seqs
        check_prefixes(study.file, drawn)
        limits = on(engine, study.baseline.limits)
        full = Saturate(backlog(drawn, seats), limits, study.profile.cost, 0)(engine)
        factor = arrival_rate(drawn) / (spec.load * full.requests_per_s)
        label = source.name if len(study.file.workloads) == 1 else f"{source.name} #{i + 1}"
        made = [
            Instance(f"{label}, slice {k}", workload.stretched(factor))
            for k, workload in zip(picked, drawn, strict=True)
        ]
        search += made[: spec.slices]
        held_out += made[spec.slices :]
        saturation[label] = full.requests_per_s
        notes += source.notes
    longest = max(
        r.prompt_tokens + min(r.output_tokens, r.max_tokens)
        for one in (*search, *held_out)
        for r in one.workload.requests
    )
    found = Drawn(
        tuple(search),
        tuple(held_out),
        saturation,
        study.profile.is_extended(longest),
        tuple(dict.fromkeys(notes)),
    )
    _check_asked(study, found)
    return found


def _source(study: Study, spec: WorkloadSpec) -> WorkloadSource:
    classes = None if spec.classes is None else study.path.parent / spec.classes
    source = workload_named(
        study.beside(spec.workload),
        pairs=spec.slices + spec.held_out,
        requests=spec.requests,
        classes=classes,
    )
    if isinstance(source, TraceSlices):
        # Slices no longer than asked for: there are then more to choose from.
        source = replace(
            source, slices=max(len(source.trace.requests) // spec.requests, source.slices)
        )
    return source


def _picked(source: WorkloadSource, wanted: int, seed: int) -> list[int]:
    """Numbers of the replications, those of the search first."""
    total = wanted if source.replications is None else source.replications
    return [int(k) for k in np.random.default_rng([seed, 7]).permutation(total)[:wanted]]


def _check_asked(study: Study, drawn: Drawn) -> None:
    """Refuse targets and objectives that no run of these workloads could measure."""
    requests = [r for one in drawn.search for r in one.workload.requests]
    classes = sorted({r.request_class for r in requests} - {""})
    tenants = sorted({r.tenant for r in requests} - {""})
    targeted = any(min(r.ttft_slo_s, r.tpot_slo_s) < float("inf") for r in requests)
    faults: list[str] = []
    for one in study.measurands:
        known = classes if one.scope_kind == "class" else tenants
        if one.scope_kind and one.scope_name not in known:
            listed = ", ".join(known) or "none"
            faults.append(
                f"{one}: the workload has no such {one.scope_kind}."
                f"{near(one.scope_name, known)} There are: {listed}"
            )
        if one.metric in ("goodput", "attainment") and not targeted:
            faults.append(
                f"{one}: no request has a target; name a file of classes with ttft_slo_s or "
                "tpot_slo_s, or another objective"
            )
        if one.metric in _FAIR and len(tenants) < 2:
            faults.append(f"{one}: compares tenants, and the workload has {len(tenants)}")
    if faults:
        raise ConfigError(
            f"{study.path}: what cannot be measured:\n" + "\n".join(f"  {f}" for f in faults)
        )


@dataclass(frozen=True, slots=True)
class ReplayProblem:
    """A ``Problem``: each setting serves the slices of a study on an engine."""

    study: Study
    engine: Engine
    drawn: Sequence[Instance]

    @property
    def space(self) -> Space:
        """What may be chosen."""
        return self.study.settings.space

    @property
    def limits(self) -> Sequence[Limit]:
        """What must hold."""
        return self.study.limits

    @property
    def goals(self) -> Sequence[Goal]:
        """What is to be improved."""
        return self.study.goals

    @property
    def instances(self) -> Sequence[str]:
        """Names of the slices and seeds."""
        return [one.name for one in self.drawn]

    @property
    def first(self) -> Sequence[Candidate]:
        """The baseline, and the policies given."""
        study = self.study
        found = [self._candidate_of("baseline", study.baseline, "baseline")]
        found += [self._candidate_of(name, one, "given") for name, one in study.given.items()]
        return found

    def candidate(self, params: Mapping[str, Value]) -> Candidate:
        """The setting of these parameters."""
        setting = self.study.settings.of(params)
        return Candidate("sampled", setting.config.label, setting.key, params, setting.shown())

    def measure(self, candidate: Candidate, instance: int) -> Sample:
        """Serve one slice."""
        setting = setting_of(self.study, candidate.origin, candidate.label, candidate.params)
        return served(self.study, setting, self.drawn[instance], self.engine)

    def values(self, measured: Sequence[Sample]) -> Mapping[str, float]:
        """Values over slices together."""
        return values_of(self.study, measured)

    def _candidate_of(self, label: str, setting: Setting, origin: str) -> Candidate:
        params = {
            name: getattr(setting.limits, name)
            for name in (one.name for one in self.space.parameters)
            if hasattr(setting.limits, name)
        }
        policies = [p for p in self.space.policies if p]
        if setting.config.policy.name in policies and not setting.config.policy.params:
            params["policy"] = setting.config.policy.name
        return Candidate(
            "baseline" if origin == "baseline" else "given",
            label,
            setting.key,
            params,
            setting.shown(),
        )


def setting_of(study: Study, origin: str, label: str, params: Mapping[str, Value]) -> Setting:
    """The policy and limits of a candidate or of a trial."""
    if origin == "baseline":
        return study.baseline
    return study.given[label] if origin == "given" else study.settings.of(params)


def values_of(study: Study, measured: Sequence[Sample]) -> dict[str, float]:
    """Values of a study's objectives and targets; absent where nothing was measured."""
    found = {
        str(one): value_of(one, measured, study.file.price_per_hour) for one in study.measurands
    }
    return {key: value for key, value in found.items() if value == value}


def served(study: Study, setting: Setting, instance: Instance, engine: Engine) -> Sample:
    """One slice under a setting.

    Raises
    ------
    BatchPolicyError
        When the engine or the profile refuses the setting, requests are left at the end, or
        the policy failed and the engine served without it.
    """
    study.profile.check_limits(setting.limits)
    replay = Replay(
        instance.name,
        setting.config,
        instance.workload,
        on(engine, setting.limits),
        study.profile.cost,
        study.file.search.seed,
    )
    fair = any(one.metric in _FAIR for one in study.measurands)
    sample = Sample.of(replay.run(engine), fairness=fair)
    if sample.unfinished:
        raise TrialFailed(
            f"{instance.name}: {sample.unfinished} of {sample.requests} requests never ended"
        )
    if sample.faults:
        raise TrialFailed(f"{instance.name}: policy or adapter failed {sample.faults:,} times")
    return sample
