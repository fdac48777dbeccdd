"""A language model of a few hundred kilobytes that vLLM serves like any other."""

from __future__ import annotations

from pathlib import Path

_SPECIAL = ("<pad>", "<s>", "</s>")


def make_tiny_model(folder: Path, *, seed: int = 7) -> Path:
    """A two-layer Llama with random weights, and a tokenizer with one token a byte.

    Nothing is fetched. The weights are spread enough that the most likely token is
    never a close call.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=32768,
        initializer_range=0.3,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    _save_tokenizer(folder)
    return folder


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
