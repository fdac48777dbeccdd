"""What to try next: an Optuna sampler that thinks aloud in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import qmc

from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.records import Value
from batchpolicy_tuning.tune.space import POLICY, Parameter, Space

SamplerName = Literal["tpe", "gp", "nsga2", "random", "grid"]
STARTUP = 8
"""Settings that are spread evenly over the space before a sampler is asked."""
_ATTEMPTS = 40
"""Proposals of a sampler in a row that are known already, before one is drawn at random."""
_DRAWS = 2000
_SHOWN_MISS = 10.0
"""The largest miss that a sampler is told of: one that is without measure would drown others."""
_GRID_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Seen:
    """What a sampler is told of a trial."""

    params: Mapping[str, Value]
    losses: tuple[float, ...] | None
    """By objective, lower is better; None while it runs and where it failed."""
    misses: tuple[float, ...] = ()
    """By target, 0 or below where it is met."""
    running: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the sampler noted when it proposed it."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A setting to try."""

    params: Mapping[str, Value]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def check_sampler(name: SamplerName) -> None:
    """Refuse a sampler that cannot work here, before anything runs.

    Raises
    ------
    ConfigError
        When what it needs is not installed.
    """
    if name == "gp" and find_spec("torch") is None:
        raise ConfigError("sampler 'gp' needs torch; pip install 'batchpolicy[gp]', or use 'tpe'")


class Proposer:
    """Asks a sampler for settings that were not tried yet.

    A proposal depends on the seed, on how many there were, and on the trials told: a study
    that is resumed goes on as if it had never stopped. The trials are laid before a new
    sampler in a study in memory each time, so that one that is turned down, since its
    setting is known, leaves no trace in the storage.

    The first ``STARTUP`` are points of a scrambled Sobol sequence, which leave no part of
    the space out as independent draws may; ``random`` draws all of them independently.
    """

    def __init__(
        self, space: Space, sampler: SamplerName, seed: int, objectives: int, trials: int
    ) -> None:
        self._space = space
        self._sampler: SamplerName = sampler
        self._seed = seed
        self._objectives = objectives
        self._trials = trials
        self._points: list[list[float]] | None = None
        self._grid: list[dict[str, Value]] | None = None

    def propose(
        self,
        seen: Sequence[Seen],
        known: Container[str],
        key_of: Callable[[Mapping[str, Value]], str],
        salt: int = 0,
    ) -> Proposal | None:
        """A setting whose key is not ``known``; None when there is no other left.

        ``seen`` has all trials so far, in their order; workers that share a storage differ
        in their ``salt``, so that they do not all think of the same.
        """

        def is_new(params: Mapping[str, Value]) -> bool:
            return self._space.allowed(params) and key_of(params) not in known

        if self._sampler == "grid":
            return next((Proposal(p) for p in self._in_grid() if is_new(p)), None)
        if self._sampler != "random":
            started = sum(self._space.inside(one.params) for one in seen)
            if started < STARTUP:
                for point in self._sobol()[started:]:
                    params = self._space.at(point)
                    if is_new(params):
                        return Proposal(params)
            for attempt in range(_ATTEMPTS):
                found = self._asked(seen, self._entropy(len(seen), attempt, salt))
                if is_new(found.params):
                    return found
        return self._drawn(is_new, len(seen), salt)

    def _entropy(self, *parts: int) -> int:
        return int(np.random.SeedSequence([self._seed, *parts]).generate_state(1)[0])

    def _sobol(self) -> list[list[float]]:
        if self._points is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sobol = qmc.Sobol(len(self._space.parameters), rng=self._entropy(0))
                self._points = sobol.random(4 * STARTUP).tolist()
        return self._points or []

    def _in_grid(self) -> list[dict[str, Value]]:
        if self._grid is None:
            found = list(self._space.grid())
            if len(found) > _GRID_MOST:
                raise ConfigError(f"a grid of {len(found):,} settings is too large; use 'tpe'")
            order = np.random.default_rng(self._seed).permutation(len(found))
            self._grid = [found[i] for i in order]
        return self._grid

    def _drawn(
        self, is_new: Callable[[Mapping[str, Value]], bool], k: int, salt: int
    ) -> Proposal | None:
        rng = np.random.default_rng(self._entropy(k, 1_000_000, salt))
        for _ in range(_DRAWS):
            params = self._space.at(rng.random(len(self._space.parameters)).tolist())
            if is_new(params):
                return Proposal(params)
        if self._space.size <= _GRID_MOST:
            return next((Proposal(p) for p in self._every() if is_new(p)), None)
        return None

    def _every(self) -> list[dict[str, Value]]:
        """All settings of a space that has finitely many."""
        whole = tuple(
            one
            if one.choices
            else Parameter(
                one.name, choices=tuple(range(int(one.low), int(one.high) + 1)), of=one.of
            )
            for one in self._space.parameters
        )
        return list(Space(whole, self._space.allowed).grid())

    def _asked(self, seen: Sequence[Seen], seed: int) -> Proposal:
        with warnings.catch_warnings():
            # Of experimental options and of ones that newer releases call by another name.
            warnings.simplefilter("ignore")
            study = optuna.create_study(
                directions=[StudyDirection.MINIMIZE] * self._objectives, sampler=self._made(seed)
            )
            told = (self._as_trial(trial, seen) for trial in seen)
            study.add_trials([trial for trial in told if trial is not None])
            trial = study.ask()
            params: dict[str, Value] = {}
            for one in self._space.parameters:
                if not one.of or one.of == params.get(POLICY):
                    params[one.name] = one.decode(_suggested(trial, one))
        frozen = study.get_trials(deepcopy=False)[-1]
        return Proposal(params, _notes(frozen))

    def _made(self, seed: int) -> BaseSampler:
        # Before 5.0 a sampler looks at constraints only where it is told how to find them.
        old = not hasattr(optuna.trial.Trial, "set_constraint")
        told: dict[str, Any] = {"constraints_func": _no_constraints} if old else {}
        match self._sampler:
            case "tpe":
                return optuna.samplers.TPESampler(
                    seed=seed,
                    n_startup_trials=0,
                    multivariate=True,
                    group=self._space.conditional,
                    **told,
                )
            case "gp":
                return optuna.samplers.GPSampler(seed=seed, n_startup_trials=0, **told)
            case "nsga2":
                size = min(max(self._trials // 4, STARTUP), 50)
                return optuna.samplers.NSGAIISampler(seed=seed, population_size=size, **told)
            case _:
                return optuna.samplers.RandomSampler(seed=seed)

    def _as_trial(self, one: Seen, seen: Sequence[Seen]) -> FrozenTrial | None:
        if not self._space.inside(one.params):
            return None
        active = self._space.active(one.params.get(POLICY))
        shared: dict[str, Any] = {
            "params": {p.name: p.encode(one.params[p.name]) for p in active},
            "distributions": {p.name: p.coded() for p in active},
        }
        if one.running:
            return create_trial(state=TrialState.RUNNING, **shared)
        losses, misses = one.losses, one.misses
        if losses is None:
            if self._sampler != "tpe":
                return None  # models of values have none to fit here
            # TPE ranks: the worst seen, far from any target, is a place to keep away from.
            others = [s.losses for s in seen if s.losses is not None]
            worst = tuple(max(c) for c in zip(*others, strict=True)) if others else ()
            losses = worst or (0.0,) * self._objectives
            misses = (_SHOWN_MISS,) * max(len(misses), 1)
        attributes = dict(one.attributes)
        if misses:
            attributes["constraints"] = [min(m, _SHOWN_MISS) for m in misses]
        return create_trial(
            state=TrialState.COMPLETE, values=list(losses), system_attrs=attributes, **shared
        )


def _suggested(trial: optuna.Trial, one: Parameter) -> Any:
    coded: Any = one.coded()
    if isinstance(coded, optuna.distributions.CategoricalDistribution):
        return trial.suggest_categorical(one.name, coded.choices)
    if isinstance(coded, optuna.distributions.IntDistribution):
        return trial.suggest_int(one.name, coded.low, coded.high, log=coded.log)
    return trial.suggest_float(one.name, coded.low, coded.high, log=coded.log)


def _no_constraints(trial: FrozenTrial) -> Sequence[float]:
    return ()


def _notes(trial: FrozenTrial) -> dict[str, Any]:
    """What a sampler wants to find again at the next trial, such as generations."""
    return {k: v for k, v in trial.system_attrs.items() if "generation" in k}
