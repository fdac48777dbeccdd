"""One stream of a generated workload: who sends what, and when."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from batchpolicy.component import Component
from batchpolicy.workload import WorkloadRequest
from batchpolicy_tuning.workloads.arrivals import AnyArrivals, Gamma, Poisson, draw_senders
from batchpolicy_tuning.workloads.classes import Target, Tenants, tenant_shares
from batchpolicy_tuning.workloads.lengths import AnyLengths, Lognormal, draw_pair

_LEAD_TURNS = 5
"""Sessions begin so many mean lengths before the start, so that it finds some going on."""


class Sessions(Component):
    """Conversations: each prompt is the whole text so far and a new message.

    How long the engine will take is not known when a turn is drawn: the next one
    comes a think time after the expected end of its answer.
    """

    mean_turns: Annotated[float, Field(ge=1)]
    """Turns of a conversation, on average; geometric."""
    think_s: PositiveFloat
    """Mean time from an answer to the next message; exponential."""
    token_s: PositiveFloat = 0.03
    """Time that a token of an answer is expected to take."""
    max_context: PositiveInt = 32_768
    """A conversation ends before a turn whose prompt and ceiling are longer together."""


class Cancel(Component):
    """Clients that lose patience."""

    share: Annotated[float, Field(gt=0, le=1)]
    """Part of the requests."""
    patience_s: PositiveFloat
    """Mean time from arrival to leaving, exponential; who has ended by then stays."""


class Stream(Component):
    """Requests of one class.

    Lengths are distributions, see the module ``lengths``; with ``session``, the
    prompt's is that of the new messages.
    """

    rate: PositiveFloat
    """Requests a second, on average."""
    prompt: AnyLengths
    output: AnyLengths
    max_tokens: PositiveInt
    """Ceiling that its clients set; longer outputs are cut."""
    arrivals: AnyArrivals = Poisson()
    """Process of the arrivals; with ``session``, of the first turns."""
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """Lower is more urgent."""
    tenants: Tenants = 1
    """Shares by tenant, or a number of tenants with equal shares."""
    ttft_slo_s: Target = math.inf
    """Target for the first token; inf for none."""
    tpot_slo_s: Target = math.inf
    """Target for the mean time of each further token; inf for none."""
    prefix_tokens: NonNegativeInt = 0
    """The first so many tokens of all prompts are the same."""
    session: Sessions | None = None
    cancel: Cancel | None = None

    def requests(
        self, name: str, rng: np.random.Generator, span_s: float, base: Path
    ) -> list[WorkloadRequest]:
        """What arrives from 0 to ``span_s`` in a stream of this name, in order."""
        if self.session is None:
            turns = self._single(name, rng, span_s, base)
        else:
            turns = sorted(self._turns(self.session, name, rng, span_s, base))
        left_s = np.full(len(turns), math.inf)
        if self.cancel is not None:
            leaves = rng.random(len(turns)) < self.cancel.share
            patience_s = rng.exponential(self.cancel.patience_s, len(turns))
            left_s[leaves] = patience_s[leaves]
        return [
            WorkloadRequest(
                id=f"{name}-{i:04}",
                arrival_s=turn.arrival_s,
                prompt_tokens=turn.prompt_tokens,
                output_tokens=turn.output_tokens,
                max_tokens=self.max_tokens,
                priority=self.priority,
                tenant=turn.tenant,
                request_class=name,
                ttft_slo_s=self.ttft_slo_s,
                tpot_slo_s=self.tpot_slo_s,
                session=turn.session,
                prefix_id=name if self.prefix_tokens else "",
                prefix_tokens=min(self.prefix_tokens, turn.prompt_tokens),
                cancel_at_s=turn.arrival_s + float(after_s),
            )
            for i, (turn, after_s) in enumerate(zip(turns, left_s, strict=True))
        ]

    def _single(
        self, name: str, rng: np.random.Generator, span_s: float, base: Path
    ) -> list[_Turn]:
        shares = tenant_shares(self.tenants, name)
        arrivals_s, tenants = draw_senders(self.arrivals, rng, self.rate, span_s, shares)
        prompt, output = draw_pair(self.prompt, self.output, rng, len(tenants), base)
        columns = (arrivals_s.tolist(), prompt.tolist(), output.tolist(), tenants)
        return [_Turn(*row) for row in zip(*columns, strict=True)]

    def _turns(
        self, session: Sessions, name: str, rng: np.random.Generator, span_s: float, base: Path
    ) -> Iterator[_Turn]:
        longest_s = session.think_s + session.token_s * self.max_tokens
        lead_s = _LEAD_TURNS * session.mean_turns * longest_s
        starts_s, tenants = draw_senders(
            self.arrivals,
            rng,
            self.rate / session.mean_turns,
            lead_s + span_s,
            tenant_shares(self.tenants, name),
        )
        counts = rng.geometric(1.0 / session.mean_turns, len(starts_s))
        for i, (start_s, tenant, n) in enumerate(zip(starts_s, tenants, counts, strict=True)):
            message, output = draw_pair(self.prompt, self.output, rng, int(n), base)
            answer = np.minimum(output, self.max_tokens)
            think_s = rng.exponential(session.think_s, int(n))
            arrival_s, context = float(start_s) - lead_s, 0
            for turn in range(int(n)):
                context += int(message[turn])
                if context + self.max_tokens > session.max_context or arrival_s >= span_s:
                    break
                if arrival_s >= 0.0:
                    yield _Turn(arrival_s, context, int(output[turn]), tenant, f"{name}-{i:04}")
                context += int(answer[turn])
                arrival_s += float(session.token_s * answer[turn] + think_s[turn])


class _Turn(NamedTuple):
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str
    session: str = ""


Spread = tuple[float, float, int]
"""Median, deviation of the logarithm and most tokens of lognormal lengths."""


def bursty(
    rate: float, cv: float, prompt: Spread, output: Spread, *, low: int, max_tokens: int
) -> Stream:
    """Lognormal lengths of at least ``low`` tokens, and gamma gaps of this CV between arrivals."""

    def lengths(median: float, sigma: float, high: int) -> Lognormal:
        return Lognormal(dist="lognormal", median=median, sigma=sigma, low=low, high=high)

    return Stream(
        rate=rate,
        arrivals=Gamma(process="gamma", cv=cv),
        prompt=lengths(*prompt),
        output=lengths(*output),
        max_tokens=max_tokens,
    )
