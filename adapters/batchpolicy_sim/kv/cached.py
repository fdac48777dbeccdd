"""KV memory whose full blocks are found again by their text, until they are needed."""

from __future__ import annotations

from collections import OrderedDict

from typing_extensions import override

from batchpolicy_sim.job import Job
from batchpolicy_sim.kv.pool import Pool


class Block:
    """A full block that can be found by the key of the text up to its end."""

    __slots__ = ("key", "users")

    def __init__(self, key: int) -> None:
        self.key = key
        self.users = 1


class CachedPool(Pool):
    """Blocks as vLLM's pool keeps them.

    Free blocks are handed out in this order: those without a key, which all look alike
    and are only counted, then the ones with a key, the least recently freed first. A
    request frees its blocks from the end of its text, so that beginnings stay longest.
    Two blocks can have one key, when their text was computed twice; the older is found.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        super().__init__(blocks, block_tokens)
        self._known: dict[int, list[Block]] = {}
        self._idle: OrderedDict[Block, None] = OrderedDict()
        """Blocks with a key that nobody holds, those to evict first in front."""

    @override
    def take(self, blocks: int) -> None:
        short = blocks - (self.free - len(self._idle))
        self.free -= blocks
        for _ in range(short):
            block, _none = self._idle.popitem(last=False)
            self._forget(block)

    @override
    def grow(self, job: Job, tokens: int) -> None:
        more = -(-tokens // self.block_tokens) - job.held
        if more > 0:
            self.take(more)
            job.held += more
        self.fill(job, tokens)

    def fill(self, job: Job, tokens: int) -> None:
        """Full blocks of a job's first ``tokens`` tokens can be found from now on."""
        chain, blocks = job.chain, job.blocks
        assert chain is not None and blocks is not None
        count = tokens // self.block_tokens
        known = self._known
        for key in chain.keys(count)[len(blocks) : count]:
            block = Block(key)
            blocks.append(block)
            if key in known:
                known[key].append(block)
            else:
                known[key] = [block]

    @override
    def release(self, job: Job) -> None:
        blocks = job.blocks or []
        self.free += job.held - len(blocks)
        for block in reversed(blocks):
            block.users -= 1
            if not block.users:
                self._idle[block] = None
                self.free += 1
        blocks.clear()
        job.held = 0

    @override
    def hit(self, job: Job) -> tuple[int, int]:
        found = self._found(job)
        idle = sum(not block.users for block in found)
        return len(found) * self.block_tokens, idle

    @override
    def adopt(self, job: Job) -> int:
        found = self._found(job)
        for block in found:
            if not block.users:
                del self._idle[block]
                self.free -= 1
            block.users += 1
        job.blocks = found
        job.held = len(found)
        return len(found) * self.block_tokens

    @override
    def held_alone(self, job: Job) -> int:
        blocks = job.blocks or []
        shared = sum(block.users > 1 for block in blocks)
        return job.held - shared

    def _found(self, job: Job) -> list[Block]:
        """Blocks from the start of a job's text, all but the one of its last token."""
        chain = job.chain
        assert chain is not None
        known, found = self._known, list[Block]()
        for place in range((job.prompt + job.out - 1) // self.block_tokens):
            alike = known.get(chain.keys(place + 1)[place])
            if alike is None:
                break
            found.append(alike[0])
        return found

    def _forget(self, block: Block) -> None:
        alike = self._known[block.key]
        if len(alike) == 1:
            del self._known[block.key]
        else:
            alike.remove(block)
