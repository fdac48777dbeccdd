"""What the page on workloads shows must work as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from batchpolicy_tuning.workloads.catalog import EMBEDDED
from batchpolicy_tuning.workloads.generated import read_generated
from batchpolicy_tuning.workloads.jsonl import RequestRow, read_jsonl
from batchpolicy_tuning.workloads.timed_trace import TimedRow

PAGE = Path(__file__).parents[4] / "docs" / "workloads.md"
TEXT = PAGE.read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_file_of_generators_is_valid(tmp_path: Path) -> None:
    (text,) = _blocks("yaml")
    path = tmp_path / "w.yaml"
    path.write_text(text)
    assert 60 < len(read_generated(path, 100).replication(0, seed=0).requests) < 160


def test_the_lines_are_of_their_formats(tmp_path: Path) -> None:
    timed, ours = _blocks("json")
    assert TimedRow.model_validate_json(timed).hash_ids == [0, 1, 2]
    path = tmp_path / "r.jsonl"
    path.write_text(ours)
    assert [r.id for r in read_jsonl(path).requests] == ["r1"]


def test_every_field_and_every_embedded_workload_is_on_the_page() -> None:
    fields = {one.alias or name for name, one in RequestRow.model_fields.items()}
    words = fields | EMBEDDED.keys()
    assert sorted(word for word in words if f"`{word}`" not in TEXT) == []


def test_every_link_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    files = [link for link in links if not link.startswith("#")]
    assert [link for link in files if not (PAGE.parent / link).exists()] == []
    titles = {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", TEXT, re.M)}
    assert [link for link in links if link[0] == "#" and link[1:] not in titles] == []
