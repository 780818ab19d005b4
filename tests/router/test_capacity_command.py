"""`pointsman capacity`, as a user calls it, on the configurations of published models."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.main import main
from tests.router import model_configs as models

KIB, MIB, GIB = 2**10, 2**20, 2**30


def asked(folder: Path, capsys: Any, config: Any, *flags: str) -> tuple[int, str, str]:
    file = folder / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    try:
        status = main(["capacity", "--config", str(file), *flags])
    except SystemExit as error:
        status = int(str(error.code))
    told = capsys.readouterr()
    return status, told.out, told.err


def answer(folder: Path, capsys: Any, config: Any, *flags: str) -> dict[str, Any]:
    status, out, err = asked(folder, capsys, config, "--json", *flags)
    assert status == 0, err
    made: dict[str, Any] = json.loads(out)
    return made


def test_qwen3_32b_on_37_gb(tmp_path: Path, capsys: Any) -> None:
    """256 KB a token, 4 MB a block, over 9,000 blocks, a prefix of 387 blocks in 1.5 GB."""
    flags = ("--kv-memory", "37GB", "--session-tokens", "12000", "--shared-tokens", "6192")
    made = answer(tmp_path, capsys, models.QWEN3_32B, *flags)
    auto, fp8 = made["capacities"]
    # 2 x 64 layers x 8 heads x 128 x 2 bytes
    assert auto["token_bytes"] == 256 * KIB
    assert auto["block_bytes"] == 4 * MIB
    assert auto["blocks"] == 9472
    assert auto["tokens"] == 9471 * 16 == 151_536
    assert (auto["shared_blocks"], auto["shared_bytes"]) == (387, 387 * 4 * MIB)
    # A session of 750 blocks has 363 beside the shared ones: 9471 - 387 = 9084 = 25 x 363 + 9.
    assert (auto["session_blocks"], auto["running"][0]["idle_sessions"]) == (363, 25)
    assert (fp8["token_bytes"], fp8["blocks"]) == (128 * KIB, 18_944)


# Bytes of a token in all layers, of a block, blocks in 37 GiB, and the blocks of one request of
# --max-model-len with 8192 batched tokens: what get_kv_cache_groups, _get_kv_cache_bytes_per_block
# and max_memory_usage_bytes of vLLM 0.32 gave for layers of these sizes.
VLLM = {
    "qwen3": (models.QWEN3_32B, (), 262_144, 4_194_304, 9_472, 2_048),
    "qwen3, 4 GPUs": (
        models.QWEN3_32B,
        ("--tensor-parallel-size", "4"),
        65_536,
        1_048_576,
        37_888,
        2_048,
    ),
    "qwen3, fp8": (
        models.QWEN3_32B,
        ("--kv-cache-dtype", "fp8"),
        131_072,
        2_097_152,
        18_944,
        2_048,
    ),
    "llama": (models.LLAMA_31_8B, (), 131_072, 2_097_152, 18_944, 2_048),
    "deepseek": (models.DEEPSEEK_V3, (), 70_272, 1_124_352, 35_334, 2_048),
    "deepseek, 8 GPUs": (
        models.DEEPSEEK_V3,
        ("--tensor-parallel-size", "8"),
        70_272,
        1_124_352,
        35_334,
        2_048,
    ),
    "deepseek, fp8": (
        models.DEEPSEEK_V3,
        ("--kv-cache-dtype", "fp8"),
        35_136,
        562_176,
        70_669,
        2_048,
    ),
    "mistral 0.1": (models.MISTRAL_7B_V01, (), 131_072, 2_097_152, 18_944, 769),
    "mistral 0.3": (models.MISTRAL_7B_V03, (), 131_072, 2_097_152, 18_944, 2_048),
    "gemma 3, 27b": (
        models.GEMMA_3_27B,
        ("--max-model-len", "131072"),
        507_904,
        1_310_720,
        30_310,
        11_654,
    ),
    "gemma 3, 4b": (
        models.GEMMA_3_4B,
        ("--max-model-len", "131072"),
        139_264,
        327_680,
        121_241,
        11_654,
    ),
    "gpt-oss": (
        models.GPT_OSS_20B,
        ("--max-model-len", "131072"),
        49_152,
        393_216,
        101_034,
        8_713,
    ),
}


@pytest.mark.parametrize("name", VLLM)
def test_the_pool_is_the_one_that_vllm_makes(name: str, tmp_path: Path, capsys: Any) -> None:
    """Grouped heads, MLA, windows on all layers and on some: its own figures."""
    config, flags, token_bytes, block_bytes, blocks, request_blocks = VLLM[name]
    length = () if "--max-model-len" in flags else ("--max-model-len", "32768")
    made = answer(tmp_path, capsys, config, "--kv-memory", "37GB", *flags, *length)
    first = made["capacities"][0]
    assert first["token_bytes"] == token_bytes
    assert first["block_bytes"] == block_bytes
    assert first["blocks"] == blocks
    assert first["lengths"][0]["request_blocks"] == request_blocks
    assert first["lengths"][0]["at_once"] == pytest.approx(blocks / request_blocks)


def test_memory_is_what_weights_and_the_rest_leave(tmp_path: Path, capsys: Any) -> None:
    """80 x 0.9 - 30.5 - 1.5 = 40, with two GPUs each half of the weights."""
    flags = ("--gpu-memory", "80GB", "--gpu-memory-utilization", "0.9", "--overhead", "1.5GB")
    made = answer(tmp_path, capsys, models.QWEN3_32B, *flags, "--weights", "30.5GB")
    assert made["memory"]["kv_bytes"] == 40 * GIB
    two = ("--tensor-parallel-size", "2", "--weights", "61GiB")
    made = answer(tmp_path, capsys, models.QWEN3_32B, *flags, *two)
    assert made["memory"]["kv_bytes"] == 40 * GIB
    assert made["assumed"] == []


def test_weights_are_those_of_the_files_beside_it(tmp_path: Path, capsys: Any) -> None:
    """Only without files are they estimated, which is said."""
    estimated = answer(tmp_path, capsys, models.QWEN3_32B, "--gpu-memory", "80GB")
    assert estimated["memory"]["weight_bytes"] == pytest.approx(65.52e9, rel=0.005)
    assert any("estimated" in text for text in estimated["assumed"])
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(b"x" * 5000)
    known = answer(tmp_path, capsys, models.QWEN3_32B, "--gpu-memory", "80GB")
    assert known["memory"]["weight_bytes"] == 10_000
    assert not any("estimated" in text for text in known["assumed"])


def test_a_checkpoint_that_says_fp8_has_one_column(tmp_path: Path, capsys: Any) -> None:
    """As ModelOpt writes it; vLLM's auto follows."""
    quantized = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    config = models.LLAMA_31_8B | {"quantization_config": quantized}
    made = answer(tmp_path, capsys, config, "--kv-memory", "10GB")
    assert [each["kv_dtype"] for each in made["capacities"]] == ["fp8"]
    assert made["assumed"] == ["the checkpoint says that its KV cache is fp8"]


def test_the_text_has_the_figures_and_what_was_assumed(tmp_path: Path, capsys: Any) -> None:
    """Both columns; sessions and times where they were asked for."""
    flags = ("--kv-memory", "37GB", "--session-tokens", "12000", "--shared-tokens", "6192")
    load = ("--requests-per-s", "2", "--new-tokens", "900")
    status, out, _ = asked(tmp_path, capsys, models.GEMMA_3_27B, *flags, *load)
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].startswith("gemma3_text: 10 layers of full attention, grouped, 16 KV heads")
    assert lines[1].startswith("gemma3_text: 52 layers of sliding window of 1,024")
    assert "blocks 30,310 60,620" in lines
    assert any(line.startswith("assumed: layers with a sliding window") for line in lines)
    status, out, _ = asked(tmp_path, capsys, models.QWEN3_32B, *flags, *load)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "the shared prefix of 6,192 tokens 387 (1.51 GiB) 387 (774 MiB)" in lines
    # (9471 - 387 - 363) x 16 / (2 x 900) = 77.5 s
    assert "with 0 running 78 s 2.7 min" in lines
    assert "with 256 running only 25 fit only 51 fit" in lines
    assert "with 256 running no room for it no room for it" in lines


def test_nothing_fits(tmp_path: Path, capsys: Any) -> None:
    """Weights larger than the GPU: status 1, and what helps."""
    status, out, err = asked(tmp_path, capsys, models.QWEN3_32B, "--gpu-memory", "24GB")
    assert status == 1
    assert "not one block fits" in err and "--tensor-parallel-size" in err
    assert "does not start" in out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layer_types": ["linear_attention"] * 32}, "'layer_types' has linear_attention"),
        ({"mamba_d_state": 16}, "recurrent state"),
        ({"index_topk": 2048}, "an index of its own"),
        ({"num_key_value_heads": [1, 2]}, "'num_key_value_heads' is [1, 2]"),
        ({"num_hidden_layers": None}, "'num_hidden_layers' is missing"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"kv_lora_rank": 256}, "'kv_lora_rank' of model_type 'new'"),
        ({"v_head_dim": 64}, "'v_head_dim' is 64"),
        ({"dtype": "float8"}, "'dtype' is 'float8'"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    fields: dict[str, Any], says: str, tmp_path: Path, capsys: Any
) -> None:
    """By the name of the field, and with the place where vLLM says how much it is."""
    config = models.LLAMA_31_8B | {"model_type": "new"} | fields
    status, _, err = asked(tmp_path, capsys, config, "--kv-memory", "10GB")
    assert status == 2
    assert says in err and "GPU KV cache size" in err


def test_an_unknown_model_is_taken_at_its_word_and_that_is_said(
    tmp_path: Path, capsys: Any
) -> None:
    """The fields that every model of its kind has, in a text_config too."""
    config = {"model_type": "new", "text_config": models.LLAMA_31_8B | {"model_type": "new_text"}}
    made = answer(tmp_path, capsys, config, "--kv-memory", "10GB")
    assert made["capacities"][0]["token_bytes"] == 128 * KIB
    assert "no model_type 'new'" in made["assumed"][0]


@pytest.mark.parametrize(
    ("config", "flags", "says"),
    [
        ('{"a": 1,\n "b" 2}', ("--kv-memory", "1GB"), "line 2, column 6"),
        ("[]", ("--kv-memory", "1GB"), "no model_type"),
        (models.QWEN3_32B, (), "--gpu-memory SIZE, or --kv-memory"),
        (models.QWEN3_32B, ("--kv-memory", "37"), "no size with its unit, such as 80GB"),
        (models.QWEN3_32B, ("--kv-memory", "1GB", "--weights", "1GB"), "--weights is of"),
        (models.QWEN3_32B, ("--kv-memory", "1GB", "--shared-tokens", "9"), "--session-tokens"),
        (
            models.QWEN3_32B,
            ("--kv-memory", "1GB", "--session-tokens", "9", "--shared-tokens", "10"),
            "cannot be more",
        ),
        (
            models.QWEN3_32B,
            ("--kv-memory", "1GB", "--session-tokens", "50000"),
            "more than a request may have: 40,960",
        ),
        (models.QWEN3_32B, ("--kv-memory", "1GB", "--new-tokens", "9"), "go together"),
        (
            models.LLAMA_31_8B | {"quantization_config": {"quant_method": "hqq"}},
            ("--gpu-memory", "80GB"),
            "give --weights",
        ),
    ],
)
def test_what_is_asked_wrongly_is_said(
    config: Any, flags: tuple[str, ...], says: str, tmp_path: Path, capsys: Any
) -> None:
    """Status 2 and what to give instead."""
    status, _, err = asked(tmp_path, capsys, config, *flags)
    assert status == 2 and says in err


def test_a_missing_file_is_named(tmp_path: Path, capsys: Any) -> None:
    """And a folder without the file."""
    assert main(["capacity", "--config", str(tmp_path), "--kv-memory", "1GB"]) == 2
    assert f"{tmp_path}/config.json: No such file" in capsys.readouterr().err
