"""What README and CONTRIBUTING show must work as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchpolicy.cli import main
from batchpolicy.config import load_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md")


def blocks(page: str, language: str) -> list[str]:
    """Bodies of the fenced blocks of a language; an empty one for commands."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_policy_file_of_the_readme_is_valid(tmp_path: Path) -> None:
    (text,) = blocks("README.md", "yaml")
    file = tmp_path / "policy.yaml"
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    assert config.policy.name == "benefit"
    assert config.build_policy().tenant_weights() == {"gold": 4, "free": 1}


def test_the_policy_of_the_readme_is_the_one_of_the_example() -> None:
    (text,) = blocks("README.md", "python")
    assert text == (ROOT / "examples/custom_policy/least_slack.py").read_text(encoding="utf-8")


def test_every_command_of_the_readme_explains_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `batchpolicy ((?:[a-z]+ ?)+)", text, re.MULTILINE)
    assert len(named) == 15
    for command in named:
        assert main([*command.split(), "--help"]) == 0, command
        assert f"Usage: batchpolicy {command.strip()}" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z.][a-z.-]*)", text, re.MULTILINE))
    assert named
    assert named <= set(re.findall(r"^([a-z.][a-z.-]*):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []
