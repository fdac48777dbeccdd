"""The full grid in the rows of an attention table, and its continuation to long contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from batchpolicy.errors import ConfigError
from batchpolicy.step_costs.table_files import TableFile

Floats = npt.NDArray[np.float64]

ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
FEW = 0.1
"""Part of a chunk's rows up to which absent ones were lost, and no second grid is there."""
FAR_TOKENS = 2**25
"""Context up to which tables are continued: 256 sequences of 131,072 tokens."""


def full_grid(table: TableFile) -> tuple[tuple[list[int], ...], Floats, int]:
    """Axes of the attention table, its cells, and how many rows lie beside this grid.

    Cells have one axis for each of ``ATTENTION``, in seconds.

    Raises
    ------
    ConfigError
        When a row is no step, or the rows make no full grid.
    """
    rows = table.rows
    for row in rows:
        chunk, context, decodes, decode_context = row.sizes
        if not (chunk or decodes) or (context and not chunk) or (decode_context and not decodes):
            raise table.fault(
                row.line, "is no step: expected a chunk or decodes, and contexts only with them"
            )
    beside: dict[int, set[tuple[int, ...]]] = {}
    for row in rows:
        beside.setdefault(row.sizes[0], set()).add(row.sizes[1:])
    beside.pop(0, None)
    found = [
        _Candidate.of(table, beside, one)
        # A file may hold two grids, which share some chunks: each chunk says what goes with it.
        for one in {frozenset(others) for others in beside.values()}
        if one <= beside[max(beside)]
    ]
    full = [grid for grid in found if not grid.absent]
    if not full:
        raise _no_grid(table, min(found, key=lambda grid: len(grid.absent), default=None))
    best = max(full, key=lambda grid: (grid.cells.size, grid.axes))
    for chunk, others in sorted(beside.items()):
        lost = best.others - others
        if lost and len(lost) < FEW * len(best.others):
            context, decodes, decode_context = min(lost)
            raise _no_grid(
                table, best._replace(absent=[(chunk, context, decodes, decode_context)])
            )
    on_grid = [set(axis) | {0} for axis in best.axes]
    unused = sum(
        any(size not in known for size, known in zip(row.sizes, on_grid, strict=True))
        for row in rows
    )
    return best.axes, best.cells, unused


class _Candidate(NamedTuple):
    """A grid of the chunks that have the same sizes beside them."""

    others: frozenset[tuple[int, ...]]
    axes: tuple[list[int], ...]
    cells: Floats
    absent: list[tuple[int, ...]]

    @classmethod
    def of(
        cls,
        table: TableFile,
        beside: dict[int, set[tuple[int, ...]]],
        others: frozenset[tuple[int, ...]],
    ) -> Self:
        """The grid of all chunks that have these contexts, decodes and their contexts."""
        axes = (
            [0, *sorted(chunk for chunk in beside if beside[chunk] >= others)],
            sorted({context for context, _, _ in others}),
            sorted({0, *(row.sizes[2] for row in table.rows)}),
            sorted({decode_context for _, decodes, decode_context in others if decodes}),
        )
        if min(len(axis) for axis in axes) < 2 or len(axes[2]) < 4:
            raise ConfigError(
                f"table {table.path} has too few sizes to go between: "
                + ", ".join(f"{len(a)} of {n}" for n, a in zip(ATTENTION, axes, strict=True))
                + "; expected 2 of each and 4 of n_decode, 0 included"
            )
        cells = _filled(_cells(table, axes), axes[2])
        absent = [
            tuple(axis[int(i)] for axis, i in zip(axes, place, strict=True))
            for place in np.argwhere(np.isnan(cells))
        ]
        return cls(others, axes, cells, absent)


def _no_grid(table: TableFile, nearest: _Candidate | None) -> ConfigError:
    if nearest is None:
        return ConfigError(f"table {table.path} has no rows with a prefill_chunk")
    told = ", ".join(f"{n} {v}" for n, v in zip(ATTENTION, nearest.absent[0], strict=True))
    return ConfigError(
        f"table {table.path} is no full grid: no row for {told}"
        + (f", nor for {len(nearest.absent) - 1:,} more" if len(nearest.absent) > 1 else "")
        + ". It may have been cut short."
    )


def _cells(table: TableFile, axes: Sequence[list[int]]) -> Floats:
    """Seconds at each combination of sizes, NaN for what was not measured."""
    places = [{size: i for i, size in enumerate(axis)} for axis in axes]
    cells = np.full([len(axis) for axis in axes], np.nan)
    for row in table.rows:
        chunk, context, decodes, decode_context = row.sizes
        on_grid = (
            chunk in places[0]
            and (not chunk or context in places[1])
            and (not decodes or decode_context in places[3])
        )
        if not on_grid:
            continue
        at: list[int | slice] = [
            places[0][chunk],
            places[1][context] if chunk else slice(None),
            places[2][decodes],
            places[3][decode_context] if decodes else slice(None),
        ]
        cells[tuple(at)] = row.seconds
    cells[0, :, 0, :] = 0.0
    return cells


def _filled(cells: Floats, decodes: list[int]) -> Floats:
    """With what the layout leaves out: prefills beside the most decodes, one sequence too many.

    They continue the straight line through the two numbers of decodes before.
    """
    last, before = np.array(cells[:, :, -2]), np.array(cells[:, :, -3])
    slope = (last - before) / (decodes[-2] - decodes[-3])
    line = last + slope * (decodes[-1] - decodes[-2])
    found = cells.copy()
    found[1:, :, -1] = np.where(np.isnan(cells[1:, :, -1]), line[1:], cells[1:, :, -1])
    return found


def continued(axes: tuple[list[int], ...], cells: Floats) -> tuple[tuple[list[int], ...], Floats]:
    """With one more size on both context axes, on the line through the last two."""
    longer = [list(axis) for axis in axes]
    for axis in (1, 3):
        before, last = np.moveaxis(cells, axis, 0)[-2:]
        slope = (last - before) / (longer[axis][-1] - longer[axis][-2])
        end = last + slope * (FAR_TOKENS - longer[axis][-1])
        # Lines may cross on the way: the higher one counts for all larger sizes.
        for across in range(end.ndim):
            end = np.maximum.accumulate(end, axis=across)
        longer[axis].append(FAR_TOKENS)
        cells = np.concatenate([cells, np.expand_dims(end, axis)], axis=axis)
    return tuple(longer), np.ascontiguousarray(cells)
