"""A shell: the subcommand `doctor`.

Whoever composes the commands hands in how chats are tokenized, since that is the router's.
Exceptions for what is asked wrongly are ValueErrors or DiscoveryErrors, whose text is shown.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indexer.config import PASSWORD_VARIABLE, check_redis_url, parse_config
from indexer.sources import DiscoveryError, host_of, parse_endpoint
from proto.config_file import ConfigError

if TYPE_CHECKING:
    from indexer.doctor.examining import Doctor
    from indexer.doctor.finding import Finding
    from indexer.doctor.probes import ChatIds
    from indexer.doctor.targets import Target

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.
# What a configuration file says itself.
_IN_FILE = (
    "model",
    "hash_seed",
    "event_endpoint",
    "replay_endpoint",
    "data_parallel_size",
    "bind",
    "chat_template",
    "default_chat_template_kwargs",
    "exclude_tools_when_tool_choice_none",
)

_EXAMPLE = """\
examples: look at two engines; look closer, with five tiny requests to each (max_tokens 1); and look
at the engines of a configuration file as `pointsman serve` would

  pointsman doctor http://10.0.0.7:8000 http://10.0.0.8:8000
  pointsman doctor http://10.0.0.7:8000 --probe --model /models/Qwen3-32B
  pointsman doctor --config pointsman.toml --probe

Without --probe nothing is sent that an engine computes: it is asked for its version, models, event
sources and metrics, its events are listened to for a second, and what it has kept of them is
replayed (of a busy engine only the last 2,000 batches). With --probe two completions go to each
rank, which announce a block and show whether cached tokens are reported; with --model too, three
chats, whose token ids are compared. Without a MODEL it is the first that the engine serves.

An engine whose event endpoint has no * connects to it instead of listening: --bind listens there
meanwhile (rank r connects to its port + r: give --bind for each). With --config it is events.bind.

vLLM before 0.31 does not tell where its events are: give --event-endpoint and --replay-endpoint, as
the engine is started with them. A key that the engines ask for is read from VLLM_API_KEY.

With --redis, or redis.url in the file, the store of the index is looked at too: whether it can be
written to, its version and its maxmemory-policy. POINTSMAN_REDIS_PASSWORD has its password.

Each finding is ok, a warning, a problem or unknown, and all but the first have a fix. Exit status:
0 without problems (there may be warnings), 1 with some, 2 where it was asked for wrongly.
"""


@dataclass(frozen=True, slots=True)
class Loaders:
    """How chats are tokenized: with the model of the flags, or by pool as a file's text says.

    Both raise ValueError where what is named cannot be loaded.
    """

    of_model: Callable[[argparse.Namespace], "ChatIds"]
    of_pools: Callable[[bytes], "Mapping[str, ChatIds]"]


def add_doctor(
    subcommands: "_Subcommands[argparse.ArgumentParser]", load: Loaders
) -> argparse.ArgumentParser:
    """``load`` is asked where there is a tokenizer; its flags may be added to the parser."""
    parser = subcommands.add_parser(
        "doctor",
        help="say what keeps engines from being followed, and how to fix it",
        description="Look at vLLM engines as pointsman does, and say what is wrong and how to fix"
        " it.",
        usage="%(prog)s (URL [URL ...] | --config FILE) [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("urls", nargs="*", type=_url, metavar="URL", help="root of a vLLM server")
    add("--config", metavar="FILE", help="TOML, as for `pointsman serve`, in place of URLs")
    add("--redis", metavar="URL", help="look at the index's store, too (--config: redis.url)")
    add("--json", action="store_true", help="print one JSON object")
    add("--probe", nargs="?", const="", metavar="MODEL", help="send tiny requests")
    add("--model", metavar="DIR", help="with --probe: tokenizer to compare with the engine's")
    add(
        "--hash-seed", action="append", metavar="SEED", help="PYTHONHASHSEED to try; repeatable (0)"
    )
    add("--bind", action="append", metavar="ENDPOINT", help="listen here for engines; repeatable")
    add("--event-endpoint", metavar="ENDPOINT", help="of rank 0, before vLLM 0.31")
    add("--replay-endpoint", metavar="ENDPOINT", help="likewise")
    add("--data-parallel-size", type=int, metavar="N", help="likewise (as /metrics tells)")
    parser.set_defaults(run=lambda arguments: _run(arguments, load))
    return parser


def _run(arguments: argparse.Namespace, load: "Loaders") -> int:
    # Imported here: sockets are nothing that `--help` needs.
    from indexer.doctor.examining import examine
    from indexer.doctor.findings import findings
    from indexer.doctor.report import as_json, as_text, status_of

    try:
        _check_flags(arguments)
        targets, doctor = _by_file(arguments, load) if arguments.config else _given(arguments, load)
        redis = _redis_url(arguments)
    except (ValueError, DiscoveryError) as error:
        where = f"{arguments.config}: " if isinstance(error, ConfigError) else ""
        print(f"pointsman doctor: {where}{' '.join(str(error).split())}", file=sys.stderr)
        return 2
    exams = examine(targets, doctor)
    urls = [target.url for target in targets]
    reports = list(zip(urls, findings(exams, doctor.asked), strict=True))
    store = [] if redis is None else [_store_report(redis)]
    if arguments.json:
        print(json.dumps(as_json(reports, store)))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n".join(as_text([*reports, *store], colour=colour)))
    return status_of([*reports, *store])


def _redis_url(arguments: argparse.Namespace) -> str | None:
    """Of the flag or the file; a server of our own is as it should be. Raises ConfigError."""
    if arguments.redis is not None:
        check_redis_url(arguments.redis, "--redis")
        return str(arguments.redis)
    if arguments.config is None:
        return None
    with open(arguments.config, "rb") as file:
        redis = parse_config(file.read()).redis
    return redis.url if redis.enabled else None


def _store_report(url: str) -> "tuple[str, list[Finding]]":
    from indexer.doctor.store_examining import examine_store
    from indexer.doctor.store_findings import store_findings

    return url, store_findings(examine_store(url, os.environ.get(PASSWORD_VARIABLE)))


def _check_flags(arguments: argparse.Namespace) -> None:
    """Raises ValueError for flags that do not go together."""
    if arguments.probe is not None and arguments.probe.startswith(("http://", "https://")):
        raise ValueError("--probe took a URL for its model: put it behind the URLs")
    if arguments.config is None:
        if not arguments.urls:
            raise ValueError("give the URL of an engine, or --config FILE")
        if arguments.model is not None and arguments.probe is None:
            raise ValueError("--model compares answers of the engine: give --probe with it")
        return
    if arguments.urls:
        raise ValueError("--config names the engines: leave out URLs")
    for name in _IN_FILE:
        if getattr(arguments, name, None):
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} is in the file of --config: leave it out")


def _by_file(arguments: argparse.Namespace, load: "Loaders") -> "tuple[list[Target], Doctor]":
    """Raises ConfigError and DiscoveryError, and ValueError where the file cannot be read."""
    from indexer.doctor.targets import configured_targets

    try:
        with open(arguments.config, "rb") as file:
            text = file.read()
    except OSError as error:
        raise ValueError(f"{arguments.config}: {error.strerror}") from None
    config = parse_config(text)
    if not config.replicas:
        raise ConfigError("replicas: there are none to look at")
    probing = arguments.probe is not None
    chat_ids = load.of_pools(text) if probing and config.pools else {}
    doctor = _doctor(
        arguments,
        seeds=config.hash_seeds,
        binds=config.events.bind,
        model_given=bool(chat_ids),
    )
    return configured_targets(config, chat_ids), doctor


def _given(arguments: argparse.Namespace, load: "Loaders") -> "tuple[list[Target], Doctor]":
    """Raises ValueError and DiscoveryError."""
    from indexer.doctor.places import ToldEndpoints
    from indexer.doctor.targets import Target

    told = ToldEndpoints(
        arguments.event_endpoint, arguments.replay_endpoint, arguments.data_parallel_size
    )
    for endpoint in arguments.bind or ():
        parse_endpoint(endpoint)
    chat_ids = None if arguments.model is None else load.of_model(arguments)
    doctor = _doctor(
        arguments,
        seeds=arguments.hash_seed or ("0",),
        binds=arguments.bind or (),
        model_given=chat_ids is not None,
    )
    return [Target(url, told, chat_ids=chat_ids) for url in arguments.urls], doctor


def _doctor(
    arguments: argparse.Namespace,
    *,
    seeds: Sequence[str],
    binds: Sequence[str],
    model_given: bool,
) -> "Doctor":
    from indexer.doctor.examining import Doctor
    from indexer.doctor.facts import Asked

    key = os.environ.get("VLLM_API_KEY")
    asked = Asked(
        key_given=bool(key),
        seeds=tuple(seeds),
        probe=arguments.probe is not None,
        model_given=model_given,
        by_file=arguments.config is not None,
    )
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Doctor(asked, headers, arguments.probe or None, tuple(binds))


def _url(text: str) -> str:
    try:
        host_of(text)
    except DiscoveryError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text
