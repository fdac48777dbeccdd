"""Regimes change seldom enough, lose nobody, and leave every policy's accounts as they are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from typing_extensions import override

from batchpolicy.policies.virtual_token_counter import VirtualTokenCounter
from batchpolicy.policy import Step, Work
from batchpolicy.requests import Requests
from batchpolicy.wrappers.regimes import Regimes
from tests.support.mini_engine import Job, MiniEngine

HOLD_S = 2.0
JOBS = st.lists(
    st.builds(
        Job,
        id=st.just(""),
        prompt=st.integers(1, 24),
        outputs=st.integers(1, 12),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from("ab"),
        ttft_slo_s=st.sampled_from([0.5, 2.0, 1e9]),
        arrives=st.integers(0, 160),
        cancelled=st.sampled_from([10**9, 10**9, 60]),
    ),
    min_size=1,
    max_size=60,
)
PARAMETERS = st.fixed_dictionaries(
    {
        "average_s": st.sampled_from([0.1, 1.0]),
        "leave_frac": st.sampled_from([0.5, 1.0]),
        "guard": st.sampled_from(
            [
                None,
                {
                    "window_s": HOLD_S,
                    "free_windows": 1,
                    "least_requests": 1,
                    "alarm_pairs": 1.5,
                    "back_off_s": 3.0,
                },
            ]
        ),
    }
)


class Watched(Regimes):
    """Notes which row serves, and since when."""

    _seen: list[tuple[float, str]] = PrivateAttr(default_factory=list[tuple[float, str]])

    @override
    def on_arrived(self, rows: Requests, step: Step) -> None:
        super().on_arrived(rows, step)
        self._note(step)

    @override
    def on_computed(self, rows: Requests, work: Work, step: Step) -> None:
        super().on_computed(rows, work, step)
        self._note(step)
        # Both have been told of the same events all the time, whichever was asked.
        safe, many = self.inside()[0], self.inside()[-1]
        assert isinstance(safe, VirtualTokenCounter)
        assert isinstance(many, VirtualTokenCounter)
        assert safe.fairness.served(rows).tolist() == many.fairness.served(rows).tolist()

    def _note(self, step: Step) -> None:
        if not self._seen or self._seen[-1][1] != self.present:
            self._seen.append((step.now_s, self.present))

    @property
    def seen(self) -> list[tuple[float, str]]:
        return self._seen


def table(parameters: dict[str, Any]) -> Watched:
    rows = [
        {"name": "some", "above": 0.5, "inner": "edf", "max_num_seqs": 3},
        {"name": "urgent", "above": 0.5, "urgent_above": 0.5, "inner": "priority"},
        {"name": "many", "above": 1.5, "inner": "virtual-token-counter", "prefill_chunk": 8},
    ]
    plain = {"inner": "virtual-token-counter", "rows": rows, "hold_s": HOLD_S}
    return Watched.model_validate(plain | parameters)


def served(
    jobs: list[Job], parameters: dict[str, Any], lag: int = 0
) -> tuple[Watched, MiniEngine]:
    policy = table(parameters)
    engine = MiniEngine(policy, lag=lag)
    engine.run(
        [
            Job(
                f"r{i}", job.prompt, job.outputs, job.priority, job.tenant, job.ttft_slo_s,
                arrives=job.arrives, cancelled=job.cancelled,
            )
            for i, job in enumerate(jobs)
        ]
    )  # fmt: skip
    return policy, engine


@given(JOBS, PARAMETERS, st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_changes_keep_their_distance_and_nobody_is_lost(
    jobs: list[Job], parameters: dict[str, Any], lag: int
) -> None:
    policy, engine = served(jobs, parameters, lag)
    times = [at_s for at_s, _ in policy.seen[1:]]
    assert all(b - a >= HOLD_S for a, b in pairwise(times))
    assert len(engine.done) + len(engine.refused) == len(jobs)


@given(JOBS, PARAMETERS)
@settings(max_examples=30, deadline=None)
def test_the_same_events_choose_the_same_rows_and_all_accounts_agree(
    jobs: list[Job], parameters: dict[str, Any]
) -> None:
    one, first = served(jobs, parameters)
    two, second = served(jobs, parameters)
    assert one.seen == two.seen
    assert first.order == second.order
