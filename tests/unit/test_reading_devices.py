from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchpolicy.errors import BatchPolicyError
from batchpolicy.profiles import load_profile
from batchpolicy.reading import refuse_device
from batchpolicy.step_costs.table_files import read_table
from batchpolicy_predictors.training.row_files import Faults, rows_of
from batchpolicy_tuning.calibrate.run_log import read_run
from batchpolicy_tuning.cases.expected import read_expected
from batchpolicy_tuning.cases.json_lines import read_json
from batchpolicy_tuning.workloads.files import csv_header

READERS: list[Callable[[Path], Any]] = [
    load_profile,
    lambda path: read_table(path, ["batch"], by_layer=False),
    lambda path: rows_of(path, Faults()),
    read_run,
    read_expected,
    read_json,
    csv_header,
]


@pytest.mark.parametrize("read", READERS)
def test_a_device_that_never_ends_is_refused_by_all_who_read_files(
    read: Callable[[Path], Any],
) -> None:
    # /dev/full reads as zeros for ever.
    with pytest.raises(BatchPolicyError, match=r"/dev/full.*it is a device, no ordinary file"):
        read(Path("/dev/full"))


def test_files_and_pipes_are_no_devices_and_what_is_not_there_is_for_others_to_say(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for name in ("pipe", "file", "none"):
        refuse_device(tmp_path / name)
