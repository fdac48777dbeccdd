from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[4] / "shared" / "data" / "traces"


@pytest.fixture
def azure_conversations() -> Path:
    path = SHARED / "azure_2023_conv.csv.gz"
    if not path.exists():
        pytest.skip("needs the Azure conversation trace beside the checkout, which is not there")
    return path
