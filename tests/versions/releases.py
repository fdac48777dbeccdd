"""Fetches the Python files of an engine's release and runs tests on them.

They come before the installed release on the path, so that what decides is that release's,
with the packages of this environment below.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# pip says ERROR for what it could not do.
_PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
_DOWNLOAD = ("download", "--no-deps", "--only-binary", ":all:")


class NotAvailable(Exception):
    """No wheel to be had, or nothing in it to run."""


@dataclass(frozen=True)
class Releases:
    """Releases of one engine, and what is run on each."""

    engine: str
    """As it is shown."""
    package: str
    """What is imported."""
    wheels: Sequence[str]
    """Distributions to look for, the first that has the release."""
    folder: str
    """Where files are kept, below the root of the checkout."""
    tests: Sequence[str]
    limit_s: int
    """For the tests of one release."""
    kept: Callable[[str], bool]
    """Which files of a wheel are needed."""
    extra: Callable[[str], Sequence[str]]
    """What a release imports that later ones, and so this environment, lack."""
    environment: Callable[[str], Mapping[str, str]]
    """Variables for the tests on a release."""

    @property
    def cache(self) -> Path:
        """Folder of the files, logs and whatever is fetched."""
        return ROOT / self.folder

    def run(self, releases: Sequence[str]) -> int:
        """Run the tests on each release; 1 if any fails or none could be run."""
        said = [self._line(release) for release in releases]
        failed = any(line.startswith("failed") for line in said)
        return int(failed or all(line.startswith("not available") for line in said))

    def _line(self, release: str) -> str:
        try:
            line = self.tested(release, self.files(release))
        except NotAvailable as reason:
            line = f"not available: {reason}"
        print(f"{self.engine} {release:8} {line}", flush=True)
        return line

    def files(self, release: str) -> Path:
        """The folder with the files of a release, which is made if need be."""
        folder = self.cache / release
        if not folder.exists():
            self.cache.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.cache, prefix="part-") as name:
                wheel = self._wheel(release, Path(name))
                files = Path(name, "files")
                with zipfile.ZipFile(wheel) as z:
                    z.extractall(files, [n for n in z.namelist() if self.kept(n)])
                Path(files, "WHEEL_NAME").write_text(wheel.name, encoding="utf-8")
                for package in self.extra(release):
                    _pip("install", "--no-deps", "--target", str(files), package)
                files.rename(folder)
        return folder

    def _wheel(self, release: str, folder: Path) -> Path:
        """The wheel of a release, its kernels included."""
        *first, last = self.wheels
        for name in first:
            try:
                _pip(*_DOWNLOAD, "-d", str(folder), f"{name}=={release}")
                break
            except NotAvailable:
                continue
        else:
            _pip(*_DOWNLOAD, "-d", str(folder), f"{last}=={release}")
        return next(folder.glob("*.whl"))

    def tested(self, release: str, folder: Path) -> str:
        """Run the tests on the files in a folder, and tell how they went."""
        log = self.cache / f"{release}.log"
        environment = os.environ | dict(self.environment(release))
        before = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
        limit_s = int(os.environ.get("LIMIT_S", self.limit_s))
        found = subprocess.run(
            [sys.executable, "-c", f"import {self.package}; print({self.package}.__file__)"],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if str(folder) not in found.stdout:
            return f"failed: not imported from {folder}: {found.stderr.strip()[-200:]}"
        started = time.monotonic()
        with log.open("w", encoding="utf-8") as out:
            try:
                code = subprocess.run(
                    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.tests],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    env=environment,
                    timeout=limit_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return f"failed: not done after {limit_s} s, see {log.relative_to(ROOT)}"
        last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
        counts = re.sub(r",? *\d+ warnings?| in [\d.]+s.*", "", last)
        wheel = Path(folder, "WHEEL_NAME").read_text(encoding="utf-8").partition("-")[0]
        took = f"{time.monotonic() - started:.0f} s, {wheel.replace('_', '-')}"
        if code:
            return f"failed: {counts} ({took}), see {log.relative_to(ROOT)}"
        return f"passed: {counts.replace(' passed', ' tests')} ({took})"


def _pip(*arguments: str) -> None:
    done = subprocess.run([*_PIP, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotAvailable((lines or ["pip failed"])[-1].removeprefix("ERROR: "))
