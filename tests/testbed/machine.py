"""Hosts of their own on one machine: each with its pids, mounts, name, network, machine id, boot id, users and sshd.

    python tests/testbed/machine.py up       leaves two running, prints a launch.toml that names them
    python tests/testbed/machine.py down     ends exactly what `up` started

Needs root, util-linux, iproute2, tini and openssh-server. A machine keeps its folder (homes, keys, ids) when it is
killed and started again. The kernel here has no netem: a slow link is a relay, see link.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `make testbed-up`

from testbed.missing_part import MissingPartError
from testbed.sshd import HOLD_S

# Another number lets a second test run be beside this one.
_NUMBER = int(os.environ.get("TESTBED_NETWORK", "77"))
NETWORK = f"10.213.{_NUMBER}"
HIDDEN_NETWORK = f"10.213.{_NUMBER + 1}"
HIDDEN_GATE = f"{HIDDEN_NETWORK}.1"  # the end of the cable in the machine before
CLIENT = f"{NETWORK}.1"
BRIDGE = f"launchbr{_NUMBER}"
FIXED = Path(__file__).resolve().parents[2] / ".testbed"
FIRST_UID = 20_001
FIRST_GID = 20_901
_PARTS = {
    "sshd": "openssh-server",
    "tini": "tini",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Over /etc lies a folder, not its files: a bind on a file goes when somebody replaces that file, as useradd does.
# FUSE mounts only over an empty folder, so that /home is made one first.
_INIT = """\
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
mount --bind "$1/etc" /etc
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs -o mode=755 tmpfs /home
$4 "$2" /home
folder=$1
name=$3
shift 4
for path in "$@"; do mount -t tmpfs -o mode=1777 tmpfs "$path"; done
set -- "$folder"
if [ -d "$1/root" ]; then mount --bind "$1/root" /root; fi
hostname "$name"
ip link set lo up
for script in "$1"/boot/*; do
    if [ -x "$script" ]; then setsid --fork "$script"; fi
done
exec /usr/sbin/sshd -D -e -f "$1/sshd.conf"
"""

_CONFIG = """\
Port 22
HostKey {host_key}
PidFile none
AuthorizedKeysFile {folder}/keys/%u
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
{more}
"""


_PASSING = ("*.lock", "*+", "*-", "passwd.*", "shadow.*", "group.*", "gshadow.*", "subuid.*", "subgid.*")
"""Files of /etc that useradd makes for a moment, as another test on this machine may do just now."""


class Machine:
    """A host of its own. Its users' homes lie in `homes`, which two machines may share."""

    network: tuple[str, ...] = ("--net",)
    """What gives it a network of its own."""
    share: str = "mount --bind"
    """The command that lays the folder of the homes over /home."""
    own_folders: tuple[str, ...] = ()
    """Folders that it shares with no other machine. They are empty after each boot."""

    def __init__(
        self,
        name: str,
        number: int,
        folder: Path,
        homes: Path | None = None,
        sshd: str = "",
        behind: Machine | None = None,
    ) -> None:
        """Name it; `number` (2 to 250) makes its address, `sshd` is put into sshd's configuration.

        `behind` another, which is up, it hangs on a cable to that one alone, on a network that nobody else has a way to.
        """
        self.name = name
        self.folder = folder
        self.homes = homes or folder / "home"
        self.address = f"{HIDDEN_NETWORK if behind else NETWORK}.{number}"
        self.behind = behind
        self.port = 22
        self.users: list[str] = []
        self.pid = 0
        self._sshd = sshd
        self._mac = f"02:00:0a:d5:4d:{number:02x}"  # its own for good, as a card's: neighbours remember it
        self._link = f"lm{number}-{os.getpid() % 10000}"
        self._holder: subprocess.Popen[bytes] | None = None

    def make(
        self,
        *users: tuple[str, str],
        groups: Mapping[str, Sequence[str]] | None = None,
        has_root: bool = False,
    ) -> None:
        """Make its files: keys, ids, users as (name, shell), groups with their members.

        `has_root` lets root in by key, with a home of its own. Raises MissingPartError.
        """
        check_parts()
        etc = self.folder / "etc"
        # Whole: a file that is bound over /etc/passwd comes off as soon as anybody adds a user to this machine.
        shutil.copytree("/etc", etc, symlinks=True, ignore=shutil.ignore_patterns(*_PASSING))
        (self.folder / "keys").mkdir()
        self.folder.chmod(0o755)
        self.homes.mkdir(exist_ok=True)
        for name, text in (("machine-id", uuid.uuid4().hex), ("hostname", self.name)):
            (etc / name).unlink(missing_ok=True)  # a link would lead to this machine's own
            (etc / name).write_text(f"{text}\n")
        for name in ("host_key", "client_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True
            )
        config = _CONFIG.format(folder=self.folder, host_key=self.host_key, more=self._sshd)
        (self.folder / "sshd.conf").write_text(config)
        for user, shell in users or (("ada", "/bin/bash"),):
            self._add_user(user, shell)
        for group, members in (groups or {}).items():
            self._add_group(group, members)
        if has_root:
            (self.folder / "root").mkdir(mode=0o700)
            shutil.copy(self.folder / "client_key.pub", self.folder / "keys" / "root")

    def _add_user(self, user: str, shell: str) -> None:
        uid = FIRST_UID + len(self.users)
        self.users.append(user)
        for name, line in (
            ("passwd", f"{user}:x:{uid}:{uid}::/home/{user}:{shell}"),
            ("group", f"{user}:x:{uid}:"),
            ("shadow", f"{user}:*:19000:0:99999:7:::"),
        ):
            with (self.folder / "etc" / name).open("a") as file:
                file.write(f"{line}\n")
        home = self.homes / user
        home.mkdir(exist_ok=True)
        os.chown(home, uid, uid)
        shutil.copy(self.folder / "client_key.pub", self.folder / "keys" / user)

    def _add_group(self, group: str, members: Sequence[str]) -> None:
        """Give a group exactly these members; where this machine has one of that name, it keeps its id."""
        path = self.folder / "etc" / "group"
        entries = [line.split(":") for line in path.read_text().splitlines()]
        gid = next((entry[2] for entry in entries if entry[0] == group), str(FIRST_GID))
        kept = [entry for entry in entries if entry[0] != group]
        path.write_text(
            "".join(f"{':'.join(entry)}\n" for entry in [*kept, [group, "x", gid, ",".join(members)]])
        )

    @property
    def host_key(self) -> Path:
        """Where its sshd finds its key."""
        return self.folder / "host_key"

    # its life

    def up(self, outlives: bool = False) -> None:
        """Boot it; it dies with the thread that boots it unless it `outlives` that. Raises MissingPartError."""
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        with (self.folder / "console.log").open("ab") as log:
            self._holder = subprocess.Popen(
                [
                    *(() if outlives else ("setpriv", "--pdeathsig", "KILL")),
                    *("unshare", "--pid", "--fork", "--uts", "--mount", *self.network),
                    *("--mount-proc", "--kill-child"),
                    *("tini", "--", "sh", "-c", _INIT, "init", self.folder, self.homes, self.name),
                    *(self.share, *self.own_folders),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": PATH},
            )
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        wait_until(lambda: children.read_text().split(), self._why)
        self.pid = int(children.read_text().split()[0])
        self._connect()
        wait_until(self._answers, self._why)

    def _connect(self) -> None:
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        if self.behind is None:
            self._join_bridge()
        else:
            ip("link", "set", self._link, "netns", str(self.behind.pid))
            self.behind.enter("ip", "addr", "add", f"{HIDDEN_GATE}/24", "dev", self._link)
            self.behind.enter("ip", "link", "set", self._link, "up")
        self.enter("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.enter("ip", "link", "set", "eth0", "address", self._mac, "up")

    def _join_bridge(self) -> None:
        make_bridge()
        ip("link", "set", self._link, "master", BRIDGE, "up")

    def _answers(self) -> bool:
        if self.behind is not None:
            return bool(self.behind.enter("ssh-keyscan", "-T", "1", self.address, check=False))
        try:
            with socket.create_connection((self.address, 22), 1) as connection:
                return bool(connection.recv(4))
        except OSError:
            return False

    def _why(self) -> str:
        return (self.folder / "console.log").read_text()[-500:]

    def kill(self) -> None:
        """Let it die at once, as a host does that loses its power."""
        if self._holder is not None:
            with contextlib.suppress(ProcessLookupError):  # its boot has failed
                os.kill(self.pid, signal.SIGKILL)
            self._holder.wait(timeout=10)
            subprocess.run(
                ["ip", "link", "del", self._link], capture_output=True, check=False
            )  # or later by itself
            self._holder = None
            self.pid = 0

    def down(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder)

    # its link and its processes

    def set_link(self, state: str) -> None:
        """Pull the cable (`down`) or put it back (`up`): packets vanish, nobody is told."""
        ip("link", "set", self._link, state)

    def sessions(self) -> list[int]:
        """Return the pids (of this machine's namespace) of its open ssh connections."""
        return [int(pid) for pid in self.enter("pgrep", "-f", r"^sshd: [a-z]+(@|$)", check=False).split()]

    def cut(self) -> None:
        """Cut every open connection; the daemon goes on."""
        for _ in range(2):  # once in 40 times one was seen to be overlooked
            for pid in self.sessions():
                self.enter("kill", "-KILL", str(pid), check=False)

    def enter(self, *words: str, check: bool = True) -> str:
        """Run a command inside, as root, without its sshd."""
        return subprocess.run(
            ["nsenter", "-t", str(self.pid), "--all", "--", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
            env={"PATH": PATH},
        ).stdout

    # its clients

    @property
    def user(self) -> str:
        """Its first user."""
        return self.users[0]

    @property
    def known_hosts(self) -> Path:
        """A file with this machine's key, under every address that it is reached by."""
        path = self.folder / "known_hosts"
        key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        new = self.folder / f"known_hosts.{os.getpid()}"
        new.write_text(f"{self.address},127.* {key}\n[127.*]:* {key}\n")
        new.replace(path)  # a client may be reading it
        return path

    def ssh_words(self, user: str | None = None) -> list[str]:
        """Return the words of OpenSSH's own client for this machine: a witness that is not our code.

        It stands in the network of the machine before, where there is one.
        """
        there = ["nsenter", "-t", str(self.behind.pid), "--net", "--"] if self.behind else []
        return [
            *there,
            *("ssh", "-F", "/dev/null", "-i", str(self.folder / "client_key")),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "BatchMode=yes"),
            f"{user or self.user}@{self.address}",
        ]

    def ssh(self, *words: str, user: str | None = None, check: bool = True) -> str:
        """Run a command on it by OpenSSH's client."""
        said = subprocess.run(
            [*self.ssh_words(user), shlex.join(words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if check and said.returncode != 0:
            raise AssertionError(f"{words}: {said.returncode}: {said.stderr}")
        return said.stdout

    def table(self, name: str | None = None, user: str | None = None, **more: object) -> str:
        """Return the launch.toml table that names this machine."""
        keys: dict[str, object] = {
            "address": self.address,
            "user": user or self.user,
            "identity_file": str(self.folder / "client_key"),
            "known_hosts": str(self.known_hosts),
            "hold": HOLD_S,
            **more,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        return "\n".join([f"[hosts.{name or self.name}]", *lines, ""])


def check_parts() -> None:
    """Raise MissingPartError, with what to install, where this machine cannot hold others."""
    if os.geteuid() != 0:
        raise MissingPartError("machines of their own need root")
    for part, package in _PARTS.items():
        if shutil.which(part, path=PATH) is None:
            raise MissingPartError(f"no {part} here: apt-get install {package}")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        raise MissingPartError("network namespaces cannot be made here")


def make_bridge(name: str = BRIDGE, address: str | None = CLIENT) -> None:
    """Make a bridge that machines hang on, unless it is there; without an address the client has no way to them.

    Raises MissingPartError.
    """
    if subprocess.run(["ip", "link", "show", name], capture_output=True, check=False).returncode != 0:
        ip("link", "add", name, "type", "bridge")
        if address is not None:
            ip("addr", "add", f"{address}/24", "dev", name)
        ip("link", "set", name, "up")


def remove_bridge(name: str = BRIDGE) -> None:
    """Remove a bridge that machines hung on, unless others hang on it still."""
    if any(Path(f"/sys/class/net/{name}/brif").glob("*")):
        return
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    """Run `ip`, which must succeed. Raises MissingPartError."""
    said = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise MissingPartError(f"ip {' '.join(words)}: {said.stderr.strip()}")


def wait_until(
    condition: Callable[[], object], why: Callable[[], str], timeout: float = 15, what: str = "the machine"
) -> None:
    """Wait until a condition holds. Raises MissingPartError, with what `why` says, when time is over."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise MissingPartError(f"{what} did not come up: {why()}")
        time.sleep(0.02)


def _up() -> None:
    if (FIXED / "machines.json").exists():
        sys.exit("the testbed is up already: make testbed-down")
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    machines = [
        Machine(name, number, folder / name) for number, name in enumerate(("alpha", "beta"), start=2)
    ]
    print("# put this into a launch.toml; end it with: make testbed-down")
    for machine in machines:
        machine.make()
        machine.up(outlives=True)
        print(machine.table())
    FIXED.mkdir(exist_ok=True)
    pids = [machine.pid for machine in machines]
    (FIXED / "machines.json").write_text(json.dumps({"folder": str(folder), "pids": pids}))


def _down() -> None:
    path = FIXED / "machines.json"
    if not path.exists():
        sys.exit("the testbed is not up")
    state = json.loads(path.read_text())
    for pid in state["pids"]:
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and state["folder"].encode() in command.read_bytes():
            os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not any(Path(f"/sys/class/net/{BRIDGE}/brif").glob("*")), lambda: "its links are still there"
    )
    remove_bridge()
    shutil.rmtree(state["folder"])
    path.unlink()


if __name__ == "__main__":
    verbs = {"up": _up, "down": _down}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    verbs[sys.argv[1]]()
