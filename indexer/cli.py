"""A shell: the subcommands of `indexer`, and the process that each of them is.

Each parser sets ``run``, a function of the parsed arguments that returns the exit status: 2 where
something was asked for wrongly, 1 where it failed.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator

from indexer.arguments import print_help, seconds
from indexer.config import PASSWORD_VARIABLE, parse_config
from indexer.index_command import add_index
from indexer.inspection import NotACapture, inspect
from proto.config_file import ConfigError

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

# A frame is at most 64 MiB (indexer.subscriber) and a line writes it as hex digits.
LINE_BYTES_MAX = 160 * 2**20

_INDEXER_EXAMPLE = """\
example: pointsman indexer --config indexer.toml, with two replicas that say where their events are

  [[replicas]]
  name = "a"
  url = "http://10.0.0.7:8000"

  [[replicas]]
  name = "b"
  url = "http://10.0.0.8:8000"

GET /replicas tells what is known of each, GET /metrics the same for Prometheus (127.0.0.1:9464
unless http.listen says otherwise). A key that the replicas ask for is read from the environment,
VLLM_API_KEY.
"""

_RECORD_EXAMPLE = """\
example: record what a replica has published since it started, and for one more minute

  pointsman events record --replica http://10.0.0.7:8000 --out replica.jsonl --seconds 60

Where the engine connects to an address instead of listening (--kv-events-config without a "*" in
its endpoint), give --bind with that address; rank r uses its port + r. A key that the replica asks
for is read from the environment, VLLM_API_KEY.
"""

_INSPECT_EXAMPLE = """\
example: does pointsman compute the same block hashes as this engine?

  pointsman events inspect replica.jsonl

Prints one JSON object per file. The engine is understood when "not_reproduced" is 0 and
"reproduced" equals "stored".
"""


def add_commands(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    """Declare every subcommand of this package."""
    _add_indexer(subcommands)
    _add_events(subcommands)
    add_index(subcommands)


def _add_indexer(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "indexer",
        help="follow the replicas' KV events and serve the index",
        description="Follow the replicas' KV events and keep an index of the blocks each holds.",
        epilog=_INDEXER_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML, see the example")
    parser.set_defaults(run=run_indexer)


def _add_events(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    events = subcommands.add_parser(
        "events",
        help="record and inspect an engine's KV events",
        description="Record what a vLLM replica publishes, or inspect such a recording.",
    )
    events.set_defaults(run=lambda arguments: print_help(events))
    commands = events.add_subparsers(title="commands", metavar="COMMAND")
    _add_record(commands)
    _add_inspect(commands)


def _add_record(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "record",
        help="write a replica's KV events to a file",
        description="Write a replica's KV events to a file, from the oldest that it can replay.",
        epilog=_RECORD_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--replica", required=True, metavar="URL", help="root of the vLLM server")
    add("--out", required=True, metavar="FILE", help="a new file, JSON lines")
    add("--seconds", type=seconds, metavar="N", help="stop after so long (until Ctrl-C)")
    add("--bind", metavar="ENDPOINT", help="listen here, for engines that connect")
    parser.set_defaults(run=run_record)


def _add_inspect(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "inspect",
        help="say what recordings contain",
        description="Say what recordings contain, and whether their hashes can be reproduced.",
        epilog=_INSPECT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recording, JSON lines")
    parser.add_argument("--hashes", action="store_true", help="list the resident block hashes too")
    parser.set_defaults(run=run_inspect)


def run_indexer(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. What is wrong with the configuration stops it before it runs."""
    # Imported here: an event loop and its servers are nothing that `events inspect` needs.
    import uvloop

    from indexer.app import IndexerApp
    from indexer.listener import ListenError
    from indexer.logs import log_to_stdout

    try:
        with open(arguments.config, "rb") as file:
            config = parse_config(file.read())
    except OSError as error:
        return _refuse(f"{arguments.config}: {error.strerror}")
    except ConfigError as error:
        return _refuse(f"{arguments.config}: {error}")
    key = os.environ.get("VLLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else None
    app = IndexerApp(config, headers, os.environ.get(PASSWORD_VARIABLE))
    log_to_stdout()
    try:
        uvloop.run(app.run())
    except (ListenError, OSError) as error:
        print(f"pointsman indexer: {error}", file=sys.stderr)
        return 1
    return 0


def _refuse(text: str) -> int:
    print(f"pointsman indexer: {text}", file=sys.stderr)
    return 2


def run_record(arguments: argparse.Namespace) -> int:
    """Record until a signal or ``--seconds``."""
    from indexer.recorder import NotRecordable, Recording, RecordingFailed, record

    recording = Recording(arguments.replica, arguments.out, arguments.seconds, arguments.bind)
    try:
        record(recording)
    except RecordingFailed as error:
        print(f"pointsman events record: {error}", file=sys.stderr)
        return 2 if isinstance(error, NotRecordable) else 1
    return 0


def run_inspect(arguments: argparse.Namespace) -> int:
    """One line per file; a file that cannot be read does not keep the others from being."""
    status = 0
    for path in arguments.files:
        try:
            report = inspect(_lines(path), with_hashes=arguments.hashes)
        except OSError as error:
            status = _complain(path, error.strerror or str(error))
        except NotACapture as error:
            status = _complain(path, str(error))
        else:
            print(json.dumps(report), flush=True)
    return status


def _lines(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            if len(line) > LINE_BYTES_MAX:
                raise NotACapture(f"a line of more than {LINE_BYTES_MAX} bytes")
            yield line


def _complain(path: str, text: str) -> int:
    print(f"pointsman events inspect: {path}: {text}", file=sys.stderr)
    return 2
