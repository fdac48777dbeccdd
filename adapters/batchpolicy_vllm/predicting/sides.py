"""Schedulers as in a server, whose answers end and whose requests come."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits

from batchpolicy_vllm import quiet as quiet  # isort: skip - before vLLM is imported
from batchpolicy_vllm import seams
from batchpolicy_vllm.model import make_scheduler, vllm_config
from batchpolicy_vllm.scheduler import scheduler_class

SEATS, WAITING = 64, 200
FORWARD_S = 0.005
"""How long the model takes where it does: the scheduler waits, and others have the GIL."""
PROMPT_TOKENS, STOP, TOKEN = 600, 8, 7


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step took, all of it measured in wall time."""

    seconds: float
    disturbed: bool
    """The system gave the scheduler's core to others; not so where it waits for the GIL."""


class Side:
    """A scheduler with a full batch and a queue."""

    def __init__(self, config: PolicyConfig, *, asynchronous: bool = False) -> None:
        limits = EngineLimits(
            max_num_seqs=SEATS,
            max_num_batched_tokens=8192,
            kv_blocks=400_000,
            max_model_len=100_000,
            async_scheduling=asynchronous,
        )
        base = seams.AsyncScheduler if asynchronous else seams.Scheduler
        self._scheduler = make_scheduler(scheduler_class(base, config), vllm_config(limits))
        self._rng = np.random.default_rng(1)
        self._ids = (f"r{i}" for i in range(10**9))
        self._ended: set[str] = set()
        for _ in range(SEATS + WAITING):
            self._scheduler.add_request(self._request())
        # Prompts, and then enough answers that histories have some.
        for k in range(120):
            self.step(0 if k < 20 else 4)

    def step(self, churn: int) -> StepTime:
        """So many requests come and answers end; the step's time without the model's."""
        scheduler = self._scheduler
        requests, ending = self._churn(churn)
        switches = _switches()
        started = time.perf_counter()
        for request in requests:
            scheduler.add_request(request)
        output = scheduler.schedule()
        scheduled = time.perf_counter()
        sampled = self._sampled(output, ending)
        ready = time.perf_counter()
        time.sleep(FORWARD_S)
        scheduler.update_from_output(output, sampled)
        seconds = time.perf_counter() - ready - FORWARD_S + scheduled - started
        return StepTime(seconds, _switches() != switches)

    def overlapped(self, churn: int, steps: int) -> Sequence[float]:
        """How long after the model's last step each one ends, in seconds, shape ``(steps,)``.

        Two steps are in flight, as vLLM's engine core keeps them: while the device computes
        one, the results of the one before are taken and the next one is planned. The device
        computes for ``FORWARD_S`` whatever the host does meanwhile, and waits where the
        next step comes late.
        """
        scheduler = self._scheduler
        in_flight: deque[tuple[float, Any, Any]] = deque()
        ends_s: list[float] = []
        # One more step has no predecessor, and one more is in flight before results come.
        for _ in range(steps + 2):
            requests, ending = self._churn(churn)
            for request in requests:
                scheduler.add_request(request)
            output = scheduler.schedule()
            free_s = ends_s[-1] if ends_s else 0.0
            ends_s.append(max(time.perf_counter(), free_s) + FORWARD_S)
            in_flight.append((ends_s[-1], output, self._sampled(output, ending)))
            if len(in_flight) == 2:
                self._take(*in_flight.popleft())
        while in_flight:
            self._take(*in_flight.popleft())
        return [end_s - before_s for before_s, end_s in pairwise(ends_s[1:])]

    def close(self) -> None:
        """End its predictor's thread."""
        self._scheduler.shutdown()

    def _take(self, end_s: float, output: Any, sampled: Any) -> None:
        time.sleep(max(end_s - time.perf_counter(), 0.0))
        self._scheduler.update_from_output(output, sampled)

    def _churn(self, count: int) -> tuple[list[Any], set[str]]:
        """Requests that come, and the ids of those whose answers end."""
        requests = [self._request() for _ in range(count)]
        running = self._scheduler.running
        done = [r.request_id for r in running if r.num_output_tokens and not r.is_prefill_chunk]
        # Where two steps are in flight, those that end in the other one still run.
        ending = [one for one in done if one not in self._ended][:count]
        self._ended.update(ending)
        return requests, set(ending)

    def _sampled(self, output: Any, ending: set[str]) -> Any:
        ids = list(output.num_scheduled_tokens)
        requests = self._scheduler.requests
        return seams.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[
                [] if requests[i].is_prefill_chunk else [STOP if i in ending else TOKEN]
                for i in ids
            ],
        )

    def _request(self) -> Any:
        number = next(self._ids)
        return seams.Request(
            request_id=number,
            prompt_token_ids=self._rng.integers(0, 100_000, PROMPT_TOKENS).tolist(),
            sampling_params=seams.SamplingParams(
                max_tokens=4000,
                temperature=0.7,
                ignore_eos=True,
                stop_token_ids=[STOP],
                extra_args={"tenant": f"t{int(number[1:]) % 10}", "ttft_slo_s": 1.0},
            ),
            pooling_params=None,
        )


def _switches() -> int:
    """How often the system took the core from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
