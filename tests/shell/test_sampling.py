"""Samples on disk: whole lines, bounded folders, and no request that pays for them."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from router.config import SampleConfig
from router.openai import CHAT_PATH, ParsedRequest, parse_request
from router.relay_contract import RelayResult
from router.sample_files import SampleFiles
from router.sampling import Sampler
from router.usage import Usage
from tests.processes import until

ANSWERED = RelayResult(outcome="ok", status=200, usage=Usage(100, 64, 5))


def chat(text: str) -> ParsedRequest:
    body = {"messages": [{"role": "user", "content": text}]}
    return parse_request(CHAT_PATH, json.dumps(body).encode(), {})


def config(folder: Path, **others: Any) -> SampleConfig:
    return SampleConfig(folder=str(folder), share=1.0, **others)


def lines(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_what_was_relayed_is_written_with_what_is_known_of_it(tmp_path: Path) -> None:
    """In the order of the answers, in files for the owner alone."""
    folder = tmp_path / "made" / "here"
    sampler = Sampler(config(folder))
    for text in ("one", "two"):
        sampler.offer(chat(text), "a", 48, ANSWERED)
    sampler.offer(chat("gone"), "b", None, RelayResult(outcome="client_gone"))
    sampler.offer(chat("failed"), "b", None, RelayResult(outcome="upstream_error", status=502))
    sampler.close()
    written = lines(folder)
    said = [line["body"]["messages"][0]["content"] for line in written]
    assert said == ["one", "two", "gone"] and sampler.counts["written"] == 3
    first = written[0]
    assert (first["prompt_tokens"], first["cached_tokens"], first["predicted"]) == (100, 64, 48)
    assert first["replica"] == "a" and first["time"] > 1.7e9 and first["path"] == CHAT_PATH
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_folder_never_holds_more_than_it_may(tmp_path: Path) -> None:
    """The oldest files go; what is there is whole, and is the newest; other files stay."""
    (tmp_path / "other.jsonl").write_text("mine\n")
    files = SampleFiles(str(tmp_path), file_bytes_max=1_000, bytes_max=4_000)
    for number in range(200):
        files.append(b'{"n": %d, "x": "%s"}\n' % (number, b"y" * 80))
        mine = list(tmp_path.glob("samples-*"))
        assert sum(file.stat().st_size for file in mine) <= 4_000
        assert all(file.stat().st_size <= 1_000 for file in mine)
    files.close()
    numbers = [
        json.loads(line)["n"]
        for file in sorted(tmp_path.glob("samples-*"))
        for line in file.read_text().splitlines()
    ]
    assert numbers == list(range(numbers[0], 200)) and len(numbers) > 20
    assert (tmp_path / "other.jsonl").read_text() == "mine\n"


def test_more_than_the_disk_keeps_up_with_is_dropped(tmp_path: Path) -> None:
    """What waits is bounded in bytes; the rest is counted, and no offer fails."""
    sampler = Sampler(config(tmp_path), waiting_bytes_max=10_000)
    for number in range(50):
        sampler.offer(chat("x" * 20_000 + str(number)), "a", None, ANSWERED)
    sampler.offer(chat("small"), "a", None, ANSWERED)
    sampler.close()
    assert sampler.counts["overload"] == 50 and sampler.counts["written"] == 1


def test_a_folder_that_goes_away_costs_samples_alone(tmp_path: Path) -> None:
    """They are counted; when the folder is back, writing goes on."""
    folder = tmp_path / "samples"
    sampler = Sampler(config(folder))
    shutil.rmtree(folder)
    sampler.offer(chat("lost"), "a", None, ANSWERED)
    until(lambda: sampler.counts["unwritable"] == 1, "the loss is counted")
    folder.mkdir()
    sampler.offer(chat("kept"), "a", None, ANSWERED)
    sampler.close()
    assert [line["body"]["messages"][0]["content"] for line in lines(folder)] == ["kept"]


def test_a_line_that_fits_no_file_is_refused(tmp_path: Path) -> None:
    """Else one request could break the bound."""
    files = SampleFiles(str(tmp_path), file_bytes_max=1_000, bytes_max=4_000)
    with pytest.raises(OSError, match="too long"):
        files.append(b"x" * 1_001)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A write that ends in the middle is taken back, so that the file can be read."""
    program = (
        "import resource, sys\n"
        "from router.sample_files import SampleFiles\n"
        "files = SampleFiles(sys.argv[1], 10**6, 10**7)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1050, 1050))\n"
        "failed = 0\n"
        "for number in range(30):\n"
        "    try:\n"
        "        files.append(b'x' * 99 + b'\\n')\n"
        "    except OSError:\n"
        "        failed += 1\n"
        "print(failed)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    (file,) = tmp_path.iterdir()
    text = file.read_bytes()
    assert int(done.stdout) == 20 and len(text) == 1000 and text.endswith(b"\n")
    assert all(len(line) == 99 for line in text.splitlines())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    """Before anything is served."""
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        Sampler(config(tmp_path))
    tmp_path.chmod(0o700)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """Before anything is served."""
    (tmp_path / "samples").write_text("")
    with pytest.raises(OSError, match="exists"):
        Sampler(config(tmp_path / "samples"))
