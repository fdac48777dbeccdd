from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from batchpolicy.config import PolicyConfig, PolicySpec, load_config
from batchpolicy.errors import ConfigError
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policies.edf import EarliestDeadlineFirst
from batchpolicy.policies.fcfs import FCFS
from batchpolicy.policies.shortest_first import ShortestFirst
from batchpolicy.policies.shortest_remaining import ShortestRemaining
from batchpolicy.policy import Tags
from batchpolicy.registry import MOST_NESTED
from batchpolicy.wrappers import Wrapper
from batchpolicy.wrappers.batch_forming import BatchForming
from batchpolicy.wrappers.corridor import Corridor
from batchpolicy.wrappers.tiered import Tiered
from tests.support.policies import Recorder
from tests.support.rig import Rig

HEAD = "apiVersion: batchpolicy/v1\nkind: Policy\n"


class Plain(Wrapper):
    pass


class Needy(Wrapper):
    tags: ClassVar[Tags] = Tags(requires=frozenset({"step_cost"}), native="fcfs")


def mistakes(folder: Path, text: str) -> list[str]:
    path = folder / "p.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_a_wrapper_needs_what_it_and_the_policy_inside_need() -> None:
    assert Needy.tags == Tags(requires=frozenset({"step_cost"}), native="fcfs")
    assert Needy().tags == Tags(requires=frozenset({"step_cost"}))
    assert Plain(inner=Needy(inner=ShortestFirst())).tags == Tags(
        requires=frozenset({"step_cost"}), may_starve=True
    )
    assert Tiered().tags.may_starve
    assert Plain(inner=ShortestRemaining()).tags.preempts == "benefit"
    assert Plain(inner=ShortestFirst()).tags.preempts == "class"


def test_no_wrapper_is_an_order_of_the_engines_own() -> None:
    assert FCFS().native_order() == "fcfs"
    assert Plain().native_order() is None
    assert PolicyConfig(policy=PolicySpec(name="corridor")).preempts() == "class"


def test_what_nobody_does_need_not_be_called() -> None:
    assert not Plain().overrides("on_computed")
    assert not Plain(inner=Plain()).overrides("limits")
    assert Plain(inner=Benefit()).overrides("on_computed")
    assert Corridor().overrides("on_computed")


def test_hooks_and_shares_pass_through() -> None:
    inside = Recorder()
    rig = Rig(Plain(inner=Plain(inner=inside)))
    rig.running("a")
    rig.decode("a")
    rig.arrive("b")
    rig.plan()
    told = [name for name, _ in inside.calls]
    assert told == ["arrived", "benefit", "admitted", "computed", "arrived", "benefit"]
    inner = Benefit.model_validate({"fairness": {"weights": {"gold": 4, "free": 1}}})
    assert Plain(inner=inner).tenant_weights() == {"gold": 4.0, "free": 1.0}
    corridor = Corridor.model_validate({"inner": inner, "fairness": {"weights": {"free": 2}}})
    assert corridor.tenant_weights() == {"gold": 4.0, "free": 2.0}


def test_a_file_nests_policies_by_name_or_with_parameters(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        HEAD
        + "policy:\n  name: corridor\n  tokens: 5e3\n  inner:\n    name: batch-forming\n"
        + "    max_hold_s: 50ms\n    inner: {name: tiered, up_to: [0, 5], inner: edf}\n",
        encoding="utf-8",
    )
    first = load_config(path).build_policy()
    assert first == Corridor(
        tokens=5000.0,
        inner=BatchForming(
            max_hold_s=0.05, inner=Tiered(up_to=(0, 5), inner=EarliestDeadlineFirst())
        ),
    )
    second = load_config(path).build_policy()
    assert isinstance(first, Corridor)
    assert isinstance(second, Corridor)
    assert second.inner is not first.inner


def test_the_policy_inside_may_be_in_a_file_beside_the_policy_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from batchpolicy.policies.fcfs import FCFS\n\n\nclass Mine(FCFS):\n    pass\n",
        encoding="utf-8",
    )
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + "policy: {name: corridor, inner: mine.py:Mine}\n", encoding="utf-8")
    made = load_config(path).build_policy()
    assert isinstance(made, Corridor)
    assert type(made.inner).__name__ == "Mine"


def test_mistakes_inside_have_their_line_at_any_depth(tmp_path: Path) -> None:
    text = """\
policy:
  name: corridor
  tokens: -1
  inner:
    name: batch-forming
    max_hold: 1
    inner:
      name: benefit
      terms: [{name: urgency, wight: 2}]
"""
    assert mistakes(tmp_path, text) == [
        "p.yaml:5: policy.tokens is -1; expected a number greater than 0.",
        "p.yaml:8: unknown key 'policy.inner.max_hold'. Did you mean 'max_hold_s'? Known: inner, "
        "min_waiting, max_hold_s, ttft_frac, busy_frac, kv_used_frac, tpot_slack_s, hold_idle.",
        "p.yaml:11: unknown key 'policy.inner.inner.terms[0].wight'. Did you mean 'weight'? "
        "Known: weight, half_life_s, lost.",
    ]


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("fcsf", "policy.inner: no policy named 'fcsf'. Did you mean 'fcfs'?"),
        ("{tokens: 1}", "policy.inner: a policy needs a name."),
        ("3", "policy.inner is 3; expected a mapping."),
        ("{name: benefit, lambda_: 1}", "unknown key 'policy.inner.lambda_'."),
        ("{name: tiered, up_to: [3, 3]}", "policy.inner.up_to is a list; expected whole numbers"),
        ("{name: tiered, inner: {name: corridor, inner: tiered}}", "do not stand in classes"),
    ],
)
def test_what_is_no_policy_inside_is_refused_in_a_line(
    tmp_path: Path, inner: str, expected: str
) -> None:
    (found,) = mistakes(tmp_path, f"policy:\n  name: corridor\n  inner: {inner}\n")
    assert found.startswith("p.yaml:5: ")
    assert expected in found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", "defines no method benefit"),
        ("def model_post_init(self, context):\n        raise OSError('boom')", "OSError: boom"),
    ],
)
def test_a_class_that_cannot_be_made_is_told_in_a_line(
    tmp_path: Path, body: str, expected: str
) -> None:
    (tmp_path / "m.py").write_text(
        f"from batchpolicy import Policy\n\n\nclass Mine(Policy):\n    {body}\n"
        + ("" if body == "pass" else "\n    def benefit(self, requests, step): ...\n"),
        encoding="utf-8",
    )
    for policy in ("m.py:Mine", "{name: corridor, inner: m.py:Mine}"):
        (found,) = mistakes(tmp_path, f"policy: {policy}\n")
        assert expected in found


def test_policies_stand_in_each_other_only_so_deep(tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        return "{name: corridor, inner: " * depth + "fcfs" + "}" * depth

    (tmp_path / "deep.yaml").write_text(f"{HEAD}policy: {nested(MOST_NESTED)}\n", "utf-8")
    load_config(tmp_path / "deep.yaml").build_policy()
    (found,) = mistakes(tmp_path, f"policy: {nested(MOST_NESTED + 1)}\n")
    assert f"more than {MOST_NESTED} deep" in found
