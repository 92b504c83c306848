"""The probe on a host: whatever hangs, lies or is missing there, it answers in time and says what it could not learn."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.client import until

from launcher.agent.cards import nvidia
from launcher.agent.host import model_config, probe_host
from launcher.agent.serving.serve import answer
from launcher.agent.serving.session import ClientSession
from launcher.agent.system import mounts
from launcher.values.facts import Facts

UUID = "GPU-6c1b2a8e-0000-4000-8000-000000000000"
LINE = f"0, {UUID}, NVIDIA TITAN RTX, 7.5, 24576, 580.65.06"


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder of programs before all others on PATH, and a home without any; `put` writes one as a shell script."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))

    def put(name, text, where=folder):
        where.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(f"#!/bin/sh\n{text}\n")
        (where / name).chmod(0o755)
        return where / name

    return put


@pytest.fixture
def root():
    """A root of its own. A socket's path has to be short."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def facts(root, env=None, packages=("pip",)):
    """One probe, as the client reads it."""
    asked = None if packages is None else list(packages)
    return Facts.model_validate(probe_host.probe(root, env, asked), strict=False)


def test_a_probe_tells_host_room_and_interpreter(root):
    """What is told is what the system's own programs say."""
    found = facts(root)
    df = subprocess.run(
        ["df", "--output=fstype,avail,iavail", "-B1", root], capture_output=True, text=True, check=True
    )
    kind, free, inodes = df.stdout.splitlines()[1].split()
    assert found.file_system.kind == kind
    assert found.free_gb == pytest.approx(int(free) / 1e9, abs=0.5)
    assert found.file_system.free_inodes == pytest.approx(int(inodes), rel=0.1)
    assert (found.file_system.error, found.file_system.is_read_only) == (None, False)
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.interpreter.packages.keys() == {"pip"}
    assert os.listdir(root) == []


# cards


@pytest.mark.parametrize(
    ("script", "names", "error"),
    [
        (f"echo '{LINE}'; echo '{LINE.replace('0,', '1,', 1)}'", ["NVIDIA TITAN RTX"] * 2, None),
        (f"echo '{LINE.replace('24576', '[N/A]')}'", ["NVIDIA TITAN RTX"], None),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", [], "(18): Failed to init"),
        ("echo 'GPU is lost. Reboot the system' >&2; exit 15", [], "(15): GPU is lost"),
        ("echo 'No devices were found'; exit 6", [], "(6): No devices"),
        ("echo; echo 'WARNING: infoROM is corrupted at gpu 0000:01'", [], None),
    ],
    ids=["two", "no memory", "no driver", "lost", "none", "noise"],
)  # fmt: skip
def test_what_nvidia_smi_says_is_told(programs, root, script, names, error):
    """Cards where it names them, its own words where it fails."""
    programs("nvidia-smi", script)
    found = facts(root)
    assert [gpu.name for gpu in found.gpus] == names
    assert error is None if found.gpu_error is None else error in found.gpu_error


def test_an_nvidia_smi_that_hangs_costs_its_own_answer_alone(programs, root, monkeypatch):
    """It is ended with all that it started, in its own time, and the rest of the probe is there."""
    monkeypatch.setattr(nvidia, "SMI_TIMEOUT_S", 2)
    pids = programs("nvidia-smi", f"sleep 1000 & echo $! > {root}.pid; wait")
    found = facts(root)
    assert found.gpu_error == "nvidia-smi did not answer in 2 s"
    assert found.interpreter.version
    assert found.file_system.error is None
    sleeper = int(Path(f"{root}.pid").read_text())
    until(lambda: not is_running(sleeper), f"the end of {pids}")
    Path(f"{root}.pid").unlink()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# room


@pytest.mark.parametrize(
    ("option", "fact"), [("ro", "is_read_only"), ("noexec", "is_noexec")], ids=["read-only", "noexec"]
)
def test_how_the_root_is_mounted_is_told(small_disk, option, fact):
    """And a read-only one is found out by writing, in the system's words."""
    assert getattr(facts(str(small_disk)).file_system, fact) is False
    subprocess.run(["mount", "-o", f"remount,{option}", small_disk], check=True)
    found = facts(str(small_disk)).file_system
    assert (getattr(found, fact), found.kind, found.is_shared) == (True, "tmpfs", False)
    assert found.error == ("Read-only file system" if option == "ro" else None)


def test_a_full_disk_is_found_by_writing(small_disk):
    """The bytes or the inodes: the system's words are told, and nothing is left."""
    with (small_disk / "all").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    found = facts(str(small_disk))
    assert found.file_system.error == "No space left on device"
    assert found.room_gb == 0
    assert os.listdir(small_disk) == ["all"]


def test_a_mount_below_a_name_with_a_space_is_found(small_disk):
    """The kernel writes such a name in octal."""
    place = small_disk / "a b"
    place.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", place], check=True)
    try:
        (place / "deep").mkdir()
        assert facts(str(place / "deep")).file_system.kind == "ramfs"
        assert facts(str(small_disk)).file_system.kind == "tmpfs"
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize(
    ("kind", "is_shared"), [("nfs4", True), ("lustre", True), ("gpfs", True), ("fuse.sshfs", True), ("ext4", False)]
)  # fmt: skip
def test_a_network_file_system_is_shared(root, monkeypatch, kind, is_shared):
    """Other machines may see the same files."""
    monkeypatch.setattr(mounts, "mount_of", lambda _path: ("server:/home", kind))
    assert facts(root).file_system.is_shared is is_shared


@pytest.mark.parametrize(
    ("kind", "options", "crosses"),
    [
        ("nfs4", "rw,vers=4.2,local_lock=none", True),
        ("nfs", "rw,nolock", False),
        ("nfs", "rw,vers=3,local_lock=all", False),
        ("lustre", "rw,flock,lazystatfs", True),
        ("lustre", "rw,localflock", False),
        ("lustre", "rw", False),
        ("cifs", "rw,nobrl", False),
        ("gpfs", "rw", True),
        ("fuse.bindfs", "rw", None),
        ("beegfs", "rw", None),
        ("ext4", "rw", False),
        (None, "", None),
    ],
)
def test_whether_other_machines_see_a_lock_is_told_by_kind_and_options(
    root, monkeypatch, kind, options, crosses
):
    """FUSE does not say."""
    monkeypatch.setattr(mounts, "_mount_of", lambda _path: ("server:/home", kind, options.split(",")))
    assert facts(root).file_system.locks_cross is crosses


@pytest.mark.parametrize("call", ["statvfs", "makedirs"])
def test_a_root_that_hangs_costs_its_own_answer_alone(root, monkeypatch, call):
    """As on a mount whose server is gone: the agent's answer comes in its own time and says so."""
    gone = threading.Event()

    def hang(*_, **__):
        gone.wait()
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(probe_host, "PROBE_S", 2)
    monkeypatch.setattr(os, call, hang)
    releases = threading.Timer(
        60, gone.set
    )  # so that an agent that asks elsewhere fails here, and hangs nobody
    releases.start()
    told = answer(ClientSession(root, None), "probe", {"packages": ["pip"]}).values
    is_in_time = not gone.is_set()
    gone.set()
    releases.cancel()
    found = Facts.model_validate(told, strict=False)
    assert is_in_time
    assert found.file_system.error == "did not answer in 2 s"
    assert found.free_gb is None
    assert found.cpus


def test_a_root_that_cannot_be_made_is_told(root):
    """In the system's words; one that is only missing is made."""
    Path(root, "file").touch()
    assert facts(f"{root}/file/root").file_system.error == "Not a directory"
    assert facts(f"{root}/a/b").file_system.error is None
    assert os.listdir(f"{root}/a/b") == []


QUOTA = """echo 'Disk quotas for user u (uid 1000): '
echo '     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace'
echo '      /dev/other  1  2  3  4  5  6'
echo '      {device}  {cells}   1234  0  0'
exit 1"""


@pytest.mark.parametrize(
    ("cells", "free_gb"),
    [
        ("1000000 4000000 5000000", 4.1),
        ("4500000* 4000000 5000000 6days", 0.5),
        ("5000001* 4000000 5000000 none", 0.0),
        ("1000000 4000000 0", 3.1),
        ("1000000 0 0", None),
        ("many 0 x", None),
    ],
)
def test_a_users_quota_is_told_where_quota_is_there(programs, root, monkeypatch, cells, free_gb):
    """What is left below the hard limit, else the soft one; None where there is no limit."""
    monkeypatch.setattr(probe_host, "QUOTA_TIMEOUT_S", 10)
    device = mounts.mount_of(os.path.realpath(root))[0]
    programs("quota", QUOTA.format(device=device, cells=cells))
    assert facts(root).file_system.quota_free_gb == free_gb


def test_a_quota_that_hangs_is_not_told(programs, root):
    """The server that it asks may be gone."""
    programs("quota", "exec sleep 1000")
    found = facts(root)
    assert (found.file_system.quota_free_gb, found.file_system.error) == (None, None)


@given(st.binary(max_size=40))
def test_any_cell_of_the_kernels_mounts_is_read(cell):
    """What is no escape stays as it is."""
    assert mounts._unescaped(cell) == cell or b"\\" in cell


# engines


def serve(path, answer):
    """An engine's socket that gives one answer; None: it never says a word."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def say():
        link, _ = listener.accept()
        with link:
            link.recv(100)
            if answer is not None:
                link.sendall(answer)
            else:
                link.recv(100)

    threading.Thread(target=say, daemon=True).start()
    return listener


OK = b"HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\nServer: Docker/20.10.24+dfsg1 (linux)\r\n\r\nOK"


@pytest.mark.parametrize(
    ("answer", "version", "error"),
    [
        (OK, "20.10.24+dfsg1", None),
        (b"HTTP/1.1 200 OK\r\n\r\nOK", None, None),
        (b"HTTP/1.1 500 No\r\n\r\n", None, "HTTP/1.1 500 No"),
        (b"\xff\x00 rubbish", None, "rubbish"),
        (b"", None, "answers ''"),
        (None, None, "does not answer"),
    ],
    ids=["docker", "no version", "error", "rubbish", "nothing", "silence"],
)
def test_an_engine_is_asked_by_its_socket(programs, root, monkeypatch, answer, version, error):
    """There and usable, or why not."""
    path = Path(root, "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    monkeypatch.setattr(probe_host, "ENGINE_TIMEOUT_S", 0.3 if answer is None else 10)
    with serve(path, answer):
        found = {engine.name: engine for engine in facts(root).engines}["docker"]
    assert (found.socket, found.version) == (str(path), version)
    assert found.error is None if error is None else error in found.error


LIBPOD = OK.replace(b"Docker/20.10.24+dfsg1", b"Libpod/4.3.1")


def test_podman_is_told_by_its_answer_though_its_socket_is_named_docker(programs, root, monkeypatch):
    """As Debian's podman-docker has it; `engine` chooses by that name, and its program is podman."""
    path = Path(root, "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    program = programs("podman", "exit 1")
    with serve(path, LIBPOD):
        found = next(engine for engine in facts(root).engines if engine.socket == str(path))
    assert (found.name, found.version, found.program, found.error) == ("podman", "4.3.1", str(program), None)


def test_a_socket_in_a_closed_folder_may_be_there():
    """Root's Podman closes the folder of its socket: the user is told to use sudo, not that it has none."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "closed").mkdir(mode=0)
        looks = ", ".join(
            f"_may_exist({folder + name!r})" for name in ("/closed/podman.sock", "/podman.sock")
        )
        code = f"import os; from launcher.agent.host.probe_host import _may_exist; os.geteuid() or os.setuid(65534); print({looks})"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "True False\n"


def test_an_engine_whose_socket_is_dead_or_missing_is_told(programs, root, monkeypatch):
    """Its program alone makes no engine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", root)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    programs("podman", "exit 1")
    path = Path(root, "docker.sock")
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(path))
    found = {engine.name: engine for engine in facts(root).engines}
    assert found["docker"].error == "Connection refused"
    assert found["podman"].program.endswith("/podman")
    assert found["podman"].error


# interpreters


def test_interpreters_are_found_in_their_usual_places_with_their_versions(programs, root, tmp_path):
    """Old ones too, and those that say it on standard error; what hangs or is none is left out."""
    python2 = programs("python", "echo 'Python 2.7.18' >&2")
    python3 = programs("python3", "echo Python 3.6.9")
    programs("python3.9", "exec sleep 1000")
    programs("python3.10", "echo nonsense")
    pyenv = programs("python3.12", "echo Python 3.12.1", tmp_path / ".pyenv/versions/3.12.1/bin")
    conda = programs("python3", "echo Python 3.13.0rc1", tmp_path / "miniconda3/envs/my env/bin")
    programs("python3.11", "echo Python 3.11.1", tmp_path / ".pyenv/shims")
    found = {one.path: one.version for one in facts(root, packages=None).pythons}
    assert {path: found.get(str(path)) for path in (python2, python3, pyenv, conda)} == {
        python2: "2.7.18", python3: "3.6.9", pyenv: "3.12.1", conda: "3.13.0rc1"
    }  # fmt: skip
    assert not [
        path for path in found if path.endswith(("python3.9", "python3.10")) and str(tmp_path) in path
    ]


def test_one_interpreter_of_many_names_is_told_once(programs, root, tmp_path):
    """A link is no other interpreter."""
    real = programs("python3.8", "echo Python 3.8.1")
    (real.parent / "python3").symlink_to(real)
    found = [one for one in facts(root, packages=None).pythons if one.version == "3.8.1"]
    assert len(found) == 1


def test_no_launch_pays_for_the_other_interpreters_unless_its_own_is_unusable(programs, root):
    """They are looked for where there is no job, and where they are the way out."""
    programs("python3", "echo Python 3.6.9")
    assert facts(root, sys.executable).pythons is None
    assert facts(root, sys.executable, ()).pythons is None
    assert "3.6.9" in [one.version for one in facts(root, sys.executable, None).pythons]
    broken = facts(root, "/no/such/python")
    assert broken.interpreter.error == "No such file or directory"
    assert "3.6.9" in [one.version for one in broken.pythons]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ('echo hello; exec {python} "$@"', None),
        ("echo '[1]'", "is not JSON"),
        ("true", "is not JSON"),
        ("echo no such option: -c >&2; exit 2", "no such option: -c"),
        ("exit 7", "exit 7"),
    ],
    ids=["a banner", "another JSON", "silence", "words", "code alone"],
)  # fmt: skip
def test_an_interpreter_that_answers_otherwise_is_told(programs, root, script, error):
    """A wrapper that prints a banner is none; what fails says why."""
    path = programs("mine", script.format(python=sys.executable))
    found = facts(root, str(path)).interpreter
    assert bool(found.version) is (error is None)
    assert error is None if found.error is None else error in found.error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"dtype": "bfloat16", "hidden_size": 8, "auto_map": {"x": "y"}, "other": 1}', {"dtype": "bfloat16", "hidden_size": 8}),
        ('{"text_config": {"hidden_size": 8}, "dtype": null}', {"hidden_size": 8}),
        ("[]", None),
        ("{", None),
        ('{"hidden_size": NaN}', None),
    ],
)  # fmt: skip
def test_of_a_model_only_what_was_asked_for_is_told(root, tmp_path, text, expected):
    """A config is a stranger's file: bounded, strict, and never handed on as it is."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(text)
    source = {"kind": "host", "value": str(tmp_path / "model")}
    assert (
        probe_host.probe(root, None, [], None, source, ["dtype", "hidden_size"])["model_values"] == expected
    )
    assert (
        probe_host.probe(root, None, [], None, {"kind": "host", "value": "/nowhere"}, ["dtype"])[
            "model_values"
        ]
        is None
    )


def test_a_pipe_in_the_hubs_cache_is_no_models_config_and_is_not_waited_for(tmp_path, monkeypatch):
    """The job of a container writes to the root's cache."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "models--org--name" / "snapshots" / "main"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "config.json")
    writer = os.open(folder / "config.json", os.O_RDWR)
    os.write(writer, b'{"hidden_size": 64}')
    threading.Timer(0.3, os.close, [writer]).start()  # who waits gets this
    asked = {"kind": "name", "value": "org/name"}
    assert model_config.read(str(tmp_path), asked, ["hidden_size"]) is None
    os.unlink(folder / "config.json")
    (folder / "config.json").write_text('{"hidden_size": 64}')
    assert model_config.read(str(tmp_path), asked, ["hidden_size"]) == {"hidden_size": 64}
