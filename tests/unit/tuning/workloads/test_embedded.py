from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from batchpolicy_tuning.workloads.catalog import EMBEDDED
from batchpolicy_tuning.workloads.chat_and_batch import ChatAndBatch
from batchpolicy_tuning.workloads.long_prompts import LongPrompts
from batchpolicy_tuning.workloads.noisy_tenant import NoisyTenant


@pytest.mark.parametrize("name", EMBEDDED)
def test_replications_are_drawn_anew_and_can_be_drawn_again(name: str) -> None:
    source = EMBEDDED[name](100)
    assert source.replication(0, seed=3) == source.replication(0, seed=3)
    assert source.replication(0, seed=3) != source.replication(1, seed=3)
    assert source.replication(0, seed=3) != source.replication(0, seed=4)
    assert source.name == name


@pytest.mark.parametrize("name", EMBEDDED)
@pytest.mark.parametrize("requests", [20, 100, 333])
def test_a_replication_has_as_many_requests_as_asked_for(name: str, requests: int) -> None:
    drawn = EMBEDDED[name](requests).replication(0, seed=0).requests
    assert abs(len(drawn) - requests) <= 1
    assert all(r.max_tokens > r.output_tokens for r in drawn)


def test_chat_and_batch_has_three_classes_with_targets_and_tenants() -> None:
    drawn = ChatAndBatch(1000).replication(0, seed=0)
    assert drawn.classes() == ["chat", "agent", "batch"]
    counts = Counter(r.request_class for r in drawn.requests)
    assert counts == {"chat": 600, "agent": 200, "batch": 200}
    assert len({r.tenant for r in drawn.requests}) == 7
    assert all(r.ttft_slo_s <= 15.0 and r.tpot_slo_s <= 0.15 for r in drawn.requests)
    lengths = sorted(r.output_tokens for r in drawn.requests if r.request_class == "chat")
    assert lengths[300] == pytest.approx(150, rel=0.15)


def test_batch_work_comes_in_jobs() -> None:
    drawn = ChatAndBatch(1000).replication(0, seed=0).requests
    batch = [r.arrival_s for r in drawn if r.request_class == "batch"]
    gaps = [later - earlier for earlier, later in pairwise(batch)]
    assert sum(gap <= 0.0101 for gap in gaps) >= 0.9 * len(gaps)


def test_one_of_twelve_tenants_floods_in_bursts() -> None:
    drawn = NoisyTenant(2000).replication(0, seed=0).requests
    senders = Counter(r.tenant for r in drawn)
    assert len(senders) == 12
    assert senders.most_common(1) == [("noisy", 1400)]
    assert senders["tenant-00"] > 3 * senders["tenant-10"]
    # Of each 30 s only 10 s are noisy.
    noisy = {int(r.arrival_s) for r in drawn if r.tenant == "noisy"}
    assert len(noisy) / 200 == pytest.approx(1 / 3, abs=0.06)


def test_documents_are_few_long_and_most_of_the_prompt_tokens() -> None:
    drawn = LongPrompts(1000).replication(0, seed=0).requests
    documents = [r for r in drawn if r.request_class == "documents"]
    assert len(documents) == 20
    assert all(20_000 <= r.prompt_tokens <= 100_000 for r in documents)
    assert sum(r.prompt_tokens for r in documents) > sum(r.prompt_tokens for r in drawn) / 2
    assert max(r.prompt_tokens + r.max_tokens for r in drawn) <= 131_072
    # No priority helps the short ones.
    assert {r.priority for r in drawn} == {0}
