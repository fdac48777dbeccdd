from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchpolicy.config import RequestDefaults
from batchpolicy.runner import RequestFacts
from batchpolicy_vllm.metadata import Metadata

pytestmark = pytest.mark.engine


def read(
    extra: Any = None,
    *,
    priority: int = 0,
    lora: str | None = None,
    session_id: Any = None,
    arrival_s: float | None = None,
    defaults: RequestDefaults | None = None,
) -> tuple[RequestFacts, int]:
    """Facts of a request with these ``vllm_xargs``, and how many values could not be used."""
    counters: Counter[str] = Counter()
    request = SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args=extra, temperature=0.7),
        prompt_token_ids=[0] * 12,
        arrival_time=90_000.0,
        num_prompt_tokens=12,
        max_tokens=34,
        priority=priority,
        session_id=session_id,
        lora_request=None if lora is None else SimpleNamespace(lora_name=lora),
    )
    metadata = Metadata(defaults or RequestDefaults(), counters)
    facts = metadata.facts(request, arrival_s=arrival_s, ready=True)
    if arrival_s is None:
        assert facts.prompt_ids is request.prompt_token_ids, "told, not copied"
        assert (facts.temperature, facts.hour) == (0.7, 1.0)
    else:
        # Replays make up prompts and parameters.
        assert facts.prompt_ids is None
        assert math.isnan(facts.temperature) and math.isnan(facts.hour)
    facts = replace(facts, prompt_ids=None, temperature=math.nan, hour=math.nan)
    bad = counters.pop("bad_metadata", 0)
    assert bad == counters.total(), "each is counted under its key too"
    return facts, bad


def same(facts: RequestFacts, **expected: Any) -> bool:
    """Whether the facts are the defaults but for those given; NaN equals NaN."""
    wanted = RequestFacts(prompt_tokens=12, max_tokens=34, **expected)
    return repr(facts) == repr(wanted)


def test_a_request_that_says_nothing_has_defaults() -> None:
    facts, bad = read()
    assert same(facts)
    assert bad == 0


def test_what_a_request_says_becomes_its_facts() -> None:
    said = {
        "tenant": "acme",
        "weight": 2,
        "session_id": "talk",
        "ttft_slo_s": 0.5,
        "tpot_slo_s": "0.05",
        "deadline_s": 30,
        "queue_ttl_s": "1e1",
        "predicted_output_tokens": "70.5",
        "other": [1],
    }
    facts, bad = read(said, priority=-3, lora="french")
    assert facts == RequestFacts(
        prompt_tokens=12,
        max_tokens=34,
        priority=-3,
        tenant="acme",
        weight=2.0,
        session="talk",
        ttft_slo_s=0.5,
        tpot_slo_s=0.05,
        deadline_after_s=30.0,
        queue_ttl_s=10.0,
        predicted_output_tokens=70.5,
        lora="french",
    )
    assert bad == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tenant", [1]),
        ("tenant", 1.5),
        ("tenant", True),
        ("tenant", None),
        ("tenant", "t" * 257),
        ("tenant", 2**63),
        ("session_id", ["s"]),
        ("session_id", 0.5),
        ("program", {"name": "p"}),
        ("weight", 0),
        ("weight", -1.0),
        ("weight", math.inf),
        ("weight", "heavy"),
        ("weight", True),
        ("weight", 1e-300),
        ("weight", 2**2000),
        ("weight", None),
        ("ttft_slo_s", "soon"),
        ("ttft_slo_s", math.nan),
        ("ttft_slo_s", -0.5),
        ("ttft_slo_s", [0.5]),
        ("tpot_slo_s", 0),
        ("tpot_slo_s", {}),
        ("ttft_slo_s", 1e300),
        ("ttft_slo_s", "1" * 1000),
        ("deadline_s", -2),
        ("deadline_s", "-inf"),
        ("queue_ttl_s", "nan"),
        ("queue_ttl_s", None),
        ("predicted_output_tokens", math.nan),
        ("predicted_output_tokens", math.inf),
        ("predicted_output_tokens", -5),
        ("predicted_output_tokens", 0),
        ("predicted_output_tokens", 10**12),
        ("predicted_output_tokens", "many"),
    ],
)
def test_a_value_that_cannot_be_used_is_counted_and_replaced_by_its_default(
    key: str, value: object
) -> None:
    facts, bad = read({key: value})
    assert same(facts)
    assert bad == 1


def test_each_value_that_cannot_be_used_is_counted_under_its_key() -> None:
    counters: Counter[str] = Counter()
    metadata = Metadata(RequestDefaults(), counters)
    for extra in ({"weight": -1, "deadline_s": "soon"}, {"weight": 0}):
        request = SimpleNamespace(
            sampling_params=SimpleNamespace(extra_args=extra, temperature=1.0),
            prompt_token_ids=[1],
            arrival_time=0.0,
            num_prompt_tokens=1,
            max_tokens=1,
            priority=2**40,
            lora_request=None,
        )
        metadata.facts(request, arrival_s=None, ready=True)
    assert counters == {
        "bad_metadata": 5,
        "bad_metadata.weight": 2,
        "bad_metadata.deadline_s": 1,
        "bad_metadata.priority": 2,
    }


@pytest.mark.parametrize("key", ["ttft_slo_s", "tpot_slo_s", "deadline_s", "queue_ttl_s"])
@pytest.mark.parametrize("value", [math.inf, "inf", "Infinity"])
def test_a_target_may_say_that_there_is_none(key: str, value: object) -> None:
    facts, bad = read({key: value})
    assert same(facts)
    assert bad == 0


def test_a_tenant_may_be_a_number() -> None:
    assert read({"tenant": 7})[0].tenant == "7"


def test_the_session_is_vllms_own_then_that_of_the_body_then_the_program() -> None:
    said = {"session_id": "body", "program": "plan"}
    assert read(said, session_id="header")[0].session == "header"
    assert read(said)[0].session == "body"
    assert read({"program": "plan"})[0].session == "plan"
    assert read({"session_id": "", "program": 7}, session_id="")[0].session == "7"


def test_a_session_that_cannot_be_used_gives_way_to_the_next() -> None:
    facts, bad = read({"session_id": [1], "program": "plan"}, session_id="s" * 300)
    assert facts.session == "plan"
    assert bad == 2


def test_a_deadline_at_an_instant_is_read_under_a_virtual_clock_only() -> None:
    said = {"deadline_at_s": 0.5}
    # In the past already, and still a deadline.
    assert same(read(said, arrival_s=2.0)[0], arrival_s=2.0, deadline_s=0.5)
    assert same(read(said)[0])


def test_headers_that_may_name_the_tenant_are_found_under_their_names() -> None:
    defaults = RequestDefaults(tenant_from=("X-Tenant", "vllm_xargs.tenant"))
    assert read({"x-tenant": "a", "tenant": "b"}, defaults=defaults)[0].tenant == "a"
    assert read({"tenant": "b"}, defaults=defaults)[0].tenant == "b"
    assert read({"x-tenant": "", "tenant": "b"}, defaults=defaults)[0].tenant == "b"
    assert read({"X-Tenant": "a"}, defaults=defaults)[0].tenant == ""


@pytest.mark.parametrize(("given", "kept"), [(2**40, 2**31 - 1), (-(2**40), 1 - 2**31)])
def test_a_huge_priority_is_counted_and_brought_to_the_end_of_the_scale(
    given: int, kept: int
) -> None:
    facts, bad = read(priority=given)
    assert facts.priority == kept
    assert bad == 1


def test_a_request_without_a_priority_has_the_files() -> None:
    defaults = RequestDefaults(default_priority=5)
    assert read(defaults=defaults)[0].priority == 5
    assert read(priority=2, defaults=defaults)[0].priority == 2


def test_the_first_place_that_names_a_tenant_counts() -> None:
    defaults = RequestDefaults(tenant_from=("vllm_xargs.team", "vllm_xargs.user"))
    assert read({"user": "u", "team": "t"}, defaults=defaults)[0].tenant == "t"
    assert read({"user": "u"}, defaults=defaults)[0].tenant == "u"
    assert read({"tenant": "x"}, defaults=defaults)[0].tenant == ""
    facts, bad = read({"user": "u", "team": []}, defaults=defaults)
    assert same(facts, tenant="u")
    assert bad == 1


def test_a_pooling_request_has_no_parameters_to_read() -> None:
    request = SimpleNamespace(
        sampling_params=None, num_prompt_tokens=3, max_tokens=1, priority=0, lora_request=None,
        prompt_token_ids=None, arrival_time=2.0,
    )  # fmt: skip
    facts = Metadata(RequestDefaults(), Counter()).facts(request, arrival_s=2.0, ready=False)
    wanted = RequestFacts(prompt_tokens=3, max_tokens=1, arrival_s=2.0, ready=False)
    assert repr(facts) == repr(wanted)


KEYS = (
    "tenant",
    "x-tenant",
    "weight",
    "session_id",
    "program",
    "ttft_slo_s",
    "tpot_slo_s",
    "deadline_s",
    "deadline_at_s",
    "queue_ttl_s",
    "predicted_output_tokens",
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["1e999", "-0", "\uff11", "1_0", "\ud800", " 2 ", "0x10", "nan", "-inf"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    extra=st.dictionaries(st.sampled_from(KEYS), VALUES) | VALUES,
    priority=st.integers(-(2**63), 2**63 - 1),
    session_id=VALUES,
    arrival_s=st.none() | st.floats(0.0, 1e6),
)
@example(extra=dict.fromkeys(KEYS, 10**5000), priority=0, session_id=10**5000, arrival_s=None)
@example(extra=dict.fromkeys(KEYS, "9" * 5000), priority=0, session_id=None, arrival_s=0.0)
def test_whatever_a_client_sends_becomes_facts_that_a_policy_can_compute_with(
    extra: Any, priority: int, session_id: Any, arrival_s: float | None
) -> None:
    defaults = RequestDefaults(tenant_from=("x-tenant", "vllm_xargs.tenant"))
    facts, _ = read(
        extra, priority=priority, session_id=session_id, arrival_s=arrival_s, defaults=defaults
    )
    assert abs(facts.priority) < 2**31
    for name in (facts.tenant, facts.session):
        assert isinstance(name, str) and len(name) <= 256
    assert 1e-6 <= facts.weight <= 1e6
    for span_s in (
        facts.ttft_slo_s,
        facts.tpot_slo_s,
        facts.deadline_after_s,
        facts.queue_ttl_s,
    ):
        assert 1e-6 <= span_s <= 1e9 or span_s == math.inf
    assert abs(facts.deadline_s) <= 1e9 or facts.deadline_s == math.inf
    predicted = facts.predicted_output_tokens
    assert math.isnan(predicted) or 1.0 <= predicted <= 2**31
