"""Runs the tests that need no executor on the Python files of other SGLang releases.

    .venv-sglang/bin/python tests/versions/run_sglang.py 0.5.11 0.5.20

Of each release the wheel is fetched without dependencies, 7 to 35 MB, and all but its compiled
files is kept, in ``.sglang-versions/RELEASE``, with the ``transformers`` that it asks for.
Scheduler, prefill adder, radix cache and plug-in hooks are that release's; before 0.5.22 its
kernel that finds pages is interpreted, so that tests take longer. No model runs: kernels,
front end and server of these releases stay untested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.versions.releases import Releases

# Up to this patch release of 0.5, and the transformers that SGLang pins there.
_TRANSFORMERS = ((12, "5.6.0"), (14, "5.8.1"), (21, "5.12.1"))


def _older(release: str) -> Sequence[str]:
    """What a release imports in an older version."""
    patch = int(release.split(".")[2])
    for last, version in _TRANSFORMERS:
        if patch <= last:
            return (f"transformers=={version}", "tokenizers==0.22.2")
    return ()


SGLANG = Releases(
    engine="SGLang",
    package="sglang",
    wheels=("sglang",),
    folder=".sglang-versions",
    # Light engines are held to the steps of the release that is installed, and a model needs
    # the kernels' stand-ins of that one.
    tests=(
        "tests/e2e/sglang",
        "tests/unit/batchpolicy_sglang",
        "--ignore-glob=*test_server*",
        "--ignore-glob=*test_ranks*",
        "--ignore-glob=*test_light_equals*",
        "--ignore-glob=*test_model_or_none*",
    ),
    limit_s=900,
    kept=lambda name: not name.endswith(".so"),
    extra=_older,
    environment=lambda release: {
        "BATCHPOLICY_WORKLOADS": os.environ.get("BATCHPOLICY_WORKLOADS", "1"),
    },
)

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(SGLANG.run(sys.argv[1:]))
