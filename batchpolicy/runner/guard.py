"""Calls into a policy that cannot hurt the engine."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Callable

import numpy as np

from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import CodeKind, Limits, Policy, Ranking, Step
from batchpolicy.requests import BoolArray, FloatArray, IntArray, Requests

logger = logging.getLogger(__name__)


class Guard:
    """Asks a policy, checks its answers, and answers itself when they cannot be used.

    A fault in a pure call means order of arrival for that step. A fault in a hook
    leaves the policy's accounts in doubt, so that it is not asked again. Faults are
    counted; the first traceback is logged.
    """

    def __init__(self, policy: Policy, counters: Counter[str], *, strict: bool) -> None:
        self._policy = policy
        self._counters = counters
        self._strict = strict
        self._logged = False
        self.suspended = False

    def follow(self, policy: Policy) -> None:
        """Ask this policy from now on."""
        self._policy = policy

    def rank(self, waiting: Requests, step: Step) -> Ranking:
        """The policy's ranking, or that of arrival."""
        n = len(waiting)
        if self.suspended:
            return _arrival(waiting)
        try:
            ranking = self._policy.rank(waiting, step)
            return Ranking(
                self._floats(ranking.benefit, n, "benefit"),
                None if ranking.tier is None else self._ints(ranking.tier, n, "tier"),
                self._bools(ranking.admissible, n, "admissible"),
                self._bools(ranking.refuse, n, "refuse"),
                self._instant(ranking.wake_s),
            )
        except BaseException as fault:
            self._fault("policy_faults", fault)
            return _arrival(waiting)

    def keep(self, running: Requests, step: Step) -> tuple[IntArray | None, FloatArray | None]:
        """The policy's tier and benefit of keeping each row; None where it has no view."""
        n = len(running)
        if self.suspended:
            return None, None
        try:
            tier = self._policy.tier(running, step)
            keep = self._policy.keep_benefit(running, step)
            return (
                None if tier is None else self._ints(tier, n, "tier"),
                None if keep is None else self._floats(keep, n, "keep_benefit", infinite=True),
            )
        except BaseException as fault:
            self._fault("policy_faults", fault)
            return None, None

    def standing(self, rows: Requests, step: Step) -> Ranking | None:
        """The policy's benefit and tier of any rows; None if it fails."""
        n = len(rows)
        if self.suspended:
            return None
        try:
            tier = self._policy.tier(rows, step)
            return Ranking(
                self._floats(self._policy.benefit(rows, step), n, "benefit"),
                None if tier is None else self._ints(tier, n, "tier"),
            )
        except BaseException as fault:
            self._fault("policy_faults", fault)
            return None

    def hooks(self, deliver: Callable[[], None], silence: Callable[[], None]) -> None:
        """Run the hooks; after a fault the policy is not told or asked anything more."""
        try:
            deliver()
        except BaseException as fault:
            self._fault("hook_faults", fault)
            self.suspended = True
            silence()

    def _floats(self, got: object, n: int, name: str, *, infinite: bool = False) -> FloatArray:
        values = self._array(got, n, name, np.float64)
        usable = ~np.isnan(values) & (values != -np.inf) if infinite else np.isfinite(values)
        if not usable.all():
            row = int(np.flatnonzero(~usable)[0])
            self._broken(name, f"returned {values[row]} for row {row} of {n}")
        return values

    def limits(self, step: Step) -> Limits:
        """The policy's limits, or those of the engine."""
        if self.suspended:
            return Limits()
        try:
            limits = self._policy.limits(step)
            for name, value in zip(Limits._fields, limits, strict=True):
                if value is not None and (type(value) is not int or value < 1):
                    self._broken("limits", f"returned {name} {value!r}, expected a whole number")
            return limits
        except BaseException as fault:
            self._fault("policy_faults", fault)
            return Limits()

    def _instant(self, got: object) -> float:
        number = isinstance(got, int | float | np.integer | np.floating)
        if not number or isinstance(got, bool) or got != got:
            self._broken("rank", f"returned wake_s {got!r}, expected a time in seconds")
        return float(got)  # type: ignore[arg-type]

    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        """The tenants or sessions that the policy has forgotten; none after a fault."""
        if not self.suspended:
            try:
                gone = self._array(
                    self._policy.forget(codes, kind), len(codes), "forget", np.bool_
                )
                return gone
            except BaseException as fault:
                # What it has dropped of whom is not known.
                self._fault("hook_faults", fault)
                self.suspended = True
        return np.zeros(len(codes), dtype=np.bool_)

    def _bools(self, got: object, n: int, name: str) -> BoolArray | None:
        return None if got is None else self._array(got, n, name, np.bool_)

    def _ints(self, got: object, n: int, name: str) -> IntArray:
        return self._array(got, n, name, np.int64)

    def _array(self, got: object, n: int, name: str, dtype: type[np.generic]) -> np.ndarray:
        values = np.asarray(got)
        if values.shape != (n,):
            self._broken(name, f"returned shape {values.shape}, expected ({n},)")
        if not np.can_cast(values.dtype, dtype, casting="same_kind"):
            self._broken(name, f"returned dtype {values.dtype}, expected {np.dtype(dtype)}")
        return values.astype(dtype, copy=False)

    def _broken(self, name: str, what: str) -> None:
        raise PolicyContractError(f"{type(self._policy).__name__}.{name} {what}")

    def _fault(self, counter: str, fault: BaseException) -> None:
        # Whoever stops the process means it, also when that falls into a policy's call.
        if self._strict or ends_the_process(fault):
            raise fault
        self._counters[counter] += 1
        if not self._logged:
            self._logged = True
            logger.exception(
                "policy %s failed; requests are served in order of arrival %s. "
                "Further faults are counted, not logged.",
                type(self._policy).__name__,
                "until it recovers" if counter == "policy_faults" else "from now on",
            )


def _arrival(rows: Requests) -> Ranking:
    return Ranking(-rows.seq.astype(np.float64))


def ends_the_process(fault: BaseException) -> bool:
    """Ctrl-C, or raised by the process's own handler for a signal: no fault of who was called."""
    if isinstance(fault, KeyboardInterrupt):
        return True
    frame = fault.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    handlers = (signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT))
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    return frame is not None and frame.tb_frame.f_code in codes
