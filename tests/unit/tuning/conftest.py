from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[4] / "shared" / "data" / "traces"


@pytest.fixture
def shared_trace() -> Callable[[str], Path]:
    """A published trace by its file name; skips the test where there is none."""

    def found(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs {name} beside the checkout, which is not there")
        return path

    return found


@pytest.fixture
def azure_conversations(shared_trace: Callable[[str], Path]) -> Path:
    return shared_trace("azure_2023_conv.csv.gz")
