"""What the engine asks of its KV memory, and the memory without a prefix cache."""

from __future__ import annotations

from abc import ABC, abstractmethod

from typing_extensions import override

from batchpolicy_sim.job import Job


class Pool(ABC):
    """KV blocks; each holds ``block_tokens`` tokens of one request, or of several alike.

    ``Job.held`` is kept here: blocks that a job holds.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.free = blocks
        """Blocks that nobody holds, those that the prefix cache knows included."""

    @abstractmethod
    def take(self, blocks: int) -> None:
        """So many free blocks are in use now; there must be as many."""

    @abstractmethod
    def grow(self, job: Job, tokens: int) -> None:
        """Let a job hold blocks for ``tokens`` tokens, which get their KV in this step."""

    @abstractmethod
    def release(self, job: Job) -> None:
        """A job gives back all that it holds."""

    @abstractmethod
    def hit(self, job: Job) -> tuple[int, int]:
        """Tokens that a waiting job would find, and how many of their blocks are free."""

    @abstractmethod
    def adopt(self, job: Job) -> int:
        """Let a job hold the blocks that it finds; gives the tokens in them."""

    @abstractmethod
    def held_alone(self, job: Job) -> int:
        """Blocks that a job shares with nobody: what its displacement frees."""


class CountedPool(Pool):
    """Blocks without a name: nothing is found again, so that their number says it all."""

    @override
    def take(self, blocks: int) -> None:
        self.free -= blocks

    @override
    def grow(self, job: Job, tokens: int) -> None:
        more = -(-tokens // self.block_tokens) - job.held
        if more > 0:
            self.free -= more
            job.held += more

    @override
    def release(self, job: Job) -> None:
        self.free += job.held
        job.held = 0

    @override
    def hit(self, job: Job) -> tuple[int, int]:
        return 0, 0

    @override
    def adopt(self, job: Job) -> int:
        return 0

    @override
    def held_alone(self, job: Job) -> int:
        return job.held
