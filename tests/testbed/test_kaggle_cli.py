"""The stand-in for Kaggle is true enough for the official CLI: each command that we rely on completes against it."""

import json
from pathlib import Path

import pytest
from testbed.cache import kaggle_cli
from testbed.client import missing
from testbed.kaggle_cli import KaggleCli, write_dataset, write_kernel
from testbed.kaggle_service import KaggleService
from testbed.missing_part import MissingPartError

from launcher.backends.kaggle.kaggle_kernel import KernelRef, NewKernel
from launcher.backends.kaggle.kaggle_log import follow
from launcher.backends.kaggle.kaggle_service import log_in
from launcher.errors import ServiceError

FIRST = "2.2.4"
KEY, TOKEN = (FIRST, "key"), ("2.2.5", "token")
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


def official(version, service, home, login):
    try:
        python = kaggle_cli(version)
    except MissingPartError as error:
        missing(str(error)) if version == FIRST else pytest.skip(f"kaggle {version}: {error}")
    return KaggleCli(python, service, home, LOGINS[login])


@pytest.mark.long
@pytest.mark.parametrize(("version", "login"), [KEY, TOKEN])
def test_a_dataset_and_a_kernel_from_push_to_delete(version, login, service, tmp_path):
    """create, version, push, status, logs, output, files, quota, delete: what comes back is what the script wrote."""
    cli = official(version, service, tmp_path / "home", login)
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
    assert "alice/launch-toy-1" in cli.run("kernels", "list", "--mine", "--search", "launch-toy")
    assert "30.00h" in cli.run("quota")
    cli.run("kernels", "delete", "alice/launch-toy-1", "--yes")
    cli.run("datasets", "delete", "alice/some-rows", "--yes")
    assert not service.state.kernels
    assert not service.state.datasets

    pushes = [line for line in service.calls("SaveKernel") if line["push"]]
    assert [line["push"] for line in pushes] == ["alice/launch-toy-1/1"]
    assert {line["auth"] for line in pushes} == {"basic" if login == "key" else "bearer"}
    assert not [line for line in service.calls() if line["status"] >= 500]


def bodies(calls):
    """The bodies of some calls by method, sorted, with what a stand-in numbers anew called by one name."""
    found = {}
    for line in calls:
        if "body" in line:
            text = json.dumps(line["body"], sort_keys=True)
            for token in (file["token"] for file in line["body"].get("files", [])):
                text = text.replace(token, "a-blob")
            found.setdefault(line["method"], set()).add(text)
    return found


@pytest.mark.parametrize(("version", "login"), [pytest.param(*KEY, marks=pytest.mark.long), TOKEN])
def test_our_bodies_are_those_of_the_official_cli(version, login, service, tmp_path):
    """Each call that both make has the same route and, but for the order of its fields, the same body."""
    ref, data = KernelRef("alice", "launch-toy-1"), tmp_path / "data"
    cli = official(version, service, tmp_path / "home", login)
    write_dataset(data, "alice/launch-data", {"rows.txt": b"rows", "empty": b""})
    cli.run("datasets", "create", "-p", str(data))
    kind = {"enable_gpu": True, "enable_internet": True, "machine_shape": "NvidiaTeslaT4"}
    sources = {"dataset_sources": ["alice/launch-data"], "kernel_sources": ["alice/launch-toy-0"]}
    models = {"model_sources": ["alice/model/pyTorch/small/1"]}
    write_kernel(tmp_path / "job", str(ref), "print('é')\n", **kind, **sources, **models)
    cli.run("kernels", "push", "-p", str(tmp_path / "job"), "-t", "600")
    service.wait_for(str(ref), "COMPLETE")
    cli.run("kernels", "status", str(ref))
    cli.run("kernels", "logs", str(ref), "--follow")
    cli.run("kernels", "output", str(ref), "-p", str(tmp_path / "out"), "--page-size", "200")
    cli.run("kernels", "pull", str(ref), "-p", str(tmp_path / "pulled"))
    cli.run("quota")
    cli.run("kernels", "delete", str(ref), "--yes")
    cli.run("datasets", "delete", "alice/launch-data", "--yes")
    theirs = service.calls()

    ours = log_in(LOGINS[login], tmp_path, service.base)
    with pytest.raises(ServiceError):
        ours.dataset_status("launch-data")
    ours.create_dataset("launch-data", [ours.upload(data / name) for name in ("rows.txt", "empty")])
    new = NewKernel(
        ref=ref,
        source=Path(tmp_path / "job" / "script.py").read_text(),
        machine="NvidiaTeslaT4",
        timeout_s=600,
        has_internet=True,
        datasets=("alice/launch-data",),
        kernels=("alice/launch-toy-0",),
        models=("alice/model/pyTorch/small/1",),
    )
    ours.push(new)
    service.wait_for(str(ref), "COMPLETE")
    ours.status(ref)
    list(follow(ours, ref))
    list(ours.outputs(ref))
    ours.find(ref)
    ours.quota()
    ours.delete(ref)
    ours.delete_dataset("launch-data")
    mine = service.calls()[len(theirs) :]

    assert bodies(mine) == bodies(theirs)
    assert len(bodies(mine)) == 10 + (login == "token")
    routes = [
        {line["path"].removeprefix("/api") for line in calls if line["method"] != "upload"}
        for calls in (mine, theirs)
    ]
    assert routes[0] == routes[1]
    assert {line["headers"]["Content-Type"] for line in mine if "body" in line} == {"application/json"}
