from __future__ import annotations

import pytest

from batchpolicy.engine import EngineLimits
from batchpolicy.step_cost import FormulaCost
from batchpolicy.workload import Workload
from batchpolicy_sim import LightEngine
from batchpolicy_tuning.capacity import Setting, at_load, best_of, highest
from tests.support.serial_engine import request


@pytest.mark.parametrize("limit", [0.3, 1.0, 1.4, 2.0, 77.0])
@pytest.mark.parametrize("near", [0.5, 2.0, 30.0])
def test_the_highest_load_is_found_from_wherever_the_search_starts(
    limit: float, near: float
) -> None:
    found = highest(lambda load: load <= limit, near, 1.1)
    assert found <= limit < found * 1.1


def test_what_holds_nowhere_is_0() -> None:
    assert highest(lambda load: False, 5.0, 1.02) == 0.0


def _setting(tokens: int) -> Setting:
    return Setting(EngineLimits(max_num_seqs=8, max_num_batched_tokens=tokens, kv_blocks=1000))


def test_the_best_setting_is_that_of_the_highest_load() -> None:
    limit = {128: 0.0, 256: 1.0, 512: 3.0, 1024: 2.9}

    def holds(setting: Setting, load: float) -> bool:
        return load <= limit[setting.limits.max_num_batched_tokens]

    best, load = best_of([_setting(tokens) for tokens in limit], holds, 2.0, 1.02)
    assert best == _setting(512)
    assert load <= 3.0 < load * 1.02


def test_a_load_is_judged_by_tpot_and_by_the_queue() -> None:
    # 100 requests, one a second; each takes a step for its prompt and nine of 20 ms each.
    workload = Workload(
        "w", tuple(request(f"r{i:03}", float(i), 100, output_tokens=10) for i in range(100))
    )
    cost = FormulaCost(base_s=0.02)
    calm = at_load(LightEngine(), _setting(256), cost, [workload], 1.0)
    assert calm.tpot_p99_s == pytest.approx(0.02)
    assert calm.ttft_p99_s == pytest.approx(0.02)
    assert calm.meets(0.02 + 1e-9) and not calm.meets(0.019)
    # 8 seats serve 8 in 0.2 s, 40 a second.
    assert not at_load(LightEngine(), _setting(256), cost, [workload], 200.0).stable
