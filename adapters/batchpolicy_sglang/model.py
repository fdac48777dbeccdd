"""A SGLang scheduler without weights worth the name, tokenizer, device or other processes."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchpolicy.engine import EngineLimits
from batchpolicy_sglang.quiet import silence
from batchpolicy_sglang.seams import names
from batchpolicy_sglang.seams.construct import construct, let_adapters_in, settle

# Smallest model that SGLang will load; it is never run.
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SPARE_POSITIONS = 6
"""Of its context SGLang keeps these to itself."""


def make_scheduler(
    limits: EngineLimits,
    sink: Callable[[Any], None],
    *,
    order: str = "fcfs",
    set_up: Callable[[Any], None] | None = None,
) -> Any:
    """A scheduler with these limits, whose messages to clients go to ``sink``.

    ``order`` is one of its own: ``priority`` (lower is more urgent, nobody is displaced), or
    what ``--schedule-policy`` takes; ``set_up`` is called with it before it serves.
    """
    args = names.server_args.ServerArgs(
        model_path=_folder(limits.max_model_len),
        device="cpu",
        attention_backend="torch_native",
        dtype="float32",
        grammar_backend="none",
        load_format="dummy",
        skip_tokenizer_init=True,
        skip_server_warmup=True,
        disable_cuda_graph=True,
        random_seed=0,
        log_level="error",
        context_length=limits.max_model_len + _SPARE_POSITIONS,
        page_size=limits.kv_block_tokens,
        max_total_tokens=limits.kv_blocks * limits.kv_block_tokens,
        max_running_requests=limits.max_num_seqs,
        chunked_prefill_size=limits.max_num_batched_tokens if limits.chunked_prefill else -1,
        max_prefill_tokens=limits.max_num_batched_tokens,
        disable_radix_cache=not limits.prefix_cache,
        disable_overlap_schedule=not limits.async_scheduling,
        schedule_policy="fcfs" if order == "priority" else order,
        enable_priority_scheduling=order == "priority",
        schedule_low_priority_values_first=True,
        disable_priority_preemption=True,
    )
    settle(args)
    # SGLang sets up its loggers anew with each configuration.
    silence()
    with _no_collection():
        made = construct(_scheduler_class(), args)
    if limits.max_loras is not None:
        let_adapters_in(made, limits.max_loras)
    made.enable_skip_finishing_decode = limits.async_scheduling
    made.ipc_channels.send_to_tokenizer.send_output = _first_to(sink)
    if set_up is not None:
        set_up(made)
    return made


@cache
def _folder(max_model_len: int) -> str:
    """Where the model is said to be; kept for the life of the process."""
    kept = tempfile.TemporaryDirectory(prefix="batchpolicy-model-")
    _folders.append(kept)
    config = {**_MODEL, "max_position_embeddings": max_model_len + _SPARE_POSITIONS}
    Path(kept.name, "config.json").write_text(json.dumps(config), encoding="utf-8")
    return kept.name


_folders: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _scheduler_class() -> Any:
    """SGLang's scheduler without sockets and watchdogs; what decides is untouched."""
    base = names.scheduler.Scheduler

    def init_ipc_channels(self: Any, port_args: Any) -> None:
        self.ipc_channels = SimpleNamespace(
            recv_from_tokenizer=None,
            recv_from_rpc=None,
            send_to_tokenizer=SimpleNamespace(send_output=_drop),
            send_to_detokenizer=SimpleNamespace(send_output=_drop),
            send_metrics_from_scheduler=None,
        )
        self.load_snapshot_writer = None
        # Before 0.5.13 they are the scheduler's own.
        self.recv_from_tokenizer = self.recv_from_rpc = self.idle_sleeper = None
        self.send_to_tokenizer = self.ipc_channels.send_to_tokenizer
        self.send_to_detokenizer = self.ipc_channels.send_to_detokenizer

    def init_soft_watchdog(self: Any, *_: Any) -> None:
        pass

    def init_watch_dog_memory_saver_input_blocker(self: Any) -> None:
        kept = names.scheduler.create_scheduler_watchdog
        names.scheduler.create_scheduler_watchdog = _drop
        try:
            base.init_watch_dog_memory_saver_input_blocker(self)
        finally:
            names.scheduler.create_scheduler_watchdog = kept

    methods = (init_ipc_channels, init_soft_watchdog, init_watch_dog_memory_saver_input_blocker)
    return type("Alone", (base,), {m.__name__: m for m in methods})


@contextmanager
def _no_collection() -> Generator[None, None, None]:
    """Without SGLang's garbage collection, which takes longer than all the rest."""
    collector: Any = gc
    kept = collector.collect
    collector.collect = _nothing
    try:
        yield
    finally:
        collector.collect = kept


def _first_to(sink: Callable[[Any], None]) -> Callable[..., None]:
    def send(message: Any, *_: Any) -> None:
        sink(message)

    return send


def _nothing(*_: Any) -> int:
    return 0


def _drop(*_: Any, **__: Any) -> None:
    pass
