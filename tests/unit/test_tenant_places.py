from __future__ import annotations

from pathlib import Path

import pytest

from batchpolicy.config import load_config
from batchpolicy.errors import ConfigError
from batchpolicy.tenant_places import check_place, tenant_keys


def test_the_places_of_the_tenant_become_keys_in_their_order() -> None:
    keys = tenant_keys(("X-Tenant", "vllm_xargs.Team", "custom_params.a.b", "x_org"))
    assert keys.all == ("x-tenant", "Team", "a.b", "x_org")
    assert keys.headers == ("x-tenant", "x_org")


@pytest.mark.parametrize(
    "place", ["vllm_xargs.tenant", "custom_params.a.b", "x-tenant", "routing_key", "tenant"]
)
def test_what_an_engine_can_read_is_taken(place: str) -> None:
    assert check_place(place) == place


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        ("vllm_xarg.tenant", "vllm_xargs.tenant"),
        ("VLLM_xargs.team", "vllm_xargs.team"),
        ("vlm_xargs.a.b", "vllm_xargs.a.b"),
        ("custom_param.tenant", "custom_params.tenant"),
        ("header.x-tenant", "x-tenant"),
        ("headers.X-Org", "X-Org"),
        # Each would else be the name of a header.
        ("vllm_xargs", "vllm_xargs.tenant"),
        ("vllm_xargs_team", "vllm_xargs.team"),
        ("custom_params-who", "custom_params.who"),
        ("vllm_xargs.", "vllm_xargs.tenant"),
        ("body b", ""),
        ("x-ten\u00e4nt", ""),
        ("7.7", ""),
    ],
)
def test_what_no_engine_can_read_is_refused_with_what_was_meant(place: str, meant: str) -> None:
    with pytest.raises(ValueError, match=r"or the name of a header, such as x-tenant\.") as told:
        check_place(place)
    assert str(told.value).partition("x-tenant.")[2].strip() == (
        f"Did you mean {meant!r}?" if meant else ""
    )


def test_all_misspelt_places_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "apiVersion: batchpolicy/v1\nkind: Policy\npolicy: fcfs\nrequests:\n  tenant_from:\n"
        "    - vlm_xargs.tenant\n    - x-tenant\n    - header.who\n"
    )
    with pytest.raises(ConfigError) as told:
        load_config(path)
    first, second = str(told.value).splitlines()
    assert first.startswith(
        f"{path}:6: requests.tenant_from[0] is 'vlm_xargs.tenant'; engines cannot read it;"
    )
    assert first.endswith("Did you mean 'vllm_xargs.tenant'?")
    assert second.startswith(f"{path}:8: requests.tenant_from[2] is 'header.who'; engines")
