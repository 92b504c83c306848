"""A Docker Engine of its own in a machine of machine.py: its dockerd, its containerd, its containers, its network.

All of it lives in the machine's namespaces, and so dies with the machine, as an engine does whose host loses its power.
What it keeps (images, containers, settings) lies in the machine's folder, and the machine's next boot starts it again.
Needs docker.io and iptables, and a temporary folder on a file system that can carry an overlay.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path

from testbed.cache import Say, base_image
from testbed.cards import Cards
from testbed.machine import FIRST_UID, PATH, Machine, check_parts, remove_bridge, wait_until
from testbed.missing_part import MissingPartError

BASE = "launch-testbed/python:bookworm"
CLIENT = Path("/usr/bin/docker")  # Debian's, with BuildKit built in
NEWER_CLIENT = Path("/usr/local/bin/docker")
CLIENTS = {
    "debian": (NEWER_CLIENT,),
    "plain": (),
    "none": (NEWER_CLIENT, CLIENT),
}  # and what each hides from the users
_PARTS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "docker-init": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
}
_PODMAN_PARTS = {"podman": "podman", "runc": "runc", "newuidmap": "uidmap", "slirp4netns": "slirp4netns"}
_ROOTLESS_PARTS = {"rootlesskit": "rootlesskit", "newuidmap": "uidmap", "slirp4netns": "slirp4netns"}
_ROOTLESS_DOCKERD = "/usr/share/docker.io/contrib/dockerd-rootless.sh"
_CONTAINERD_PID = "run/containerd.pid"

# An overlay with a whiteout hides one file of a folder from this machine and leaves the real folder alone.
_CLIENTS_SCRIPT = """\
#!/bin/sh
set -e
for bin in usr/local/bin usr/bin; do
    while findmnt --type overlay /$bin >/dev/null; do umount --lazy /$bin; done
    if [ -e "{folder}/hidden/$bin/docker" ]; then
        mount -t overlay -o "lowerdir={folder}/hidden/$bin:/$bin" overlay /$bin
    fi
done
"""

# As Debian's services have it: containerd beside dockerd, not beneath it.
_BOOT_SCRIPT = """\
#!/bin/sh
set -e
exec >>"{folder}/console.log" 2>&1
if ! mountpoint -q "{folder}/docker"; then
    mount --bind {client} "{folder}/docker"
    "{folder}/clients"
fi
if ! kill -0 "$(cat /{containerd_pid})"; then
    setsid --fork sh -c 'echo $$ >/{containerd_pid}; exec containerd --config "{folder}/containerd.toml"'
fi
PATH="{folder}/cards:$PATH" exec setsid --fork dockerd --config-file "{folder}/daemon.json"
"""

_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""


class Daemon:
    """An engine in a machine that the machine's boot starts: what the system's, a user's own and Podman have in common."""

    program = "dockerd"

    def __init__(self, machine: Machine, name: str, runtime: str) -> None:
        """Make its files; `runtime` is where its socket and its pid lie in the machine. Raises MissingPartError."""
        check_engine_parts()
        self.machine = machine
        self.folder = machine.folder / name
        self.folder.mkdir()
        (self.folder / "docker").touch()
        (self.folder / "config").mkdir()
        (machine.folder / "boot").mkdir(exist_ok=True)
        self.boot_script = machine.folder / "boot" / name
        self._runtime = runtime
        self._socket = f"{runtime}/docker.sock"
        self._pid_files = {self.program: f"{runtime}/docker.pid"}

    # its life

    def start(self) -> None:
        """Start it in a machine that is up, unless it runs; wait until it answers. Raises MissingPartError."""
        if not self.is_running(self.program):
            self.machine.enter(str(self.boot_script))
        self.wait()

    def wait(self) -> None:
        """Wait until it answers, as after a boot. Raises MissingPartError."""
        wait_until(self._answers, self._why, timeout=60, what="the engine")

    def stop_gracefully(self) -> None:
        """Ask it to end, as the host's service manager does, and wait until it has; it stops its containers first."""
        self._signal(self.program, "TERM")

    def is_running(self, daemon: str) -> bool:
        """Whether `dockerd` or `containerd` is alive."""
        try:
            pid = int((self._root / self._pid_files[daemon]).read_text())
            return (self._root / f"proc/{pid}/comm").read_text().strip() == daemon
        except (FileNotFoundError, ProcessLookupError):
            return False

    def _signal(self, daemon: str, signal: str) -> None:
        pid = (self._root / self._pid_files[daemon]).read_text().strip()
        self.machine.enter("kill", f"-{signal}", pid)
        process = self._root / f"proc/{pid}"
        wait_until(lambda: not process.exists(), self._why, timeout=60, what=f"the end of {daemon}")

    def _answers(self) -> bool:
        with contextlib.closing(_UnixConnection(self.socket)) as connection:
            try:
                connection.request("GET", "/_ping")
                return connection.getresponse().status == 200
            except OSError:
                return False

    def _why(self) -> str:
        return (self.folder / "console.log").read_text()[-1000:]

    # its clients

    @property
    def _root(self) -> Path:
        """The machine's file tree, seen from outside."""
        return Path(f"/proc/{self.machine.pid}/root")

    @property
    def socket(self) -> Path:
        """Its socket, seen from outside: for a witness in the test's own process."""
        return self._root / self._socket

    def docker(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdin: Path | None = None,
        check: bool = True,
        timeout: float = 300,
    ) -> str:
        """Run Debian's client inside, as root, whatever client the users find; return what it printed."""
        with (stdin or Path(os.devnull)).open("rb") as file:
            said = subprocess.run(
                ["nsenter", "-t", str(self.machine.pid), "--all", "--", self.folder / "docker", *words],
                stdin=file,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
                env={
                    "PATH": PATH,
                    "DOCKER_HOST": f"unix:///{self._socket}",
                    "DOCKER_CONFIG": str(self.folder / "config"),
                    **(env or {}),
                },
            )
        if check and said.returncode != 0:
            raise AssertionError(f"docker {' '.join(words)}: {said.returncode}: {said.stdout}{said.stderr}")
        return said.stdout

    def load_base(self) -> None:
        """Import the base image as BASE, unless it is there. Raises MissingPartError."""
        if not self.docker("image", "ls", "--quiet", BASE):
            self.docker("import", "--change", 'CMD ["python3"]', "-", BASE, stdin=base_image())


class Engine(Daemon):
    """A machine's Docker Engine. A reboot is `machine.kill()`, `machine.up()`, `wait()`."""

    def __init__(self, machine: Machine) -> None:
        """Make its files and let the machine's boot start it; the machine is made and may be up. Raises MissingPartError."""
        super().__init__(machine, "engine", "run")
        self._pid_files["containerd"] = _CONTAINERD_PID
        self._cgroup = f"launch-testbed-{os.getpid()}-{machine.name}"
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(folder=self.folder))
        _write_script(self.folder / "clients", _CLIENTS_SCRIPT.format(folder=self.folder))
        _write_script(
            self.boot_script,
            _BOOT_SCRIPT.format(folder=self.folder, client=CLIENT, containerd_pid=_CONTAINERD_PID),
        )
        self._hide_clients("debian")
        self.configure()

    def configure(self, **more: object) -> None:
        """Write its settings: what keeps it inside the machine, and more (`insecure_registries=…`) for its next start."""
        settings = {
            "data-root": str(self.folder / "data"),
            "containerd": "/run/containerd/containerd.sock",
            "hosts": ["unix:///var/run/docker.sock"],
            "cgroup-parent": f"/{self._cgroup}",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "deprecated-key-path": str(self.folder / "key.json"),
            **{key.replace("_", "-"): value for key, value in more.items()},
        }
        (self.folder / "daemon.json").write_text(json.dumps(settings))

    @contextlib.contextmanager
    def handing_on(self, cards: Cards, has_runtime: bool = True) -> Iterator[None]:
        """Let it hand these cards on to containers, as one with NVIDIA's toolkit does; it is restarted at both ends.

        Without the runtime it is one where the toolkit was installed and `nvidia-ctk runtime configure` was not run.
        """
        folder = self.folder / "cards"  # first on its PATH
        folder.symlink_to(cards.folder)
        try:
            self._restart(**({"runtimes": {"nvidia": {"path": "runc"}}} if has_runtime else {}))
            yield
        finally:
            folder.unlink()
            self._restart()

    @contextlib.contextmanager
    def on_a_small_disk(self, room_mb: int) -> Iterator[None]:
        """Let it keep its images on a disk that has so much room beside the base image; it is restarted at both ends."""
        place = self.folder / "small"
        place.mkdir()
        base_mb = int(self.docker("inspect", "--format", "{{.Size}}", BASE)) // 1_000_000
        size = f"size={base_mb * 5 // 4 + room_mb}m"
        self.machine.enter("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place))
        try:
            self._restart(data_root=str(place))
            self.load_base()
            yield
        finally:
            self._restart()
            self.machine.enter("umount", "--lazy", str(place))
            place.rmdir()

    def _restart(self, **settings: object) -> None:
        self.stop_gracefully()
        self.configure(**settings)
        self.start()

    # its life

    def kill(self, has_containerd: bool = False) -> None:
        """Kill dockerd alone, or its containerd too; the containers go on."""
        self._signal("dockerd", "KILL")
        if has_containerd:
            self._signal("containerd", "KILL")

    def down(self) -> None:
        """End the machine with all that runs in it, and remove its folder and its cgroups."""
        self.machine.down()
        self.remove_cgroups()

    def remove_cgroups(self) -> None:
        """Remove the cgroups of an engine whose machine is dead."""
        places = [
            *Path("/sys/fs/cgroup").glob(self._cgroup),
            *Path("/sys/fs/cgroup").glob(f"*/{self._cgroup}"),
        ]
        for place in places:
            for path, _, _ in os.walk(place, topdown=False):
                with contextlib.suppress(FileNotFoundError):  # one hierarchy may be mounted under two names
                    Path(path).rmdir()

    # its clients

    def use_client(self, kind: str) -> None:
        """Let the users find as `docker`: `debian` (at first), `plain` (a newer one without buildx), `none`.

        Raises MissingPartError where this machine has no plain newer one.
        """
        if kind == "plain":
            _check_plain_client()
        self._hide_clients(kind)
        self.machine.enter(str(self.folder / "clients"))

    def _hide_clients(self, kind: str) -> None:
        hidden = self.folder / "hidden"
        shutil.rmtree(hidden, ignore_errors=True)
        for path in CLIENTS[kind]:
            if path.exists():
                whiteout = hidden / path.relative_to("/")
                whiteout.parent.mkdir(parents=True, mode=0o755)
                os.mknod(whiteout, device=os.makedev(0, 0), mode=stat.S_IFCHR)


# A user's namespace may mount a /proc only where one is seen with nothing mounted upon it, as any host has it.
_FOR_A_USER = """\
#!/bin/sh
set -e
exec >>"{folder}/console.log" 2>&1
runtime=/run/user/{uid}
if ! mountpoint -q "{folder}/docker"; then
    mount --bind {client} "{folder}/docker"
    mount -t proc proc "{folder}/proc"
    for name in subuid subgid; do
        [ -e /etc/$name ] || touch /etc/$name
        mount --bind "{folder}/subuid" /etc/$name
    done
    mount --bind "{folder}/tun" /dev/net/tun
    mkdir -p -m 755 /run/user
    install -d -m 700 -o {uid} -g {uid} $runtime
fi
cd /home/{user}
exec setsid --fork setpriv --reuid {uid} --regid {uid} --init-groups \\
    env HOME=/home/{user} XDG_RUNTIME_DIR=$runtime {program}
"""


class RootlessEngine(Daemon):
    """A user's own engine, for which the user needs no group: its socket is in the user's runtime folder."""

    def __init__(self, machine: Machine, user: str) -> None:
        """Make its files and let the machine's boot start it; the machine is made and may be up. Raises MissingPartError."""
        _check_parts(_ROOTLESS_PARTS)
        self.user = user
        super().__init__(machine, f"rootless-{user}", f"run/user/{_uid(machine, user)}")
        _write_script(self.boot_script, _start_for_user(machine, user, self.folder, _ROOTLESS_DOCKERD))

    def become_default(self) -> None:
        """Let the user's docker client use it, as Debian's set-up tool does."""
        host = f"host=unix:///{self._socket}"
        self.machine.ssh("docker", "context", "create", "rootless", "--docker", host, user=self.user)
        self.machine.ssh("docker", "context", "use", "rootless", user=self.user)


# Debian's crun 1.8 refuses cgroups of both versions, and a machine of ours may not raise the limits of processes, as a real
# host's root may. The limits are pairs of equal numbers: Podman 4.3 swaps the two for a client of Docker's API.
_PODMAN_SETTINGS = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=8192:8192"]
"""
_PODMAN_SERVICE = """\
#!/bin/sh
set -e
export CONTAINERS_CONF="{folder}/containers.conf" CONTAINERS_STORAGE_CONF="{folder}/storage.conf"
mkdir -p -m 700 "/{runtime}"
echo $$ >"/{runtime}/podman.pid"
exec podman system service --time 0 "unix:///{runtime}/podman.sock"
"""
_PODMAN_BOOT_SCRIPT = """\
#!/bin/sh
set -e
exec >>"{folder}/console.log" 2>&1
mountpoint -q "{folder}/docker" || mount --bind {client} "{folder}/docker"
exec setsid --fork "{folder}/service"
"""


class Podman(Daemon):
    """Podman's service of Docker's API, root's or a user's. Its containers live without it, and no boot starts them."""

    program = "podman"

    def __init__(self, machine: Machine, user: str = "root") -> None:
        """Make its files and let the machine's boot start it; the machine is made and may be up. Raises MissingPartError."""
        _check_parts(_PODMAN_PARTS)
        self.user = user
        runtime = "run/podman" if user == "root" else f"run/user/{_uid(machine, user)}/podman"
        super().__init__(machine, f"podman-{user}", runtime)
        self._socket = f"{runtime}/podman.sock"
        self._pid_files = {self.program: f"{runtime}/podman.pid"}
        (self.folder / "containers.conf").write_text(_PODMAN_SETTINGS)
        places = (
            f'graphroot = "{self.folder}/storage"\nrunroot = "/run/containers/storage"\n'
            if user == "root"
            else ""
        )
        (self.folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\n{places}')
        service = self.folder / "service"
        _write_script(service, _PODMAN_SERVICE.format(folder=self.folder, runtime=runtime))
        if user == "root":
            text = _PODMAN_BOOT_SCRIPT.format(folder=self.folder, client=CLIENT)
        else:
            text = _start_for_user(machine, user, self.folder, str(service))
        _write_script(self.boot_script, text)

    def clear(self) -> None:
        """Remove its containers."""
        for container in self.docker("ps", "-aq").split():
            self.docker("rm", "-f", container)


def _uid(machine: Machine, user: str) -> int:
    return FIRST_UID + machine.users.index(user)


def _start_for_user(machine: Machine, user: str, folder: Path, program: str) -> str:
    """Return a boot script that starts a user's own engine. Its other files are made in the folder."""
    (folder / "proc").mkdir()
    (folder / "subuid").write_text(f"{user}:100000:65536\n")
    os.mknod(folder / "tun", mode=stat.S_IFCHR, device=os.makedev(10, 200))
    (folder / "tun").chmod(0o666)
    uid = _uid(machine, user)
    return _FOR_A_USER.format(folder=folder, uid=uid, user=user, client=CLIENT, program=program)


@contextlib.contextmanager
def engine_in_a_machine(name: str, number: int, say: Say = print) -> Iterator[Engine]:
    """Give an engine with the base image in a machine of its own, and remove both. Raises MissingPartError.

    Users ada, bob and dan are in group docker, eve is not, root may log in, rae is for an engine of her own. sshd opens
    no Unix sockets for dan.
    """
    check_parts()
    check_engine_parts()
    base_image(say)
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    machine = Machine(
        name,
        number,
        folder / name,
        sshd="Match User dan\n    AllowStreamLocalForwarding no\n    AllowTcpForwarding no\n",
    )
    try:
        machine.make(
            *((user, "/bin/bash") for user in ("ada", "bob", "eve", "rae", "dan")),
            groups={"docker": ["ada", "bob", "dan"]},
            has_root=True,
        )
        engine = Engine(machine)
        machine.up()
        try:
            engine.wait()
            engine.load_base()
            yield engine
        finally:
            engine.down()
    finally:
        machine.kill()
        remove_bridge()
        shutil.rmtree(folder)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def check_engine_parts() -> None:
    """Raise MissingPartError, with what to install, where a machine cannot have an engine."""
    _check_parts(_PARTS)


def _check_parts(parts: Mapping[str, str]) -> None:
    for part, package in parts.items():
        if shutil.which(part, path="/usr/sbin:/usr/bin") is None:
            raise MissingPartError(f"no {part} here: apt-get install {package}")
    if "slirp4netns" in parts and not Path("/dev/net/tun").exists():
        raise MissingPartError("no /dev/net/tun here")


def _check_plain_client() -> None:
    if not NEWER_CLIENT.exists():
        raise MissingPartError(f"no docker client newer than Debian's here, at {NEWER_CLIENT}")
    said = subprocess.run([NEWER_CLIENT, "buildx", "version"], capture_output=True, check=False)
    if said.returncode == 0:
        raise MissingPartError("the docker client newer than Debian's has buildx here")


def _write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
