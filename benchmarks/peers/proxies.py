"""A shell: what relays, each as its users start it, in front of the same engines.

* ``pointsman``: `pointsman serve`, router and indexer in one process, one log line per request.
  With the policy ``prefix`` it renders, tokenizes and hashes every prompt and asks its index; with
  ``round_robin`` it has no tokenizer, and does not look at prompts. Either way it reads the usage
  out of every answer.
* ``vllm-router``, ``sglang-router``: parse a body and write it anew. ``round_robin`` looks no
  further, ``cache_aware`` walks a tree of the characters of earlier prompts; neither tokenizes nor
  follows events. Log lines only of warnings.
* ``aiohttp``: copies (see ``bare``). ``nginx``: copies, one worker, keeps connections to the
  engines, buffers no answer, writes no access log.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.data import TOKENIZER_DIRECTORY
from benchmarks.peers.engine import POOL_BLOCKS, Engine
from benchmarks.peers.figures import OURS, NotMeasured
from benchmarks.peers.installing import installed
from benchmarks.peers.running import Program, answers, free_port, running

Proxy = Callable[[Sequence[Engine]], AbstractContextManager[Program]]
OURS_PREFIX = f"{OURS} prefix"
OURS_ROUND_ROBIN = f"{OURS} round_robin"
BARE = "aiohttp pass-through"

_NGINX = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr error;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  upstream engines { SERVERS keepalive 64; }
  server {
    listen 127.0.0.1:PORT;
    keepalive_requests 1000000;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
"""


@contextmanager
def pointsman(policy: str, engines: Sequence[Engine]) -> Iterator[Program]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pointsman.toml"
        file.write_text(_pointsman_config(policy, port, engines))
        serve = ("serve", "--config", str(file), "--no-data")
        command = [sys.executable, "-m", "router.main", *serve]
        with running(command, port, answers("/ready")) as program:
            yield program


def _pointsman_config(policy: str, port: int, engines: Sequence[Engine]) -> str:
    sections = [
        f'[router]\nlisten = "127.0.0.1:{port}"\npolicy = "{policy}"',
        '[admin]\nlisten = "127.0.0.1:0"',
        '[http]\nlisten = "127.0.0.1:0"',
        '[grpc]\nlisten = "127.0.0.1:0"',
    ]
    if policy == "prefix":
        # With a tokenizer every policy hashes prompts, to predict what will be cached.
        sections.append(f"[pools.default]\ntokenizer = {json.dumps(str(TOKENIZER_DIRECTORY))}")
    for number, engine in enumerate(engines, 1):
        keys = {
            "name": f"replica-{number}",
            "url": engine.url,
            "event_endpoint": engine.event_endpoint,
            "replay_endpoint": engine.replay_endpoint,
            "blocks": POOL_BLOCKS,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        sections.append("\n".join(["[[replicas]]", *lines]))
    return "\n\n".join(sections) + "\n"


@contextmanager
def vllm_router(policy: str, engines: Sequence[Engine]) -> Iterator[Program]:
    command = [str(installed("vllm-router") / "bin" / "vllm-router")]
    flags = ["--log-level", "warning", "--worker-startup-check-interval", "1"]
    with _rust_router([*command, *flags], policy, engines) as program:
        yield program


@contextmanager
def sglang_router(policy: str, engines: Sequence[Engine]) -> Iterator[Program]:
    command = [str(installed("sglang-router") / "bin" / "sglang-router"), "launch"]
    flags = ["--log-level", "warn", "--worker-startup-check-interval", "1"]
    with _rust_router([*command, *flags], policy, engines) as program:
        yield program


@contextmanager
def _rust_router(
    command: Sequence[str], policy: str, engines: Sequence[Engine]
) -> Iterator[Program]:
    """They share their flags, since one was made out of the other."""
    port = free_port()
    listening = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    workers = ["--policy", policy, "--worker-urls", *(engine.url for engine in engines)]
    with running([*command, *listening, *workers], port, answers("/readiness")) as program:
        yield program


@contextmanager
def bare(engines: Sequence[Engine]) -> Iterator[Program]:
    port = free_port()
    urls = [engine.url for engine in engines]
    command = [sys.executable, "-m", "benchmarks.peers.bare", str(port), *urls]
    with running(command, port, answers("/health")) as program:
        yield program


@contextmanager
def nginx(engines: Sequence[Engine]) -> Iterator[Program]:
    path = shutil.which("nginx")
    if path is None:
        raise NotMeasured("no nginx on the PATH")
    port = free_port()
    servers = " ".join(f"server {engine.url.removeprefix('http://')};" for engine in engines)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nginx.conf"
        file.write_text(_NGINX.replace("SERVERS", servers).replace("PORT", str(port)))
        # Its own idea of where its files are is compiled in.
        command = [path, "-p", folder, "-c", str(file), "-e", "stderr"]
        with running(command, port, answers("/health")) as program:
            yield program


PROXIES: Mapping[str, Proxy] = {
    OURS_PREFIX: partial(pointsman, "prefix"),
    OURS_ROUND_ROBIN: partial(pointsman, "round_robin"),
    "vllm-router round_robin": partial(vllm_router, "round_robin"),
    "vllm-router cache_aware": partial(vllm_router, "cache_aware"),
    "sglang-router round_robin": partial(sglang_router, "round_robin"),
    "sglang-router cache_aware": partial(sglang_router, "cache_aware"),
    BARE: bare,
    "nginx": nginx,
}
