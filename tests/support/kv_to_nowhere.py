"""A SGLang plug-in for tests: KV that a prefill server sends goes nowhere.

SGLang has a backend of that kind, which needs no network, and does not take it for servers that
prefill. Servers load the plug-in where ``plug_in`` has put its entry point.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HELD_ROOM = 1
"""KV of requests with this ``bootstrap_room`` is on its way as long as the gate is shut."""
HOST = "10.0.0.1"
"""``bootstrap_host`` of requests; nobody goes there."""
_GATE = "KV_TO_NOWHERE_GATE"
OPTIONS = ("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl")


def plug_in(folder: Path, gate: Path) -> dict[str, str]:
    """The environment of a server that loads the plug-in; the gate is shut while its file is."""
    metadata = folder / "kv_to_nowhere-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kv-to-nowhere\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        f"[sglang.srt.plugins]\nkv_to_nowhere = {__name__}:register\n"
    )
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        _GATE: str(gate),
        # With overlap it takes an event of a GPU.
        "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
    }


def register() -> None:
    """Put SGLang's fake backend in place of the one that is asked for."""
    from sglang.srt.disaggregation import fake, utils
    from sglang.srt.disaggregation.base import KVPoll

    kinds, native = utils.KVClassType, utils.get_kv_class

    class Sender(fake.FakeKVSender):  # type: ignore[misc,name-defined]
        def poll(self) -> Any:
            found = super().poll()
            if found == KVPoll.Success and self.bootstrap_room == HELD_ROOM:
                return KVPoll.Transferring if os.path.exists(os.environ[_GATE]) else found
            return found

    fakes = {
        kinds.MANAGER: fake.FakeKVManager,
        kinds.SENDER: Sender,
        kinds.BOOTSTRAP_SERVER: NoServer,
    }

    def get_kv_class(backend: Any, kind: Any) -> Any:
        return fakes.get(kind) or native(backend, kind)

    for name in ("disaggregation.utils", "disaggregation.prefill", "managers.disagg_service"):
        module = sys.modules.get(f"sglang.srt.{name}")
        if module is not None:
            module.get_kv_class = get_kv_class  # type: ignore[attr-defined]


class NoServer:
    """Nobody asks where to fetch KV."""

    def __init__(self, host: str, port: int) -> None:
        pass
