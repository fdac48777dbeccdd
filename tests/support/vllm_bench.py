"""A vLLM scheduler stepped by hand, with one or more steps in flight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from batchpolicy.config import PolicyConfig
from batchpolicy.engine import EngineLimits
from batchpolicy.replay import Clock
from batchpolicy.requests import Requests
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_vllm import seams
from batchpolicy_vllm.model import block_hasher, make_scheduler
from batchpolicy_vllm.scheduler import scheduler_class
from tests.support.vllm_replays import engine_config

STEP_S = 0.01
STOP = 99
FIRST = 100


def answer(output: int, max_tokens: int) -> list[int]:
    """Tokens that a request must end up with: each place of an answer has its own token."""
    tokens = [FIRST + place for place in range(min(output, max_tokens))]
    return [*tokens[:-1], STOP] if output < max_tokens else tokens


def own_tokens(number: int, count: int) -> list[int]:
    """Token ids that no other number has."""
    return list(range(10_000 * (number + 1), 10_000 * (number + 1) + count))


class Bench:
    """Serves requests on a scheduler of class ``base``, 10 ms a step.

    With ``in_flight`` 2 a step is scheduled before the results of its predecessor are
    back, as under asynchronous scheduling. ``live`` as in a server: the policy goes by a
    real clock, and predictors work on a thread.
    """

    def __init__(
        self,
        limits: EngineLimits,
        config: PolicyConfig | None,
        *,
        base: type | None = None,
        in_flight: int = 1,
        live: bool = False,
    ) -> None:
        base = base or seams.Scheduler
        self.clock = Clock()
        cls = (
            base if config is None else scheduler_class(base, config, None if live else self.clock)
        )
        asynchronous = issubclass(base, seams.AsyncScheduler)
        settings = engine_config(limits, asynchronous=asynchronous)
        self.scheduler = make_scheduler(cls, settings)
        self.limits = limits
        self.answers: dict[str, list[int]] = {}
        """Tokens that came out of each request."""
        self.ended: dict[str, str] = {}
        """Why each request ended, as vLLM calls it."""
        self.plans: list[dict[str, int]] = []
        """Tokens of each request, by step."""
        self.preempted: list[str] = []
        """Requests that lost their KV, in order."""
        self._wanted: dict[str, int] = {}
        self._loras: dict[str, int] = {}
        self._hasher = block_hasher(settings)
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self._most_in_flight = in_flight

    @property
    def driver(self) -> Any:
        """What stands between the scheduler and the runner."""
        return self.scheduler._driver

    @property
    def counters(self) -> dict[str, int]:
        """What the runner counted."""
        return dict(self.driver.runner.counters)

    @property
    def running(self) -> list[str]:
        """Ids of the requests with a seat, in the engine's order."""
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> set[str]:
        """Ids of the requests without one."""
        return {request.request_id for request in self.scheduler.waiting}

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def row(self, request_id: str) -> Requests:
        """The columns of one request, as a policy sees them."""
        ledger = self.driver.runner._ledger
        ledger.batch.settle()
        rows: Requests = ledger.table.rows(ledger.slots_of([request_id]))
        return rows

    def add(
        self,
        request_id: str,
        *,
        prompt: int | list[int] = 16,
        output: int = 4,
        max_tokens: int | None = None,
        priority: int = 0,
        structured: Any = None,
        resumable: bool = False,
        lora: str = "",
        **extra: Any,
    ) -> Any:
        """A request joins the queue now; ``extra`` is its ``vllm_xargs``."""
        if isinstance(prompt, int):
            # Prompts differ from their first token on, unless the caller gives the tokens.
            prompt = own_tokens(len(self._wanted), prompt)
        request = seams.Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling_params=seams.SamplingParams(
                max_tokens=max_tokens or output,
                temperature=0.0,
                ignore_eos=True,
                stop_token_ids=[STOP],
                extra_args=extra or None,
                structured_outputs=structured,
            ),
            pooling_params=None,
            arrival_time=self.clock.now_s,
            priority=priority,
            lora_request=self._lora(lora) if lora else None,
            block_hasher=self._hasher,
            resumable=resumable,
        )
        self._wanted[request_id] = output
        self.answers[request_id] = []
        self.scheduler.add_request(request)
        return request

    def _lora(self, name: str) -> Any:
        number = self._loras.setdefault(name, len(self._loras) + 1)
        return seams.LoRARequest(name, number, lora_path=name)

    def abort(self, *request_ids: str) -> None:
        """The clients of some requests leave."""
        self.scheduler.finish_requests(request_ids, seams.RequestStatus.FINISHED_ABORTED)

    def step(self, count: int = 1) -> dict[str, int]:
        """Schedule so many steps, and take the results that are due; tokens of the last one."""
        for _ in range(count):
            output = self.scheduler.schedule()
            self.plans.append(dict(output.num_scheduled_tokens))
            self.preempted += sorted(output.preempted_req_ids or ())
            self._in_flight.append((output, self._sampled(output)))
            self.clock.now_s += STEP_S
            if len(self._in_flight) >= self._most_in_flight:
                self._take_results()
        return self.plans[-1]

    def drain(self, max_steps: int = 2000) -> None:
        """Step until every request has ended."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests():
                break
            self.step()
        while self._in_flight:
            self._take_results()
        assert not self.scheduler.has_unfinished_requests(), f"{max_steps} steps were too few"

    def _take_results(self) -> None:
        for outputs in self.scheduler.update_from_output(*self._in_flight.popleft()).values():
            for one in outputs.outputs:
                self.answers[one.request_id] += one.new_token_ids
                if one.finish_reason is not None:
                    assert one.request_id not in self.ended, f"{one.request_id} ended twice"
                    self.ended[one.request_id] = str(one.finish_reason)

    def _sampled(self, output: Any) -> Any:
        """The token at each request's place, unless its prompt is not done."""
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id in ids:
            request = self.scheduler.requests[request_id]
            place = request.num_computed_tokens - request.num_prompt_tokens
            last = place == self._wanted[request_id] - 1 and place < request.max_tokens - 1
            sampled.append([] if request.is_prefill_chunk else [STOP if last else FIRST + place])
        return seams.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        )


def play(bench: Bench, workload: Workload, *, look_every: int = 0, max_steps: int = 5000) -> None:
    """Serve a workload to its end, and compare the columns every so many steps."""
    arrivals = list(reversed(workload.requests))
    cancels = {r.id: r.cancel_at_s for r in workload.requests if r.cancel_at_s < math.inf}
    arrived: set[str] = set()
    for _ in range(max_steps):
        now_s = bench.clock.now_s
        while arrivals and arrivals[-1].arrival_s <= now_s:
            request = arrivals.pop()
            arrived.add(request.id)
            _submit(bench, request)
        for request_id in [i for i, at_s in cancels.items() if at_s <= now_s and i in arrived]:
            del cancels[request_id]
            bench.abort(request_id)
        if not arrivals and not bench.scheduler.has_requests():
            break
        bench.step()
        if look_every and len(bench.plans) % look_every == 0:
            assert_columns_true(bench)
    bench.drain()


def assert_served(bench: Bench, requests: Iterable[WorkloadRequest]) -> None:
    """Every request that was not cancelled has its whole answer, and no KV block is held."""
    for request in requests:
        if request.cancel_at_s == math.inf:
            wanted = answer(request.output_tokens, request.max_tokens)
            assert bench.answers[request.id] == wanted, request.id
    assert bench.free_blocks == bench.limits.kv_blocks


def assert_columns_true(bench: Bench) -> None:
    """The columns agree with what the engine holds."""
    ledger, ids = bench.driver.runner._ledger, bench.driver.runner._ledger.table.ids
    in_line = [*ledger.waiting.array().tolist(), *ledger.blocked.array().tolist()]
    assert {ids[slot] for slot in in_line} == bench.waiting
    assert {ids[slot] for slot in ledger.running.array().tolist()} == set(bench.running)
    blocks = bench.scheduler.kv_cache_manager
    for request_id, request in bench.scheduler.requests.items():
        row = bench.row(request_id)
        seen = [row.computed_tokens, row.output_tokens, row.preemptions, row.kv_blocks]
        assert [int(column[0]) for column in seen] == [
            request.num_computed_tokens,
            request.num_output_tokens,
            request.num_preemptions,
            len(blocks.get_blocks(request_id).blocks[0]),
        ], request_id


def _submit(bench: Bench, request: WorkloadRequest) -> None:
    shared = min(request.prefix_tokens, request.prompt_tokens) if request.prefix_id else 0
    prompt = [
        *own_tokens(1000 + ord(request.prefix_id or "-"), shared),
        *own_tokens(len(bench.answers), request.prompt_tokens - shared),
    ]
    extra = {"tenant": request.tenant} if request.tenant else {}
    bench.add(
        request.id,
        prompt=prompt,
        output=request.output_tokens,
        max_tokens=request.max_tokens,
        priority=request.priority,
        ttft_slo_s=request.ttft_slo_s,
        lora=request.lora,
        **extra,
    )
