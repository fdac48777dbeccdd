"""Classes, tenants and targets laid over a trace that has none."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from batchpolicy.component import Component
from batchpolicy.errors import WorkloadError
from batchpolicy.reading import read_document
from batchpolicy.workload import Workload, WorkloadRequest

_SHOWN_FAULTS = 10


def _some_tenant(given: dict[str, float] | int) -> dict[str, float] | int:
    if not given:
        raise ValueError("expected at least one tenant")
    return given


def _kind_of(given: object) -> str:
    return "shares" if isinstance(given, dict) else "count"


# Without the tags a wrong share would be reported as a wrong count too.
Tenants = Annotated[
    Annotated[dict[str, PositiveFloat], Tag("shares")] | Annotated[PositiveInt, Tag("count")],
    Discriminator(_kind_of),
    AfterValidator(_some_tenant),
]

Target = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class RequestClass(Component):
    """One kind of request: how many there are, who sends them, what they expect."""

    share: PositiveFloat
    """Part of the requests, relative to the shares of the other classes."""
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """Lower is more urgent."""
    tenants: Tenants = 1
    """Shares by tenant, or a number of tenants with equal shares; for requests without one."""
    ttft_slo_s: Target = math.inf
    """Target for the first token; inf for none."""
    tpot_slo_s: Target = math.inf
    """Target for the mean time of each further token; inf for none."""
    of_tenants: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Only requests of these tenants of the trace are of the class; without any, all."""
    min_prompt_tokens: PositiveInt = 1
    """Shorter prompts are never of this class."""
    max_prompt_tokens: PositiveInt | None = None
    """Longer prompts are never of this class."""
    max_tokens: PositiveInt | None = None
    """Ceiling that its clients set; without one the trace's. Longer outputs raise it."""

    @model_validator(mode="after")
    def _lengths_in_order(self) -> Self:
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < self.min_prompt_tokens:
            raise ValueError(
                f"max_prompt_tokens {self.max_prompt_tokens} is below "
                f"min_prompt_tokens {self.min_prompt_tokens}"
            )
        return self

    def takes(self, r: WorkloadRequest) -> bool:
        """Whether a request of this length and tenant can be of the class."""
        longest = self.max_prompt_tokens
        return (
            self.min_prompt_tokens <= r.prompt_tokens
            and (longest is None or r.prompt_tokens <= longest)
            and (not self.of_tenants or r.tenant in self.of_tenants)
        )


class _File(Component):
    """A file of classes."""

    apiVersion: Literal["batchpolicy/v1"]
    kind: Literal["Classes"]
    classes: Annotated[dict[str, Any], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a file, ready to be laid over workloads."""

    path: Path
    classes: dict[str, RequestClass]

    def laid_over(self, workload: Workload, seed: int) -> Workload:
        """The workload with class, tenant, priority and targets for each request.

        Arrivals and lengths stay, and so does a tenant that the trace names itself.
        A request's class and tenant depend on its id and ``seed`` alone, so that they
        are the same in whatever slice it comes.

        Raises
        ------
        WorkloadError
            When no class takes some request.
        """
        homeless = [
            f"request {r.id!r}: no class takes a prompt of {r.prompt_tokens} tokens"
            + (f" from tenant {r.tenant!r}" if r.tenant else "")
            for r in workload.requests
            if not any(kind.takes(r) for kind in self.classes.values())
        ]
        if homeless:
            more = len(homeless) - _SHOWN_FAULTS
            shown = homeless[:_SHOWN_FAULTS] + ([f"... and {more} more"] if more > 0 else [])
            raise WorkloadError(
                f"{self.path} does not cover {workload.name}; widen a class:\n"
                + "\n".join(f"  {fault}" for fault in shown)
            )
        return Workload(workload.name, tuple(self._placed(r, seed) for r in workload.requests))

    def _placed(self, r: WorkloadRequest, seed: int) -> WorkloadRequest:
        fits = [(name, c) for name, c in self.classes.items() if c.takes(r)]
        name, kind = fits[_pick((c.share for _, c in fits), f"{seed} class {r.id}")]
        tenants = tenant_shares(kind.tenants, name)
        drawn = list(tenants)[_pick(tenants.values(), f"{seed} tenant {r.id}")]
        return replace(
            r,
            request_class=name,
            tenant=r.tenant or drawn,
            priority=kind.priority,
            ttft_slo_s=kind.ttft_slo_s,
            tpot_slo_s=kind.tpot_slo_s,
            max_tokens=max(kind.max_tokens or r.max_tokens, r.output_tokens),
        )


def tenant_shares(tenants: dict[str, float] | int, name: str) -> dict[str, float]:
    """Share of each tenant; those without a name are called after ``name``, their class."""
    if isinstance(tenants, dict):
        return tenants
    if tenants == 1:
        return {name: 1.0}
    return {f"{name}-{i + 1}": 1.0 for i in range(tenants)}


def read_classes(path: Path) -> Classes:
    """The classes in a YAML or JSON file.

    Raises
    ------
    ConfigError
        With everything that is wrong with the file.
    """
    document = read_document(path)
    read = document.validate(_File, document.value)
    # Each by itself: the faults of all of them are told, with the nearest key.
    classes = {
        name: document.validate(RequestClass, given, ("classes", name))
        for name, given in (read.classes if read is not None else {}).items()
    }
    document.raise_faults()
    return Classes(path, {name: kind for name, kind in classes.items() if kind is not None})


def _pick(shares: Iterable[float], key: str) -> int:
    """Number of the share that ``key`` falls into, evenly over all keys."""
    ends: Sequence[float] = list(accumulate(shares))
    drawn = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    at = drawn / 2**64 * ends[-1]
    return next((i for i, end in enumerate(ends) if at < end), len(ends) - 1)
