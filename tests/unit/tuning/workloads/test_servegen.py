from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from batchpolicy.errors import WorkloadError
from batchpolicy_tuning.workloads.servegen import read_servegen

HEADER = "arrival_s,tenant,input_tokens,output_tokens\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(HEADER + text)
    return path


def test_rows_become_requests_of_their_tenants(tmp_path: Path) -> None:
    found = read_servegen(_file(tmp_path, "0.5,t14,27,4\n0.7,t27,51,9\n1,t14,5,0\n"))
    first, second = found.workload.requests
    assert (first.arrival_s, second.arrival_s) == (0.0, 0.2)
    assert (first.tenant, second.tenant) == ("t14", "t27")
    assert (second.prompt_tokens, second.output_tokens, second.max_tokens) == (51, 9, 16)
    assert found.dropped == 1


def test_garbled_rows_are_named_with_their_lines_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_servegen(
            _file(
                tmp_path, "2,a,1,1\nsoon,a,1,1\n-1,a,1,1\nnan,a,1,1\n3,,1,1\n3,a,1.5,1\n1,a,1,1\n"
            )
        )
    assert str(caught.value).replace(str(tmp_path / "trace.csv"), "trace.csv").splitlines() == [
        "trace.csv:3: arrival_s is 'soon', expected seconds from the start",
        "trace.csv:4: arrival_s is '-1', expected seconds from the start",
        "trace.csv:5: arrival_s is 'nan', expected seconds from the start",
        "trace.csv:6: tenant is empty, expected a name",
        "trace.csv:7: input_tokens is '1.5', expected a whole number",
        "trace.csv:8: arrival_s 1 is before that of line 2; sort the trace by time",
    ]


@pytest.mark.shared
def test_the_noisy_tenant_sends_72_percent(shared_trace: Callable[[str], Path]) -> None:
    path = shared_trace("servegen_m-large_noisy_tenant_1h.csv.gz")
    requests = read_servegen(path).workload.requests
    senders = Counter(r.tenant for r in requests)
    assert len(senders) == 40
    assert senders.most_common(1)[0][1] / len(requests) == pytest.approx(0.72, abs=0.01)
