from __future__ import annotations

from importlib.util import find_spec

# These tests import SGLang, which only its own environment has.
collect_ignore_glob = [] if find_spec("sglang") else ["test_*.py"]
