from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchpolicy import registry
from batchpolicy.errors import ConfigError, EngineUnavailable, UnknownPlugin
from batchpolicy.policies.fcfs import FCFS
from batchpolicy.terms import Urgency

POLICY = """
from batchpolicy import Policy

class Newest(Policy):
    \"\"\"The latest arrival first.\"\"\"
    bonus: float = 0.0
    def benefit(self, requests, step):
        return requests.arrival_s - step.now_s + self.bonus

class Other:
    pass
"""


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    path = tmp_path / "newest.py"
    path.write_text(POLICY)
    return path


def installed(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str, str, str]) -> None:
    """Pretend that these are all: group, name, value, distribution."""

    def found(**wanted: str) -> EntryPoints:
        made: list[Any] = []
        for group, name, value, owner in entries:
            one = EntryPoint(name, value, group)
            vars(one)["dist"] = SimpleNamespace(name=owner)
            made.append(one)
        return EntryPoints(made).select(**wanted)

    monkeypatch.setattr(registry, "entry_points", found)


def test_an_installed_policy_is_found_by_name() -> None:
    assert registry.policy_class("fcfs") is FCFS
    assert "fcfs" in registry.names(registry.POLICIES)


def test_a_policy_is_found_in_a_module() -> None:
    assert registry.policy_class("batchpolicy.policies.fcfs:FCFS") is FCFS


def test_a_policy_is_found_in_a_file_beside_the_one_that_names_it(newest: Path) -> None:
    found = registry.policy_class("newest.py:Newest", newest.parent)
    assert (found.__name__, found.model_fields["bonus"].default) == ("Newest", 0.0)
    assert registry.policy_class(f"{newest}:Newest") is found


def test_a_path_is_relative_to_the_current_folder_by_itself(
    newest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(newest.parent)
    assert registry.policy_class("newest.py:Newest").__name__ == "Newest"


def test_a_file_that_changed_is_read_anew(newest: Path) -> None:
    before = registry.policy_class(f"{newest}:Newest")
    newest.write_text(POLICY.replace("0.0", "5.0"))
    after = registry.policy_class(f"{newest}:Newest")
    assert (before.model_fields["bonus"].default, after.model_fields["bonus"].default) == (
        0.0,
        5.0,
    )


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for folder, bonus in (("a", "1.0"), ("b", "2.0")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(POLICY.replace("0.0", bonus))
    a, b = (registry.policy_class("same.py:Newest", tmp_path / folder) for folder in "ab")
    assert (a.model_fields["bonus"].default, b.model_fields["bonus"].default) == (1.0, 2.0)


def test_a_class_has_the_name_under_which_it_is_found(newest: Path) -> None:
    assert registry.name_of(registry.POLICIES, FCFS) == "fcfs"
    found = registry.policy_class(f"{newest}:Newest")
    assert registry.name_of(registry.POLICIES, found) == f"{newest}:Newest"
    assert registry.name_of(registry.POLICIES, Urgency) == "batchpolicy.terms.urgency:Urgency"


def test_an_unknown_name_is_answered_with_the_nearest_and_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(
        monkeypatch,
        (registry.POLICIES, "fcfs", "batchpolicy.policies.fcfs:FCFS", "batchpolicy"),
        (registry.POLICIES, "benefit", "batchpolicy.policies.benefit:Benefit", "batchpolicy"),
    )
    with pytest.raises(UnknownPlugin) as caught:
        registry.policy_class("fcsf")
    assert str(caught.value) == (
        "no policy named 'fcsf'. Did you mean 'fcfs'? Installed: benefit, fcfs."
    )


def test_one_name_with_two_meanings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(
        monkeypatch,
        (registry.POLICIES, "mine", "batchpolicy.policies.fcfs:FCFS", "first"),
        (registry.POLICIES, "mine", "batchpolicy.policies.priority:Priority", "second"),
    )
    with pytest.raises(ConfigError, match="several distributions: first, second"):
        registry.policy_class("mine")


def test_one_name_with_one_meaning_may_be_registered_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = "batchpolicy.policies.fcfs:FCFS"
    installed(
        monkeypatch,
        (registry.POLICIES, "mine", same, "first"),
        (registry.POLICIES, "mine", same, "second"),
    )
    assert registry.policy_class("mine") is FCFS


def test_a_plugin_whose_library_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, (registry.POLICIES, "far", "no_such_library.policy:Far", "far"))
    with pytest.raises(ConfigError, match="needs 'no_such_library', which is not installed"):
        registry.policy_class("far")


def test_a_plugin_that_exits_when_imported_is_a_fault_like_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed(monkeypatch, (registry.POLICIES, "far", "leaves_at_once:Far", "far"))
    with pytest.raises(ConfigError, match=r"plugin 'far'.*cannot be imported: SystemExit: 3"):
        registry.policy_class("far")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("newest.py:Newst", "no class 'Newst' in newest.py. Did you mean 'Newest'?"),
        ("newst.py:Newest", "Did you mean 'newest.py'?"),
        ("newest.py", "name the class in it too, as newest.py:MyClass"),
        ("newest.py:Policy.model_fields", "no subclass of Policy"),
        ("newest.py:Other", "'newest.py:Other' is class Other, which is no subclass of Policy"),
        ("batchpolicy.terms:Urgency", "no subclass of Policy"),
        ("no_such_module:Newest", "no module named 'no_such_module'"),
        ("batchpolicy.policies.fcfs:fcfs", "Did you mean 'FCFS'?"),
        ("no/folder/x.py:X", "no file"),
        ("~no_such_user/x.py:X", "no file"),
        ("a\0.py:X", "cannot be read"),
        (":Newest", "cannot be imported"),
        ("..relative:X", "cannot be imported"),
        ("newest.py:", "no class ''"),
    ],
)
def test_what_cannot_be_found_is_named(newest: Path, name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.policy_class(name, newest.parent)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import batchpolicy\n\n1 / 0\n", "ZeroDivisionError: division by zero (line 3)"),
        ("class :\n", "SyntaxError"),
        ("import no_such_library\n", "No module named 'no_such_library' (line 1)"),
        ("raise SystemExit(3)\n", "SystemExit: 3 (line 1)"),
    ],
)
def test_a_file_that_fails_says_how_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    loaded = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        registry.policy_class("bad.py:Bad", tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [name for name in set(sys.modules) - loaded if name.endswith("_bad")]


def test_a_folder_is_no_policy_file(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        registry.policy_class("folder.py:X", tmp_path)


def test_a_term_is_built_from_its_name_and_parameters() -> None:
    built = registry.build_term({"name": "urgency", "half_life_s": "250ms", "weight": 3})
    assert built == Urgency(half_life_s=0.25, weight=3.0)
    assert registry.build_term("urgency") == Urgency()
    assert registry.build_term(Urgency(weight=7)) == Urgency(weight=7)


def test_a_dumped_term_is_built_again() -> None:
    term = Urgency(half_life_s=0.25)
    assert registry.dump_term(term)["name"] == "urgency"
    assert registry.build_term(registry.dump_term(term)) == term


def test_a_term_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a term needs a name\. Installed: .*urgency"):
        registry.build_term({"weight": 1.0})


def test_an_engine_that_is_not_installed_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, (registry.ENGINES, "far", "no_such_engine.replay:Far", "batchpolicy"))
    with pytest.raises(EngineUnavailable) as caught:
        registry.engine("far")
    assert str(caught.value) == (
        "engine 'far' needs package 'no_such_engine', which is not installed here. Install "
        "batchpolicy beside your far, or without a GPU: make .venv-far"
    )


def test_an_engine_without_an_adapter_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, (registry.ENGINES, "vllm", "batchpolicy_vllm.replay:X", "batchpolicy"))
    with pytest.raises(UnknownPlugin, match="Did you mean 'vllm'"):
        registry.engine("vlm")


def test_something_else_registered_as_an_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, (registry.ENGINES, "odd", "batchpolicy.policies.fcfs:FCFS", "odd"))
    with pytest.raises(ConfigError, match="no subclass of Engine"):
        registry.engine("odd")
