"""The committed gRPC stubs belong to the committed contract."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
STUBS = ("indexer_pb2.py", "indexer_pb2.pyi", "indexer_pb2_grpc.py", "indexer_pb2_grpc.pyi")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make proto` would write."""
    out = tmp_path_factory.mktemp("generated")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc"):
        command.append(f"--plugin={name}={BIN / name}")
    command += [f"--{kind}_out={out}" for kind in ("python", "grpc_python")]
    command += [f"--{kind}_out=quiet:{out}" for kind in ("mypy", "mypy_grpc")]
    subprocess.run([*command, "proto/indexer.proto"], cwd=ROOT, check=True)
    return out / "proto"


@pytest.mark.parametrize("name", STUBS)
def test_stubs_are_fresh(generated: Path, name: str) -> None:
    """Generating again changes nothing; where it does, run `make proto` and commit."""
    assert (ROOT / "proto" / name).read_bytes() == (generated / name).read_bytes()
