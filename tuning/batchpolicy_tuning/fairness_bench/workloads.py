"""The suites on which the virtual token counters were evaluated, as generators of our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from batchpolicy.requests import FloatArray, IntArray
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_tuning.workloads.draws import generator, lengths, poisson_arrivals, senders
from batchpolicy_tuning.workloads.noisy_tenant import NoisyTenant

ARENA_TENANTS, ARENA_REQUESTS, ARENA_SPAN_S = 27, 1500, 600.0
NOISY_REQUESTS, NOISY_SPAN_S = 600, 400.0


def on_off(k: int, seed: int, length: float = 1.0) -> Workload:
    """Two tenants, 256/256 tokens, 600 s: 2 a second in every other minute, 3 a second always.

    Over time each asks for more than half of what the engine can do.
    """
    span_s = 600.0 * length
    rng = generator("on-off", k, seed)
    on_s = poisson_arrivals(rng, rng.poisson(2.0 * span_s / 2), span_s / 2)
    on_s += 60.0 * np.floor(on_s / 60.0)
    always_s = poisson_arrivals(rng, rng.poisson(3.0 * span_s), span_s)
    return _joined(
        "on-off", [_same("on-off", on_s, 256, 256), _same("always", always_s, 256, 256)]
    )


def overload_multi(k: int, seed: int, length: float = 1.0) -> Workload:
    """Eight tenants, 256/256 tokens, 362 s: 15 to 22 requests a minute, Poisson."""
    span_s = 362.0 * length
    rng = generator("overload-multi", k, seed)
    rows = [
        _same(f"t{i}", poisson_arrivals(rng, rng.poisson(rate * span_s / 60.0), span_s), 256, 256)
        for i, rate in enumerate(range(15, 23))
    ]
    return _joined("overload-multi", rows)


def short_long(k: int, seed: int, length: float = 1.0) -> Workload:
    """Two tenants, 584 s, Poisson: 128/64 tokens 5 a second, 512/128 tokens 2.5 a second."""
    span_s = 584.0 * length
    rng = generator("poisson-short-long", k, seed)
    short_s, long_s = (
        poisson_arrivals(rng, rng.poisson(rate * span_s), span_s) for rate in (5.0, 2.5)
    )
    rows = [_same("short", short_s, 128, 64), _same("long", long_s, 512, 128)]
    return _joined("poisson-short-long", rows)


def arena_like(k: int, seed: int, length: float = 1.0) -> Workload:
    """27 tenants with shares as 1 / rank^1.2, 1,500 requests in 600 s, chat lengths.

    Prompts: lognormal, median 60, sigma 1.2, up to 1,024. Outputs: median 200, sigma 0.9,
    up to 1,000. Means come to about 115 and 265 tokens.
    """
    n = max(round(ARENA_REQUESTS * length), ARENA_TENANTS)
    rng = generator("arena-like", k, seed)
    shares = {f"t{i:02}": (i + 1.0) ** -1.2 for i in range(ARENA_TENANTS)}
    arrivals_s = poisson_arrivals(rng, n, ARENA_SPAN_S * length)
    prompt = lengths(rng, n, median=60, sigma=1.2, low=4, high=1024)
    output = lengths(rng, n, median=200, sigma=0.9, low=4, high=1000)
    tenants = senders(rng, shares, n)
    return _joined("arena-like", [_rows("r", arrivals_s, prompt, output, tenants, 1024)])


def noisy_tenant(k: int, seed: int, length: float = 1.0) -> Workload:
    """The embedded workload, 600 requests stretched over 400 s; targets taken off."""
    drawn = NoisyTenant(max(round(NOISY_REQUESTS * length), 20)).replication(k, seed)
    plain = (replace(r, ttft_slo_s=math.inf, tpot_slo_s=math.inf) for r in drawn.requests)
    return replace(drawn, requests=tuple(plain)).stretched(NOISY_SPAN_S * length / drawn.span_s)


SUITES: Mapping[str, Callable[[int, int, float], Workload]] = {
    "on-off": on_off,
    "overload-multi": overload_multi,
    "poisson-short-long": short_long,
    "arena-like": arena_like,
    "noisy-tenant": noisy_tenant,
}
"""Generators by name, of replication, seed and the part of the whole length."""


def predicted(workload: Workload, k: int, seed: int, log_sigma: float) -> Workload:
    """The same requests with predictions: the true output, times lognormal noise."""
    rng = generator(f"{workload.name} predictions", k, seed)
    noise = np.exp(log_sigma * rng.standard_normal(len(workload.requests)))
    return Workload(
        workload.name,
        tuple(
            replace(r, predicted_output_tokens=max(1.0, r.output_tokens * float(f)))
            for r, f in zip(workload.requests, noise, strict=True)
        ),
    )


def _same(tenant: str, arrivals_s: FloatArray, prompt: int, output: int) -> list[WorkloadRequest]:
    n = len(arrivals_s)
    sizes = np.full(n, prompt), np.full(n, output)
    return _rows(tenant, arrivals_s, *sizes, [tenant] * n, output)


def _rows(
    name: str,
    arrivals_s: FloatArray,
    prompt: IntArray,
    output: IntArray,
    tenants: Sequence[str],
    max_tokens: int,
) -> list[WorkloadRequest]:
    columns = (arrivals_s.tolist(), prompt.tolist(), output.tolist(), tenants)
    return [
        WorkloadRequest(
            id=f"{name}-{i:04}",
            arrival_s=arrival_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            max_tokens=max_tokens,
            tenant=tenant,
        )
        for i, (arrival_s, prompt_tokens, output_tokens, tenant) in enumerate(
            zip(*columns, strict=True)
        )
    ]


def _joined(name: str, parts: Sequence[list[WorkloadRequest]]) -> Workload:
    rows = (r for part in parts for r in part)
    return Workload(name, tuple(sorted(rows, key=lambda r: (r.arrival_s, r.id))))
