"""What tests ask of HTML pages, by parsing them and in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    """What a browser makes of a page, as far as these tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        self._in_script = tag in ("script", "style")

    @override
    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    @override
    def handle_data(self, data: str) -> None:
        if not self._in_script:
            self.texts.append(" ".join(data.split()))
        elif self.scripts:
            self.scripts[-1] += data

    def plots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.scripts[0])
        return found

    def said(self) -> str:
        return " ".join(filter(None, self.texts))


def assert_asks_for_nothing(found: Elements) -> None:
    """Nothing is asked for outside, and only the page's own scripts may run."""
    for tag, attributes in found.tags:
        assert not {"src", "srcset", "data", "action"} & attributes.keys(), tag
        assert tag != "link"
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    (policy,) = (
        attributes["content"] or ""
        for tag, attributes in found.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert len(found.scripts) == 3
    for script in found.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert sum("plotly.js v" in script for script in found.scripts) == 1


def assert_names_are_text(found: Elements) -> None:
    """No name that has ``HOSTILE`` in it became an element or a script."""
    assert "img" not in [tag for tag, _ in found.tags]
    assert len(found.scripts) == 3
    for plot in found.plots():
        # Titles are for the template; what plotly gets has no tags but its own line breaks.
        for_plotly = json.dumps([plot["data"], plot["layout"]])
        assert not re.search(r"<(?!br>)", for_plotly)


def assert_known_to_plotly(found: Elements) -> None:
    """Plotly's own schema has all that the plots ask for."""
    graph = pytest.importorskip("plotly.graph_objects")
    for plot in found.plots():
        text = re.sub(r'"--[a-z0-9-]+(/[0-9.]+)?"', '"#000000"', json.dumps(plot))
        known = json.loads(text)
        graph.Figure(data=known["data"], layout=known["layout"])


def assert_drawn_in_a_browser(text: str, folder: Path) -> None:
    """Headless Chromium draws every plot, offline and without errors; skips without one."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs a chromium binary, of which there is none on the path")
    path = folder / "out.html"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr",
            "--virtual-time-budget=60000", "--window-size=1280,1000", "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    drawn = Elements(done.stdout)
    plots = drawn.plots()
    (_, root) = next((tag, attributes) for tag, attributes in drawn.tags if tag == "html")
    assert root.get("data-fault") is None
    assert root["data-plots"] == f"{len(plots)} of {len(plots)}"
    assert "img" not in [tag for tag, _ in drawn.tags]
    held = [attributes for tag, attributes in drawn.tags if "js-plotly-plot" in str(attributes)]
    assert len(held) == len(plots)
