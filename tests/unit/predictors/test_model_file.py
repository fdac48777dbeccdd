from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.errors import ConfigError
from batchpolicy_predictors import model_file
from batchpolicy_predictors.model_file import ModelFileError, read_model, write_model
from tests.support.small_model import saved, small_model


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path: Path, files: dict[str, bytes], *, hashed: bool = True) -> Path:
    """The same file with other members; their hashes in the card are made right."""
    if hashed:
        card = json.loads(files["card.json"])
        card["arrays"] = {
            name.removeprefix("arrays/").removesuffix(".npy"): hashlib.sha256(data).hexdigest()
            for name, data in files.items()
            if name.startswith("arrays/")
        }
        files = {**files, "card.json": json.dumps(card).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def npy(array: np.ndarray, *, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return file.getvalue()


def test_what_was_written_is_read_and_equal_models_make_equal_files(tmp_path: Path) -> None:
    path = saved(tmp_path)
    found, made = read_model(path), small_model()
    assert found.id_space == "engine"
    assert np.array_equal(found.weights, made.weights)
    assert found.with_ids is not None
    assert made.with_ids is not None
    assert np.array_equal(found.with_ids.location.value, made.with_ids.location.value)
    assert found.with_ids.slope == 1.0
    assert np.array_equal(found.plain.residuals, made.plain.residuals)
    raw = path.read_bytes()
    write_model(found, path)
    assert path.read_bytes() == raw


def test_numpy_opens_the_arrays_of_a_file(tmp_path: Path) -> None:
    with np.load(saved(tmp_path), allow_pickle=False) as found:
        assert found["arrays/plain/residuals"].shape == (129,)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_model(small_model(), tmp_path / "nowhere" / "a.bp")


def version_3(files: dict[str, bytes]) -> None:
    card = json.loads(files["card.json"])
    files["card.json"] = json.dumps({**card, "version": 3}).encode()


def version_1(files: dict[str, bytes]) -> None:
    card = json.loads(files["card.json"])
    files["card.json"] = json.dumps({**card, "version": 1}).encode()


def another_kind(files: dict[str, bytes]) -> None:
    files["card.json"] = b'{"format": "something else"}'


def no_card(files: dict[str, bytes]) -> None:
    del files["card.json"]


def card_no_json(files: dict[str, bytes]) -> None:
    files["card.json"] = b"{"


def a_pickle(files: dict[str, bytes]) -> None:
    files["arrays/plain/residuals.npy"] = npy(np.array([print], dtype=object), pickled=True)


def a_bare_pickle(files: dict[str, bytes]) -> None:
    files["arrays/weights.npy"] = pickle.dumps([1.0])


def huge_shape(files: dict[str, bytes]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": (99_999_999_999,)}
    )
    files["arrays/plain/residuals.npy"] = file.getvalue() + b"\0" * 16


def falling_residuals(files: dict[str, bytes]) -> None:
    files["arrays/plain/residuals.npy"] = npy(np.linspace(1.0, -1.0, 129))


def a_feature_too_many(files: dict[str, bytes]) -> None:
    files["arrays/plain/location_feature.npy"] = npy(np.full((1, 8), 10, dtype=np.int32))


def trees_of_other_numbers(files: dict[str, bytes]) -> None:
    files["arrays/plain/location_value.npy"] = npy(np.zeros((2, 8)))


def nan_leaves(files: dict[str, bytes]) -> None:
    files["arrays/plain/location_value.npy"] = npy(np.full((1, 8), np.nan))


def other_dtype(files: dict[str, bytes]) -> None:
    files["arrays/plain/location_value.npy"] = npy(np.zeros((1, 8), dtype=np.float32))


def lacking(files: dict[str, bytes]) -> None:
    del files["arrays/plain/numbers.npy"]


def no_scale(files: dict[str, bytes]) -> None:
    files["arrays/plain/numbers.npy"] = npy(np.zeros(4))


def losses_of_other_shares(files: dict[str, bytes]) -> None:
    files["arrays/plain/losses.npy"] = npy(np.zeros((4, 9)))


def gains(files: dict[str, bytes]) -> None:
    files["arrays/plain/losses.npy"] = npy(np.full((5, 9), -1.0))


def losses_without_end(files: dict[str, bytes]) -> None:
    files["arrays/plain/losses.npy"] = npy(np.full((5, 9), 1e307))


def losses_of_other_levels(files: dict[str, bytes]) -> None:
    files["arrays/plain/losses.npy"] = npy(np.zeros((5, 8)))


def falling_lengths(files: dict[str, bytes]) -> None:
    files["arrays/lengths.npy"] = npy(np.linspace(9.0, 1.0, 9))


def lengths_of_nothing(files: dict[str, bytes]) -> None:
    files["arrays/lengths.npy"] = npy(np.linspace(0.0, 1.0, 9))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (version_3, "version 3 of the format; this batchpolicy reads 2. Install a newer one"),
        (version_1, "version 1 of the format; this batchpolicy reads 2. Train the model anew"),
        (another_kind, "of another kind"),
        (no_card, "without card.json"),
        (card_no_json, "card.json is no JSON"),
        (a_pickle, "holds object"),
        (a_bare_pickle, "weights is no array"),
        (huge_shape, "which cannot be"),
        (falling_residuals, "no 129 ascending numbers"),
        (a_feature_too_many, "asks for features that there are not"),
        (trees_of_other_numbers, "arrays of different length"),
        (nan_leaves, "holds what is no number"),
        (other_dtype, "holds float32"),
        (lacking, "lacks plain/numbers"),
        (no_scale, "which cannot be"),
        (losses_of_other_shares, "no 5 rows of what can be lost"),
        (gains, "no 5 rows of what can be lost"),
        (losses_without_end, "no 5 rows of what can be lost"),
        (losses_of_other_levels, "which cannot be"),
        (falling_lengths, "no 9 ascending numbers of tokens"),
        (lengths_of_nothing, "no 9 ascending numbers of tokens"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, change: Callable[[dict[str, bytes]], None], reason: str
) -> None:
    path = saved(tmp_path)
    files = members(path)
    change(files)
    hashed = change not in (no_card, card_no_json, another_kind)
    with pytest.raises(ModelFileError, match=reason) as told:
        read_model(rewritten(path, files, hashed=hashed))
    assert str(path) in str(told.value)


def test_an_array_that_is_not_what_the_card_says_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    files = members(path)
    files["arrays/weights.npy"] = npy(np.zeros(2**14, dtype=np.float32))
    with pytest.raises(ModelFileError, match="weights is not what its card says"):
        read_model(rewritten(path, files, hashed=False))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no model file"),
        (pickle.dumps({"model": 1}), "no model file"),
        (b"PK\x03\x04 and nothing", "damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "other.bp"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=reason):
        read_model(path)


def test_no_file_a_folder_and_too_large_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelFileError, match="no such model file"):
        read_model(tmp_path / "none.bp")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_model(tmp_path)
    path = saved(tmp_path)
    monkeypatch.setattr(model_file, "MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(ModelFileError, match="larger than"):
        read_model(path)
    # Packed it is small enough, unpacked it is not.
    monkeypatch.setattr(model_file, "MOST_BYTES", path.stat().st_size + 1)
    with pytest.raises(ModelFileError, match="unpacks to more"):
        read_model(path)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    path = saved(tmp_path)
    files = members(path)
    a_pickle(files)
    rewritten(path, files)
    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, never)
    with pytest.raises(ModelFileError):
        read_model(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return saved(tmp_path_factory.mktemp("sound")).read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_means_the_same(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(sound)
    if data.draw(st.booleans(), label="cut"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1), label="length")]
    else:
        for _ in range(data.draw(st.integers(1, 4), label="bytes")):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.bp"
    path.write_bytes(raw)
    try:
        found = read_model(path)
    except ModelFileError:
        return
    made = small_model()
    assert np.array_equal(found.plain.location.value, made.plain.location.value)
    assert np.array_equal(found.weights, made.weights)
