"""Fits a formula to latency tables: ``python -m batchpolicy_tuning.calibrate.fit_tables``.

The profile that comes of it holds coefficients of our own and nothing of the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from scipy.optimize import least_squares

from batchpolicy.errors import BatchPolicyError, ConfigError
from batchpolicy.profiles import Envelope, Fit, Origin, Profile
from batchpolicy.step_cost import FormulaCost, StepShape
from batchpolicy.step_costs.tables import TableCost
from batchpolicy_tuning import output
from batchpolicy_tuning.fit_errors import by_kind, summary
from batchpolicy_tuning.fit_profile import NOTHING, START, fit_table, to_json
from batchpolicy_tuning.step_grid import KINDS

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

TABLES = ("attention", "dense", "per_sequence")
MIXED = "mixed_context_token_s"
METHOD = (
    "least squares of the log ratio, no coefficient below 0, each kind of step with the same "
    "weight, on the steps of the attention table that fit into the KV cache, its times made "
    "monotone by the mean of running maximum and running minimum; held out: all steps with the "
    "same prefill tokens and decodes at a time"
)


class Step(NamedTuple):
    """A step that the attention table holds, with the time that the tables give it."""

    kind: str
    shape: StepShape
    seconds: float

    @property
    def size(self) -> tuple[int, int]:
        """Prefill tokens and decodes: steps of one size differ in contexts only."""
        return self.shape.prefill_tokens, self.shape.decodes


def table_steps(tables: TableCost, kv_tokens: int) -> list[Step]:
    """Steps at the sizes of the attention table that the KV cache can hold at once."""
    chunks, contexts, decodes, decode_contexts = tables.attention_axes
    shapes = [
        StepShape(c, c * (p + c / 2), p, n, n * m, n + (c > 0))
        for c in chunks
        for p in (contexts if c else [0])
        for n in decodes
        for m in (decode_contexts if n else [0])
        if c + n > 0
        and c + p + n * m <= kv_tokens
        and c + n <= tables.extent.tokens
        and n + (c > 0) <= tables.extent.decodes
    ]
    return [Step(_kind(shape), shape, tables(shape)) for shape in shapes]


def fit_formula(steps: Sequence[Step]) -> FormulaCost:
    """The formula nearest to the steps by relative error, coefficients to 5 digits."""
    shapes = np.array([step.shape for step in steps], dtype=float)
    prefill_tokens, attention, prefill_context, decodes, decode_context, sequences = shapes.T
    tokens, beside = prefill_tokens + decodes, decode_context * (prefill_tokens > 0)
    seconds = np.array([step.seconds for step in steps])
    kinds = np.array([step.kind for step in steps])
    weight = np.sqrt([1.0 / np.count_nonzero(kinds == kind) for kind in kinds])
    start = np.array([*START.values(), START["decode_context_token_s"]])
    names = [*START, MIXED]

    def residuals(scaled: Floats) -> Floats:
        base_s, weights_s, token_s, k, pair_s, context_s, decode_s, sequence_s, mixed_s = (
            scaled * start
        )
        predicted_s = (
            base_s
            + (weights_s**k + (token_s * tokens) ** k) ** (1.0 / k)
            + pair_s * attention
            + context_s * prefill_context
            + decode_s * decode_context
            + mixed_s * beside
            + sequence_s * sequences
        )
        ratio: Floats = weight * np.log(predicted_s / seconds)
        return ratio

    lowest = np.where(np.array(names) == "sharpness", 1.0 / start, 0.0)
    solved = least_squares(
        residuals,
        np.ones(len(start)),
        bounds=(lowest, np.inf),
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    values: Floats = np.where(solved.x < NOTHING, 0.0, solved.x) * start
    return FormulaCost(**{n: float(f"{v:.5g}") for n, v in zip(names, values, strict=True)})


def formula_profile(
    tables: TableCost,
    *,
    name: str,
    hardware: str,
    model: str,
    kv_tokens: int,
    kv_source: str,
    origin: Origin,
) -> Profile:
    """A profile with the errors of its formula against the tables."""
    steps = table_steps(tables, kv_tokens)
    cost = fit_formula(steps)
    errors = _errors(cost, steps)
    held_out = np.empty(len(steps))
    sizes = [step.size for step in steps]
    for size in sorted(set(sizes)):
        out: Bools = np.array([one == size for one in sizes])
        kept = [step for step, gone in zip(steps, out, strict=True) if not gone]
        left = [step for step, gone in zip(steps, out, strict=True) if gone]
        held_out[out] = _errors(fit_formula(kept), left)
    worst = int(np.abs(errors).argmax())
    extent = tables.extent
    return Profile(
        name=name,
        hardware=hardware,
        model=model,
        tp=1,
        cost=cost,
        kv_tokens=kv_tokens,
        kv_source=kv_source,
        envelope=Envelope(
            prefill_tokens=extent.tokens,
            decodes=extent.decodes,
            mixed_prefill_tokens=extent.tokens,
            mixed_decodes=extent.decodes,
            prefill_context_tokens=extent.prefill_context_tokens,
            decode_context_tokens=extent.decode_context_tokens,
        ),
        fit=Fit(
            overall=summary(errors),
            by_kind=by_kind([one.kind for one in steps], errors, KINDS),
            held_out=summary(held_out),
            held_out_by_kind=by_kind([one.kind for one in steps], held_out, KINDS),
            method=METHOD,
        ),
        origin=origin.model_copy(
            update={
                "notes": (
                    f"{origin.notes} Farthest from the tables, by {errors[worst]:+.1%}: "
                    f"{_told(steps[worst].shape)}."
                ).strip()
            }
        ),
    )


def _kind(shape: StepShape) -> str:
    return "decode" if not shape.prefill_tokens else "mixed" if shape.decodes else "prefill"


def _told(shape: StepShape) -> str:
    parts: list[str] = []
    if shape.prefill_tokens:
        parts.append(f"{shape.prefill_tokens:,} new tokens after {shape.prefill_context:,} cached")
    if shape.decodes:
        mean = shape.decode_context // shape.decodes
        parts.append(f"{shape.decodes} decodes at {mean:,} tokens")
    return ", ".join(parts)


def _errors(cost: FormulaCost, steps: Sequence[Step]) -> Floats:
    return np.array([cost(step.shape) / step.seconds - 1.0 for step in steps])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the fit and write the profile; 2 when an option or a table cannot be used."""
    parser = argparse.ArgumentParser(
        "python -m batchpolicy_tuning.calibrate.fit_tables", description=__doc__
    )
    for name in TABLES:
        parser.add_argument(f"--{name.replace('_', '-')}", required=True, metavar="CSV")
    parser.add_argument("--layers", type=int, required=True)
    for name in ("hardware", "model", "kv-source", "data", "licence", "engine", "measures"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--kv-tokens", type=int, required=True)
    parser.add_argument("--notes", default="")
    parser.add_argument("--date", help="day to record, YYYY-MM-DD")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; its stem is the name")
    args = parser.parse_args(argv)
    try:
        output.check_writable(args.out)
        try:
            tables = TableCost(
                **{name: getattr(args, name) for name in TABLES}, layers=args.layers
            )
        except ValidationError as e:
            raise ConfigError(e.errors()[0]["msg"].removeprefix("Value error, ")) from e
        profile = formula_profile(
            tables,
            name=args.out.stem,
            hardware=args.hardware,
            model=args.model,
            kv_tokens=args.kv_tokens,
            kv_source=args.kv_source,
            origin=Origin(
                data=args.data,
                data_sha256=tables.digest,
                licence=args.licence,
                engine=args.engine,
                date=args.date,
                measures=args.measures,
                notes=args.notes,
            ),
        )
        output.write_whole(to_json(profile), args.out)
    except (BatchPolicyError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    print(fit_table(profile))
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
