from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from batchpolicy.config import RequestDefaults
from batchpolicy.errors import ConfigError
from batchpolicy.runner import RequestFacts
from batchpolicy_vllm.metadata import Metadata

pytestmark = pytest.mark.engine


def read(
    extra: dict[str, Any] | None = None,
    *,
    priority: int = 0,
    lora: str | None = None,
    defaults: RequestDefaults | None = None,
) -> tuple[RequestFacts, int]:
    """Facts of a request with these ``vllm_xargs``, and how many values could not be used."""
    counters: Counter[str] = Counter()
    request = SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args=extra),
        num_prompt_tokens=12,
        max_tokens=34,
        priority=priority,
        lora_request=None if lora is None else SimpleNamespace(lora_name=lora),
    )
    metadata = Metadata(defaults or RequestDefaults(), counters)
    return metadata.facts(request, arrival_s=None, ready=True), counters["bad_metadata"]


def test_a_request_that_says_nothing_has_defaults() -> None:
    facts, bad = read()
    assert facts == RequestFacts(prompt_tokens=12, max_tokens=34)
    assert bad == 0


def test_what_a_request_says_becomes_its_facts() -> None:
    said = {"tenant": "acme", "weight": 2, "ttft_slo_s": 0.5, "tpot_slo_s": "0.05", "other": [1]}
    facts, bad = read(said, priority=-3, lora="french")
    assert facts == RequestFacts(
        prompt_tokens=12,
        max_tokens=34,
        priority=-3,
        tenant="acme",
        weight=2.0,
        ttft_slo_s=0.5,
        tpot_slo_s=0.05,
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
        ("weight", 0),
        ("weight", -1.0),
        ("weight", math.inf),
        ("weight", "heavy"),
        ("weight", None),
        ("ttft_slo_s", "soon"),
        ("ttft_slo_s", math.nan),
        ("ttft_slo_s", -0.5),
        ("ttft_slo_s", [0.5]),
        ("tpot_slo_s", 0),
        ("tpot_slo_s", {}),
    ],
)
def test_a_value_that_cannot_be_used_is_counted_and_replaced_by_its_default(
    key: str, value: object
) -> None:
    facts, bad = read({key: value})
    assert facts == RequestFacts(prompt_tokens=12, max_tokens=34)
    assert bad == 1


def test_a_target_may_say_that_there_is_none() -> None:
    facts, bad = read({"ttft_slo_s": math.inf})
    assert facts.ttft_slo_s == math.inf
    assert bad == 0


def test_a_tenant_may_be_a_number() -> None:
    assert read({"tenant": 7})[0].tenant == "7"


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
    assert read({"user": "u", "team": []}, defaults=defaults) == (
        RequestFacts(prompt_tokens=12, max_tokens=34, tenant="u"),
        1,
    )


def test_a_pooling_request_has_no_parameters_to_read() -> None:
    request = SimpleNamespace(
        sampling_params=None, num_prompt_tokens=3, max_tokens=1, priority=0, lora_request=None
    )
    facts = Metadata(RequestDefaults(), Counter()).facts(request, arrival_s=2.0, ready=False)
    assert facts == RequestFacts(prompt_tokens=3, max_tokens=1, arrival_s=2.0, ready=False)


def test_a_place_that_vllm_does_not_have_is_refused_at_the_start() -> None:
    defaults = RequestDefaults(tenant_from=("header.x-tenant", "vllm_xargs.tenant"))
    with pytest.raises(ConfigError, match=r"cannot read 'header\.x-tenant'.*vllm_xargs\.KEY"):
        Metadata(defaults, Counter())
