"""What a predictor beside the vLLM scheduler costs its steps: with and without, in turns."""

from __future__ import annotations

import gc
import math
import resource
import time
from collections import deque
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from batchpolicy.bench import Bench, BenchReport, Measurement, Progress, ResultTable
from batchpolicy.config import PolicyConfig, PredictorSpec, config_named, load_config
from batchpolicy.engine import EngineLimits
from batchpolicy.errors import ConfigError

from batchpolicy_vllm import quiet as quiet  # isort: skip - before vLLM is imported
from batchpolicy_vllm import seams
from batchpolicy_vllm.model import make_scheduler, vllm_config
from batchpolicy_vllm.scheduler import scheduler_class

STEPS, SEATS, WAITING = 300, 64, 200
FORWARD_S = 0.005
"""How long the model takes where it does: the scheduler waits, and others have the GIL."""
PROMPT_TOKENS, STOP, TOKEN = 600, 8, 7
_REST_S = 0.004
"""After a step, in which a predictor ends what it does and the other sides begin afresh."""
_CHURN = (0, 1, 8)
"""Answers that end, and requests that come, in each step."""


_NONE, _PLAIN = "none", "constant"
_COLUMNS = (
    "predictor", "in and out a step", "median", "undisturbed", "over none", "undisturbed",
    "over constant", "undisturbed",
)  # fmt: skip
_LEAST_PAIRS = 16
_Times = dict[str, list[tuple[float, bool]]]
"""Of each step, by predictor: seconds, and whether the system gave its core to others."""


class PredictingBench(Bench):
    """Wall time of a step with a predictor on its thread, over that without one.

    ``constant`` has nothing to work out: what it costs is what predictions cost the plan, and
    what others cost beyond it is their thread.
    """

    summary: ClassVar[str] = "time of a vLLM step with a predictor on its thread against none"
    engine: ClassVar[str] = "vllm"

    def __init__(self) -> None:
        self._more: dict[str, PredictorSpec] = {}

    @override
    def choose_workload(self, workload: str) -> None:
        spec = load_config(workload).predictor
        if spec is None:
            raise ConfigError(f"{workload} has no predictor, expected one that is to be measured.")
        self._more = {spec.name: spec}

    @override
    def run(self, progress: Progress, *, quick: bool = False) -> BenchReport:
        specs: dict[str, PredictorSpec | None] = {
            _NONE: None,
            _PLAIN: PredictorSpec(name="constant", params={"output_tokens": 300}),
            "tenant-history": PredictorSpec(name="tenant-history"),
            **self._more,
        }
        limits = EngineLimits(
            max_num_seqs=SEATS,
            max_num_batched_tokens=8192,
            kv_blocks=400_000,
            max_model_len=100_000,
        )
        base, engine = config_named("benefit"), vllm_config(limits)
        progress(f"{len(specs)} schedulers with {SEATS} running and {WAITING} waiting each")
        sides = {
            name: _Side(base.model_copy(update={"predictor": spec}), engine)
            for name, spec in specs.items()
        }
        found: list[Measurement] = []
        rows: list[tuple[str, ...]] = []
        for churn in _CHURN:
            progress(f"{churn} in and out a step")
            took = _in_turns(sides, churn, 20 if quick else STEPS)
            rows += [_row(name, churn, took) for name in specs]
            found += [_against(name, churn, took) for name in specs if name not in (_NONE, _PLAIN)]
        for side in sides.values():
            side.close()
        return BenchReport(
            "vLLM's scheduler with a predictor on its thread, against none",
            found,
            (
                f"Policy benefit, {SEATS} running and {WAITING} waiting, prompts of "
                f"{PROMPT_TOKENS} tokens; {STEPS} steps of each side, in turns in one process, "
                "each beginning with the predictors at rest and the caches cold. Wall time of "
                "add_request(), schedule() and update_from_output(); the model is a wait of "
                f"{1e3 * FORWARD_S:g} ms, taken off, so that its end comes late where a predictor "
                "holds the GIL. Intervals are 95%, of medians of pairs; undisturbed are those in "
                "which the system took the scheduler's core away in neither step. That leaves out "
                "part of the cost too, since a predictor's thread is among those that take it; "
                "verdicts are of all.",
            ),
            (ResultTable("Microseconds", _COLUMNS, rows),),
        )


def _in_turns(sides: dict[str, _Side], churn: int, steps: int) -> _Times:
    took: _Times = {name: [] for name in sides}
    names = deque(sides)
    gc.collect()
    gc.disable()
    try:
        for _ in range(steps):
            # Nobody always comes after the same one.
            names.rotate(1)
            for name in names:
                took[name].append(sides[name].step(churn))
                time.sleep(_REST_S)
    finally:
        gc.enable()
    return took


def _row(name: str, churn: int, took: _Times) -> tuple[str, ...]:
    spent = np.array([wall_s for wall_s, _ in took[name]])
    alone = np.array([not taken for _, taken in took[name]])
    median = f"{1e6 * np.median(spent):,.0f}"
    kept = f"{1e6 * np.median(spent[alone]):,.0f} ({alone.mean():.0%})" if alone.any() else "-"
    gaps = [
        "" if name in without else _gap(took, name, other, alone=alone_only)[0]
        for other, without in ((_NONE, (_NONE,)), (_PLAIN, (_NONE, _PLAIN)))
        for alone_only in (False, True)
    ]
    return (name, str(churn), median, kept, *gaps)


def _gap(took: _Times, name: str, other: str, *, alone: bool) -> tuple[str, float, float]:
    """Median of the pairs, in microseconds, as text and with its interval's half.

    ``alone`` leaves out pairs in which the system gave the scheduler's core to others. Waiting
    for the GIL is not that: it is the thread itself that waits then.
    """
    pairs = np.array(
        [
            1e6 * (ours - theirs)
            for (ours, taken), (theirs, also) in zip(took[name], took[other], strict=True)
            if not (alone and (taken or also))
        ]
    )
    if len(pairs) < _LEAST_PAIRS:
        return f"{len(pairs)} pairs", math.nan, math.nan
    quarter, middle, three = np.quantile(pairs, [0.25, 0.5, 0.75]).tolist()
    # The error of a median, by the spread between the quarters.
    half = 1.96 * 1.2533 * (three - quarter) / 1.349 / math.sqrt(len(pairs))
    return f"{middle:+.0f} ± {half:.0f}", middle, half


def _against(name: str, churn: int, took: _Times) -> Measurement:
    """What its thread costs: beyond predictions that nobody has to work out."""
    text, middle, half = _gap(took, name, _PLAIN, alone=False)
    plain = 1e6 * float(np.median([wall_s for wall_s, _ in took[_PLAIN]]))
    most = 0.03 * plain
    met = True if middle + half <= most else False if middle - half > most else None
    return Measurement(
        f"{name}, {churn} in and out a step: its thread",
        f"{text} us of {plain:,.0f} us",
        "<= 3%",
        met,
        "neither shown nor ruled out" if met is None else "",
    )


class _Side:
    """A scheduler as in a server, whose answers end and whose requests come."""

    def __init__(self, config: PolicyConfig, engine: Any) -> None:
        self._scheduler = make_scheduler(scheduler_class(seams.Scheduler, config), engine)
        self._rng = np.random.default_rng(1)
        self._ids = (f"r{i}" for i in range(10**9))
        self._ending: set[str] = set()
        requests = deque(self._request() for _ in range(SEATS + WAITING))
        while requests:
            self._scheduler.add_request(requests.popleft())
        # Prompts, and then enough answers that histories have some.
        for k in range(120):
            self.step(0 if k < 20 else 4)

    def step(self, churn: int) -> tuple[float, bool]:
        """So many answers end and requests come; the step's wall time without the model's."""
        scheduler = self._scheduler
        requests = [self._request() for _ in range(churn)]
        done = [r for r in scheduler.running if r.num_output_tokens and not r.is_prefill_chunk]
        self._ending = {request.request_id for request in done[:churn]}
        switches = _switches()
        started = time.perf_counter()
        for request in requests:
            scheduler.add_request(request)
        output = scheduler.schedule()
        scheduled = time.perf_counter()
        sampled = self._sampled(output)
        ready = time.perf_counter()
        time.sleep(FORWARD_S)
        scheduler.update_from_output(output, sampled)
        wall_s = time.perf_counter() - ready - FORWARD_S + scheduled - started
        return wall_s, _switches() != switches

    def close(self) -> None:
        self._scheduler.shutdown()

    def _sampled(self, output: Any) -> Any:
        ids = list(output.num_scheduled_tokens)
        requests = self._scheduler.requests
        return seams.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[
                [] if requests[i].is_prefill_chunk else [STOP if i in self._ending else TOKEN]
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
