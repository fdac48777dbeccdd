"""Model files: a zip of a card and of plain arrays. Data, never code; nothing is unpickled."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from batchpolicy.errors import ConfigError
from batchpolicy.predictor import LEVELS
from batchpolicy_predictors import features
from batchpolicy_predictors.model import Ensemble, Model
from batchpolicy_predictors.trees import LEAVES, Trees
from batchpolicy_predictors.weighing import SHARES

FORMAT, VERSION = "batchpolicy-predictor", 2
CARD = "card.json"
MOST_BYTES = 64 * 2**20
"""Of the file, and of what it unpacks to."""
MOST_TREES = 2000
MOST_GROUPS = 1_000_000
MOST_LOSS = 1e9
"""In parts of a typical answer."""
RESIDUALS = 129
"""Quantiles of the errors that a file holds."""
_NUMBERS = ("location_start", "slope", "scale_start", "typical_scale")
_FAULTS = (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


class ModelFileError(ConfigError):
    """A model file cannot be used; the text says why."""


def write_model(model: Model, path: Path) -> None:
    """Write a model in one go: the file is whole, or as it was before. Equal models, equal files.

    Raises
    ------
    ConfigError
        When the file cannot be written.
    """
    arrays = {name: _npy(array) for name, array in _arrays(model)}
    card = {
        **model.card,
        "format": FORMAT,
        "version": VERSION,
        "uses_history": model.uses_history,
        "arrays": {name: hashlib.sha256(data).hexdigest() for name, data in arrays.items()},
    }
    text = json.dumps(card, indent=1, allow_nan=False).encode()
    path = path.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
                for member, data in ((CARD, text), *_members(arrays)):
                    about = zipfile.ZipInfo(member)  # of a fixed date
                    about.compress_type = zipfile.ZIP_DEFLATED
                    about.external_attr = 0o644 << 16
                    archive.writestr(about, data)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as e:
        raise ConfigError(f"{path}: the model cannot be written: {e.strerror}.") from e


def read_model(path: Path) -> Model:
    """The model in a file.

    Raises
    ------
    ModelFileError
        When it is missing, no model file, damaged, of another version, or says what cannot be.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ModelFileError(
                f"{path} is larger than {MOST_BYTES // 2**20} MB, which no model file is."
            )
        with path.open("rb") as file:
            return _read(file.read(MOST_BYTES + 1))
    except ModelFileError as e:
        raise ModelFileError(f"{path}: {e}" if str(path) not in str(e) else str(e)) from e
    except FileNotFoundError as e:
        raise ModelFileError(f"{path}: no such model file.") from e
    except OSError as e:
        raise ModelFileError(f"{path}: cannot be read: {e.strerror}.") from e


def _read(raw: bytes) -> Model:
    if not raw.startswith(b"PK\x03\x04"):
        raise ModelFileError(
            "no model file; expected one that `batchpolicy predictor train` has written."
        )
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = _unpacked(archive)
    except _FAULTS as e:
        raise ModelFileError(f"the file is damaged: {e}.") from e
    card = _card(members.pop(CARD, None))
    arrays = {name: _array(name, data, card) for name, data in members.items()}
    missing = sorted(set(card["arrays"]) - set(arrays))
    if missing:
        raise ModelFileError(f"the file is damaged: it lacks {', '.join(missing)}.")
    return _model(card, arrays)


def _unpacked(archive: zipfile.ZipFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    for about in archive.infolist():
        if about.filename in found or len(found) > 64:
            raise ModelFileError("the file is damaged: its members repeat, or are too many.")
        # Whatever a member says of its size, no more than that is unpacked.
        with archive.open(about) as file:
            data = file.read(left + 1)
        left -= len(data)
        if left < 0:
            raise ModelFileError(f"it unpacks to more than {MOST_BYTES // 2**20} MB.")
        found[about.filename.removeprefix("arrays/").removesuffix(".npy")] = data
    return found


def _card(data: bytes | None) -> dict[str, Any]:
    if data is None:
        raise ModelFileError(f"a zip file without {CARD}: no model file.")
    try:
        card: Any = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ModelFileError(f"the file is damaged: {CARD} is no JSON: {e}.") from e
    if not isinstance(card, dict) or cast("dict[str, Any]", card).get("format") != FORMAT:
        raise ModelFileError("a zip file of another kind, no model file.")
    told = cast("dict[str, Any]", card)
    version = told.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ModelFileError(f"its version is {version!r}, expected a whole number.")
    if version != VERSION:
        other = "Install a newer one, or train" if version > VERSION else "Train"
        raise ModelFileError(
            f"it has version {version} of the format; this batchpolicy reads {VERSION}. "
            f"{other} the model anew."
        )
    wrong = [key for key in ("arrays", "tokens") if not isinstance(told.get(key), dict)]
    if wrong or not isinstance(told["tokens"].get("id_space"), str):
        raise ModelFileError(f"the file is damaged: {CARD} lacks {' and '.join(wrong) or 'ids'}.")
    return told


def _array(name: str, data: bytes, card: Mapping[str, Any]) -> npt.NDArray[Any]:
    if hashlib.sha256(data).hexdigest() != card["arrays"].get(name):
        raise ModelFileError(f"the file is damaged: {name} is not what its card says.")
    file = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("of another version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError as e:
        raise ModelFileError(f"the file is damaged: {name} is no array: {e}.") from e
    expected, width = _kind(name)
    if fortran or dtype != np.dtype(expected) or len(shape) != (2 if width else 1):
        raise ModelFileError(f"{name} holds {dtype} of shape {shape}, expected {expected}.")
    count = shape[0] * (shape[1] if width else 1)
    body = data[file.tell() :]
    if (width and shape[1] != width) or len(body) != count * dtype.itemsize:
        raise ModelFileError(f"{name} has shape {shape} in {len(body)} bytes, which cannot be.")
    return np.frombuffer(body, dtype=dtype).reshape(shape)


def _kind(name: str) -> tuple[str, int]:
    """Type of an array, and its columns; 0 for a vector."""
    for end, dtype in (("_feature", "<i4"), ("_threshold", "<f4"), ("_value", "<f8")):
        if name.endswith(end):
            return dtype, LEAVES
    if name.endswith("/losses"):
        return "<f8", len(LEVELS)
    return {"groups": "<u4", "weights": "<f4"}.get(name, "<f8"), 0


def _model(card: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Model:
    def taken(name: str) -> npt.NDArray[Any]:
        if name not in arrays:
            raise ModelFileError(f"the file is damaged: it lacks {name}.")
        return arrays[name]

    def ensemble(name: str) -> Ensemble:
        numbers, residuals = taken(f"{name}/numbers"), taken(f"{name}/residuals")
        if len(numbers) != len(_NUMBERS) or not np.isfinite(numbers).all() or numbers[3] <= 0:
            raise ModelFileError(f"{name}/numbers are {numbers.tolist()}, which cannot be.")
        if len(residuals) != RESIDUALS or not (
            np.isfinite(residuals).all() and (np.diff(residuals) >= 0).all()
        ):
            raise ModelFileError(f"{name}/residuals are no {RESIDUALS} ascending numbers.")
        losses = taken(f"{name}/losses")
        # Not true of NaN either.
        if len(losses) != len(SHARES) or not ((losses >= 0) & (losses <= MOST_LOSS)).all():
            raise ModelFileError(f"{name}/losses are no {len(SHARES)} rows of what can be lost.")
        return Ensemble(
            _trees(f"{name}/location", taken, float(numbers[0])),
            float(numbers[1]),
            _trees(f"{name}/scale", taken, float(numbers[2])),
            float(numbers[3]),
            residuals,
            losses,
        )

    weights, groups = taken("weights"), taken("groups")
    with_ids = ensemble("with_ids") if "with_ids/numbers" in arrays else None
    if len(weights) != (features.BUCKETS if with_ids else 0) or not np.isfinite(weights).all():
        raise ModelFileError(f"weights are no {features.BUCKETS} finite numbers.")
    if len(groups) > MOST_GROUPS or (groups[1:] < groups[:-1]).any():
        raise ModelFileError("groups do not ascend, or are too many.")
    lengths = taken("lengths")
    if len(lengths) != len(LEVELS) or not (
        np.isfinite(lengths).all() and (lengths >= 1).all() and (np.diff(lengths) >= 0).all()
    ):
        raise ModelFileError(f"lengths are no {len(LEVELS)} ascending numbers of tokens.")
    uses_history = card.get("uses_history")
    if not isinstance(uses_history, bool):
        raise ModelFileError(f"uses_history is {uses_history!r}, expected true or false.")
    return Model(card, with_ids, ensemble("plain"), weights, lengths, uses_history, groups)


def _trees(name: str, taken: Any, start: float) -> Trees:
    feature, threshold, value = (
        taken(f"{name}_{part}") for part in ("feature", "threshold", "value")
    )
    count = len(feature)
    if count > MOST_TREES or len(threshold) != count or len(value) != count:
        raise ModelFileError(f"{name} has arrays of different length, or too many trees.")
    if ((feature < 0) | (feature >= len(features.NAMES))).any():
        raise ModelFileError(f"{name} asks for features that there are not.")
    if np.isnan(threshold).any() or not np.isfinite(value).all():
        raise ModelFileError(f"{name} holds what is no number.")
    return Trees(start, feature, threshold, value)


def _arrays(model: Model) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    yield "groups", model.groups
    yield "weights", model.weights
    yield "lengths", model.lengths
    for name, one in (("with_ids", model.with_ids), ("plain", model.plain)):
        if one is None:
            continue
        numbers = (one.location.start, one.slope, one.scale.start, one.typical_scale)
        yield f"{name}/numbers", np.array(numbers)
        yield f"{name}/residuals", one.residuals
        yield f"{name}/losses", one.losses
        for part, trees in (("location", one.location), ("scale", one.scale)):
            yield f"{name}/{part}_feature", trees.feature
            yield f"{name}/{part}_threshold", trees.threshold
            yield f"{name}/{part}_value", trees.value


def _npy(array: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    np.lib.format.write_array(file, little, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _members(arrays: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for name, data in arrays.items():
        yield f"arrays/{name}.npy", data
