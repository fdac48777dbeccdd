"""A predictor that does what a test lets it do, on whatever thread it is called."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.predictor import Arrivals, LengthDist, Predictor
from batchpolicy.requests import IntArray

LONG_S = 30.0
"""No test waits so long, unless it fails."""


class Scene:
    """What the predictors of one test wait for, and what they tell."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        """Released as each prediction begins; the answer to the one before is delivered then."""
        self.go = threading.Semaphore(0)
        """Taken by each prediction before it says anything."""
        self.log: list[tuple[str, list[str], int]] = []
        """What it was called for, predict or observe: ids, and the thread."""
        self.batches: list[Arrivals] = []


class Stage:
    """The scene of the test that runs; predictors that an earlier one left keep theirs."""

    def __init__(self) -> None:
        self.scene = Scene()

    def reset(self) -> None:
        """Nothing has happened."""
        self.scene = Scene()

    @property
    def entered(self) -> threading.Semaphore:
        return self.scene.entered

    @property
    def go(self) -> threading.Semaphore:
        return self.scene.go

    @property
    def log(self) -> list[tuple[str, list[str], int]]:
        return self.scene.log

    @property
    def batches(self) -> list[Arrivals]:
        return self.scene.batches

    def let_go(self) -> None:
        """Whoever waits here, may go: the test is over."""
        for _ in range(1000):
            self.go.release()

    def wait(self) -> None:
        """Until the predictor is asked."""
        assert self.entered.acquire(timeout=LONG_S), "the predictor was not asked"

    def calls(self) -> list[tuple[str, list[str]]]:
        """What it was called for."""
        return [(what, ids) for what, ids, _ in self.log]


STAGE = Stage()


class Waits(Predictor):
    """Says seven once it may; of ``sulks`` nothing, and with ``bad`` it fails."""

    _scene: Scene = PrivateAttr(default_factory=lambda: STAGE.scene)

    @override
    def predict(self, batch: Arrivals) -> LengthDist:
        scene = self._scene
        scene.log.append(("predict", batch.request_id, threading.get_ident()))
        scene.batches.append(batch)
        scene.entered.release()
        assert scene.go.acquire(timeout=LONG_S)
        if "bad" in batch.request_id:
            raise RuntimeError("no model")
        found = LengthDist.exactly(np.full(len(batch), 7.0)).quantiles
        found[[i == "sulks" for i in batch.request_id]] = np.nan
        return LengthDist(found)

    @override
    def observe(self, batch: Arrivals, output_tokens: IntArray) -> None:
        self._scene.log.append(("observe", batch.request_id, threading.get_ident()))

    @override
    def counts(self) -> Mapping[str, int]:
        calls = len(self._scene.log)
        return {"calls": calls, "predictor_turns": 2 * calls}

    @override
    def cost_s(self, rows: int, answers: int) -> float:
        return 2.5 * (rows > 0)
