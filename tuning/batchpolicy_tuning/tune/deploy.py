"""A setting as what an operator deploys: a policy file and an engine's flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from batchpolicy.config import PolicyConfig, load_config
from batchpolicy.engine import EngineLimits
from batchpolicy_tuning import output
from batchpolicy_tuning.tune.settings import Setting

NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
_VLLM_BLOCK_TOKENS = 16
"""What vLLM takes by default."""
_SECTIONS = ("preempt", "bounds", "queue", "memory", "predictor", "limits", "requests")


def write_policy(setting: Setting, path: Path, remarks: Sequence[str]) -> None:
    """Write a policy file that says what the setting does, with remarks, and read it back."""
    head = "".join(f"# {line}\n" for remark in remarks for line in remark.splitlines())
    text: str = cast(Any, yaml).safe_dump(
        policy_document(setting.config), sort_keys=False, allow_unicode=True
    )
    output.write_whole(head + text, path)
    read = Setting(load_config(path), setting.limits)
    if read.key != setting.key:
        raise AssertionError(f"{path} does not say what was measured")


def policy_document(config: PolicyConfig) -> dict[str, Any]:
    """The policy as the keys of a file."""
    spec = config.policy
    found: dict[str, Any] = {
        "apiVersion": "batchpolicy/v1",
        "kind": "Policy",
        "policy": {"name": _elsewhere(spec.name, spec.base), **_plain(spec.params)},
    }
    for name in _SECTIONS:
        part = getattr(config, name)
        if part is None:
            continue
        if name == "predictor":
            # Made, it has the whole paths of its files.
            said = part.build().model_dump(mode="json", by_alias=True, exclude_unset=True)
            found[name] = {"name": _elsewhere(part.name, part.base), **said}
        elif isinstance(part, str):
            found[name] = part
        else:
            # A section that is there and says nothing new is not the same as none.
            found[name] = part.model_dump(mode="json", by_alias=True)
    return found


def _elsewhere(name: str, base: Path) -> str:
    """A name; a class in a file by its whole path, as the policy file stands elsewhere."""
    path, mark, cls = name.rpartition(":")
    return f"{(base / path).resolve()}{mark}{cls}" if path.endswith(".py") else name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return value.model_dump(mode="json", by_alias=True)


def flags(limits: EngineLimits) -> dict[str, str]:
    """What to start each engine with for these limits."""
    vllm = [
        f"--max-num-seqs {limits.max_num_seqs}",
        f"--max-num-batched-tokens {limits.max_num_batched_tokens}",
    ]
    if limits.long_prefill_token_threshold:
        vllm.append(f"--long-prefill-token-threshold {limits.long_prefill_token_threshold}")
    if limits.watermark:
        vllm.append(f"--watermark {limits.watermark:g}")
    if limits.kv_block_tokens != _VLLM_BLOCK_TOKENS:
        vllm.append(f"--block-size {limits.kv_block_tokens}")
    sglang = [
        f"--max-running-requests {limits.max_num_seqs}",
        f"--chunked-prefill-size {limits.max_num_batched_tokens}",
        f"--max-prefill-tokens {limits.max_num_batched_tokens}",
        # By default one token, on some devices 64.
        f"--page-size {limits.kv_block_tokens}",
    ]
    if not limits.prefix_cache:
        vllm.append("--no-enable-prefix-caching")
        sglang.append("--disable-radix-cache")
    return {"vllm": " ".join(vllm), "sglang": " ".join(sglang)}
