from __future__ import annotations

from importlib.util import find_spec

# These tests import vLLM, which only its own environment has.
collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
