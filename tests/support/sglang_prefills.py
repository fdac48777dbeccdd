"""SGLang's scheduler of a server that only prefills, in its own loop, with no model or network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

from sglang.srt.disaggregation import prefill
from sglang.srt.disaggregation.base import KVPoll
from sglang.srt.disaggregation.fake import FakeKVManager, FakeKVSender
from sglang.srt.disaggregation.utils import KVClassType, get_kv_class

from batchpolicy.engine import EngineLimits
from batchpolicy.metadata import VARIABLE
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sglang import hooks
from batchpolicy_sglang.attach import ATTRIBUTE
from batchpolicy_sglang.clients import Clients
from batchpolicy_sglang.model import make_scheduler
from batchpolicy_sglang.prefill_driver import PrefillDriver
from batchpolicy_sglang.seams import names

FAILED = KVPoll.Failed
Turn = Sequence[WorkloadRequest | Callable[[], object]]
"""What happens before one turn of the loop: requests come, or something is called."""
_EARLY = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"
"""With overlap it takes an event of a GPU."""


class Sender(FakeKVSender):
    """SGLang's fake sender, whose other end is ready, and takes the KV, when a test says so."""

    late: ClassVar[set[int]] = set()
    """Rooms whose other end is not ready."""
    slow: ClassVar[set[int]] = set()
    """Rooms whose KV is on its way."""
    lost: ClassVar[set[int]] = set()
    """Rooms whose other end has failed."""

    def poll(self) -> Any:
        if self.bootstrap_room in self.lost:
            return KVPoll.Failed
        if self.bootstrap_room in self.late:
            return KVPoll.Bootstrapping
        found = super().poll()
        if found == KVPoll.Success and self.bootstrap_room in self.slow:
            self.conclude_state = None
            return KVPoll.Transferring
        return found


@dataclass
class Node:
    """One scheduler; ``serve`` runs its loop."""

    scheduler: Any
    told: list[Any]
    """Messages to clients."""
    batches: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    """Tokens of each step that computed something, by request."""

    @property
    def driver(self) -> PrefillDriver:
        driver = getattr(self.scheduler, ATTRIBUTE)
        assert isinstance(driver, PrefillDriver)
        return driver

    @property
    def counters(self) -> dict[str, int]:
        return {name: n for name, n in self.driver.runner.counters.items() if n}

    def queues(self) -> tuple[list[str], list[str], list[str]]:
        """Requests whose other end is not ready, that wait, and whose KV is sent."""
        scheduler = self.scheduler
        return tuple(  # type: ignore[return-value]
            [req.rid for req in queue]
            for queue in (
                scheduler.disagg_prefill_bootstrap_queue.queue,
                scheduler.waiting_queue,
                scheduler.disagg_prefill_inflight_queue,
            )
        )

    def known(self) -> tuple[list[str], list[str]]:
        """Requests that wait and that run, as the runner has them, in order of their ids."""
        ledger = self.driver.runner._ledger
        return tuple(  # type: ignore[return-value]
            sorted(ledger.view(slots).request_id) for slots in (ledger.waiting, ledger.running)
        )

    def holds_nothing(self) -> bool:
        """All KV, rows and buffers are free, and the driver knows nobody; else an error."""
        scheduler, driver = self.scheduler, self.driver
        assert self.queues() == ([], [], [])
        assert self.known() == ([], [])
        assert not (driver._reqs or driver._waiting or driver._waiting_tokens)
        free = scheduler.token_to_kv_pool_allocator.available_size()
        assert free + scheduler.tree_cache.evictable_size() == scheduler.max_total_num_tokens
        buffers = scheduler.req_to_metadata_buffer_idx_allocator
        assert buffers.available_size() == 2 * scheduler.max_running_requests
        assert scheduler.req_to_token_pool.available_size() == scheduler.max_running_requests
        return True

    def abort(self, rid: str) -> None:
        """The client of a request has left."""
        self.scheduler.abort_request(names.io_struct.AbortReq(rid=rid))

    def serve(self, *turns: Turn, more: int = 0) -> None:
        """One turn of SGLang's loop for each of these, and ``more`` in which nothing happens."""
        left = iter([*turns, *((),) * more])
        scheduler = self.scheduler

        def ingest_requests(*_: Any, **__: Any) -> list[Any]:
            turn = next(left, None)
            if turn is None:
                # Read before the next turn, so that this one is one more.
                scheduler.gracefully_exit = True
            for event in turn or ():
                if callable(event):
                    event()
                else:
                    scheduler.process_input_requests([_message(event)])
            return []

        scheduler.ingest_requests = ingest_requests
        scheduler.gracefully_exit = scheduler._war_barrier_enabled = False
        if scheduler.enable_overlap:
            scheduler.event_loop_overlap_disagg_prefill()
        else:
            scheduler.event_loop_normal_disagg_prefill()


@contextmanager
def node(limits: EngineLimits, policy: Path, **arguments: Any) -> Iterator[Node]:
    """A scheduler under a policy file, made as a server makes it."""
    for rooms in (Sender.late, Sender.slow, Sender.lost):
        rooms.clear()
    told: list[Any] = []
    given = names.server_args
    settings = {"disaggregation_mode": "prefill", "disaggregation_transfer_backend": "nixl"}
    asked = SimpleNamespace(
        ServerArgs=partial(given.ServerArgs, **settings, **arguments), PortArgs=given.PortArgs
    )
    with (
        patch.dict(os.environ, {VARIABLE: str(policy), _EARLY: "0"}),
        patch.object(names, "server_args", asked),
        patch.object(prefill, "get_kv_class", _kv_class),
        hooked(names.scheduler.Scheduler),
    ):
        found = Node(make_scheduler(limits, told.append), told)
        found.scheduler.model_worker.forward_batch_generation = partial(_forward, found)
        try:
            yield found
        finally:
            # The arguments of a process outlive its scheduler.
            context = names.runtime_context.get_context()
            context.override("batchpolicy", disaggregation_mode="null")


@contextmanager
def hooked(scheduler: Any) -> Iterator[None]:
    """What ``hooks.install`` does to the making of schedulers, for as long as the block lasts."""

    def after(name: str, hook: Callable[..., Any]) -> Any:
        native = getattr(scheduler, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = native(self, *args, **kwargs)
            hook(found, self)
            return found

        return patch.object(scheduler, name, call)

    with (
        after("init_schedule_policy", hooks.after_init_schedule_policy),
        after("init_request_dispatcher", hooks.after_init_request_dispatcher),
    ):
        yield


def room_of(request_id: str) -> int:
    """Where a request and whoever decodes it meet."""
    return sum(ord(letter) << (8 * i) for i, letter in enumerate(request_id[-6:]))


def _message(r: WorkloadRequest) -> Any:
    message = Clients(Workload("one", (r,)), prefix_cache=True, seed=0, planned=True).request(r)
    message.bootstrap_host, message.bootstrap_room = "10.0.0.1", room_of(r.id)
    return message


def _kv_class(backend: Any, kind: Any) -> Any:
    ours = {KVClassType.MANAGER: FakeKVManager, KVClassType.SENDER: Sender}
    return ours.get(kind) or get_kv_class(backend, kind)


def _forward(found: Node, batch: Any, **_: Any) -> Any:
    """In place of the model: the same token for each request."""
    found.batches.append(
        {req.rid: n for req, n in zip(batch.reqs, batch.extend_lens, strict=True)}
    )
    return names.results.GenerationBatchResult(
        next_token_ids=names.torch.tensor([5] * len(batch.reqs), dtype=names.torch.int64),
        logits_output=None,
    )
