"""Tables in the layout of LLMServingSim, made by hand."""

from __future__ import annotations

import gzip
import itertools
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from batchpolicy.errors import ConfigError
from batchpolicy.profiles import load_profile
from batchpolicy.step_cost import StepShape
from batchpolicy.step_costs.tables import PER_LAYER, PER_SEQUENCE, PER_STEP, TableCost, monotone

CHUNKS, CONTEXTS, DECODES, DECODE_CONTEXTS = (16, 64), (0, 32, 64), (1, 2, 4, 8), (16, 32, 64)
Micros = Callable[[int, int, int, int], float]
SHARED = Path(__file__).resolve().parents[4] / "shared/data/latency/llmservingsim"


def plain(chunk: int, context: int, decodes: int, decode_context: int) -> float:
    """Straight in each size, so that what lies between is known: 1 us, a token, a pair read."""
    return 1.0 * chunk + 0.5 * context + 2.0 * decodes + 0.25 * decodes * decode_context


def attention_rows(micros: Micros = plain) -> Iterable[tuple[int, int, int, int, float]]:
    """Rows as the layout has them: no context without tokens, no prefill beside 8 decodes."""
    sizes = [(c, p, 0, 0) for c, p in itertools.product(CHUNKS, CONTEXTS)]
    sizes += [(0, 0, n, m) for n, m in itertools.product(DECODES, DECODE_CONTEXTS)]
    sizes += itertools.product(CHUNKS, CONTEXTS, DECODES[:-1], DECODE_CONTEXTS)
    return [(*size, micros(*size)) for size in sizes]


def write(folder: Path, **texts: str) -> dict[str, str]:
    """The three files, of which some are given as text, and the fields that name them."""
    made = {
        "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
        + "".join(f"{','.join(map(str, row))}\n" for row in attention_rows()),
        # Each part takes 1 us and 0.1 us a token.
        "dense": "layer,tokens,time_us\n"
        + "".join(
            f"{layer},{n},{1.0 + 0.1 * n}\n"
            for layer in (*(set(PER_LAYER) - {"qk_norm"}), *PER_STEP)
            for n in (1, 32, 64)
        ),
        "per_sequence": "layer,sequences,time_us\n"
        + "".join(f"{layer},{n},{10.0 + n}\n" for layer in PER_SEQUENCE for n in (1, 8)),
    } | texts
    for name, text in made.items():
        (folder / f"{name}.csv").write_text(text)
    return {name: str(folder / f"{name}.csv") for name in made}


def cost(folder: Path, layers: int = 2, **texts: str) -> TableCost:
    return TableCost(**write(folder, **texts), layers=layers)  # type: ignore[arg-type]


def test_a_step_is_the_sum_of_its_layers_worked_out_by_hand(tmp_path: Path) -> None:
    # 40 new tokens after 48 cached, beside 3 decodes at 40 on average; 43 tokens, 4 sequences.
    shape = StepShape(40, 40 * 68.0, 48, 3, 120, 4)
    attention_us = 40 + 0.5 * 48 + 2 * 3 + 0.25 * 120
    # 8 parts a layer, as layernorm counts twice and qk_norm is absent; embedding and norm once.
    dense_us = (2 * 8 + 2) * (1 + 0.1 * 43)
    head_us = 2 * (10 + 4)
    expected_s = (2 * attention_us + dense_us + head_us) * 1e-6
    assert cost(tmp_path)(shape) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "attention_us"),
    [
        (StepShape(16, 128.0, 0, 0, 0, 1), 16.0),
        (StepShape(decodes=4, decode_context=128, sequences=4), 8.0 + 32.0),
        # Below the smallest context measured a decode costs what it costs there.
        (StepShape(decodes=2, decode_context=2, sequences=2), 4.0 + 8.0),
        # Contexts are continued by the slope of the last two: 0.25 us a token and decode.
        (StepShape(decodes=1, decode_context=1064, sequences=1), 2.0 + 266.0),
        (StepShape(16, 0.0, 1064, 0, 0, 1), 16.0 + 532.0),
        # A prefill beside 8 decodes is left out, and lies on the line through 2 and 4.
        (StepShape(16, 0.0, 0, 7, 7 * 32, 8), 16.0 + 14.0 + 56.0),
    ],
)
def test_the_attention_of_a_step(shape: StepShape, attention_us: float, tmp_path: Path) -> None:
    tables = cost(tmp_path, layers=1)
    tokens = shape.prefill_tokens + shape.decodes
    others_us = (8 + 2) * (1 + 0.1 * tokens) + 2 * (10 + shape.sequences)
    assert tables(shape) == pytest.approx((attention_us + others_us) * 1e-6, rel=1e-9)


def test_an_empty_step_takes_no_time_whatever_is_added(tmp_path: Path) -> None:
    assert cost(tmp_path).adjusted(2.0, 1.0)(StepShape()) == 0.0


def test_all_reduces_are_added_by_layer_and_token(tmp_path: Path) -> None:
    files = write(tmp_path)
    shape = StepShape(16, 128.0, 0, 0, 0, 1)
    alone = TableCost(**files, layers=2)  # type: ignore[arg-type]
    shared = TableCost(**files, layers=2, layer_s=1e-3, layer_token_s=1e-5)  # type: ignore[arg-type]
    assert shared(shape) - alone(shape) == pytest.approx(2 * (1e-3 + 16 * 1e-5))


def test_a_larger_step_than_the_tables_hold_is_refused(tmp_path: Path) -> None:
    tables = cost(tmp_path)
    assert tables.extent == (64, 8, 64, 64)
    for shape in (StepShape(60, 0.0, 0, 5, 80, 6), StepShape(1, 0.5, 0, 8, 128, 9)):
        with pytest.raises(ConfigError, match="the tables end at 64 tokens and 8 sequences"):
            tables(shape)


cells = hnp.arrays(float, (3, 4, 3, 2), elements=st.floats(0.0, 100.0))


@given(cells)
def test_monotone_cells_never_fall_and_those_that_never_fell_stay(found: np.ndarray) -> None:  # type: ignore[type-arg]
    smooth = monotone(found)
    for axis in range(4):
        assert (np.diff(smooth, axis=axis) >= 0.0).all()
    assert monotone(smooth) == pytest.approx(smooth)
    assert found.min() <= smooth.min()
    assert smooth.max() <= found.max()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    chunk=st.integers(0, 40),
    context=st.integers(0, 400),
    decodes=st.integers(0, 5),
    mean=st.integers(1, 400),
    more=st.integers(1, 300),
)
def test_no_step_is_shorter_than_a_smaller_one_on_noisy_tables(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    chunk: int,
    context: int,
    decodes: int,
    mean: int,
    more: int,
) -> None:
    rng = np.random.default_rng(seed)
    noisy = attention_rows(lambda *size: plain(*size) * rng.uniform(0.3, 3.0))
    text = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    text += "".join(f"{','.join(map(str, row))}\n" for row in noisy)
    tables = cost(tmp_path_factory.mktemp("tables"), attention=text)

    def seconds(chunk: int, context: int, decodes: int, mean: int) -> float:
        sequences = decodes + (chunk > 0)
        shape = StepShape(chunk, 0.0, context if chunk else 0, decodes, decodes * mean, sequences)
        return tables(shape)

    before = seconds(chunk, context, decodes, mean) * (1 - 1e-9)
    assert seconds(min(chunk + more, 56), context, decodes, mean) >= before
    assert seconds(chunk, context + more, decodes, mean) >= before
    assert seconds(chunk, context, min(decodes + more, 7), mean) >= before
    assert seconds(chunk, context, decodes, mean + more) >= before


def test_a_file_with_two_grids_gives_the_one_that_is_full(tmp_path: Path) -> None:
    # The second has another chunk and contexts of its own, and shares the chunk 16.
    second = [
        (c, p, n, m, 1e6)
        for c, p, n, m in itertools.product((16, 24), (0, 48), (0, 1, 2), (0, 48))
        if (n > 0) == (m > 0) and (c, p, n, m) not in {row[:4] for row in attention_rows()}
    ]
    text = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    text += "".join(f"{','.join(map(str, row))}\n" for row in [*attention_rows(), *second])
    tables = cost(tmp_path, attention=text)
    assert tables.attention_axes[0] == [0, *CHUNKS]
    assert tables.unused == len(second)
    shape = StepShape(20, 200.0, 48, 0, 0, 1)
    assert tables(shape) == cost(tmp_path)(shape)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("attention", lambda t: t.replace("64,64,4,64,", "64,64,4,64,-"), ":*time_us is '-"),
        (
            "attention",
            lambda t: t.replace("16,0,0,0,16.0", "16,0,0,0,nan"),
            ":2: time_us is 'nan'",
        ),
        ("attention", lambda t: t.replace("16,0,0,0,", "x,0,0,0,"), ":2: prefill_chunk is 'x'"),
        ("attention", lambda t: t.replace("16,0,0,0,", "16.5,0,0,0,"), ":2: prefill_chunk is '16"),
        ("attention", lambda t: t + "16,0,0,0,3\n", "16, 0, 0, 0 stands in line 2 already"),
        ("attention", lambda t: t + "0,16,1,16,3\n", "is no step"),
        ("attention", lambda t: t + "16,0,0\n", "3 cells, expected 5"),
        ("attention", lambda t: t.replace("time_us", "time_ms"), ":1: no column 'time_us'"),
        ("attention", lambda t: t.replace("64,64,2,32,", "64,64,2,33,"), "is no full grid"),
        ("attention", lambda t: "\n".join(t.splitlines()[:-3]), "It may have been cut short"),
        ("attention", lambda t: t.splitlines()[0], "holds no row"),
        ("dense", lambda t: t.replace("o_proj", "op_proj"), "Did you mean 'o_proj'"),
        (
            "dense",
            lambda t: "".join(x for x in t.splitlines(True) if "down" not in x),
            "down_proj",
        ),
        ("dense", lambda t: t.replace("embedding,1,", "embedding,0,"), "the size is 0"),
        ("per_sequence", lambda t: t.replace("lm_head,1,11.0", 'lm_head,1,"11'), "is no CSV"),
        ("per_sequence", lambda t: "", "no column 'layer'"),
    ],
)
def test_a_corrupt_table_is_refused_with_file_and_place(
    name: str, change: Callable[[str], str], said: str, tmp_path: Path
) -> None:
    whole = Path(write(tmp_path)[name]).read_text()
    changed = change(whole)
    assert changed != whole
    with pytest.raises(ValidationError) as e:
        cost(tmp_path, **{name: changed})
    assert str(tmp_path / f"{name}.csv") in str(e.value)
    for part in said.split("*"):
        assert part in str(e.value)


def test_a_compressed_table_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path)
    whole = gzip.compress(Path(files["dense"]).read_bytes())
    cut = tmp_path / "dense.csv.gz"
    cut.write_bytes(whole)
    compressed = files | {"dense": str(cut)}
    shape = StepShape(16, 128.0, 0, 0, 0, 1)
    assert TableCost(**compressed, layers=2)(shape) == cost(tmp_path)(shape)  # type: ignore[arg-type]
    cut.write_bytes(whole[:-20])
    with pytest.raises(ValidationError, match=r"dense\.csv\.gz cannot be read"):
        TableCost(**compressed, layers=2)  # type: ignore[arg-type]


def test_tables_with_another_digest_than_the_profile_was_made_with_are_refused(
    tmp_path: Path,
) -> None:
    files, digest = write(tmp_path), cost(tmp_path).digest
    TableCost(**files, layers=2, sha256=digest)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="not those that the profile was made with"):
        TableCost(**files, layers=2, sha256="0" * 64)  # type: ignore[arg-type]


def test_another_process_gets_the_same_cost(tmp_path: Path) -> None:
    tables = cost(tmp_path).adjusted(1.5, 1e-3)
    shape = StepShape(40, 40 * 68.0, 48, 3, 120, 4)
    assert pickle.loads(pickle.dumps(tables))(shape) == tables(shape)
    assert tables(shape) == pytest.approx(1.5 * cost(tmp_path)(shape) + 1e-3)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="the tables are not beside the checkout")
@pytest.mark.parametrize("gpu", ["RTX4090", "RTXPRO6000"])
def test_the_published_tables_are_read(gpu: str, tmp_path: Path) -> None:
    start = SHARED / f"{gpu}_meta-llama_Llama-3.1-8B_bf16_tp1_"
    parts = ("attention", "dense", "per_sequence")
    files = {part: f"{start}{part}.csv.gz" for part in parts}
    tables = TableCost(**files, layers=32)  # type: ignore[arg-type]
    assert tables.extent == (2048, 256, 16384, 16384)
    decode = StepShape(decodes=64, decode_context=65_536, sequences=64)
    if gpu == "RTX4090":
        # The formula of the shipped profile is a fit to these tables.
        shipped = load_profile("rtx4090-llama-3.1-8b")
        assert shipped.origin.data_sha256 == tables.digest
        assert shipped.cost(decode) == pytest.approx(tables(decode), rel=0.1)
