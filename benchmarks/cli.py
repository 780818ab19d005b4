"""A shell: the subcommands of `benchmarks`, and the process that each of them is.

Each parser sets ``run``, a function of the parsed arguments that returns the exit status.
"""

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks.data import TOKENIZER_DIRECTORY
from benchmarks.demo_fleet import DemoSettings
from benchmarks.sim.cost import COST_MODELS, CostPace, Pace, Pacing
from benchmarks.sim.endpoints import PublisherSettings, offset_endpoint
from benchmarks.sim.replica import ReplicaSettings
from benchmarks.sim.wire import VLLM_VERSIONS
from proto.blockhash import ALGORITHMS

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

_TOKENIZER_HELP = "folder with tokenizer.json and template (a small one of its own)"

_SIM_EXAMPLE = """\
examples: as fast as it goes, on ports of its own; and as slow as a real system, ten times faster

  pointsman sim --port 8001 --event-port 5557 --replay-port 5567 --data-parallel-size 2 \\
      --vllm-version 0.31 --blocks 512 --lora sql=/adapters/sql
  pointsman sim --cost-model qwen3-32b-h100-fp8 --speedup 10 --blocks 18750

It answers /v1/chat/completions, /v1/completions, /tokenize, /detokenize, /v1/models and /health as
vLLM does, always with cached_tokens; POST /sim/fault makes it misbehave. Prints one JSON line when
it is ready and runs until SIGTERM or SIGINT.
"""


def add_commands(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    """Declare every subcommand of this package."""
    parser = subcommands.add_parser(
        "sim",
        help="run a simulated vLLM replica",
        description="A replica that caches, evicts and publishes KV events as vLLM does.",
        epilog=_SIM_EXAMPLE,
        usage="%(prog)s [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_sockets(parser)
    _add_engine(parser)
    _add_time(parser)
    parser.set_defaults(run=run_sim)
    _add_demo(subcommands)


def _add_demo(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "demo",
        help="compare round-robin with routing by prefix, on this machine",
        description="Start simulated replicas and `pointsman serve`, send the same conversations of"
        " agents with each policy, and print a table. Takes under a minute.",
    )
    add, default = parser.add_argument, DemoSettings()
    add("--replicas", type=_positive, default=default.replicas, help="(%(default)s)")
    add("--agents", type=_positive, default=default.agents, help="at once (%(default)s)")
    add("--turns", type=_positive, default=default.turns, help="of each agent (%(default)s)")
    add("--seed", type=_count, default=default.seed, help="of the conversations (%(default)s)")
    add("--blocks", type=_positive, default=default.blocks, help="per replica (%(default)s)")
    add("--speedup", type=_duration, default=default.speedup, help="of replicas (%(default)s)")
    parser.set_defaults(run=run_the_demo)


def run_the_demo(arguments: argparse.Namespace) -> int:
    # Imported here, as in `sim`: servers and their clients are nothing that `--help` needs.
    from benchmarks.demo import run_demo

    chosen = {field.name for field in dataclasses.fields(DemoSettings)} & vars(arguments).keys()
    return run_demo(DemoSettings(**{name: getattr(arguments, name) for name in chosen}))


def run_sim(arguments: argparse.Namespace) -> int:
    """Serve until a signal; 2 where the flags make no sense, 1 where a port is taken or
    the tokenizer is none."""
    import uvloop

    try:
        settings, events = _replica_settings(arguments), _publisher_settings(arguments)
        pacing = _pacing(arguments)
        if not (arguments.tokenizer / "tokenizer.json").is_file():
            raise ValueError(f"--tokenizer {arguments.tokenizer}: no tokenizer.json there")
    except ValueError as error:
        print(f"pointsman sim: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve_sim(settings, events, pacing, arguments))
    except (OSError, ValueError) as error:
        print(f"pointsman sim: {error}", file=sys.stderr)
        return 1
    return 0


def _add_sockets(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to bind; 0.0.0.0 for all (%(default)s)")
    add("--port", type=_port, default=8000, help="HTTP port, 0 for any (%(default)s)")
    add("--event-port", type=_port, default=5557, help="of rank 0, 0 for any (%(default)s)")
    add("--replay-port", type=_port, default=5657, help="of rank 0, 0 for any (%(default)s)")
    add("--event-endpoint", help="publish here instead, by vLLM's rules: tcp://HOST:PORT connects")
    add("--topic", default="", help="of every frame (empty)")
    add("--buffer-steps", type=_positive, default=10_000, help="batches kept (%(default)s)")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="sim", help="served model name (%(default)s)")
    add("--lora", action="append", default=[], metavar="NAME=PATH", help="adapter; repeatable")
    add("--blocks", type=_positive, default=1024, help="per rank, null block too (%(default)s)")
    add("--block-size", type=_positive, default=16, help="tokens (%(default)s)")
    add("--algorithm", choices=ALGORITHMS, default="sha256", help="of hashes (%(default)s)")
    add("--hash-seed", default="0", help='PYTHONHASHSEED, or "none" for unset (%(default)s)')
    add("--vllm-version", choices=VLLM_VERSIONS, default="0.33", help="to imitate (%(default)s)")
    hashes = parser.add_mutually_exclusive_group()
    hashes.add_argument("--int-hashes", dest="int_hashes", action="store_true", default=True)
    hashes.add_argument("--bytes-hashes", dest="int_hashes", action="store_false")
    add("--lookahead", type=_count, default=0, help="tokens hashed ahead, 0.33 (%(default)s)")
    add("--data-parallel-size", type=_positive, default=1, help="ranks (%(default)s)")
    add("--step-tokens-max", type=_positive, help="tokens (2048; with a cost model 8192)")
    add("--sequences-max", type=_positive, default=128, help="running at once (%(default)s)")
    add("--max-model-len", type=_positive, help="prompt and answer, tokens (what the pool holds)")
    add("--tokenizer", type=Path, default=TOKENIZER_DIRECTORY, metavar="DIR", help=_TOKENIZER_HELP)


def _add_time(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--step-ms", type=_duration, help="time a step takes (0)")
    add("--token-us", type=_duration, help="and each token in it (0)")
    add("--cost-model", choices=COST_MODELS, metavar="NAME", help=", ".join(COST_MODELS))
    add("--speedup", type=_duration, help="of the cost model (1)")


def _replica_settings(arguments: argparse.Namespace) -> ReplicaSettings:
    return ReplicaSettings(
        model=arguments.model,
        vllm_version=arguments.vllm_version,
        algorithm=arguments.algorithm,
        hash_seed=None if arguments.hash_seed == "none" else arguments.hash_seed,
        block_size=arguments.block_size,
        lookahead=arguments.lookahead,
        num_blocks=arguments.blocks,
        data_parallel_size=arguments.data_parallel_size,
        int_hashes=arguments.int_hashes,
        step_tokens_max=arguments.step_tokens_max or (8192 if arguments.cost_model else 2048),
        sequences_max=arguments.sequences_max,
        loras=dict(_lora(text) for text in arguments.lora),
        model_tokens_max=arguments.max_model_len,
    )


def _pacing(arguments: argparse.Namespace) -> Pacing:
    by_hand = arguments.step_ms is not None or arguments.token_us is not None
    if arguments.cost_model is None:
        if arguments.speedup is not None:
            raise ValueError("--speedup is of a --cost-model")
        return Pace((arguments.step_ms or 0) / 1e3, (arguments.token_us or 0) / 1e6)
    if by_hand:
        raise ValueError("--cost-model stands in the place of --step-ms and --token-us")
    speedup = 1.0 if arguments.speedup is None else arguments.speedup
    return CostPace(COST_MODELS[arguments.cost_model], speedup)


def _publisher_settings(arguments: argparse.Namespace) -> PublisherSettings:
    ranks, ports = arguments.data_parallel_size, (arguments.event_port, arguments.replay_port)
    if not arguments.event_endpoint and all(ports) and abs(ports[0] - ports[1]) < ranks:
        raise ValueError(f"--event-port and --replay-port must be {ranks} apart: one per rank")
    host = "*" if arguments.host == "0.0.0.0" else arguments.host
    settings = PublisherSettings(
        endpoint=arguments.event_endpoint or f"tcp://{host}:{arguments.event_port}",
        replay_endpoint=f"tcp://{host}:{arguments.replay_port}",
        topic=arguments.topic,
        buffer_steps=arguments.buffer_steps,
        bind=None if arguments.event_endpoint else True,
    )
    for endpoint in filter(None, (settings.endpoint, settings.replay_endpoint)):
        offset_endpoint(endpoint, ranks - 1)
    return settings


async def _serve_sim(
    settings: ReplicaSettings,
    events: PublisherSettings,
    pacing: Pacing,
    arguments: argparse.Namespace,
) -> None:
    # transformers takes seconds to import, which no other subcommand should pay, and warns that it
    # cannot run models.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from benchmarks.sim.openai_api import create_openai_app
    from benchmarks.sim.prompts import PromptMaker
    from benchmarks.sim.server import serve
    from benchmarks.sim.simulator import Simulator

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    prompts = PromptMaker(arguments.tokenizer)
    # What the library has made stays; a collection that looks through it stops steps for 50 ms.
    gc.collect()
    gc.freeze()
    settings = dataclasses.replace(settings, next_token=prompts.next_token())
    simulator = Simulator(settings, events, pacing)
    host = arguments.host
    app = create_openai_app(simulator, prompts)
    runner, bound_port = await serve(app, host, arguments.port)
    ready = {
        "url": f"http://{host}:{bound_port}",
        "event_endpoints": [publisher.endpoint for publisher in simulator.publishers],
        "replay_endpoints": [publisher.replay_endpoint for publisher in simulator.publishers],
    }
    print(json.dumps(ready), flush=True)
    await stop.wait()
    await runner.cleanup()


def _lora(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise ValueError(f"--lora {text!r}: expected NAME=PATH")
    return name, path


def _port(text: str) -> int:
    return _whole_number(text, 0, 0xFFFF)


def _positive(text: str) -> int:
    return _whole_number(text, 1, 2**31)


def _count(text: str) -> int:
    return _whole_number(text, 0, 2**31)


def _duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration")
    return value


def _whole_number(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return int(text)
