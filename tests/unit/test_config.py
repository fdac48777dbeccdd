from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from batchpolicy.config import (
    PolicyConfig,
    PolicySpec,
    RequestDefaults,
    config_named,
    config_schema,
    load_config,
)
from batchpolicy.errors import ConfigError, UnknownPlugin
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policies.fcfs import FCFS
from batchpolicy.policies.priority import Priority
from batchpolicy.preemption import Preemption
from batchpolicy.terms import Fairness, PriorityTerm, Urgency
from batchpolicy.testing import make_step, make_table

HEAD = "apiVersion: batchpolicy/v1\nkind: Policy\n"


def write(folder: Path, text: str, name: str = "p.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str, name: str = "p.yaml") -> list[str]:
    """What loading the text complains of, the folder left out."""
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text, name))
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_a_whole_file_becomes_a_policy(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            HEAD
            + "policy:\n"
            + "  name: benefit\n"
            + "  lambda: 0.3\n"
            + "  priority: {weight: 1.5}\n"
            + "  urgency: {weight: 2.0, half_life_s: 500ms}\n"
            + "  fairness: {weights: {gold: 4, 7: 1}, scale_tokens: 2e4}\n"
            + "preempt: never\n"
            + "requests: {tenant_from: [who, vllm_xargs.tenant], default_priority: 3}\n",
        )
    )
    assert config.build_policy() == Benefit(
        lambda_=0.3,
        priority=PriorityTerm(weight=1.5),
        urgency=Urgency(weight=2.0, half_life_s=0.5),
        fairness=Fairness(weights={"gold": 4.0, "7": 1.0}, scale_tokens=20_000.0),
    )
    assert config.preempts() == "never"
    assert config.requests == RequestDefaults(
        tenant_from=("who", "vllm_xargs.tenant"), default_priority=3
    )
    assert config.label == "p"


def test_json_is_read_by_the_same_rules(tmp_path: Path) -> None:
    text = (
        '{\n\t"apiVersion":"batchpolicy/v1",\n\t"kind":"Policy",\n'
        '\t"policy":{"name":"priority","ageing_s":1e1}, "preempt":null\n}'
    )
    assert load_config(write(tmp_path, text, "p.json")).build_policy() == Priority(ageing_s=10.0)
    assert mistakes(tmp_path, text.replace("1e1", "-1"), "p.json") == [
        "p.json:4: policy.ageing_s is -1; expected a number greater than 0."
    ]


def test_json_spells_rare_characters_in_two_escapes(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "apiVersion": "batchpolicy/v1",
            "kind": "Policy",
            "policy": "fcfs",
            "requests": {"tenant_from": ["vllm_xargs.\N{CAT FACE}"]},
        }
    )
    assert "\\ud83d\\udc31" in text
    config = load_config(write(tmp_path, text, "p.json"))
    assert config.requests.tenant_from == ("vllm_xargs.\N{CAT FACE}",)


def test_a_bare_name_is_enough(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, HEAD + "policy: fcfs\n"))
    assert config.build_policy() == FCFS()
    assert config.requests == RequestDefaults()


def test_by_itself_only_a_policy_with_an_order_of_its_own_displaces() -> None:
    def chosen(name: str, **params: object) -> str:
        return PolicyConfig(policy=PolicySpec(name=name, params=params)).preempts()

    assert chosen("fcfs") == "never"
    assert chosen("priority", ageing_s=math.inf) == "never"
    assert chosen("priority") == "class"
    assert chosen("benefit") == "class"
    assert chosen("shortest-remaining") == "benefit"
    assert PolicyConfig(policy=PolicySpec(name="fcfs"), preempt="class").preempts() == "class"


def test_preempt_is_a_word_or_a_mapping(tmp_path: Path) -> None:
    def read(text: str) -> Preemption:
        return load_config(write(tmp_path, f"{HEAD}policy: fcfs\npreempt: {text}\n")).preemption()

    assert read("benefit") == Preemption(by="benefit")
    assert read("{by: benefit, margin: 0.2, max_each: 3}") == Preemption(
        by="benefit", margin=0.2, max_each=3
    )
    assert read("{by: class}") == Preemption(by="class", margin=0.0, max_each=2)


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        ("3", "preempt is 3; expected 'never', 'class' or 'benefit', or a mapping."),
        ("{by: class, margin: 1}",
         "preempt is a mapping; margin belongs to by: benefit, not to by: class."),
        ("{by: clas}",
         "preempt.by is 'clas'; expected 'never', 'class' or 'benefit'. Did you mean 'class'?"),
        ("{by: benefit, max_eech: 1}",
         "unknown key 'preempt.max_eech'. Did you mean 'max_each'? Known: by, margin, max_each."),
        ("{by: benefit, max_each: 0}", "preempt.max_each is 0; expected a number greater than 0."),
        ("{max_each: 1}", "preempt.by is missing."),
    ],
)  # fmt: skip
def test_a_mistake_in_preempt_says_what_is_expected(
    tmp_path: Path, given: str, mistake: str
) -> None:
    assert mistakes(tmp_path, f"{HEAD}policy: fcfs\npreempt: {given}\n") == [
        f"p.yaml:4: {mistake}"
    ]


def test_every_build_has_state_of_its_own() -> None:
    config = PolicyConfig(policy=PolicySpec(name="benefit"))
    told, other = config.build_policy(), config.build_policy()
    rows = make_table(8).view()
    step = make_step(waiting=rows)
    before = other.benefit(rows, step)
    told.on_arrived(rows, step)
    told.on_admitted(rows, step)
    assert not np.array_equal(told.benefit(rows, step), before)
    assert np.array_equal(other.benefit(rows, step), before)


def test_all_mistakes_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = """\
apiVersion: batchpolicy/v2
kind: Policy
policy:
  name: benefit
  lambda: -1
  lambda_: 0.3
  urgancy: {}
  urgency:
    half_life: 1
    half_life_s: 500mss
  priority: {weight: yes}
  fairness: {weights: {gold: 0}, scale_tokens: .nan, prompt_weight: true}
preemt: class
preempt: clas
requests: {tenant_from: x, default_priority: 1.5}
kind: Policy
"""
    assert mistakes(tmp_path, text) == [
        "p.yaml:1: apiVersion is 'batchpolicy/v2'; expected 'batchpolicy/v1'.",
        "p.yaml:5: policy.lambda is -1; expected a number greater than or equal to 0.",
        "p.yaml:6: unknown key 'policy.lambda_'. Did you mean 'lambda'? "
        "Known: lambda, priority, urgency, fairness, shortness, ageing, terms, corridor_tokens, "
        "prices.",
        "p.yaml:7: unknown key 'policy.urgancy'. Did you mean 'urgency'? "
        "Known: lambda, priority, urgency, fairness, shortness, ageing, terms, corridor_tokens, "
        "prices.",
        "p.yaml:9: unknown key 'policy.urgency.half_life'. Did you mean 'half_life_s'? "
        "Known: weight, half_life_s, lost.",
        "p.yaml:10: policy.urgency.half_life_s is '500mss'; unknown unit 'mss' in '500mss'. "
        "Did you mean 'ms'? Units: us, ms, s, min, h, d.",
        "p.yaml:11: policy.priority.weight is 'yes'; expected a number.",
        "p.yaml:12: policy.fairness.prompt_weight is true; "
        "expected a number, not a truth value.",
        "p.yaml:12: policy.fairness.scale_tokens is nan; expected a number, not NaN.",
        "p.yaml:12: policy.fairness.weights.gold is 0; expected a number greater than 0.",
        "p.yaml:13: unknown key 'preemt'. Did you mean 'preempt'? "
        "Known: apiVersion, kind, policy, preempt, bounds, queue, memory, predictor, limits, "
        "requests.",
        "p.yaml:14: preempt is 'clas'; "
        "expected 'never', 'class' or 'benefit'. Did you mean 'class'?",
        "p.yaml:15: requests.default_priority is 1.5; "
        "expected an integer, got a number with a fractional part.",
        "p.yaml:15: requests.tenant_from is 'x'; expected a list.",
        "p.yaml:16: key 'kind' is set twice, first in line 2.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "p.yaml:1: the file is empty; expected a mapping."),
        ("# only this\n", "p.yaml:1: the file is empty; expected a mapping."),
        ("- fcfs\n", "p.yaml:1: the file is a list; expected a mapping."),
        ("fcfs", "p.yaml:1: the file is 'fcfs'; expected a mapping."),
        ("a: [\n", "p.yaml:2: not YAML: while parsing a flow node: "),
        (HEAD + "---\na: 1\n", "p.yaml:3: not YAML: expected a single document"),
        ("a: 1\nb: \x00\n", "p.yaml:2: character 0 is not allowed."),
        ("a: " + "[" * 3000, "p.yaml: nested too deeply."),
        ("a: &a [*a]\n", "p.yaml: more than 10,000 values, or an alias in itself."),
        (HEAD, "p.yaml:1: policy is missing."),
        (HEAD + "policy:\n", "p.yaml:3: policy is empty; expected a name"),
        (HEAD + "policy: [fcfs]\n", "p.yaml:3: policy is a list; expected a name"),
        (HEAD + "policy: {lambda: 1}\n", "p.yaml:3: policy.name is missing. Installed: b"),
        (HEAD + "policy: {name: 3}\n", "p.yaml:3: policy.name is 3; expected a name."),
        (HEAD + "policy: fcsf\n", "p.yaml:3: no policy named 'fcsf'"),
        (HEAD + "policy: {name: x.py:X}\n", "p.yaml:3: no file"),
        (HEAD + "policy: {name: fcfs, a: 1}\n", "p.yaml:3: unknown key 'policy.a'. It has no"),
        (HEAD + "policy: fcfs\nbatches: {}\n", "p.yaml:4: unknown key 'batches'."),
        (HEAD + "policy: fcfs\n? [a]\n: 1\n", "p.yaml:4: a key is a list or a mapping"),
        (HEAD + "policy: !!python/name:os.system fcfs\n", "p.yaml:3: tag "),
        (HEAD + "policy: !thing {name: fcfs}\n", "p.yaml:3: tag '!thing' is not allowed"),
        (HEAD + "policy: {name: priority, ageing_s: 1:30}\n", "'1:30' is not a duration"),
        (
            HEAD + "policy: fcfs\nrequests: {default_priority: 4294967296}\n",
            "less than 2147483648",
        ),
        (HEAD + f"policy: fcfs\nrequests: {{default_priority: {'9' * 5000}}}\n", "p.yaml:4: "),
        (HEAD + "policy: fcfs\nrequests: {tenant_from: ['']}\n", "requests.tenant_from[0] is ''"),
    ],
)
def test_what_is_no_policy_file_is_refused_in_a_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    (found,) = mistakes(tmp_path, text)
    assert expected in found
    assert len(found) < 300


def test_a_number_beyond_all_integers_is_told_in_plain_words(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, HEAD + "policy: fcfs\nbounds: {max_overtakes: 1e30}\n")
    assert found.endswith("bounds.max_overtakes is 1e+30; expected a smaller integer.")


def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^/dev/full is no ordinary file"):
        load_config("/dev/full")


def test_a_file_of_bytes_that_are_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"p\.yaml:2: byte 0xff is not UTF-8"):
        load_config(tmp_path / "p.yaml")


def test_a_missing_file_is_told_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, HEAD, "policy.yaml")
    with pytest.raises(
        ConfigError, match=r"no file '.*polcy\.yaml'\. Did you mean 'policy\.yaml'"
    ):
        load_config(tmp_path / "polcy.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_words_of_yaml_1_1_are_words_here(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, HEAD + "policy: fcfs\nrequests: {tenant_from: [no, on, 'true', '7']}\n")
    )
    assert config.requests.tenant_from == ("no", "on", "true", "7")


def test_a_policy_in_a_file_is_found_beside_the_policy_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        "from batchpolicy.policies.fcfs import FCFS\nclass Mine(FCFS):\n    k: int\n",
        "m.py",
    )
    path = write(tmp_path, HEAD + "policy: {name: 'm.py:Mine', k: 3}\n")
    monkeypatch.chdir("/")
    assert load_config(path).build_policy().model_dump() == {"k": 3}
    assert mistakes(tmp_path, HEAD + "policy: {name: 'm.py:Mine'}\n") == [
        "p.yaml:3: policy.k is missing."
    ]


def test_terms_are_built_from_names_and_files(tmp_path: Path) -> None:
    term = (
        "import numpy as np\n"
        "from batchpolicy.terms import Term\n"
        "class Ones(Term):\n"
        "    def score(self, requests, step):\n"
        "        return np.ones(len(requests))\n"
    )
    write(tmp_path, term, "ones.py")
    text = HEAD + "policy:\n  name: benefit\n  terms:\n  - {name: 'ones.py:Ones', weight: 0.5}\n"
    policy = load_config(write(tmp_path, text)).build_policy()
    plain = Benefit()
    rows = make_table(3).view()
    step = make_step(waiting=rows)
    assert policy.benefit(rows, step) - plain.benefit(rows, step) == pytest.approx([0.5] * 3)


def test_mistakes_in_terms_are_told_with_the_list_they_are_in(tmp_path: Path) -> None:
    start = HEAD + "policy:\n  name: benefit\n  terms:\n"
    (unknown,) = mistakes(tmp_path, start + "  - {name: urgencyy}\n")
    assert "policy.terms" in unknown and "Did you mean 'urgency'?" in unknown
    (key,) = mistakes(tmp_path, start + "  - {name: urgency, wight: 3}\n")
    assert "unknown key 'policy.terms" in key and "wight" in key


def test_a_command_line_may_name_a_policy_in_four_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, HEAD + "policy: priority\n", "strict.yaml")
    write(tmp_path, "from batchpolicy.policies.fcfs import FCFS\nclass Mine(FCFS): pass\n", "m.py")
    ways = ("strict.yaml", "fcfs", "batchpolicy.policies.priority:Priority", "m.py:Mine")
    named = [config_named(way) for way in ways]
    assert [config.label for config in named] == ["strict", "fcfs", "Priority", "Mine"]
    monkeypatch.chdir("/")
    assert type(named[3].build_policy()).__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fcsf", "Did you mean 'fcfs'"),
        ("none.yaml", "no file 'none.yaml'"),
        ("m.py", "name the class in it too"),
        ("notes.txt", "not a policy file"),
        ("m.py:Needy", "policy 'm.py:Needy': k is missing"),
    ],
)
def test_what_a_command_line_cannot_mean_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "x", "notes.txt")
    write(
        tmp_path,
        "from batchpolicy.policies.fcfs import FCFS\nclass Needy(FCFS):\n    k: int\n",
        "m.py",
    )
    with pytest.raises(ConfigError, match=expected):
        config_named(text)


def test_python_may_give_a_name_or_parameters() -> None:
    assert PolicyConfig.model_validate({"policy": "fcfs"}).build_policy() == FCFS()
    with pytest.raises(ConfigError, match=r"policy 'priority': ageing_s is -1; expected"):
        PolicyConfig(policy=PolicySpec(name="priority", params={"ageing_s": -1})).build_policy()
    with pytest.raises(UnknownPlugin):
        PolicyConfig(policy=PolicySpec(name="nope")).build_policy()


def test_the_schema_has_every_policy_with_its_parameters() -> None:
    schema = config_schema()
    json.dumps(schema, allow_nan=False)
    assert schema["required"] == ["apiVersion", "kind", "policy"]
    place = schema["properties"]["policy"]["$ref"].removeprefix("#/$defs/")
    choices = schema["$defs"][place]["anyOf"]
    own = {
        one["properties"]["name"]["const"]: one["properties"]
        for one in choices
        if "const" in one.get("properties", {}).get("name", {})
    }
    assert {"fcfs", "priority", "benefit"} <= set(own)
    terms = {"lambda", "priority", "urgency", "fairness", "shortness", "ageing", "terms"}
    assert set(own["benefit"]) == {"name", "corridor_tokens", "prices", *terms}
    ageing = own["priority"]["ageing_s"]
    assert [one["type"] for one in ageing["anyOf"]] == ["number", "string"]
    assert "worth one level" in ageing["description"]
    # A policy inside another is one of the same.
    assert own["corridor"]["inner"]["$ref"] == schema["properties"]["policy"]["$ref"]


def test_a_policy_without_benefit_is_told_so_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from batchpolicy import Policy\n\n\nclass Empty(Policy):\n    pass\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=r"p\.py:Empty' defines no method benefit"):
        config_named(f"{tmp_path}/p.py:Empty")


def test_a_policy_that_fails_while_it_is_made_is_told_so_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from batchpolicy.policies.fcfs import FCFS\n\n\nclass Boom(FCFS):\n"
        "    def model_post_init(self, context):\n        raise RuntimeError('boom')\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match="cannot be made: RuntimeError: boom"):
        config_named(f"{tmp_path}/p.py:Boom")


def test_a_file_names_its_predictor_like_its_policy(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    head = "apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\n"
    path.write_text(head + "predictor: {name: noisy-oracle, log_sigma: 0.5}\n")
    config = load_config(path)
    assert config.predictor is not None
    assert config.predictor.build().model_dump(exclude_defaults=True) == {"log_sigma": 0.5}
    assert config.native_order() is None
    path.write_text(head + "predictor: oracle\n")
    assert load_config(path).predictor is not None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("{name: orcale}", "p.yaml:4: no predictor named 'orcale'. Did you mean 'oracle'?"),
        ("{name: constant}", "p.yaml:4: predictor.output_tokens is missing"),
        ("{name: oracle, log_sigma: 1}", "p.yaml:4: unknown key 'predictor.log_sigma'"),
        ("{name: noisy-oracle, log_sigma: -1}", "p.yaml:4: predictor.log_sigma is -1"),
        ("3", "p.yaml:4: predictor is 3; expected a name, or a mapping with one."),
        ("{log_sigma: 1}", "p.yaml:4: predictor.name is missing. Installed: constant, gradient-"),
    ],
)
def test_mistakes_in_a_predictor_are_told_with_their_line(
    tmp_path: Path, said: str, expected: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\npredictor: {said}\n")
    with pytest.raises(ConfigError) as e:
        load_config(path)
    assert expected in str(e.value)
