"""How much memory a model's weights take, estimated from the fields of its ``config.json``.

It counts the matrices: embeddings, attention, experts or a gated feed-forward. Biases and norms are
left out, which is under 1 % of the models it was held against, and so are the towers of pictures
and sound. The size of the checkpoint's own files is always better.
"""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

# Bytes of a parameter by quant_method; with 4 bits, half a byte and the scales of small groups.
_QUANTIZED_BYTES = {"fp8": 1.0, "fbgemm_fp8": 1.0, "mxfp4": 4.25 / 8, "awq": 4.25 / 8}
_QUANTIZED_BYTES["gptq"] = _QUANTIZED_BYTES["awq"]
_BYTES = 2.0
# Of a quantized checkpoint these matrices stay as they are, by method.
_EXPERTS_ONLY = ("mxfp4",)


class UnknownWeights(ValueError):
    """The text says why they cannot be estimated."""


def weight_bytes(config: Config) -> int:
    """Of the whole model, on however many GPUs. Raises UnknownWeights."""
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method is not None and method not in _QUANTIZED_BYTES:
        raise UnknownWeights(f"how many bytes a parameter has with {method!r} is not known here")
    try:
        parts = _parameters(config)
    except (KeyError, TypeError) as error:
        raise UnknownWeights(f"config.json does not say {error}") from None
    size = _QUANTIZED_BYTES.get(method, _BYTES) if method else _BYTES
    kept = _BYTES if method in _EXPERTS_ONLY else size
    return round(
        parts["embeddings"] * _BYTES
        + (parts["attention"] + parts["feed_forward"]) * kept
        + parts["experts"] * size
    )


def parameters(config: Config) -> int:
    """Raises KeyError and TypeError where fields are missing."""
    return sum(_parameters(config).values())


def _parameters(config: Config) -> dict[str, int]:
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    tied = 1 if config.get("tie_word_embeddings") else 2
    dense_layers = layers
    experts, expert_size = _experts(config), 0
    if experts:
        dense_layers = _dense_layers(config, layers)
        expert_size = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = (config.get("n_shared_experts") or 0) * expert_size
    shared += config.get("shared_expert_intermediate_size") or 0
    sparse_layers = layers - dense_layers
    return {
        "embeddings": tied * config["vocab_size"] * hidden,
        "attention": layers * (_latent_attention(config) or _attention(config)),
        "feed_forward": 3 * hidden * (dense_layers * config["intermediate_size"])
        + 3 * hidden * sparse_layers * shared
        + sparse_layers * experts * hidden,
        "experts": 3 * hidden * sparse_layers * experts * expert_size,
    }


def _experts(config: Config) -> int:
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(name):
            return int(config[name])
    return 0


def _dense_layers(config: Config, layers: int) -> int:
    if config.get("first_k_dense_replace") is not None:
        return int(config["first_k_dense_replace"])
    every = config.get("decoder_sparse_step") or 1
    only_dense = set(config.get("mlp_only_layers") or ())
    return sum(n in only_dense or bool((n + 1) % every) for n in range(layers))


def _attention(config: Config) -> int:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    return int(2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim)


def _latent_attention(config: Config) -> int:
    """0 where it has none."""
    rank = config.get("kv_lora_rank")
    if not rank:
        return 0
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    values, query_rank = config["v_head_dim"], config.get("q_lora_rank")
    query_size = heads * (nope + rope)
    query = query_rank * (hidden + query_size) if query_rank else hidden * query_size
    return int(
        query + hidden * (rank + rope) + rank * heads * (nope + values) + heads * values * hidden
    )
