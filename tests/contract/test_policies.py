from __future__ import annotations

from pathlib import Path

from batchpolicy import Policy, registry
from batchpolicy.config import load_config
from batchpolicy.policies.benefit import Benefit
from batchpolicy.policies.edf import EarliestDeadlineFirst
from batchpolicy.testing.checks import Check, parametrize_with_checks
from batchpolicy.wrappers.batch_forming import BatchForming
from batchpolicy.wrappers.corridor import Corridor
from batchpolicy.wrappers.regimes import Regimes
from batchpolicy.wrappers.tiered import Tiered

EXAMPLES = Path(__file__).parents[2] / "examples"

INSTALLED = [registry.policy_class(name)() for name in registry.names(registry.POLICIES)]
FILES = [
    *sorted((EXAMPLES / "policies").iterdir()),
    EXAMPLES / "custom_policy" / "policy.yaml",
]
IN_EXAMPLES = [load_config(path).build_policy() for path in FILES]
# What no example file shows.
OTHERS = [
    Benefit.model_validate({"lambda": 0.0, "urgency": {"weight": 0.0}}),
    Benefit.model_validate({"fairness": {"weights": {"a": 3.0}, "scale_tokens": 1.0}}),
    Corridor.model_validate({"tokens": 500.0, "inner": {"name": "tiered", "inner": "edf"}}),
    Tiered.model_validate({"up_to": [-1, 0, 2], "inner": "virtual-token-counter"}),
    Tiered.model_validate({"inner": {"name": "corridor", "inner": "benefit"}}),
    BatchForming.model_validate({"hold_idle": True, "inner": "corridor"}),
    Regimes.model_validate(
        {
            "inner": "corridor",
            "rows": [
                {"name": "all", "inner": "virtual-token-counter", "max_num_seqs": 3},
                {"name": "urgent", "urgent_above": 0.1, "inner": "shortest-remaining"},
            ],
            "hold_s": 0.0,
        }
    ),
    Benefit.model_validate({"corridor_tokens": 10.0, "prices": {"recent_steps": 2.0}}),
    Benefit.model_validate({"urgency": {"lost": "refuse"}, "terms": ["shortness", "ageing"]}),
    EarliestDeadlineFirst(lost="refuse"),
    EarliestDeadlineFirst(lost="chase"),
]


def test_policies_are_installed_and_shown_in_examples() -> None:
    assert {"fcfs", "priority", "benefit"} <= set(registry.names(registry.POLICIES))
    assert len(FILES) >= 5


@parametrize_with_checks([*INSTALLED, *IN_EXAMPLES, *OTHERS])
def test_every_policy_keeps_the_contract(policy: Policy, check: Check) -> None:
    check(policy)
