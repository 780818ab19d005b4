"""What a model's layers keep of each token, by the fields of its ``config.json``.

Rules it keeps, each as vLLM has it (``get_kv_cache_spec`` of its attention layers):

* Attention keeps a key and a value of ``head_dim`` for each key-value head. Heads are divided among
  the GPUs of a tensor-parallel engine, and repeated where there are fewer heads than GPUs.
* MLA keeps one latent of ``kv_lora_rank + qk_rope_head_dim`` a layer, whole on every GPU: there is
  no second tensor for the values.
* A sliding window is of the layers that ``layer_types`` names, or of all where it names none.
  Chunked attention is kept like full attention.
* What keeps something else, such as a recurrent state or an index, is refused by name: a number
  that leaves it out would be believed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

KV_DTYPES = ("auto", "fp8")
_FP8_BYTES = 1
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2}
# The models whose latents vLLM keeps as one vector a layer, and nothing beside.
_MLA_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2", "pangu_ultra_moe", "glm4_moe_lite", "axk1")
_WINDOWED, _CHUNKED, _FULL = "sliding_attention", "chunked_attention", "full_attention"
# Fields of models that keep more or other than keys and values of one size.
_REFUSED_FIELDS = {
    "layers_block_type": "layers of several kinds",
    "hybrid_override_pattern": "layers of several kinds",
    "attn_type_list": "layers of several kinds",
    "block_configs": "layers of several sizes",
    "linear_attn_config": "layers with a recurrent state",
    "ssm_cfg": "layers with a recurrent state",
    "state_size": "layers with a recurrent state",
    "mamba_d_state": "layers with a recurrent state",
    "ssm_state_size": "layers with a recurrent state",
    "compress_ratios": "a compressed cache",
    "index_topk": "an index of its own beside the latents",
    "global_head_dim": "heads of several sizes",
    "swa_head_dim": "heads of several sizes",
    "swa_num_key_value_heads": "heads of several numbers",
}


class UnknownArchitecture(ValueError):
    """The text says what in the configuration cannot be counted."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """``token_bytes``: of one token in one of its layers, on each GPU.

    ``window_tokens``: a token older than that is not needed any more; None: every token is.
    """

    name: str
    layers: int
    token_bytes: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """``assumed``: what the configuration does not say, in sentences."""

    kinds: tuple[LayerKind, ...]
    kv_dtype: str
    assumed: tuple[str, ...] = ()

    @property
    def token_bytes(self) -> int:
        """Of one token in all layers, while none of them has forgotten it."""
        return sum(kind.layers * kind.token_bytes for kind in self.kinds)


def model_layers(config: Config, *, kv_dtype: str = "auto", gpus: int = 1) -> ModelLayers:
    """``config``: of the language model, with the defaults of its class; ``gpus``: tensor-parallel.

    Raises UnknownArchitecture.
    """
    _refuse_others(config)
    kind_of_values, value_bytes, assumed = _value_bytes(config, kv_dtype)
    head_values, name = _mla(config) or _attention(config, gpus)
    token_bytes = head_values * value_bytes
    types, notes = _layer_types(config)
    kinds = []
    for layer_type, layers in Counter(types).items():
        window = _count(config, "sliding_window") if layer_type == _WINDOWED else None
        scope = f"sliding window of {window:,}" if window else "full attention"
        kinds.append(LayerKind(f"{scope}, {name}", layers, token_bytes, window))
    kinds.sort(key=lambda kind: kind.window_tokens or 0)
    return ModelLayers(tuple(kinds), kind_of_values, (*assumed, *notes))


def _refuse_others(config: Config) -> None:
    for field, what in _REFUSED_FIELDS.items():
        if config.get(field):
            raise UnknownArchitecture(
                f"{field!r} tells of {what}, which cannot be counted from config.json"
            )
    if config.get("is_encoder_decoder"):
        raise UnknownArchitecture("an encoder-decoder keeps keys of its encoder's output too")


def _attention(config: Config, gpus: int) -> tuple[int, str]:
    """Values of one token in one layer on each GPU, and the kind in words."""
    heads = _count(config, "num_attention_heads", "n_head")
    kv_names = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num")
    kv_heads = _count(config, *kv_names, default=heads)
    if config.get("head_dim") is not None:
        head_dim = _count(config, "head_dim")
    else:
        head_dim = _count(config, "hidden_size", "n_embd") // heads
    values_head_dim = config.get("v_head_dim")
    if values_head_dim is not None and values_head_dim != head_dim:
        raise UnknownArchitecture(
            f"'v_head_dim' is {values_head_dim} and 'head_dim' {head_dim}: engines differ in how"
            " they keep values of another size"
        )
    form = "multi-head" if kv_heads == heads else "multi-query" if kv_heads == 1 else "grouped"
    return 2 * max(1, kv_heads // gpus) * head_dim, f"{form}, {kv_heads} KV heads of {head_dim}"


def _mla(config: Config) -> tuple[int, str] | None:
    if config.get("kv_lora_rank") is None:
        return None
    if config.get("model_type") not in _MLA_TYPES:
        raise UnknownArchitecture(
            f"'kv_lora_rank' of model_type {config.get('model_type')!r}: known to keep its latents"
            f" as one vector are {', '.join(_MLA_TYPES)}"
        )
    rank, rope = _count(config, "kv_lora_rank"), _count(config, "qk_rope_head_dim")
    return rank + rope, f"MLA, latents of {rank} + {rope}"


def _layer_types(config: Config) -> tuple[Sequence[str], list[str]]:
    """One of the three types for each layer that has a cache of its own."""
    layers, notes = _count(config, "num_hidden_layers", "n_layer"), []
    types = config.get("layer_types")
    if not types:
        types = [_WINDOWED if config.get("sliding_window") else _FULL] * layers
    unknown = sorted(set(types) - {_FULL, _WINDOWED, _CHUNKED})
    if unknown:
        raise UnknownArchitecture(f"'layer_types' has {', '.join(unknown)}, which is no attention")
    if len(types) != layers:
        raise UnknownArchitecture(f"'layer_types' names {len(types)} layers of {layers}")
    if _CHUNKED in types:
        notes.append("layers with chunked attention are kept like full attention, as vLLM does")
    if _WINDOWED in types:
        notes.append(
            "layers with a sliding window: blocks behind the window are counted as free, though"
            " vLLM keeps them until they are needed"
        )
    shared = config.get("num_kv_shared_layers") or 0
    if shared:
        notes.append(f"the last {shared} layers use the keys of others, and keep none")
    kept = types[: layers - shared]
    return [_FULL if layer_type == _CHUNKED else layer_type for layer_type in kept], notes


def _value_bytes(config: Config, kv_dtype: str) -> tuple[str, int, list[str]]:
    """The type of keys and values, its size, and what was assumed."""
    if kv_dtype == "fp8" or _checkpoint_says_fp8(config):
        notes = [] if kv_dtype == "fp8" else ["the checkpoint says that its KV cache is fp8"]
        return "fp8", _FP8_BYTES, notes
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    if dtype in _DTYPE_BYTES:
        return dtype, _DTYPE_BYTES[dtype], []
    if dtype in ("", "float32"):
        said = f"dtype is {dtype}" if dtype else "no dtype is given"
        return "16 bit", 2, [f"{said}: vLLM's --dtype auto makes it 16 bit"]
    raise UnknownArchitecture(f"'dtype' is {dtype!r}, none of {', '.join(_DTYPE_BYTES)}")


def _checkpoint_says_fp8(config: Config) -> bool:
    """As ModelOpt and compressed-tensors write it."""
    quantization = config.get("quantization_config") or {}
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        return scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    return str(quantization.get("kv_cache_quant_algo") or "").lower() == "fp8"


def _count(config: Config, *names: str, default: int | None = None) -> int:
    """The first field that is set. Raises UnknownArchitecture where it is no positive number."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise UnknownArchitecture(f"{name!r} is {value!r}, no positive whole number")
        return value
    if default is None:
        raise UnknownArchitecture(f"{names[0]!r} is missing")
    return default
