"""Prompts of templates and lengths of answers that are made up, for benches without data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from batchpolicy.predictor import Arrivals
from batchpolicy.requests import IntArray
from batchpolicy_predictors.training.examples import NO_CEILING, Examples, Source

TEMPLATES, TENANTS = 24, 6
IDS = "generated"
_VOCABULARY = 30_000
_ASKS_FOR_MORE = 7
"""A token that half of the prompts hold, and that makes answers longer."""


def generated(rows: int, seed: int, *, shifted: bool = False) -> Examples:
    """Rows in random order, of templates that tenants use unevenly.

    A template has its head, its tail and its typical length; what stands between, of 4 to 60
    tokens, adds to the length. ``shifted``: half of the templates are others, and all answers
    a third shorter.
    """
    rng = np.random.default_rng([seed, shifted])
    fixed = np.random.default_rng(20_240_915)
    heads = fixed.integers(100, _VOCABULARY, (2 * TEMPLATES, 24))
    tails = fixed.integers(100, _VOCABULARY, (2 * TEMPLATES, 8))
    typical = fixed.uniform(3.0, 6.5, 2 * TEMPLATES)
    favourites = fixed.dirichlet(np.full(TEMPLATES, 0.3), TENANTS)
    tenant = rng.choice(TENANTS, rows, p=np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05]))
    template = np.array([rng.choice(TEMPLATES, p=favourites[t]) for t in tenant.tolist()])
    if shifted:
        template[template % 2 == 1] += TEMPLATES
    free = rng.integers(4, 61, rows)
    more = rng.random(rows) < 0.5
    lengths = np.exp(
        typical[template]
        + 0.5 * more
        + 0.01 * (free - 30)
        + (np.log(2.0 / 3.0) if shifted else 0.0)
        + 0.4 * rng.standard_normal(rows)
    )
    prompts: list[Sequence[int]] = []
    for kind, count, asks in zip(template.tolist(), free.tolist(), more.tolist(), strict=True):
        drawn: IntArray = rng.integers(100, _VOCABULARY, int(count))
        middle: list[int] = drawn.tolist()
        middle[count // 2] = _ASKS_FOR_MORE if asks else middle[count // 2]
        prompts.append([*heads[kind].tolist(), *middle, *tails[kind].tolist()])
    name = f"generated{', shifted' if shifted else ''}"
    digest = hashlib.sha256(f"{name} {rows} {seed}".encode()).hexdigest()
    return Examples(
        name,
        Arrivals(
            [f"{i}" for i in range(rows)],
            np.array([len(ids) for ids in prompts]),
            np.full(rows, NO_CEILING),
            [f"tenant {t}" for t in tenant.tolist()],
            prompt_ids=prompts,
            id_space=IDS,
        ),
        np.maximum(np.rint(lengths), 1).astype(np.int64),
        [f"{name} {i}" for i in range(rows)],
        None,
        [Source(name, digest, rows)],
        "made up",
        "made up",
    )
