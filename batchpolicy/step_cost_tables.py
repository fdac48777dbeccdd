"""Step cost from measured layers, in the layout of LLMServingSim's latency tables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeFloat, PositiveInt, PrivateAttr
from typing_extensions import override

from batchpolicy.errors import ConfigError
from batchpolicy.registry import base_path
from batchpolicy.step_cost import OutsideCost, StepShape
from batchpolicy.step_cost_tables_file import Table, read_table

Floats = npt.NDArray[np.float64]

ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
PER_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "qk_norm": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
"""Parts of a decoder layer and how often one runs each."""
PER_STEP = ("embedding", "final_layernorm")
PER_SEQUENCE = ("lm_head", "sampler")
OPTIONAL = frozenset({"qk_norm"})
REACH_TOKENS = 131_072
"""Context up to which the attention of one sequence is continued beyond the table."""
