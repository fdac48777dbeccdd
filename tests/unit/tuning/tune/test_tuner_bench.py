from __future__ import annotations

import gzip
from itertools import product
from pathlib import Path

import pytest

from batchpolicy.cli import main
from batchpolicy.errors import ConfigError
from batchpolicy_tuning.tune.bench import TunerBench
from batchpolicy_tuning.tune.landscape_file import FILE, read_table

HEAD = "seed,max_num_seqs,max_num_batched_tokens,lam,goodput,p99_tpot_s,p99_ttft_s\n"
SHARED = Path(__file__).parents[5] / "shared" / "data" / "tuning"


@pytest.fixture
def landscape(tmp_path: Path) -> Path:
    """Goodput grows with everything, and so does the time between tokens."""
    path = tmp_path / FILE
    rows = [
        f"{seed},{seats},{tokens},{lam},{seats / 256 * (0.5 + lam / 2):.4f},{seats / 2600:.4f},1\n"
        for seed, seats, tokens, lam in product(
            range(1, 6), (32, 64, 128, 256), (512, 2048), (0.0, 0.5, 1.0)
        )
    ]
    with gzip.open(path, "wt") as file:
        file.write(HEAD + "".join(rows))
    return tmp_path


def test_the_optimum_is_that_of_the_settings_that_keep_the_limit(landscape: Path) -> None:
    table = read_table(landscape)
    assert table.space.size == 24
    assert table.seeds == (1, 2, 3, 4, 5)
    # 128 seats take 49 of the 50 ms that are allowed.
    assert table.optimum((1, 2, 3)) == 0.5


def test_both_sides_are_measured_and_held_out_seeds_rotate(landscape: Path) -> None:
    bench = TunerBench()
    bench.choose_data(landscape)
    told: list[str] = []
    report = bench.run(told.append, quick=True)
    named = {one.what.partition(",")[0] for one in report.measurements}
    assert {"tpe", "random", "gp"} <= named
    held_out = report.measurements[-1]
    assert held_out.met
    assert report.tables[1].rows[0][0] == "10", "one study for each split of five seeds"
    assert any("of the seeds" in text for text in told)


def test_a_landscape_that_is_not_whole_is_refused(landscape: Path) -> None:
    path = landscape / FILE
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    path.write_bytes(gzip.compress("".join(lines[:-1]).encode()))
    with pytest.raises(ConfigError, match="24 of 24 settings, or some without a seed"):
        read_table(path)
    with pytest.raises(ConfigError, match="cannot be read as a landscape"):
        read_table(landscape / "none.csv.gz")


def test_only_a_bench_that_reads_data_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "aa", "--data", "x"]) == 2
    assert "reads no data" in capsys.readouterr().err


@pytest.mark.shared
@pytest.mark.slow
def test_the_shared_landscape_is_as_its_page_says() -> None:
    if not (SHARED / FILE).exists():
        pytest.skip("needs the tuning landscape beside the checkout")
    table = read_table(SHARED)
    assert table.space.size == 640
    assert table.optimum((1, 2, 3)) == pytest.approx(0.9593, abs=5e-5)
    default = table.means((128, 2048, 1.0), (1, 2, 3))
    assert default["goodput"] == pytest.approx(0.9327, abs=5e-5)
    assert default["tpot.p99"] == pytest.approx(0.0702)
