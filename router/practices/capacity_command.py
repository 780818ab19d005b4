"""A shell: the subcommand `capacity`."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.practices.sizes import parse_size, shown_size

if TYPE_CHECKING:
    from router.practices.capacity import Load, Shape
    from router.practices.capacity_report import Memory, Question

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

# vLLM's default since 0.12, and before that 0.9.
_UTILIZATION = 0.92
# Activations, CUDA graphs and what the driver takes: from one to several GiB.
_OVERHEAD = "2GB"
_CONFIG_BYTES_MAX = 16 * 2**20
# Where the class of a configuration may have put something else, or nothing, in their place.
_OF_THE_FILE = ("quantization_config", "dtype", "torch_dtype", "kv_lora_rank", "qk_rope_head_dim")

_EXAMPLE = """\
examples: one GPU, with the weights' size from the files beside config.json; and what a fleet of
agents leaves behind on an engine that has said "Available KV cache memory: 37 GiB"

  pointsman capacity --config /models/Qwen3-32B/config.json --gpu-memory 141GB
  pointsman capacity --config config.json --kv-memory 37GB --session-tokens 12000 \\
      --shared-tokens 6192 --requests-per-s 2 --new-tokens 900

GB is read as 2**30 bytes, as GPUs are sold. The weights are the size of the safetensors beside
config.json, else estimated from its fields; --weights is of the whole model, and divided among the
GPUs of --tensor-parallel-size. What vLLM takes for everything else (--overhead) is only known when
it runs: its log says "Available KV cache memory", which is --kv-memory here.

A session is idle between two of its requests. It loses its end first, once as many blocks were
needed for others as are not its own. New tokens of a request are those that were not cached, of
prompt and answer together.

What keeps something else than keys and values, such as a recurrent state, is refused.
Exit status: 0; 1 where not one block fits; 2 where it was asked for wrongly, or is not known.
"""


class _AskedWrongly(Exception):
    """The text says what is wrong and what to give instead."""


def add_capacity(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "capacity",
        help="say how many tokens and sessions an engine's KV cache holds",
        description="Say how many tokens and sessions an engine's KV cache holds, and how long an"
        " idle session stays in it, from the model's config.json.",
        usage="%(prog)s --config config.json (--gpu-memory SIZE | --kv-memory SIZE) [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", required=True, type=Path, metavar="FILE", help="config.json, or its folder")
    add("--gpu-memory", type=_size, metavar="SIZE", help="of one GPU, such as 80GB")
    add("--kv-memory", type=_size, metavar="SIZE", help="left for the cache on one GPU")
    add("--gpu-memory-utilization", type=_share, metavar="SHARE", help=f"({_UTILIZATION:g})")
    add("--weights", type=_size, metavar="SIZE", help="of the whole model (from its files)")
    add("--overhead", type=_size, metavar="SIZE", help=f"everything else, one GPU ({_OVERHEAD})")
    add("--tensor-parallel-size", type=_count, default=1, metavar="N", help="GPUs (1)")
    add("--kv-cache-dtype", choices=("auto", "fp8"), default="auto", help="auto shows both (auto)")
    add("--block-size", type=_count, default=16, metavar="N", help="tokens (%(default)s)")
    add("--max-model-len", type=_count, metavar="N", help="(what the model allows)")
    add("--max-num-seqs", type=_count, default=256, metavar="N", help="(%(default)s)")
    add("--max-num-batched-tokens", type=_count, default=8192, metavar="N", help="(%(default)s)")
    add("--session-tokens", type=_count, metavar="N", help="of an idle session, all together")
    add("--shared-tokens", type=_count, metavar="N", help="of them, the same in all sessions")
    add("--requests-per-s", type=_rate, metavar="N", help="that the engine answers")
    add("--new-tokens", type=_count, metavar="N", help="of each request, not cached before")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_capacity)


def run_capacity(arguments: argparse.Namespace) -> int:
    from router.practices.capacity_report import as_json, as_text, capacities_of
    from router.practices.model_layers import UnknownArchitecture, model_layers

    try:
        config, notes = _read_config(arguments.config)
        dtypes = ("fp8",) if arguments.kv_cache_dtype == "fp8" else ("auto", "fp8")
        gpus = arguments.tensor_parallel_size
        found = [model_layers(config, kv_dtype=dtype, gpus=gpus) for dtype in dtypes]
        # A checkpoint may say itself that its cache is fp8.
        kinds = list({layers.kv_dtype: layers for layers in reversed(found)}.values())[::-1]
        memory, memory_notes = _memory(arguments, config)
        question = _question(arguments, config)
    except _AskedWrongly as error:
        return _refuse(str(error))
    except UnknownArchitecture as error:
        return _refuse(
            f"{arguments.config}: {error}. vLLM says at its start how much its cache holds: 'GPU KV"
            " cache size: N tokens'"
        )
    capacities = capacities_of(kinds, memory.kv_bytes, question)
    assumed = [*notes, *memory_notes, *kinds[0].assumed]
    told = (str(config.get("model_type")), kinds[0], memory, question, capacities, assumed)
    if arguments.json:
        print(json.dumps(as_json(*told)))
    else:
        print("\n".join(as_text(*told)))
    if not any(each.blocks for each in capacities):
        print(
            "pointsman capacity: not one block fits: give more memory, or more GPUs with"
            " --tensor-parallel-size",
            file=sys.stderr,
        )
        return 1
    return 0


def _read_config(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    """Of the language model, with the defaults of its class where there is one."""
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            raw = json.loads(opened.read(_CONFIG_BYTES_MAX))
    except OSError as error:
        raise _AskedWrongly(f"--config {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _AskedWrongly(f"--config {file}: not JSON: its bytes are no UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _AskedWrongly(f"--config {file}: not JSON: {error.msg}, {where}") from None
    except RecursionError:
        raise _AskedWrongly(f"--config {file}: nested too deep") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise _AskedWrongly(f"--config {file}: no model's config.json: it has no model_type")
    return _completed(file, raw)


def _completed(file: Path, raw: dict[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    # What transformers says by itself is that it has no PyTorch, and it needs no network.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import CONFIG_MAPPING

    name = raw["model_type"]
    nested = raw.get("text_config")
    inner: dict[str, Any] = nested if isinstance(nested, dict) else {}
    # What the whole model has, where its language model says nothing of its own.
    outer = {key: raw[key] for key in ("quantization_config", "dtype", "torch_dtype") if key in raw}
    if name not in CONFIG_MAPPING:
        return outer | (inner or raw), [
            f"transformers knows no model_type {name!r}: its fields are taken as they stand, each"
            " layer with keys and values"
        ]
    try:
        config = CONFIG_MAPPING[name](**{k: v for k, v in raw.items() if k != "model_type"})
        made = config.get_text_config().to_dict()
    except Exception as error:  # Each of its classes checks with exceptions of its own.
        text = " ".join(str(error).split())
        raise _AskedWrongly(f"--config {file}: transformers refuses it: {text}") from None
    told = outer | (inner or raw)
    return made | {k: told[k] for k in _OF_THE_FILE if told.get(k) is not None}, []


def _memory(arguments: argparse.Namespace, config: Mapping[str, Any]) -> tuple["Memory", list[str]]:
    from router.practices.capacity_report import Memory

    given = (arguments.gpu_memory, arguments.kv_memory)
    if given.count(None) != 1:
        raise _AskedWrongly("give --gpu-memory SIZE, or --kv-memory SIZE if you know it")
    if arguments.kv_memory is not None:
        others = ("gpu_memory_utilization", "weights", "overhead")
        useless = [name for name in others if getattr(arguments, name) is not None]
        if useless:
            flag = useless[0].replace("_", "-")
            raise _AskedWrongly(f"--{flag} is of --gpu-memory: --kv-memory is what is left")
        return Memory(arguments.kv_memory), []
    weights, notes = _weights(arguments, config)
    share = arguments.gpu_memory_utilization or _UTILIZATION
    if arguments.overhead is None:
        notes.append(f"{_OVERHEAD} on each GPU for everything else (--overhead)")
    overhead = parse_size(_OVERHEAD) if arguments.overhead is None else arguments.overhead
    on_each = weights // arguments.tensor_parallel_size
    left = int(arguments.gpu_memory * share) - on_each - overhead
    return Memory(max(0, left), arguments.gpu_memory, share, on_each, overhead), notes


def _weights(arguments: argparse.Namespace, config: Mapping[str, Any]) -> tuple[int, list[str]]:
    """In bytes, of the whole model, and how they are known."""
    from router.practices.model_weights import UnknownWeights, weight_bytes

    if arguments.weights is not None:
        return arguments.weights, []
    path: Path = arguments.config
    folder = path if path.is_dir() else path.parent
    files = [file.stat().st_size for file in sorted(folder.glob("*.safetensors"))]
    if files:
        return sum(files), []
    try:
        estimate = weight_bytes(config)
    except UnknownWeights as error:
        raise _AskedWrongly(f"the weights' size is not known: {error}; give --weights") from None
    return estimate, [f"weights of {shown_size(estimate)}, estimated (--weights)"]


def _question(arguments: argparse.Namespace, config: Mapping[str, Any]) -> "Question":
    from router.practices.capacity_report import Question

    longest = arguments.max_model_len or config.get("max_position_embeddings")
    if not isinstance(longest, int):
        raise _AskedWrongly("config.json does not say how long a request may be: --max-model-len")
    shape = _shape(arguments)
    if shape is not None and shape.session_tokens > longest:
        raise _AskedWrongly(f"--session-tokens is more than a request may have: {longest:,}")
    return Question(
        block_size=arguments.block_size,
        seqs_max=arguments.max_num_seqs,
        model_tokens_max=longest,
        batched_tokens_max=arguments.max_num_batched_tokens,
        shape=shape,
        load=_load(arguments),
    )


def _shape(arguments: argparse.Namespace) -> "Shape | None":
    from router.practices.capacity import Shape

    if arguments.session_tokens is None:
        if arguments.shared_tokens is not None:
            raise _AskedWrongly("--shared-tokens are some of a session's: give --session-tokens")
        return None
    shared = arguments.shared_tokens or 0
    if shared > arguments.session_tokens:
        raise _AskedWrongly("--shared-tokens are some of --session-tokens, and cannot be more")
    return Shape(arguments.session_tokens, shared)


def _load(arguments: argparse.Namespace) -> "Load | None":
    from router.practices.capacity import Load

    given = (arguments.requests_per_s, arguments.new_tokens)
    if given == (None, None):
        return None
    if None in given or arguments.session_tokens is None:
        raise _AskedWrongly("--requests-per-s, --new-tokens and --session-tokens go together")
    return Load(*given)


def _refuse(text: str) -> int:
    print(f"pointsman capacity: {text}", file=sys.stderr)
    return 2


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _share(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of 1, such as 0.9")
    return value


def _rate(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of requests, such as 2.5")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0
