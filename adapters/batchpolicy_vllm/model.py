"""A vLLM scheduler without weights, tokenizer, device or executor."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from batchpolicy.engine import EngineLimits
from batchpolicy_vllm import seams

# Smallest model that vLLM will configure; only its number of positions matters here.
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def vllm_config(limits: EngineLimits) -> Any:
    """A configuration with these limits, of a model that is never loaded."""
    with tempfile.TemporaryDirectory(prefix="batchpolicy-model-") as folder, _offline():
        model = {**_CONFIG, "max_position_embeddings": limits.max_model_len}
        Path(folder, "config.json").write_text(json.dumps(model), encoding="utf-8")
        config = seams.EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            max_model_len=limits.max_model_len,
            block_size=limits.kv_block_tokens,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            enable_prefix_caching=limits.prefix_cache,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            enable_lora=limits.max_loras is not None,
            max_loras=limits.max_loras or 1,
        ).create_engine_config()
    scheduler = config.scheduler_config
    # The platform decides by its own executor, which is not used here.
    scheduler.async_scheduling = limits.async_scheduling
    # Said afterwards, as vLLM wants a step then to hold the longest text of the model.
    scheduler.enable_chunked_prefill = limits.chunked_prefill
    if limits.watermark:
        scheduler.watermark = limits.watermark
    # One more for the null block, which no request can hold.
    config.cache_config.num_gpu_blocks = limits.kv_blocks + 1
    return config


def make_scheduler(cls: Callable[..., Any], config: Any, *, log_stats: bool = False) -> Any:
    """A scheduler of class ``cls``, or made by it, with its KV cache manager."""
    block_size = config.cache_config.block_size
    spec = seams.FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float32
    )
    num_blocks = config.cache_config.num_gpu_blocks
    kwargs: dict[str, Any] = {
        "vllm_config": config,
        "kv_cache_config": seams.KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[seams.KVCacheGroupSpec(["layer"], spec)],
        ),
        "structured_output_manager": seams.StructuredOutputManager(config),
        "block_size": block_size,
        "log_stats": log_stats,
    }
    if "hash_block_size" in inspect.signature(seams.Scheduler.__init__).parameters:
        kwargs["hash_block_size"] = block_size
    return cls(**kwargs)


def block_hasher(config: Any) -> Callable[[Any], Any] | None:
    """What makes the block hashes of a request; None without prefix cache."""
    if not config.cache_config.enable_prefix_caching:
        return None
    seams.init_none_hash(seams.sha256)
    hasher: Callable[[Any], Any] = seams.get_request_block_hasher(
        config.cache_config.block_size, seams.sha256
    )
    return hasher


@contextmanager
def _offline() -> Generator[None, None, None]:
    """No look-ups at a model hub while the configuration is made."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
