from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from batchpolicy.errors import ConfigError, WorkloadError
from batchpolicy.workload import Workload
from batchpolicy_tuning.workloads.classes import Classes, read_classes
from tests.support.serial_engine import request

HEADER = "apiVersion: batchpolicy/v1\nkind: Classes\n"
EXAMPLE = Path(__file__).parents[4] / "examples" / "workloads" / "three-classes.yaml"


def _read(folder: Path, text: str) -> Classes:
    path = folder / "classes.yaml"
    path.write_text(HEADER + text)
    return read_classes(path)


def _plain(n: int, *, prompt_tokens: int = 100) -> Workload:
    return Workload(
        "trace", tuple(request(f"line-{i}", float(i), prompt_tokens) for i in range(n))
    )


def test_classes_are_laid_by_their_shares_and_keep_arrivals_and_lengths(tmp_path: Path) -> None:
    classes = _read(
        tmp_path,
        """classes:
  chat: {share: 3, ttft_slo_s: 500ms, tpot_slo_s: 0.05, tenants: {web: 4, app: 1}}
  batch: {share: 1, priority: 10, max_tokens: 64}
""",
    )
    plain = _plain(4000)
    laid = classes.laid_over(plain, seed=0)
    assert [(r.id, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in laid.requests] == [
        (r.id, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in plain.requests
    ]
    chat = [r for r in laid.requests if r.request_class == "chat"]
    batch = [r for r in laid.requests if r.request_class == "batch"]
    assert len(chat) / 4000 == pytest.approx(0.75, abs=0.02)
    senders = Counter(r.tenant for r in chat)
    assert senders["web"] / len(chat) == pytest.approx(0.8, abs=0.03)
    assert {(r.ttft_slo_s, r.tpot_slo_s, r.priority, r.max_tokens) for r in chat} == {
        (0.5, 0.05, 0, 1024)
    }
    assert {(r.tenant, r.ttft_slo_s, r.priority, r.max_tokens) for r in batch} == {
        ("batch", math.inf, 10, 64)
    }


def test_the_draw_depends_on_the_request_and_the_seed_alone(tmp_path: Path) -> None:
    classes = _read(tmp_path, "classes: {a: {share: 1, tenants: 3}, b: {share: 1}}")
    whole = _plain(200)
    laid = classes.laid_over(whole, seed=7).requests
    part = classes.laid_over(Workload("part", whole.requests[50:60]), seed=7).requests
    assert part == laid[50:60]
    assert classes.laid_over(whole, seed=8).requests != laid
    assert {r.tenant for r in laid} == {"a-1", "a-2", "a-3", "b"}


def test_a_class_takes_only_prompts_within_its_lengths(tmp_path: Path) -> None:
    classes = _read(
        tmp_path,
        """classes:
  short: {share: 1, max_prompt_tokens: 99}
  long: {share: 1, min_prompt_tokens: 100}
""",
    )
    for tokens, name in ((99, "short"), (100, "long")):
        laid = classes.laid_over(_plain(20, prompt_tokens=tokens), seed=0)
        assert {r.request_class for r in laid.requests} == {name}


def test_a_tenant_of_the_trace_stays_and_may_decide_the_class(tmp_path: Path) -> None:
    classes = _read(
        tmp_path,
        """classes:
  gold: {share: 1, of_tenants: [acme], tenants: {other: 1}}
  rest: {share: 1, min_prompt_tokens: 50}
""",
    )
    trace = Workload(
        "t",
        (
            request("short", 0.0, 10, tenant="acme"),
            request("long", 1.0, 60, tenant="zeta"),
            request("nobody's", 2.0, 60),
        ),
    )
    laid = classes.laid_over(trace, seed=0).requests
    assert [(r.request_class, r.tenant) for r in laid] == [
        ("gold", "acme"),
        ("rest", "zeta"),
        ("rest", "rest"),
    ]
    homeless = Workload("t", (request("r", 0.0, 10, tenant="zeta"),))
    with pytest.raises(WorkloadError, match="no class takes a prompt of 10 tokens from tenant 'z"):
        classes.laid_over(homeless, seed=0)


def test_prompts_that_no_class_takes_are_named(tmp_path: Path) -> None:
    classes = _read(tmp_path, "classes: {short: {share: 1, max_prompt_tokens: 99}}")
    with pytest.raises(WorkloadError) as caught:
        classes.laid_over(_plain(12), seed=0)
    lines = str(caught.value).splitlines()
    assert lines[1] == "  request 'line-0': no class takes a prompt of 100 tokens"
    assert lines[-1] == "  ... and 2 more"


def test_a_ceiling_below_the_output_of_the_trace_is_raised_to_it(tmp_path: Path) -> None:
    classes = _read(tmp_path, "classes: {a: {share: 1, max_tokens: 8}}")
    plain = Workload("t", (request("r", 0.0, 1, output_tokens=20),))
    assert classes.laid_over(plain, seed=0).requests[0].max_tokens == 20


def test_all_mistakes_come_at_once_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(
            tmp_path,
            """classes:
  chat:
    share: 0
    ttft_slos: 1
  batch:
    share: 1
    tenants: {a: -1}
    tpot_slo_s: 3 parsecs
  odd: {share: 1, min_prompt_tokens: 9, max_prompt_tokens: 8}
  none: {share: 1, tenants: {}}
""",
        )
    found = str(caught.value).replace(str(tmp_path / "classes.yaml"), "classes.yaml").splitlines()
    assert [line.split(": ")[0] for line in found] == [
        f"classes.yaml:{n}" for n in (5, 6, 9, 10, 11, 12)
    ]
    assert "ttft_slo_s" in found[1]
    assert "max_prompt_tokens 8 is below min_prompt_tokens 9" in found[4]


def test_the_example_lays_three_classes_of_several_tenants() -> None:
    laid = read_classes(EXAMPLE).laid_over(_plain(1000), seed=0)
    assert laid.classes() == ["chat", "agent", "batch"]
    assert len({r.tenant for r in laid.requests}) == 7
    chat = next(r for r in laid.requests if r.request_class == "chat")
    assert (chat.ttft_slo_s, chat.tpot_slo_s) == (1.0, 0.05)
