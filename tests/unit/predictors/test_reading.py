from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.errors import ConfigError, WorkloadError
from batchpolicy_predictors.training.examples import (
    NO_CEILING,
    Examples,
    held_out_groups,
)
from batchpolicy_predictors.training.reading import read_examples
from batchpolicy_predictors.training.tokens import ModelTokens, Words

SHARED = Path(__file__).parents[4] / "shared" / "data" / "traces"


def lines(path: Path, *rows: object) -> Path:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def read(
    data: Path, questions: Path | None = None, asked: Mapping[str, str | None] | None = None
) -> Examples:
    return read_examples(data, questions, asked or {}, Words())


def answer(question: str, tokens: Any) -> dict[str, Any]:
    return {
        "question_id": question,
        "choices": [{"turns": [{"content": "...", "token_len": tokens}]}],
    }


def question(key: str, text: str) -> dict[str, Any]:
    return {"question_id": key, "turns": [{"content": text}]}


def test_words_are_their_hashes_in_lower_case_cut_at_ten_letters() -> None:
    ids = Words().ids("Hello, hello  WORLD 12345!")
    assert len(ids) == 7  # hello , hello world 123 45 !
    assert ids[0] == ids[2]
    assert len(Words().ids("incomprehensibilities")) == 3
    assert Words().ids("") == []


def test_answers_are_joined_with_their_questions(tmp_path: Path) -> None:
    answers = lines(tmp_path / "a.jsonl.gz", answer("q2", 30), answer("q1", 10))
    asks = lines(tmp_path / "q.jsonl", question("q1", "one"), question("q2", "one two"))
    found = read(answers, asks)
    assert found.output_tokens.tolist() == [30, 10]
    assert found.arrivals.prompt_tokens.tolist() == [2, 1]
    assert found.arrivals.prompt_ids == [Words().ids("one two"), Words().ids("one")]
    assert found.group == ["q2", "q1"]
    assert found.arrivals.id_space == "words-1"
    assert found.arrivals.max_tokens.tolist() == [NO_CEILING] * 2
    assert [source.rows for source in found.sources] == [2, 2]
    assert "as given" in found.lengths


def test_a_list_of_instructions_counts_its_answers_by_their_text(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    rows = [
        {"instruction": "add", "input": "1 2", "response": "3"},
        {"instruction": "say it", "input": "", "response": "so be it"},
        {"instruction": "nothing", "input": "", "response": ""},
    ]
    path.write_text(json.dumps(rows))
    found = read(path)
    # A text of digits is one token, not that number of tokens.
    assert found.output_tokens.tolist() == [1, 3]
    assert found.left_out == 1
    assert "estimated" in found.lengths


def test_our_recordings_have_times_tenants_and_sessions(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "w.jsonl",
        {"id": "b", "arrival_s": 5.0, "prompt_tokens": 20, "output_tokens": 2, "max_tokens": 8,
         "tenant": "t", "session": "s"},
        {"id": "a", "arrival_s": 1.0, "prompt_tokens": 10, "output_tokens": 9, "max_tokens": 9,
         "session": "s", "prompt_ids": [1, 2, 3]},
        {"id": "c", "arrival_s": 9.0, "prompt_tokens": 30, "output_tokens": 4, "max_tokens": 8},
    )  # fmt: skip
    found = read(path)
    assert found.output_tokens.tolist() == [9, 2, 4]
    assert found.arrivals.turn is not None
    assert found.arrivals.turn.tolist() == [0, 1, -1]
    assert found.arrivals.tenant == ["", "t", ""]
    assert found.arrivals.max_tokens.tolist() == [9, 8, 8]
    assert found.arrivals.id_space == "engine"
    assert found.arrivals.hour is None  # these times start at 0
    assert found.group[:2] == ["s", "s"]


def test_logs_of_vllm_and_traces_are_known(tmp_path: Path) -> None:
    log = lines(
        tmp_path / "log.jsonl",
        {"request_id": "1", "input_toks": 5, "output_toks": 7, "queued_ts": 1.7e9 + 3600.0},
    )
    found = read(log)
    assert (found.arrivals.prompt_tokens.tolist(), found.output_tokens.tolist()) == ([5], [7])
    assert found.arrivals.prompt_ids is None
    assert found.arrivals.hour is not None
    assert 0 <= found.arrivals.hour[0] < 24
    trace = tmp_path / "s.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0.5,x,10,20\n0.2,7,30,40\n")
    found = read(trace)
    assert found.output_tokens.tolist() == [40, 20]
    assert found.arrivals.tenant == ["7", "x"]


def test_fields_may_be_named(tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", {"chat": [{"said": "hi you"}], "n": 12, "who": "me"})
    asked = {"text": "chat.0.said", "length": "n", "tenant": "who"}
    found = read(path, asked=asked)
    assert found.output_tokens.tolist() == [12]
    assert found.arrivals.prompt_tokens.tolist() == [2]
    assert found.arrivals.tenant == ["me"]


def test_mistakes_are_told_all_at_once_with_their_lines(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", answer("q1", "x" * 3), answer("q1", -1), answer("q9", 5))
    path.write_text(path.read_text())
    asks = lines(tmp_path / "q.jsonl", question("q1", "one"))
    with pytest.raises(WorkloadError) as told:
        read(path, asks)
    assert str(told.value).splitlines() == [
        f"{path}:2: choices.0.turns.0.token_len is -1, expected the answer's tokens, or its text",
        f"{path}:3: answers 'q9', which {asks} does not ask",
    ]


@pytest.mark.parametrize(
    ("content", "asked", "expected"),
    [
        ("", {}, "holds no row"),
        ("{]\n3\n", {}, ":1: no JSON"),
        ("[1, 2]", {}, "item 1: is 1, expected an object"),
        ('{"a": 1}', {}, "of no known form; name its fields with --text-field and --length-field"),
        ('{"a": 1}', {"text": "a"}, "name its fields with --length-field"),
        ('{"a": 1, "b": "x"}', {"text": "b", "length": "aa"}, "no field 'aa' in its first row. D"),
        ('{"question_id": "q", "choices": []}', {}, "give --questions FILE, else --text-field"),
        ('{"prompt_tokens": "x", "output_tokens": 3, "arrival_s": 0}', {}, "expected a number of"),
        ('{"prompt_tokens": 1, "output_tokens": 3}', {}, "arrival_s is nothing, expected seconds"),
        ('{"instruction": "a", "response": ""}', {}, "none of its 1 rows has an answer"),
        ('{"prompt_ids": [1, -2], "n": 3}', {"length": "n", "prompt_ids": "prompt_ids"},
         "no token ids"),
    ],
)  # fmt: skip
def test_what_a_file_cannot_be_used_for_is_said(
    tmp_path: Path, content: str, asked: dict[str, str], expected: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(WorkloadError) as told:
        read(path, asked=asked)
    assert expected in str(told.value)
    assert str(path) in str(told.value)


def test_missing_and_damaged_files_and_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no such file"):
        read(tmp_path / "none.jsonl")
    damaged = tmp_path / "d.jsonl.gz"
    damaged.write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(WorkloadError, match="cannot be read"):
        read(damaged)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"a": 1}\n{"a": "\xe9"}\n')
    with pytest.raises(WorkloadError, match=r"latin.jsonl:2: byte 0xe9 is not UTF-8"):
        read(latin)
    with pytest.raises(ConfigError, match="tokenizer"):
        ModelTokens(tmp_path / "tokenizer.json")


def test_a_tokenizer_of_a_model_gives_the_engines_ids(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers", reason="engines bring it along")
    made = library.Tokenizer(library.models.WordLevel({"a": 3, "b": 4, "?": 0}, unk_token="?"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    tokens = ModelTokens(tmp_path / "tokenizer.json")
    assert tokens.ids("a b c") == [3, 4, 0]
    assert tokens.id_space == "engine"


def test_groups_are_held_out_whole_by_their_hash(tmp_path: Path) -> None:
    rows = [answer(f"q{k % 200}", 5) for k in range(600)]
    asks = [question(f"q{k}", f"text {k}") for k in range(200)]
    found = read(lines(tmp_path / "a.jsonl", *rows), lines(tmp_path / "q.jsonl", *asks))
    held = held_out_groups(found, 0.2, 0)
    out = {g for g, h in zip(found.group, held, strict=True) if h}
    assert 20 < len(out) < 60
    assert all((g in out) == bool(h) for g, h in zip(found.group, held, strict=True))
    # Other rows of the file change nothing.
    some = found.take(held.nonzero()[0])
    assert held_out_groups(some, 0.2, 0).all()


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows"),
    [("text/gpteacher_codegen_instruct.json.gz", 4535), ("azure_2023_code.csv.gz", 8819)],
)
def test_published_files_are_read(name: str, rows: int) -> None:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"needs {name} beside the checkout, which is not there")
    found = read(path)
    assert len(found) + found.left_out == rows


@pytest.mark.shared
def test_words_count_nearly_what_the_tokenizer_of_the_answers_does() -> None:
    path = SHARED / "text" / "arena_hard_v0.1_gpt-4-0314.jsonl.gz"
    if not path.is_file():
        pytest.skip("needs the arena-hard answers beside the checkout, which are not there")
    found = [json.loads(line) for line in gzip.open(path, "rt")]
    turns = [row["choices"][0]["turns"][0] for row in found]
    counted = sum(len(Words().ids(turn["content"])) for turn in turns)
    assert counted / sum(turn["token_len"] for turn in turns) == pytest.approx(1.0, abs=0.1)
