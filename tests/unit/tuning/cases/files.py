"""Files of cases for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENGINE = {
    "kv_capacity_tokens": 1024,
    "block_size": 16,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 64,
}
TIMING = {"step_base_s": 0.02, "prefill_s_per_token": 0.001, "decode_s_per_seq": 0.002}


def row(id: str, at: float = 0.0, **more: Any) -> dict[str, Any]:
    lengths = {"prompt_tokens": 10, "output_tokens": 2, "max_tokens": 2}
    return {"id": id, "arrival_s": at, **lengths, **more}


def case(**changes: Any) -> dict[str, Any]:
    """A case that passes on the engine ``light`` under any policy."""
    return {
        "schema_version": 1,
        "id": "T1",
        "kind": "workload",
        "title": "two requests",
        "engine": ENGINE,
        "timing": TIMING,
        "requests": [row("a"), row("b", 0.01)],
        "checks": [{"kind": "all_finish"}],
        **changes,
    }


def written(folder: Path, value: object, name: str = "case.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path
