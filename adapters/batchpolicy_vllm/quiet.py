"""Imported before vLLM where a report is printed: its start-up lines would drown it.

A server never comes here, and whoever sets the variables is heard.
"""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
