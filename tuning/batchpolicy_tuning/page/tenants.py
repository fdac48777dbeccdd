"""The table of tenants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchpolicy_tuning.metrics import Metric
from batchpolicy_tuning.report import in_unit

MOST = 12
"""Tenants that are shown; the document has all."""
_SHARE = Metric("", "", "share")
_SECONDS = Metric("", "", "seconds")


class UnderPolicy(NamedTuple):
    """A tenant under one policy."""

    arm: int
    label: str
    attainment: str
    ttft_p50: str
    ttft_p99: str
    service: str
    bar: float | None
    """Length of the bar that shows it, in percent of its place; None for no bar."""


class Row(NamedTuple):
    """A tenant under all policies."""

    name: str
    requests: int
    demand: str
    line: float | None
    """Place of the line that shows it, as that of the bars."""
    policies: list[UnderPolicy]


def rows(at: Mapping[str, Any]) -> list[Row]:
    """The tenants that ask for most; none when there is only one."""
    first = at["policies"][0]["tenants"]
    if len(first) < 2:
        return []
    widest = max(
        tenant[key] or 0.0
        for policy in at["policies"]
        for tenant in policy["tenants"]
        for key in ("demand_share", "service_share")
    )
    by_name = [{t["name"]: t for t in policy["tenants"]} for policy in at["policies"]]
    return [
        Row(
            tenant["name"] or "without tenant",
            tenant["requests"],
            _text(tenant["demand_share"], _SHARE),
            _part(tenant["demand_share"], widest),
            [
                _under(i, policy["label"], by_name[i][tenant["name"]], widest)
                for i, policy in enumerate(at["policies"])
            ],
        )
        for tenant in first[:MOST]
    ]


def _under(arm: int, label: str, tenant: Mapping[str, Any], widest: float) -> UnderPolicy:
    return UnderPolicy(
        arm,
        label,
        _text(tenant["attainment"], _SHARE),
        _text(tenant["ttft_p50_s"], _SECONDS),
        _text(tenant["ttft_p99_s"], _SECONDS),
        _text(tenant["service_share"], _SHARE),
        _part(tenant["service_share"], widest),
    )


def _part(share: float | None, widest: float) -> float | None:
    return None if share is None else round(100.0 * share / widest, 1)


def _text(value: float | str | None, metric: Metric) -> str:
    """A value of the document, where null is none and "inf" without end."""
    return in_unit(math.nan if value is None else float(value), metric)
