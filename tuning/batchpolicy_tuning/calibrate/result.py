"""What a calibration found, and the profile that comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchpolicy.errors import ConfigError
from batchpolicy.profiles import Calibration, MetricErrors, Profile
from batchpolicy.step_cost import AdjustableCost
from batchpolicy.step_costs.tables import TableCost
from batchpolicy_tuning.calibrate.accuracy import METRICS, errors
from batchpolicy_tuning.calibrate.fit import Found, Replayed
from batchpolicy_tuning.calibrate.run_log import RealRun, RunFacts
from batchpolicy_tuning.calibrate.setting import Setting

FEWEST = 20
"""Requests without which a part of a run is neither fitted nor judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A fit and the errors on the requests that took no part in it."""

    run: RealRun
    facts: RunFacts
    base: Profile
    setting: Setting
    engine: str
    found: Found
    first: int
    fitted: dict[str, MetricErrors]
    """On the requests of the fit."""
    uncalibrated: dict[str, MetricErrors]
    """Of the base profile, on the others."""
    held_out: dict[str, MetricErrors]
    """Of the calibrated profile, on the others."""
    measured_s: dict[str, float]
    """Means of the others in the real run."""
    extended: bool
    """Whether some request is longer than the contexts of the base profile."""

    @property
    def cost(self) -> AdjustableCost:
        """The calibrated cost."""
        return self.base.cost.adjusted(self.found.scale, self.found.overhead_s)

    @property
    def others(self) -> int:
        """Requests that the fit did not see."""
        return len(self.run.workload.requests) - self.first

    @property
    def notes(self) -> list[str]:
        """What a reader should know before believing the numbers."""
        base, facts = self.base, self.facts
        found = [
            f"Replayed on {self.engine} under a virtual clock: "
            f"{self.setting.limits.max_num_seqs} seats, "
            f"{self.setting.limits.max_num_batched_tokens:,} tokens a step, "
            f"{self.setting.kv_tokens:,} tokens of KV ({self.setting.kv_source}), prefix cache "
            f"{'on' if self.setting.limits.prefix_cache else 'off'}.",
            "Prompts count as different texts: a log does not say what they share.",
        ]
        for what, ours, theirs in (
            ("GPU", base.hardware, facts.hardware),
            ("model", base.model, facts.model),
        ):
            if theirs is not None and ours != theirs:
                found.append(
                    f"Profile {base.name} is of the {what} {ours!r}, the run of {theirs!r}: the "
                    "fit makes up for the difference as far as two numbers can."
                )
        if self.extended:
            found.append("Extended: some contexts are longer than those that were measured.")
        return found

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        held_out = {name: one.model_dump() for name, one in self.held_out.items()}
        return {
            "run": str(self.run.path),
            "run_sha256": self.run.sha256,
            "base": self.base.name,
            "engine": self.engine,
            "limits": {
                "max_num_seqs": self.setting.limits.max_num_seqs,
                "max_num_batched_tokens": self.setting.limits.max_num_batched_tokens,
                "kv_tokens": self.setting.kv_tokens,
                "kv_source": self.setting.kv_source,
                "prefix_cache": self.setting.limits.prefix_cache,
                "async_scheduling": self.setting.limits.async_scheduling,
            },
            "scale": self.found.scale,
            "overhead_s": self.found.overhead_s,
            "replays": self.found.replays,
            "fitted_requests": self.first,
            "held_out_requests": self.others,
            "measured_mean_s": self.measured_s,
            "errors": {
                "fitted": {name: one.model_dump() for name, one in self.fitted.items()},
                "uncalibrated": {n: one.model_dump() for n, one in self.uncalibrated.items()},
                "held_out": held_out,
            },
            "extended": self.extended,
            "notes": self.notes,
        }


def parts(run: RealRun, fit_on: int | None) -> int:
    """How many requests the fit may see: ``fit_on``, else the first third.

    Raises
    ------
    ConfigError
        When too few are left on either side.
    """
    count = len(run.workload.requests)
    first = count // 3 if fit_on is None else fit_on
    if min(first, count - first) < FEWEST:
        raise ConfigError(
            f"{run.path}: {count} requests, {first} of them for the fit: expected at least "
            f"{FEWEST} that it sees and {FEWEST} that it does not. Record a longer run"
            + ("." if fit_on is None else ", or change --fit-on.")
        )
    return first


def judged(
    run: RealRun,
    facts: RunFacts,
    base: Profile,
    told: Setting,
    replayed: Replayed,
    found: Found,
    first: int,
) -> Result:
    """The fit with its errors on both parts of the run."""
    seen, others = slice(0, first), slice(first, None)
    plain = replayed.latencies(base.cost)
    calibrated = replayed.latencies(base.cost.adjusted(found.scale, found.overhead_s))
    real = run.latencies
    requests = run.workload.requests
    held_out = errors(real.picked(others), calibrated.picked(others))
    means = {
        name: float(values[values == values].mean())
        for name in METRICS
        if name in held_out
        for values in [getattr(real.picked(others), name)]
    }
    return Result(
        run=run,
        facts=facts,
        base=base,
        setting=told,
        engine=replayed.engine.version,
        found=found,
        first=first,
        fitted=errors(real.picked(seen), calibrated.picked(seen)),
        uncalibrated=errors(real.picked(others), plain.picked(others)),
        held_out=held_out,
        measured_s=means,
        extended=base.is_extended(max(r.prompt_tokens + r.output_tokens for r in requests)),
    )


def calibrated_profile(result: Result, name: str) -> Profile:
    """The profile to write; the same run and options give the same one."""
    base, facts, run = result.base, result.facts, result.run
    cost = result.cost
    if isinstance(cost, TableCost):
        # So that the profile says nothing about tables that change later.
        cost = cost.model_copy(update={"sha256": cost.digest})
    engine = facts.engine or "an engine that the run does not name"
    return Profile.model_validate(
        {
            "name": name,
            "hardware": facts.hardware or f"not stated by the run; base {base.hardware}",
            "model": facts.model or base.model,
            "tp": facts.tp or base.tp,
            "cost": cost,
            "kv_tokens": result.setting.kv_tokens,
            "kv_source": result.setting.kv_source,
            "envelope": base.envelope,
            "fit": base.fit,
            "origin": base.origin.model_copy(
                update={
                    "date": None,
                    "measures": f"whole steps, as in {run.path.name} under {engine}",
                }
            ),
            "calibration": Calibration(
                run=run.path.name,
                run_sha256=run.sha256,
                base=base.name,
                engine=result.engine,
                scale=result.found.scale,
                overhead_s=result.found.overhead_s,
                fitted_requests=result.first,
                held_out_requests=result.others,
                errors=result.held_out,
            ),
        }
    )
