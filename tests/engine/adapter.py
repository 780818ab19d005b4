"""A LoRA adapter of random weights for the model that ``install.py`` makes."""

import json
import random
import struct
from pathlib import Path

_RANK = 8
_HIDDEN, _QUERY = 64, 64
_LAYERS = 2


def write_adapter(folder: Path, seed: int = 1) -> Path:
    """In the two files that vLLM reads; safetensors is a header of JSON before the numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, header, data = random.Random(seed), {}, b""
    for layer in range(_LAYERS):
        for part, shape in (("A", (_RANK, _HIDDEN)), ("B", (_QUERY, _RANK))):
            values = [rng.uniform(-0.1, 0.1) for _ in range(shape[0] * shape[1])]
            packed = struct.pack(f"<{len(values)}f", *values)
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
            header[name] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": (len(data), len(data) + len(packed)),
            }
            data += packed
    head = json.dumps(header).encode()
    weights = struct.pack("<Q", len(head)) + head + data
    (folder / "adapter_model.safetensors").write_bytes(weights)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": _RANK,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "tiny",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
