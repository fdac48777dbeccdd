from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batchpolicy.config import load_config
from batchpolicy.errors import ConfigError
from batchpolicy.quantities import parse_seconds

VALID = """\
apiVersion: batchpolicy/v1
kind: Policy
policy:
  name: benefit
  lambda: 0.3
  urgency: {weight: 2.0, half_life_s: 500ms}
  terms: [{name: urgency, weight: 1}]
requests: {tenant_from: [vllm_xargs.tenant], default_priority: 0}
"""
KEYS = st.sampled_from(
    ["apiVersion", "kind", "policy", "name", "lambda", "urgency", "half_life_s", "terms", "weight",
     "fairness", "weights", "preempt", "requests", "tenant_from", "default_priority", "<<", ""]
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["benefit", "priority", "fcfs", "class", "Policy", "batchpolicy/v1", "5ms"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)
)


def only_config_errors(text: str) -> None:
    """Loading either works, twice alike, or raises ConfigError with the file in each line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            config = load_config(path)
        except ConfigError as e:
            assert all(line.startswith(str(path)) for line in str(e).splitlines())
        else:
            assert config.build_policy() == load_config(path).build_policy()
            assert config.preempts() in {"never", "class"}


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_no_text_raises_anything_but_a_config_error(text: str) -> None:
    only_config_errors(text)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_no_values_raise_anything_but_a_config_error(values: dict[str, Any]) -> None:
    whole = {"apiVersion": "batchpolicy/v1", "kind": "Policy", **values}
    only_config_errors(json.dumps(whole).replace("NaN", ".nan").replace("Infinity", ".inf"))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(VALID) - 1), st.integers(0, 6), st.text(max_size=3))
def test_no_slip_of_the_pen_raises_anything_but_a_config_error(
    at: int, lost: int, typed: str
) -> None:
    only_config_errors(VALID[:at] + typed + VALID[at + lost :])


@given(
    st.floats(0, 1e9, allow_nan=False),
    st.sampled_from([("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)]),
)
def test_a_duration_means_its_number_times_its_unit(
    number: float, unit: tuple[str, float]
) -> None:
    assert math.isclose(parse_seconds(f"{number!r} {unit[0]}"), number * unit[1])
