"""A shell: the peers' packages from PyPI, pinned, each in a virtual environment of its own.

A folder is kept, and used again while the pin stays the same. They are not the project's
dependencies: nothing else imports them, and their own dependencies would not fit beside ours.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.figures import NotMeasured

PINS: Mapping[str, str] = {
    "ai-dynamo-runtime": "1.6.1",
    "sglang-router": "0.3.2",
    "vllm-router": "0.1.17",
}
DIRECTORY = Path(__file__).resolve().parent.parent.parent / ".cache" / "peers"
# The largest is 80 MB to fetch.
_INSTALL_S_MAX = 600.0
_PIN_FILE = "pointsman-pin.txt"


def installed(name: str, directory: Path = DIRECTORY) -> Path:
    """The folder with the peer's ``bin``. Raises NotMeasured where it cannot be installed."""
    requirement = f"{name}=={PINS[name]}"
    folder = directory / name
    pin = folder / _PIN_FILE
    if pin.is_file() and pin.read_text() == requirement:
        return folder
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".gitignore").write_text("*\n")
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], requirement)
    _run([*_installer(folder), requirement], requirement)
    # Written last: a folder without it is one that was left half done.
    pin.write_text(requirement)
    return folder


def _installer(folder: Path) -> list[str]:
    """uv where this environment has it, since it is ten times as fast; pip otherwise."""
    python, uv = str(folder / "bin" / "python"), Path(sys.executable).parent / "uv"
    if uv.exists():
        return [str(uv), "pip", "install", "--quiet", "--python", python]
    return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _run(command: list[str], requirement: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMeasured(f"{requirement} cannot be installed: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise NotMeasured(f"{requirement} cannot be installed:\n{said}")
