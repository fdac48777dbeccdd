"""Imported before SGLang where a report is printed: its start-up lines would drown it.

A server never comes here, and whoever sets the variables is heard.
"""

from __future__ import annotations

import logging
import os
import warnings

# A replay has no use for a device, and SGLang asks for one as soon as it is imported.
os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Before 0.5.22 its pages of KV are found by a kernel, which without a device is interpreted.
os.environ.setdefault("TRITON_INTERPRET", "1")

warnings.filterwarnings("ignore", module=r"sglang\.")


def silence() -> None:
    """Let nothing below an error of SGLang's be logged."""
    logging.getLogger("sglang").setLevel(logging.ERROR)


silence()
