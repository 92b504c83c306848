"""The worker beside the agent's file: complete or not there, whatever interrupts or competes."""

import io
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from launcher.agent.store import worker_folder
from launcher.transport import agent_file as packing
from launcher.transport.agent_file import agent_file


@pytest.fixture
def agent(tmp_path):
    """An agent's file in a folder of its own."""
    path = tmp_path / "agent" / "agent.pyz"
    path.parent.mkdir()
    path.write_bytes(agent_file().data)
    return path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.py")}


def packed():
    with zipfile.ZipFile(io.BytesIO(agent_file().data)) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if name.startswith("launcher_worker/")
        }


def test_it_is_unpacked_whole_and_can_be_imported(agent, tmp_path):
    """One folder on PYTHONPATH; a `launcher` of the user's own and modules of the same names do not get in the way."""
    folder = worker_folder.unpack(str(agent))
    assert folder == worker_folder.path_of(str(agent))
    assert contents(folder) == packed()
    for name in ("launcher", "guard", "values"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong one')\n")
    code = "import launcher_worker as w; print(w.knobs().peek.precision.mode)"
    environment = {"PYTHONPATH": folder, "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == "fp32\n"


def test_another_worker_gets_another_folder(agent, monkeypatch):
    """The name is that of the content, byte by byte."""
    before = worker_folder.path_of(str(agent))
    members = packed()
    for name in ("launcher_worker/__init__.py", max(members)):
        monkeypatch.setattr(packing, "_worker_members", lambda _folder, name=name: {**members, name: b"#"})
        other = agent.with_name(f"{len(name)}.pyz")
        other.write_bytes(agent_file.__wrapped__().data)
        assert worker_folder.path_of(str(other)) not in (before, "")


def test_a_complete_one_is_left_alone(agent):
    """A training that imports from it never sees it change; caches of the interpreter do not count."""
    folder = Path(worker_folder.unpack(str(agent)))
    (folder / "launcher_worker" / "__pycache__").mkdir(exist_ok=True)
    before = folder.stat()
    worker_folder.unpack(str(agent))
    assert (folder.stat().st_ino, folder.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    "damage",
    ["cut short", "a module is missing", "a module is a folder", "a module is a pipe", "empty", "a file"],
)
@pytest.mark.parametrize("repair", [worker_folder.ensure, worker_folder.unpack])
def test_a_damaged_one_is_replaced(agent, damage, repair):
    """The next contact repairs it, and leaves nothing beside it."""
    folder = Path(worker_folder.unpack(str(agent)))
    module = folder / "launcher_worker" / "pace.py"
    if damage == "cut short":
        module.write_bytes(module.read_bytes()[:100])
    elif damage == "a module is missing":
        module.unlink()
    elif damage == "a module is a folder":
        module.unlink()
        module.mkdir()
    elif damage == "a module is a pipe":
        module.unlink()
        os.mkfifo(module)
    else:
        folder.rename(agent.parent.parent / "moved")
        folder.write_text("") if damage == "a file" else folder.mkdir()
    repair(str(agent))
    assert contents(folder) == packed()
    assert sorted(path.name for path in agent.parent.iterdir()) == ["agent.pyz", folder.name]


def test_damage_of_the_same_size_is_repaired_before_a_run_starts(agent):
    """A mere contact compares sizes and reads no file."""
    module = Path(worker_folder.unpack(str(agent))) / "launcher_worker" / "pace.py"
    module.write_bytes(b"#" * module.stat().st_size)
    worker_folder.ensure(str(agent))
    assert module.read_bytes().startswith(b"##")
    folder = worker_folder.unpack(str(agent))
    assert contents(folder) == packed()


def test_nothing_has_its_name_before_all_of_it_is_on_the_disk(agent, monkeypatch):
    """A crash at any moment before the rename leaves no folder that a training could import from."""
    synced = []
    sync = os.fsync

    def record(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        assert not Path(worker_folder.path_of(str(agent))).exists() or synced[-1] == str(agent.parent)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    worker_folder.unpack(str(agent))
    names = {os.path.basename(path) for path in synced}
    assert {os.path.basename(name) for name in packed()} | {"launcher_worker", "guard", "new"} <= names
    assert synced[-1] == str(agent.parent)


def test_a_full_disk_leaves_nothing_behind(agent, monkeypatch):
    """The error reaches the caller."""

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        worker_folder.unpack(str(agent))
    assert [path.name for path in agent.parent.iterdir()] == ["agent.pyz"]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_several_agents_unpack_at_once(agent, is_damaged):
    """Each returns, and the folder is complete at the end, with nothing beside it."""
    folder = Path(worker_folder.path_of(str(agent)))
    if is_damaged:
        folder.mkdir()
        (folder / "launcher_worker").write_text("")
    start, errors = threading.Barrier(6), []

    def unpack():
        start.wait()
        try:
            worker_folder.unpack(str(agent))
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=unpack) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert contents(folder) == packed()
    assert sorted(path.name for path in agent.parent.iterdir()) == ["agent.pyz", folder.name]


def test_what_a_killed_agent_left_is_swept_when_it_is_old(agent):
    """A fresh one may belong to an agent that is still unpacking."""
    for name, age_s in ((".worker-old", 7200), (".worker-fresh", 0)):
        (agent.parent / name / "new").mkdir(parents=True)
        then_s = os.stat(agent).st_mtime - age_s
        os.utime(agent.parent / name, (then_s, then_s))
    worker_folder.unpack(str(agent))
    assert not (agent.parent / ".worker-old").exists()
    assert (agent.parent / ".worker-fresh").exists()
