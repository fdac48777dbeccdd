from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from batchpolicy.config import RequestDefaults
from batchpolicy.runner import RequestFacts
from batchpolicy_sglang.metadata import Metadata


def read(
    custom: Any = None,
    *,
    priority: int | None = None,
    routing_key: str | None = None,
    session_id: str | None = None,
    lora: str | None = None,
    low_first: bool = False,
    arrival_s: float | None = None,
    defaults: RequestDefaults | None = None,
) -> tuple[RequestFacts, int]:
    """Facts of a request with these ``custom_params``, and how many values were no use."""
    counters: Counter[str] = Counter()
    req = SimpleNamespace(
        sampling_params=SimpleNamespace(
            custom_params=custom, max_new_tokens=34, top_k=-1, temperature=0.7
        ),
        origin_input_ids=[0] * 12,
        priority=priority,
        routing_key=routing_key,
        session_id=session_id,
        lora_id=lora,
    )
    metadata = Metadata(
        defaults or RequestDefaults(), counters, low_first=low_first, wall_s=lambda: 3600.0
    )
    facts = metadata.facts(req, arrival_s=arrival_s)
    if arrival_s is None:
        assert facts.prompt_ids is req.origin_input_ids, "told, not copied"
        assert (facts.temperature, facts.hour) == (0.7, 1.0)
    # What predictors are told is the same for all of these.
    facts = replace(facts, prompt_ids=None, temperature=math.nan, hour=math.nan)
    return facts, counters["bad_metadata"]


def test_a_request_that_says_nothing_has_defaults() -> None:
    facts, bad = read()
    assert repr(facts) == repr(RequestFacts(prompt_tokens=12, max_tokens=34))
    assert bad == 0


def test_the_keys_and_defaults_are_those_of_the_other_engine() -> None:
    said = {
        "tenant": "acme",
        "weight": 2,
        "session_id": "talk",
        "ttft_slo_s": 0.5,
        "tpot_slo_s": "0.05",
        "deadline_s": 30,
        "queue_ttl_s": "1e1",
        "predicted_output_tokens": "70.5",
    }
    facts, bad = read({"batchpolicy": said, "tenant": "not ours"}, lora="french")
    assert facts == RequestFacts(
        prompt_tokens=12,
        max_tokens=34,
        tenant="acme",
        weight=2.0,
        session="talk",
        lora="french",
        ttft_slo_s=0.5,
        tpot_slo_s=0.05,
        deadline_after_s=30.0,
        queue_ttl_s=10.0,
        predicted_output_tokens=70.5,
    )
    assert bad == 0


@pytest.mark.parametrize(
    ("given", "low_first", "expected"),
    [(7, False, -7), (7, True, 7), (0, False, 0), (-2, False, 2)],
)
def test_the_direction_of_priority_is_turned_once(
    given: int, low_first: bool, expected: int
) -> None:
    assert read(priority=given, low_first=low_first)[0].priority == expected


def test_a_request_without_a_priority_has_the_files_in_the_files_direction() -> None:
    defaults = RequestDefaults(default_priority=4)
    assert read(defaults=defaults)[0].priority == 4
    assert read(priority=0, defaults=defaults)[0].priority == 0, "0 was asked for"


def test_a_huge_priority_is_counted_and_brought_to_the_end_of_the_scale() -> None:
    facts, bad = read(priority=10**30)
    assert facts.priority == 1 - 2**31
    assert bad == 1


def test_what_sglang_itself_puts_beside_our_key_is_not_looked_at() -> None:
    facts, bad = read({"__req__": object(), "batchpolicy": {"tenant": "a"}})
    assert facts.tenant == "a"
    assert bad == 0


@pytest.mark.parametrize("custom", [[], "x", 7, {"batchpolicy": None}, {"batchpolicy": [1]}])
def test_what_is_no_mapping_says_nothing(custom: Any) -> None:
    facts, bad = read(custom)
    assert repr(facts) == repr(RequestFacts(prompt_tokens=12, max_tokens=34))
    assert bad == 0


def test_hostile_values_are_counted_and_replaced() -> None:
    said = {"tenant": ["a"], "weight": -1, "ttft_slo_s": "nan", "queue_ttl_s": {"a": 1}}
    facts, bad = read({"batchpolicy": said})
    assert (facts.tenant, facts.weight, facts.ttft_slo_s) == ("", 1.0, math.inf)
    assert bad == 4


def test_the_tenant_may_be_named_as_for_the_other_engine_by_a_header_or_the_routing_key() -> None:
    places = RequestDefaults(tenant_from=("x-tenant", "vllm_xargs.who", "routing_key"))
    for custom, key, expected in (
        ({"batchpolicy": {"x-tenant": "gate", "who": "body"}}, "r", "gate"),
        ({"batchpolicy": {"who": "body"}}, "r", "body"),
        (None, "r", "r"),
        (None, None, ""),
    ):
        assert read(custom, routing_key=key, defaults=places)[0].tenant == expected
    same = RequestDefaults(tenant_from=("custom_params.who",))
    assert read({"batchpolicy": {"who": "body"}}, defaults=same)[0].tenant == "body"


def test_the_session_is_sglangs_own_then_that_of_the_body() -> None:
    said = {"batchpolicy": {"session_id": "body", "program": "p"}}
    assert read(said, session_id="own")[0].session == "own"
    assert read(said)[0].session == "body"
    assert read({"batchpolicy": {"program": "p"}})[0].session == "p"


def test_a_deadline_at_an_instant_is_read_under_a_virtual_clock_only() -> None:
    said = {"batchpolicy": {"deadline_at_s": 9.0}}
    assert read(said)[0].deadline_s == math.inf
    assert read(said, arrival_s=1.0)[0].deadline_s == 9.0


@pytest.mark.parametrize(("top_k", "expected"), [(1, 0.0), (-1, 1.0)])
def test_a_greedy_request_is_told_from_one_that_samples(top_k: int, expected: float) -> None:
    # SGLang has the greedy one sample at 1.0 from the first alone.
    params = SimpleNamespace(max_new_tokens=3, top_k=top_k, temperature=1.0)
    req = SimpleNamespace(
        sampling_params=params, origin_input_ids=[1], priority=None, lora_id=None
    )
    metadata = Metadata(RequestDefaults(), Counter(), low_first=False)
    assert metadata.facts(req, arrival_s=None).temperature == expected
    # Replays make up prompts and parameters.
    facts = metadata.facts(req, arrival_s=0.0)
    assert facts.prompt_ids is None
    assert math.isnan(facts.temperature) and math.isnan(facts.hour)
