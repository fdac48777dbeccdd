from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.errors import ConfigError
from batchpolicy.workload import WorkloadRequest
from batchpolicy_tuning.workloads.arrivals import Gamma
from batchpolicy_tuning.workloads.catalog import workload_named
from batchpolicy_tuning.workloads.classes import read_classes
from batchpolicy_tuning.workloads.generated import Generated, read_generated
from batchpolicy_tuning.workloads.lengths import Constant, Lognormal
from batchpolicy_tuning.workloads.streams import Cancel, Sessions, Stream

EXAMPLES = Path(__file__).parents[4] / "examples" / "workloads"
HEADER = "apiVersion: batchpolicy/v1\nkind: Workload\nstreams:\n"
PLAIN = "rate: 5, prompt: 10, output: 3, max_tokens: 8"


def _read(folder: Path, text: str, requests: int = 100) -> Generated:
    path = folder / "w.yaml"
    path.write_text(HEADER + text)
    return read_generated(path, requests)


def _faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _read(folder, text)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_a_stream_becomes_requests_of_a_class_of_its_name(tmp_path: Path) -> None:
    source = _read(
        tmp_path,
        """  chat:
    rate: 4
    prompt: {dist: uniform, low: 10, high: 20}
    output: 7
    max_tokens: 16
    priority: 3
    tenants: {a: 1, b: 1}
    ttft_slo_s: 500ms
    tpot_slo_s: 0.05
    prefix_tokens: 15
""",
    )
    drawn = source.replication(0, seed=0).requests
    assert source.name == "w.yaml"
    assert [r.id for r in drawn[:2]] == ["chat-0000", "chat-0001"]
    assert {r.tenant for r in drawn} == {"a", "b"}
    assert {
        (r.request_class, r.priority, r.output_tokens, r.max_tokens, r.ttft_slo_s, r.tpot_slo_s)
        for r in drawn
    } == {("chat", 3, 7, 16, 0.5, 0.05)}
    assert all(
        r.prefix_id == "chat" and r.prefix_tokens == min(15, r.prompt_tokens) for r in drawn
    )
    assert list(source.notes) == ["Prompts of w.yaml share prefixes, which --prefix-cache reuses."]


def test_streams_share_the_time_by_their_rates_and_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    both = _read(tmp_path, f"  a: {{{PLAIN}}}\n  b: {{{PLAIN.replace('5', '15', 1)}}}\n", 4000)
    drawn = both.replication(0, seed=0).requests
    counts = Counter(r.request_class for r in drawn)
    # 200 s at 5 and 15 a second; four standard deviations.
    assert counts["a"] == pytest.approx(1000, abs=4 * 1000**0.5)
    assert counts["b"] == pytest.approx(3000, abs=4 * 3000**0.5)
    alone = Generated("w.yaml", {"a": both.streams["a"]}, 1000)
    assert alone.replication(0, seed=0).requests == tuple(
        r for r in drawn if r.request_class == "a"
    )


def test_replications_are_drawn_anew_and_can_be_drawn_again(tmp_path: Path) -> None:
    source = _read(tmp_path, f"  a: {{{PLAIN}}}\n")
    assert source.replication(1, seed=3) == source.replication(1, seed=3)
    assert source.replication(0, seed=3) != source.replication(1, seed=3)
    assert source.replication(0, seed=3) != source.replication(0, seed=4)


def test_streams_can_be_made_in_python() -> None:
    stream = Stream(
        rate=5.0,
        arrivals=Gamma(cv=2.0),
        prompt=Lognormal(median=100, sigma=1.0, low=1, high=1000),
        output=Constant(tokens=3),
        max_tokens=8,
    )
    drawn = Generated("mine", {"s": stream}, 10_000).replication(0, seed=0).requests
    gaps_s = np.diff([r.arrival_s for r in drawn])
    # The count has variance cv^2 n; for the tolerance of the variation see test_arrivals.
    assert len(drawn) == pytest.approx(10_000, abs=4 * 2.0 * 100)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(2.0, abs=0.25)


def test_a_share_of_the_requests_is_cancelled_after_an_exponential_patience() -> None:
    stream = Stream(
        rate=5.0,
        prompt=Constant(tokens=10),
        output=Constant(tokens=3),
        max_tokens=8,
        cancel=Cancel(share=0.3, patience_s=4.0),
    )
    drawn = Generated("mine", {"s": stream}, 10_000).replication(0, seed=0).requests
    waits_s = np.array([r.cancel_at_s - r.arrival_s for r in drawn if r.cancel_at_s < math.inf])
    n = len(drawn)
    assert len(waits_s) / n == pytest.approx(0.3, abs=4 * (0.21 / n) ** 0.5)
    # Mean and deviation of an exponential are equal; errors 1/sqrt(n) and about sqrt(2/n) of it.
    assert waits_s.mean() == pytest.approx(4.0, rel=4 / len(waits_s) ** 0.5)
    assert waits_s.std() == pytest.approx(4.0, rel=4 * (2 / len(waits_s)) ** 0.5)


def _sessions(drawn: tuple[WorkloadRequest, ...]) -> list[list[WorkloadRequest]]:
    found: defaultdict[str, list[WorkloadRequest]] = defaultdict(list)
    for r in drawn:
        found[r.session].append(r)
    return list(found.values())


def test_each_turn_of_a_session_holds_the_whole_text_before_it() -> None:
    stream = Stream(
        rate=5.0,
        prompt=Constant(tokens=100),
        output=Constant(tokens=60),
        max_tokens=50,
        tenants=3,
        session=Sessions(mean_turns=4.0, think_s=10.0, token_s=0.1, max_context=1000),
    )
    drawn = Generated("mine", {"s": stream}, 3000).replication(0, seed=0).requests
    for turns in _sessions(drawn):
        assert len({r.tenant for r in turns}) == 1
        for before, after in pairwise(turns):
            # 100 of a message, and 50 of an answer that the ceiling cuts.
            assert after.prompt_tokens - before.prompt_tokens == 150
            # The answer is expected to take 50 * 0.1 s; then somebody thinks.
            assert after.arrival_s - before.arrival_s > 5.0
    # A prompt of 1,000 less the ceiling of 50 is the longest, so 100 + 5 * 150.
    assert max(r.prompt_tokens for r in drawn) == 850


def test_turns_come_at_the_rate_from_the_first_second_to_the_last() -> None:
    stream = Stream(
        rate=5.0,
        prompt=Constant(tokens=10),
        output=Constant(tokens=10),
        max_tokens=20,
        session=Sessions(mean_turns=3.0, think_s=10.0, max_context=100_000),
    )
    drawn = Generated("mine", {"s": stream}, 20_000).replication(0, seed=0).requests
    arrivals_s = np.array([r.arrival_s for r in drawn])
    # A session of T turns, geometric with mean 3, adds T to the count: variance / mean is
    # E[T^2] / E[T] = (2 * 9 - 3) / 3 = 5.
    assert len(drawn) == pytest.approx(20_000, abs=4 * (5 * 20_000) ** 0.5)
    for start_s in (0.0, 3600.0):
        in_window = ((arrivals_s >= start_s) & (arrivals_s < start_s + 400.0)).sum()
        assert in_window == pytest.approx(2000, abs=4 * (5 * 2000) ** 0.5)
    gaps_s = [
        after.arrival_s - before.arrival_s
        for turns in _sessions(drawn)
        for before, after in pairwise(turns)
    ]
    # 10 tokens at 30 ms, then 10 s of thought on average.
    assert np.mean(gaps_s) == pytest.approx(10.3, rel=4 / len(gaps_s) ** 0.5)
    assert min(gaps_s) > 0.3


def test_all_mistakes_come_at_once_with_their_lines_and_the_nearest_key(tmp_path: Path) -> None:
    found = _faults(
        tmp_path,
        """  chat:
    rate: 0
    prompt: {dist: lognorml, median: 500}
    output: {dist: uniform, low: 9, hgh: 4}
    max_tokens: 1024
    arrivals: {process: gamma, cv: -1}
  batch:
    rate: 2
    prompt: {median: 4}
    output: true
    max_tokens: 10
    sesion: {mean_turns: 4}
    cancel: {share: 2, patience_s: 3 parsecs}
  order: {rate: 1, prompt: {dist: uniform, low: 9, high: 8}, output: 1, max_tokens: 1}
""",
    )
    assert found[:4] == [
        "w.yaml:5: streams.chat.rate is 0; expected a number greater than 0.",
        "w.yaml:6: streams.chat.prompt.dist is 'lognorml'; expected 'constant' or 'uniform' or "
        "'lognormal' or 'sample'. Did you mean 'lognormal'?",
        "w.yaml:7: streams.chat.output.high is missing.",
        "w.yaml:7: unknown key 'streams.chat.output.hgh'. Did you mean 'high'? "
        "Known: low, high, dist.",
    ]
    assert found[4:7] == [
        "w.yaml:9: streams.chat.arrivals.cv is -1; expected a number greater than 0.",
        "w.yaml:12: streams.batch.prompt.dist is missing.",
        "w.yaml:13: streams.batch.output is true; expected a mapping with 'dist'.",
    ]
    assert found[7].startswith(
        "w.yaml:15: unknown key 'streams.batch.sesion'. Did you mean 'session'?"
    )
    assert "unknown unit 'parsecs'" in found[8]
    assert (
        found[9]
        == "w.yaml:16: streams.batch.cancel.share is 2; expected a number less than or equal to 1."
    )
    assert "high 8 is below low 9" in found[10]
    assert len(found) == 11


def test_a_sample_that_cannot_be_used_is_a_fault_of_the_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("tokens\n5\n")
    column = "{dist: sample, file: l.csv, column: token}"
    missing = "{dist: sample, file: m.csv, column: tokens}"
    assert _faults(
        tmp_path,
        f"  a:\n    rate: 1\n    prompt: {column}\n    output: {missing}\n    max_tokens: 4\n",
    ) == [
        "w.yaml:6: l.csv:1: no column token; found tokens, expected token",
        "w.yaml:7: m.csv: no such file",
    ]


def test_a_file_without_streams_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("apiVersion: batchpolicy/v1\nkind: Workload\nstreams: {}\n")
    with pytest.raises(ConfigError, match=r"w\.yaml:3: streams is"):
        read_generated(path, 10)
    path.write_text("apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\n")
    with pytest.raises(ConfigError, match="kind is 'Policy'"):
        read_generated(path, 10)


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_every_example_is_read_and_draws_requests(path: Path) -> None:
    if path.name == "lengths.csv":
        assert "lengths.csv" in (EXAMPLES / "sampled-lengths.yaml").read_text()
    elif "kind: Classes" in path.read_text():
        assert read_classes(path).classes
    else:
        source = workload_named(str(path), pairs=2, requests=200)
        drawn = source.replication(1, seed=0)
        assert 50 < len(drawn.requests) < 400
        assert drawn.requests[0].arrival_s >= 0.0


def test_the_examples_show_every_process_and_distribution() -> None:
    text = "".join(path.read_text() for path in EXAMPLES.glob("*.yaml"))
    words = ("poisson", "gamma", "on-off", "session", "cancel", "lognormal", "uniform", "sample")
    assert [word for word in words if word not in text] == []
