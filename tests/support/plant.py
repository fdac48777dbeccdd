"""An engine under constant load, whose steps take what a formula says."""

from __future__ import annotations

from typing import Any

from batchpolicy.config import LimitSettings
from batchpolicy.policy import Limits
from batchpolicy.requests import Status
from batchpolicy.runner import EngineFacts, PolicyRunner, RequestFacts
from batchpolicy.step_cost import StepCost, StepShape
from tests.support.policies import Arrival, config_of

BLOCK = 16
ENDLESS = 10**9


class Plant:
    """Requests that decode for ever beside a prompt that never ends.

    Each step gives a token to every decode, and to the prompt as many as the limits allow.
    """

    def __init__(
        self,
        cost: StepCost,
        *,
        target_s: float,
        budget: int = 2048,
        seats: int = 64,
        lag: int = 0,
        known: StepCost | None = None,
        settings: dict[str, Any] | None = None,
        policy: Any = None,
        **facts: Any,
    ) -> None:
        self.cost, self.target_s = cost, target_s
        self.now_s = 0.0
        self.budget = budget
        self.limits = Limits(seats, budget, None)
        """What the engine was told."""
        self.decoding: dict[str, int] = {}
        """Context of each."""
        self.prompt: str | None = None
        self.prompt_done = 0
        self._lag = lag
        self._in_flight: list[tuple[float, list[str]]] = []
        self.steps: list[tuple[int, float]] = []
        """Prompt tokens and seconds of each step."""
        self.runner = PolicyRunner(
            config_of(
                policy or Arrival(),
                "never",
                limits=LimitSettings(tpot_target_s=target_s, **(settings or {})),
            ),
            EngineFacts(
                max_running=seats,
                max_token_budget=budget,
                total_kv_blocks=ENDLESS,
                kv_block_tokens=BLOCK,
                clock=lambda: self.now_s,
                lag_steps=lag,
                cost=known,
                **facts,
            ),
            strict=True,
        )

    def add_decodes(self, count: int, context: int = 64, **facts: Any) -> None:
        """So many requests arrive and compute their prompt of ``context`` tokens at once."""
        names = [f"d{len(self.decoding) + i}" for i in range(count)]
        for name in names:
            given = RequestFacts(prompt_tokens=context, max_tokens=ENDLESS, **facts)
            self.runner.arrived(name, given)
        self.plan()
        self.runner.scheduled(dict.fromkeys(names, context), dict.fromkeys(names, 0), [])
        self._took(count * context, StepShape(count * context, sequences=count), names)
        self.decoding |= dict.fromkeys(names, context)

    def end_decodes(self, names: list[str]) -> None:
        """They finish."""
        for name in names:
            del self.decoding[name]
            self.runner.finished(name, Status.FINISHED)

    def add_prompt(self) -> None:
        """A prompt arrives that never ends."""
        self.prompt = "prompt"
        self.runner.arrived("prompt", RequestFacts(prompt_tokens=ENDLESS, max_tokens=9))

    def plan(self) -> None:
        """Start a step, and take the limits."""
        self.runner.begin(self.runner.tick())
        plan = self.runner.plan(ENDLESS // 2, self.limits.max_running or 0)
        if plan.limits is not None:
            self.limits = plan.limits
        assert (self.limits.token_budget or 0) <= self.budget

    def run(self, steps: int) -> list[int]:
        """Go through so many steps; prompt tokens of each."""
        return [self.step() for _ in range(steps)]

    def step(self) -> int:
        """One step; its prompt tokens."""
        self.plan()
        tokens = dict.fromkeys(self.decoding, 1)
        budget = self.limits.token_budget or self.budget
        assert budget >= len(tokens), "decodes lack tokens"
        n = 0
        if self.prompt is not None:
            n = min(budget - len(tokens), self.limits.prefill_chunk or self.budget)
            tokens[self.prompt] = n
        first = {self.prompt: 0} if n and not self.prompt_done else {}
        self.runner.scheduled(tokens, {i: 0 for i in first if i}, [])
        self.prompt_done += n
        shape = StepShape(
            decodes=len(self.decoding),
            decode_context=sum(self.decoding.values()),
            sequences=len(self.decoding),
        )
        for name in self.decoding:
            self.decoding[name] += 1
        self._took(n, shape.with_prefill(n), list(self.decoding))
        return n

    def _took(self, prefill: int, shape: StepShape, names: list[str]) -> None:
        seconds = self.cost(shape)
        self.steps.append((prefill, seconds))
        self._in_flight.append((seconds, names))
        # A step is planned when the one before it starts, if results lag.
        while len(self._in_flight) > self._lag:
            took_s, names = self._in_flight.pop(0)
            if not self.runner.produced_steadily(len(names), took_s):
                self.runner.produced(dict.fromkeys(names, 1), {}, took_s)
            self.now_s += took_s
