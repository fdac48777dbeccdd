"""A driver for servers that only prefill, and send the KV to others that decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import Any, ClassVar

from typing_extensions import override

from batchpolicy.config import PolicyConfig
from batchpolicy.requests import Status
from batchpolicy.runner import EngineFacts, Plan, RequestFacts
from batchpolicy_sglang.driver import Driver
from batchpolicy_sglang.seams import batches, ends, prefill


class PrefillDriver(Driver):
    """Looks at SGLang's queues before each plan, as requests change them in many ways there.

    A request has come once it is in the waiting queue: whoever decodes it has room for it. It
    runs while its prompt is computed and while its KV is sent, and ends when that is over. In
    the second half it holds KV and has no part in any step.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"prefix"})

    @override
    def _engine(self, scheduler: Any, clock: Callable[[], float], *, live: bool) -> EngineFacts:
        facts = super()._engine(scheduler, clock, live=live)
        # Nothing decodes, so that there are no steps for it, and no tokens or KV in those of
        # prompts.
        return replace(facts, role="prefill", mixed=True, decode_tokens=0)

    @override
    def _facts(self, req: Any, arrival_s: float | None) -> RequestFacts:
        # Here an answer has one token, whatever its client expects of the whole.
        facts = super()._facts(req, arrival_s)
        return replace(facts, max_tokens=1, predicted_output_tokens=nan)

    @override
    def _plan(self, running_batch: Any) -> Plan:
        self._look()
        return super()._plan(running_batch)

    @override
    def _reconcile(self) -> None:
        """Each plan begins with a look at all queues."""

    @override
    def _refuse(self, rid: str, reason: str) -> None:
        req = self._reqs.get(rid)
        super()._refuse(rid, reason)
        if req is not None:
            prefill.release(self._scheduler, req)

    def _look(self) -> None:
        """Find out who has come, left, or lost its KV since the last plan."""
        waiting = {req.rid: req for req in self._scheduler.waiting_queue}
        self._let_go(prefill.busy(self._scheduler) | waiting)
        for rid, req in waiting.items():
            if rid in self._waiting:
                continue
            if rid not in self._reqs:
                self.queued(req)
            elif rid in self._seated:
                self._lost(rid)
            else:
                self.runner.ready(rid, True)
        if waiting != self._waiting:
            self._waiting = waiting
            self._waiting_tokens = sum(map(batches.tokens_of, waiting.values()))

    def _let_go(self, here: dict[str, Any]) -> None:
        """Whoever is known and not here has ended, or is asked for anew where it is decoded."""
        gone = {rid: req for rid, req in self._reqs.items() if here.get(rid) is not req}
        asked = prefill.bootstrapping(self._scheduler) if gone else {}
        for rid, req in gone.items():
            if rid not in asked or asked[rid] is not req:
                self.ended(rid, ends.how_ended(req) or Status.ABORTED)
            elif rid in self._seated:
                self._lost(rid)
                self.runner.ready(rid, False)

    def _lost(self, rid: str) -> None:
        """A request gave up its KV: where it is decoded, nobody was ready for it."""
        self._seated.discard(rid)
        self.runner.preempted([rid])


def for_prefills(config: PolicyConfig) -> PolicyConfig:
    """A policy file without what it says of answers, which are put out elsewhere.

    Nobody is displaced: requests hold no KV while they wait for others, and SGLang takes none back
    from a prompt that is being computed or sent.
    """
    rest = config.limits and config.limits.model_copy(update={"tpot_target_s": None})
    return config.model_copy(update={"preempt": "never", "predictor": None, "limits": rest})
