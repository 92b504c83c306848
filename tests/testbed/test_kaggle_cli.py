"""The stand-in for Kaggle is true enough for the official CLI: each command that we rely on completes against it."""

import pytest
from testbed.cache import kaggle_cli
from testbed.client import missing
from testbed.kaggle_cli import KaggleCli, write_dataset, write_kernel
from testbed.kaggle_service import KaggleService
from testbed.sshd import MissingPartError

FIRST = "2.2.4"
CASES = [(FIRST, "key"), ("2.2.5", "token")]
"""Versions of the CLI, each with the way to log in that it shows. 2.2.5 is skipped where its certifi cannot be installed."""
LOGINS = {
    "key": {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "key-of-alice"},
    "token": {"KAGGLE_API_TOKEN": "KGAT_alice"},
}
SCRIPT = """
import os, pathlib, sys
data = next(pathlib.Path("/kaggle/input").rglob("rows.txt")).read_text()
print("read", data, flush=True)
print("a warning", file=sys.stderr, flush=True)
os.makedirs("deep")
for number in range(25):
    pathlib.Path(f"deep/{number}.bin").write_bytes(bytes([number]) * 100_000)
"""

pytestmark = pytest.mark.testbed


@pytest.fixture
def service(tmp_path):
    with KaggleService(tmp_path / "service") as service:
        service.account()
        yield service


@pytest.mark.parametrize(("version", "login"), CASES)
def test_a_dataset_and_a_kernel_from_push_to_delete(version, login, service, tmp_path):
    """create, version, push, status, logs, output, files, quota, delete: what comes back is what the script wrote."""
    try:
        python = kaggle_cli(version)
    except MissingPartError as error:
        missing(str(error)) if version == FIRST else pytest.skip(f"kaggle {version}: {error}")
    cli = KaggleCli(python, service, tmp_path / "home", LOGINS[login])
    write_dataset(tmp_path / "data", "alice/some-rows", {"rows.txt": b"first"})
    assert "successful" in cli.run("datasets", "create", "-p", str(tmp_path / "data"))
    write_dataset(tmp_path / "data", "alice/some-rows", {"rows.txt": b"second"})
    assert "being created" in cli.run("datasets", "version", "-p", str(tmp_path / "data"), "-m", "more")
    assert "ready" in cli.run("datasets", "status", "alice/some-rows")

    write_kernel(tmp_path / "job", "alice/launch-toy-1", SCRIPT, dataset_sources=["alice/some-rows"])
    pushed = cli.run(
        "kernels", "push", "-p", str(tmp_path / "job"), "-t", "60", "--accelerator", "NvidiaTeslaT4"
    )
    assert "version 1 successfully pushed" in pushed
    session = service.wait_for("alice/launch-toy-1", "COMPLETE", "ERROR")
    assert 'COMPLETE"' in cli.run("kernels", "status", "alice/launch-toy-1"), session.log
    followed = cli.run("kernels", "logs", "alice/launch-toy-1", "--follow")
    assert "read second" in followed
    assert "a warning" in followed
    cli.run("kernels", "output", "alice/launch-toy-1", "-p", str(tmp_path / "out"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "out" / "deep").iterdir()}
    assert files == {f"{number}.bin": bytes([number]) * 100_000 for number in range(25)}
    assert "deep/0.bin" in cli.run("kernels", "files", "alice/launch-toy-1")
    assert "30.00h" in cli.run("quota")
    cli.run("kernels", "delete", "alice/launch-toy-1", "--yes")
    cli.run("datasets", "delete", "alice/some-rows", "--yes")
    assert not service.state.kernels
    assert not service.state.datasets

    pushes = [line for line in service.calls("SaveKernel") if line["push"]]
    assert [line["push"] for line in pushes] == ["alice/launch-toy-1/1"]
    assert {line["auth"] for line in pushes} == {"basic" if login == "key" else "bearer"}
    assert not [line for line in service.calls() if line["status"] >= 500]
