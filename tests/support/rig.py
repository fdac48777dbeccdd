"""A runner whose engine does exactly what each test says."""

from __future__ import annotations

from typing import Any

from batchpolicy.config import Memory
from batchpolicy.policy import Policy
from batchpolicy.runner import EngineFacts, Plan, PolicyRunner, RequestFacts
from tests.support.policies import config_of

BLOCK = 10


class Rig:
    """A runner whose engine does exactly what each test says."""

    def __init__(
        self,
        policy: Policy,
        *,
        preempt: Any = "class",
        probe: Any = None,
        parts: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        engine: dict[str, Any] = {
            "max_running": 8,
            "max_token_budget": 100,
            "total_kv_blocks": 100,
            "kv_block_tokens": BLOCK,
            "clock": lambda: self.now_s,
        }
        self.now_s = 0.0
        # Tests of memory say so; the others are about what fits now.
        parts = {"memory": Memory(look_ahead=False), **(parts or {})}
        self.runner = PolicyRunner(
            config_of(policy, preempt, **parts),
            EngineFacts(**(engine | facts)),
            probe,
            strict=True,
        )

    @property
    def counters(self) -> dict[str, int]:
        return self.runner.counters

    def arrive(self, *names: str, prompt: int = 10, **facts: Any) -> None:
        for name in names:
            self.runner.arrived(name, RequestFacts(prompt_tokens=prompt, max_tokens=50, **facts))

    def plan(self, blocks: int = 100, seats: int = 8, **more: Any) -> Plan:
        self.now_s += 1.0
        self.runner.begin(self.runner.tick())
        return self.runner.plan(blocks, seats, **more)

    def start(self, *names: str, tokens: int = 10) -> None:
        """They are admitted, and one step computes ``tokens`` of each."""
        self.runner.scheduled(dict.fromkeys(names, tokens), dict.fromkeys(names, 0), [])
        self.runner.produced(dict.fromkeys(names, 1), {}, 0.5)

    def decode(self, *names: str) -> None:
        self.runner.scheduled(dict.fromkeys(names, 1), {}, [])
        self.runner.produced(dict.fromkeys(names, 1), {}, 0.5)

    def running(self, *names: str, prompt: int = 10, **facts: Any) -> None:
        """They arrive and start."""
        self.arrive(*names, prompt=prompt, **facts)
        self.plan()
        self.start(*names, tokens=prompt)
