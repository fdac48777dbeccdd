"""How requests end, in the words of the cases."""

from __future__ import annotations

from collections.abc import Mapping

from batchpolicy.requests import Status

_NAMES = {"REFUSED": "rejected"}

END_STATES: Mapping[int, str] = {
    int(one): _NAMES.get(one.name, one.name.lower())
    for one in Status
    if one not in {Status.WAITING, Status.RUNNING}
}
