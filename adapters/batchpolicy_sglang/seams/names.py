"""Names of SGLang that a replay needs, imported in one place."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from batchpolicy.errors import EngineUnavailable
from batchpolicy.registry import lacks_package

REPLAYS = "0.5.11 to 0.5.23"

try:
    scheduler: Any = import_module("sglang.srt.managers.scheduler")
    schedule_batch: Any = import_module("sglang.srt.managers.schedule_batch")
    io_struct: Any = import_module("sglang.srt.managers.io_struct")
    parallel_state: Any = import_module("sglang.srt.distributed.parallel_state")
    server_args: Any = import_module("sglang.srt.server_args")
    stamps: Any = import_module("sglang.srt.observability.req_time_stats")
    results: Any = import_module("sglang.srt.managers.utils")
    sampling_params: Any = import_module("sglang.srt.sampling.sampling_params")
    torch: Any = import_module("torch")
    # Before 0.5.14 there is none.
    runtime_context: Any = (
        import_module("sglang.srt.runtime_context")
        if find_spec("sglang.srt.runtime_context")
        else None
    )
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] == "sglang" and missing.name != "sglang":
        raise EngineUnavailable(
            f"the installed SGLang has no {missing.name}, which a replay needs: it takes SGLang "
            f"{REPLAYS}."
        ) from missing
    package = (missing.name or "sglang").partition(".")[0]
    raise lacks_package("sglang", package) from missing

try:
    sglang_version = version("sglang")
except PackageNotFoundError:
    sglang_version = "of a source tree"
