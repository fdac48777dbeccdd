"""For each promise a policy that breaks it, so that no check can pass everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import Field, PrivateAttr
from typing_extensions import override

from batchpolicy import (
    BoolArray,
    FloatArray,
    IntArray,
    Policy,
    Ranking,
    Requests,
    StateArray,
    Step,
    Tags,
    Work,
)
from batchpolicy.errors import PolicyContractError
from batchpolicy.policy import CodeKind, Limits
from batchpolicy.step_cost import StepShape
from batchpolicy.testing import (
    accounting,
    check_policy,
    holding,
    planning,
    policy_checks,
    predicting,
    scoring,
    wrapping,
)
from batchpolicy.wrappers import Wrapper


class Sound(Policy):
    """By arrival, and innocent; the broken ones differ from it in one thing."""

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return step.now_s - requests.arrival_s


class Counting(Sound):
    """With one counter by tenant that hooks move."""

    _served: StateArray = PrivateAttr(default_factory=StateArray)

    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -self._served[requests.tenant]

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._served.add(rows.tenant, work.output_tokens)


class ForgetsAParameter(Sound):
    scale: float = Field(1.0, exclude=True)


class GivesAWeightOfZero(Sound):
    def tenant_weights(self) -> Mapping[str, float]:
        return {"gold": 0.0}


class SinglePrecision(Sound):
    def benefit(self, requests: Requests, step: Step) -> Any:
        return super().benefit(requests, step).astype(np.float32)


class OneNumberForAll(Sound):
    def benefit(self, requests: Requests, step: Step) -> Any:
        return np.float64(1.0)


class InfiniteSlack(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.first_token_due_s - step.now_s


class TiersBelowZero(Sound):
    def tier(self, requests: Requests, step: Step) -> Any:
        return requests.priority


class TooManyTiers(Sound):
    def tier(self, requests: Requests, step: Step) -> Any:
        return requests.seq + 1024


class ShortTiers(Sound):
    def tier(self, requests: Requests, step: Step) -> Any:
        return (requests.priority > 0).astype(np.int32)


class KeepsNaN(Sound):
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray:
        return np.where(running.output_tokens == 0, np.nan, 1.0)


class KeepsForLess(Sound):
    """Equals would displace each other in turn."""

    def keep_benefit(self, running: Requests, step: Step) -> FloatArray:
        return self.benefit(running, step) - 1.0


class LeastServedFirst(Sound):
    """Whoever has lost its KV counts as not served at all, and comes back at once."""

    tags: ClassVar[Tags] = Tags(preempts="benefit")

    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -requests.computed_tokens.astype(np.float64)


class AdmitsByNumber(Sound):
    def admissible(self, waiting: Requests, step: Step) -> Any:
        return np.ones(len(waiting))


class RanksBare(Sound):
    def rank(self, waiting: Requests, step: Step) -> Any:
        return self.benefit(waiting, step)


class WritesToAColumn(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        waited_s = requests.arrival_s
        waited_s -= step.now_s
        return -waited_s


class ForcesAColumnOpen(Sound):
    def on_admitted(self, rows: Requests, step: Step) -> None:
        tokens = rows.prompt_tokens
        tokens.flags.writeable = True
        tokens[:] = 0


class CountsItsCalls(Sound):
    _calls: int = PrivateAttr(default=0)

    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        self._calls += 1
        return np.full(len(requests), float(self._calls))


class ChargesWhenRanked(Counting):
    """Its answers repeat at once: only what comes later shows that it was asked."""

    def rank(self, waiting: Requests, step: Step) -> Any:
        ranking = super().rank(waiting, step)
        self._pending = self._pending + 1.0
        return ranking

    _pending: float = PrivateAttr(default=0.0)

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._served.add(rows.tenant, work.output_tokens + self._pending)


class ByPlaceInTheArray(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return np.arange(len(requests), dtype=np.float64)


class RelativeToTheQueue(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.prompt_tokens / requests.prompt_tokens.max(initial=1)


class TiersByMedian(Sound):
    def tier(self, requests: Requests, step: Step) -> Any:
        middle = np.median(requests.prompt_tokens) if len(requests) else 0
        return (requests.prompt_tokens > middle).astype(np.int64)


class ReadsTheTimeOfDay(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return np.sqrt(requests.arrival_s)


class ExponentialPriority(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return np.exp(-requests.priority.astype(np.float64))


class TakesNoPredictionForNoOutput(Sound):
    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -np.nan_to_num(requests.predicted_output_tokens, nan=0.0)


class PutsTheUnpredictedLast(Sound):
    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -np.nan_to_num(requests.predicted_output_tokens, nan=1e9)


class CountsOnPredictions(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -requests.predicted_output_tokens


class CountsOnAStepCost(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        step_s = step.cost(StepShape(prefill_tokens=512))  # type: ignore[misc]
        return (step.now_s - requests.arrival_s) / step_s


class LastComeFirstServed(Sound):
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return requests.arrival_s - step.now_s


class SaysItIsFcfs(Sound):
    tags: ClassVar[Tags] = Tags(native="fcfs")

    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -requests.prompt_tokens.astype(np.float64)


class SaysItIsPriority(Sound):
    def native_order(self) -> str | None:
        return "priority"


class InventsAnOrder(Sound):
    def native_order(self) -> str | None:
        return "fair"


class WantsARow(Sound):
    _last: int = PrivateAttr(default=-1)

    def on_admitted(self, rows: Requests, step: Step) -> None:
        self._last = int(rows.tenant[-1])


class CountsDeliveries(Counting):
    def on_preempted(self, rows: Requests, step: Step) -> None:
        self._served.add(np.arange(5), 1.0)


class ChargesATenantOnceACall(Counting):
    """Assignment keeps one of several rows of a tenant; ``add`` would sum them."""

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._served[rows.tenant] = self._served[rows.tenant] + work.output_tokens


class ChargesByStep(Counting):
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._served.add(rows.tenant, 1.0)


class SharesItsCounters(Counting):
    ours: ClassVar[StateArray] = StateArray()

    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -self.ours[requests.tenant]

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self.ours.add(rows.tenant, work.output_tokens)


class ThrowsDice(Counting):
    def on_arrived(self, rows: Requests, step: Step) -> None:
        self._served.add(rows.tenant, np.random.default_rng().random(len(rows)))


class InheritsTheSlot(Sound):
    _level: StateArray = PrivateAttr(default_factory=StateArray)

    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        return -self._level[requests.slot]

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._level.add(rows.slot, 1.0 * work.steps)


class InheritsTheTenant(Counting):
    @override
    def forget(self, codes: IntArray, kind: CodeKind) -> BoolArray:
        return np.full(len(codes), True)


class WakesAtNoTime(Sound):
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return super().rank(waiting, step)._replace(wake_s=float("nan"))


class RefusesByNumber(Sound):
    def rank(self, waiting: Requests, step: Step) -> Any:
        return super().rank(waiting, step)._replace(refuse=np.zeros(len(waiting)))


class HoldsForEver(Sound):
    def admissible(self, waiting: Requests, step: Step) -> Any:
        return np.zeros(len(waiting), dtype=np.bool_)


class WaitsForTwo(Sound):
    """A lone request waits for another one, and for nothing else."""

    def admissible(self, waiting: Requests, step: Step) -> Any:
        return np.full(len(waiting), len(waiting) > 1)


class PutsItOff(HoldsForEver):
    """The next second, it says each time."""

    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return super().rank(waiting, step)._replace(wake_s=step.now_s + 1.0)


class Innocent(Wrapper):
    """Changes nothing; the broken wrappers differ from it in one thing."""

    neutral: ClassVar[Mapping[str, Any] | None] = {}


class AsksTwice(Innocent):
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return super().rank(waiting, step)._replace(benefit=self.benefit(waiting, step))


class AsksWhomToKeepTwice(Innocent):
    def keep_benefit(self, running: Requests, step: Step) -> FloatArray | None:
        super().keep_benefit(running, step)
        return super().keep_benefit(running, step)


class ForgetsEnds(Innocent):
    def on_finished(self, rows: Requests, step: Step) -> None:
        pass


class TellsTwice(Innocent):
    def on_arrived(self, rows: Requests, step: Step) -> None:
        super().on_arrived(rows, step)
        super().on_arrived(rows.take(np.arange(1)), step)


class TellsHalfTheWork(Innocent):
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        super().on_computed(rows, work._replace(output_tokens=work.output_tokens // 2), step)


class LetsEverybodyStart(Innocent):
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return super().rank(waiting, step)._replace(admissible=None)


class RefusesNobody(Innocent):
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return super().rank(waiting, step)._replace(refuse=None)


class ForgetsTheTimer(Innocent):
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return super().rank(waiting, step)._replace(wake_s=float("inf"))


class LiftsLimits(Innocent):
    def limits(self, step: Step) -> Limits:
        return super().limits(step)._replace(token_budget=10_000)


class TurnsTheOrder(Innocent):
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        ranking = super().rank(waiting, step)
        return ranking._replace(benefit=-ranking.benefit)


class LimitsByHalves(Sound):
    def limits(self, step: Step) -> Limits:
        return Limits(max_running=step.max_running / 2)  # type: ignore[arg-type]


class LimitsBare(Sound):
    def limits(self, step: Step) -> Any:
        return 8, None, None


class ChargesWhenLimited(Counting):
    _asked: float = PrivateAttr(default=0.0)

    def limits(self, step: Step) -> Limits:
        self._asked += 1.0
        return Limits()

    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        self._served.add(rows.tenant, work.output_tokens + self._asked)


class BreaksTiesByTable(Sound):
    """Its benefit is sound; its order is that in which the table holds the rows."""

    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return Ranking(-np.arange(len(waiting), dtype=np.float64))


class AdmitsTheFirstOfTheTable(Sound):
    def rank(self, waiting: Requests, step: Step) -> Ranking:
        first = np.arange(len(waiting)) < 8
        return Ranking(np.zeros(len(waiting)), admissible=first)


class ShufflesEquals(Sound):
    """Its scores repeat; what it ranks does not."""

    def rank(self, waiting: Requests, step: Step) -> Ranking:
        return Ranking(np.random.default_rng().random(len(waiting)))


class LimitsAtRandom(Sound):
    def limits(self, step: Step) -> Limits:
        return Limits(token_budget=1 + int(np.random.default_rng().integers(1 << 40)))


BROKEN = [
    (LimitsByHalves(), planning.check_limits_are_whole_numbers),
    (LimitsBare(), planning.check_limits_are_whole_numbers),
    (ChargesWhenLimited(), scoring.check_scoring_changes_nothing),
    (BreaksTiesByTable(), planning.check_rank_follows_rows),
    (AdmitsTheFirstOfTheTable(), planning.check_rank_follows_rows),
    (ShufflesEquals(), planning.check_the_same_events_give_the_same_plans),
    (LimitsAtRandom(), planning.check_the_same_events_give_the_same_plans),
    (ForgetsAParameter(scale=2.0), accounting.check_parameters_survive_a_round_trip),
    (GivesAWeightOfZero(), accounting.check_tenant_weights_are_positive),
    (SinglePrecision(), scoring.check_benefit_is_one_finite_float_a_row),
    (OneNumberForAll(), scoring.check_benefit_is_one_finite_float_a_row),
    (InfiniteSlack(), scoring.check_benefit_is_one_finite_float_a_row),
    (TiersBelowZero(), scoring.check_tier_is_one_small_class_a_row),
    (TooManyTiers(), scoring.check_tier_is_one_small_class_a_row),
    (ShortTiers(), scoring.check_tier_is_one_small_class_a_row),
    (KeepsNaN(), scoring.check_keep_benefit_is_one_number_a_row),
    (KeepsForLess(), scoring.check_who_is_displaced_does_not_displace_in_turn),
    (LeastServedFirst(), scoring.check_who_is_displaced_does_not_displace_in_turn),
    (AdmitsByNumber(), scoring.check_admissible_is_one_truth_value_a_row),
    (RanksBare(), scoring.check_rank_is_a_ranking_of_every_row),
    (WakesAtNoTime(), scoring.check_rank_is_a_ranking_of_every_row),
    (RefusesByNumber(), scoring.check_rank_is_a_ranking_of_every_row),
    (HoldsForEver(), holding.check_a_hold_ends),
    (WaitsForTwo(), holding.check_a_hold_ends),
    (PutsItOff(), holding.check_a_hold_ends),
    (AsksTwice(), wrapping.check_inner_is_asked_about_a_row_once),
    (AsksWhomToKeepTwice(), wrapping.check_inner_is_asked_about_a_row_once),
    (ForgetsEnds(), wrapping.check_hooks_reach_inner),
    (TellsTwice(), wrapping.check_hooks_reach_inner),
    (TellsHalfTheWork(), wrapping.check_hooks_reach_inner),
    (LetsEverybodyStart(), wrapping.check_inner_has_its_say),
    (RefusesNobody(), wrapping.check_inner_has_its_say),
    (ForgetsTheTimer(), wrapping.check_inner_has_its_say),
    (LiftsLimits(), wrapping.check_inner_has_its_say),
    (TurnsTheOrder(), wrapping.check_neutral_parameters_change_nothing),
    (WritesToAColumn(), scoring.check_columns_are_left_alone),
    (ForcesAColumnOpen(), scoring.check_columns_are_left_alone),
    (CountsItsCalls(), scoring.check_scoring_changes_nothing),
    (ChargesWhenRanked(), scoring.check_scoring_changes_nothing),
    (ByPlaceInTheArray(), scoring.check_benefit_follows_rows),
    (RelativeToTheQueue(), scoring.check_a_row_alone_scores_as_in_the_queue),
    (TiersByMedian(), scoring.check_a_row_alone_scores_as_in_the_queue),
    (ReadsTheTimeOfDay(), scoring.check_clock_origin_does_not_matter),
    (ExponentialPriority(), scoring.check_extreme_values_stay_finite),
    (CountsOnPredictions(), scoring.check_needs_no_undeclared_prediction),
    (TakesNoPredictionForNoOutput(), predicting.check_no_prediction_counts_as_some_length),
    (PutsTheUnpredictedLast(), predicting.check_no_prediction_counts_as_some_length),
    (CountsOnAStepCost(), scoring.check_needs_no_undeclared_step_cost),
    (LastComeFirstServed(), scoring.check_equals_are_served_in_order),
    (SaysItIsFcfs(), scoring.check_native_order_is_the_engines),
    (SaysItIsPriority(), scoring.check_native_order_is_the_engines),
    (InventsAnOrder(), scoring.check_native_order_is_the_engines),
    (WantsARow(), accounting.check_hooks_take_no_rows),
    (CountsDeliveries(), accounting.check_hooks_take_no_rows),
    (CountsDeliveries(), accounting.check_hooks_add_up),
    (ChargesATenantOnceACall(), accounting.check_hooks_add_up),
    (ChargesByStep(), accounting.check_hooks_add_up),
    (SharesItsCounters(), accounting.check_instances_share_no_state),
    (ThrowsDice(), accounting.check_the_same_events_give_the_same_scores),
    (InheritsTheSlot(), accounting.check_a_reused_slot_starts_afresh),
    (InheritsTheTenant(), accounting.check_who_is_forgotten_leaves_nothing),
]


@pytest.mark.parametrize(
    ("policy", "check"),
    [pytest.param(p, c, id=f"{type(p).__name__}-{c.__name__}") for p, c in BROKEN],
)
def test_the_check_catches_a_policy_that_breaks_its_promise(policy: Policy, check: Any) -> None:
    assert check in list(policy_checks(policy))
    with pytest.raises((PolicyContractError, IndexError)):
        check(policy)


@pytest.mark.parametrize(
    "policy",
    [Sound(), Counting(), Innocent(inner=Counting())],
    ids=["Sound", "Counting", "Innocent"],
)
def test_the_policies_that_the_broken_ones_start_from_keep_every_promise(policy: Policy) -> None:
    assert {one.status for one in check_policy(policy)} == {"passed"}


def test_every_check_has_a_policy_that_it_catches() -> None:
    written = {
        name
        for module in (scoring, planning, accounting, holding, predicting, wrapping)
        for name in vars(module)
        if name.startswith("check_")
    }
    assert {check.__name__ for _, check in BROKEN} == written


def test_every_check_is_run() -> None:
    class Everything(Sound):
        tags: ClassVar[Tags] = Tags(native="fcfs")

    run = {one.check for policy in (Everything(), Innocent()) for one in check_policy(policy)}
    assert run == {check.__name__ for _, check in BROKEN}


def test_what_tags_require_is_not_taken_away() -> None:
    class Declares(CountsOnAStepCost):
        tags: ClassVar[Tags] = Tags(requires=frozenset({"step_cost", "prediction"}))

    run = {one.check: one.status for one in check_policy(Declares(), on_fail="report")}
    assert "check_needs_no_undeclared_step_cost" not in run
    assert "check_needs_no_undeclared_prediction" not in run
    assert set(run.values()) == {"passed"}


def test_a_failure_is_raised_unless_it_is_expected_or_to_be_reported() -> None:
    name = "check_equals_are_served_in_order"
    with pytest.raises(PolicyContractError, match=r"LastComeFirstServed\.rank"):
        check_policy(LastComeFirstServed())
    reported = {r.check: r for r in check_policy(LastComeFirstServed(), on_fail="report")}
    assert reported[name].status == "failed"
    expected = {
        r.check: r
        for r in check_policy(LastComeFirstServed(), expected_failures={name: "a stack"})
    }
    assert (expected[name].status, expected[name].reason) == ("xfail", "a stack")
    passing = {r.check: r.status for r in check_policy(Sound(), expected_failures={name: "?"})}
    assert passing[name] == "xpass"


def test_an_expected_failure_of_no_check_is_refused_before_any_runs() -> None:
    with pytest.raises(ValueError, match="check_nothing"):
        check_policy(WantsARow(), expected_failures={"check_nothing": "?"})


def test_checking_a_policy_leaves_its_state_as_it_was() -> None:
    policy = Counting()
    check_policy(policy)
    assert policy._served[np.arange(-1, 6)].tolist() == [0.0] * 7


class Leaves(Sound):
    @override
    def benefit(self, requests: Requests, step: Step) -> FloatArray:
        raise SystemExit(0)


def test_a_policy_that_would_end_the_process_fails_the_checks() -> None:
    results = check_policy(Leaves(), on_fail="report")
    failed = [result for result in results if result.status == "failed"]
    assert failed
    assert "SystemExit" in str(failed[0].error)
