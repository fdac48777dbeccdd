from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from batchpolicy import registry
from batchpolicy_tuning.tune import workers


@pytest.fixture
def sigterm_waits() -> Generator[None, None, None]:
    """SIGTERM is held back, as while a process starts; all is as before afterwards."""
    handler = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGTERM, handler)


def test_a_worker_that_is_ended_while_it_starts_ends_without_a_traceback(
    sigterm_waits: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []
    monkeypatch.setattr(registry, "engine", made.append)
    study: Any = None
    os.kill(os.getpid(), signal.SIGTERM)
    workers._work(study, str(tmp_path / "journal.log"), (), 1)  # pyright: ignore[reportPrivateUsage]
    assert made == []
