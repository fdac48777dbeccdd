"""A request, and all that the engine knows of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from batchpolicy.workload import WorkloadRequest

if TYPE_CHECKING:
    from batchpolicy_sim.kv.cached import Block
    from batchpolicy_sim.kv.text import KeyChain

WAITING, RUNNING, ENDED = range(3)


class Job:
    """A request from its arrival to its end.

    While it decodes steadily, ``Decodes`` knows how far it is, and ``computed``,
    ``out`` and ``held`` are out of date; ``Decodes.leave`` brings them up to date.
    """

    __slots__ = (
        "aborting", "arrival_s", "blocks", "chain", "computed", "encoder", "gap_s", "held", "id",
        "last_token_s", "lora", "most", "offset", "out", "place", "pos", "preemptions", "priority",
        "prompt", "reached", "ready", "request", "since", "started", "state", "steady",
        "wanted",
    )  # fmt: skip

    def __init__(self, request: WorkloadRequest, place: int, arrival_s: float) -> None:
        self.request = request
        self.id = request.id
        self.place = place
        self.arrival_s = arrival_s
        self.prompt = request.prompt_tokens
        self.wanted = min(request.output_tokens, request.max_tokens)
        """Tokens after which it ends."""
        self.most = request.max_tokens
        """Tokens that the engine allows it."""
        self.priority = request.priority
        self.lora = 0
        """Number of its adapter, 0 for none."""
        self.encoder = 0
        """Encoder space that it asks for."""
        self.state = WAITING
        self.ready = True
        self.started = False
        self.aborting = False
        """Its client has left, and the engine still computes its next token."""
        self.computed = 0
        """Tokens with KV."""
        self.out = 0
        """Tokens emitted."""
        self.held = 0
        """KV blocks that it holds."""
        self.blocks: list[Block] | None = None
        """Of those, the ones that the prefix cache knows, from the start of its text."""
        self.chain: KeyChain | None = None
        """Keys of the blocks of its text; None without prefix cache."""
        self.pos = 0
        """Grows along the running requests."""
        self.preemptions = 0
        self.reached = 0
        """Most tokens ever computed before a preemption."""
        self.last_token_s = math.nan
        self.gap_s = 0.0
        """Longest time between two tokens so far."""
        self.steady = False
        """Is one of ``Decodes``."""
        self.offset = 0
        """There, computed tokens less the beat."""
        self.since = 0
        """First beat in which it was there."""
