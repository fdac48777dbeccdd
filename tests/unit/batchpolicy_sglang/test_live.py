from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpolicy.config import config_named
from batchpolicy.errors import ConfigError
from batchpolicy_sglang.live import Live
from tests.support.rig import Rig


def test_live_keys_are_the_numbers_and_three_limits() -> None:
    rig = Rig(config_named("benefit").build_policy())
    live = Live(cast("Any", SimpleNamespace(runner=rig.runner)))
    assert {"batchpolicy_lambda", "batchpolicy_max_running"} <= set(live.keys())
    live.apply("batchpolicy_max_running", 3.0)
    live.apply("batchpolicy_lambda", 0.125)
    state = live.state()
    assert (state["limits"]["max_running"], state["lambda"]) == (3, 0.125)
    for value in (0, 2.5, "x"):
        with pytest.raises(ConfigError, match="expected a whole number"):
            live.check("batchpolicy_token_budget", value)
