"""Studies whose finalists, or all of whose trials, run on SGLang's own scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.cli import main
from batchpolicy_sglang.replay import SglangReplay
from batchpolicy_sim import LightSglang
from batchpolicy_tuning.tune.engine_limits import TUNED_LIMITS
from batchpolicy_tuning.tune.result import StudyResult, read_result

pytestmark = pytest.mark.engine

STUDY = """\
apiVersion: batchpolicy/v1
kind: Study
workloads: [{workload: chat-and-batch, load: 1.3, slices: 2, held_out: 2, requests: 40}]
engine: sglang
limits: {max_num_seqs: 8, max_num_batched_tokens: 512}
targets: [queue.max<=600s]
policies: [priority]
space: {limits: {max_num_seqs: [4, 16], max_num_batched_tokens: [256, 512]}}
search: {trials: 4SEARCH}
finalists: {count: 2}
"""


def studied(folder: Path, search: str) -> StudyResult:
    path = folder / "study.yaml"
    path.write_text(STUDY.replace("SEARCH", search))
    # Two slices show nothing; that there is an answer is the point.
    assert main(["tune", str(path), "--out", str(folder / "out"), "-q"]) in (0, 5)
    return read_result(folder / "out")


@pytest.mark.parametrize(
    ("search", "engine"),
    [("", "light, as sglang"), (", engine: sglang", "SGLang ")],
    ids=["finalists", "all trials"],
)
def test_a_study_is_judged_on_sglangs_scheduler(
    tmp_path: Path, search: str, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = studied(tmp_path, search)
    assert result.search_engine.startswith(engine)
    assert result.final_engine.startswith("SGLang ")
    assert result.outcomes == {"feasible": 4}
    assert len(result.finalists) == 2
    assert {one.outcome for one in result.finalists} == {"feasible"}
    told = capsys.readouterr().out
    assert "Held out, 2 slices on SGLang" in told
    assert ("without a prefix cache" in told) == (not search)


def test_the_light_engine_lacks_of_the_tuned_limits_what_sglang_lacks() -> None:
    tuned = frozenset(TUNED_LIMITS)
    assert LightSglang.without & tuned == SglangReplay.without & tuned
    assert LightSglang.whole_block_chunks == SglangReplay.whole_block_chunks
