"""A plain second sshd on loopback with an ordinary user: what a stranger's machine looks like from outside.

As root it makes a user of its own and removes it again; otherwise the host's user is the caller.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.missing_part import MissingPartError

from launcher.values.host import Host

ADDRESS = "127.0.0.2"
HOLD_S = int(os.environ.get("TESTBED_HOLD_S", "0"))
"""For how long commands leave a connection to a host behind: tests of other things than that leave none."""
USER = f"launch-testbed-{os.getpid()}"  # another test run beside this one has its own

_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication {password}
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
{environment}
"""


class SshHost:
    """An sshd of our own, its user, and an environment in which that user can train."""

    def __init__(self, folder: Path) -> None:
        """Keep keys and configuration in `folder`."""
        self.folder = folder
        self.user = USER if os.geteuid() == 0 else getpass.getuser()
        self.port = 0
        self.pid = 0
        self.made_user = False
        self.within: tuple[
            str, ...
        ] = ()  # what the daemon is started in, e.g. a view of its own of the file system
        self.more = ""  # lines of its configuration
        self.takes_passwords = False
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """The user's home folder."""
        return Path(pwd.getpwnam(self.user).pw_dir)

    @property
    def root(self) -> Path:
        """Where the launcher keeps its runs on this host."""
        return self.home / ".launch"

    @property
    def known_hosts(self) -> Path:
        """The file that holds this host's key and no other."""
        return self.folder / "known_hosts"

    def up(self) -> None:
        """Start it. Raises MissingPartError."""
        if shutil.which("sshd", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None:
            raise MissingPartError("no sshd here: apt-get install openssh-server")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        if os.geteuid() == 0:
            self._make_user()
        for name in ("host_key", "client_key"):
            path = self.folder / name
            path.unlink(missing_ok=True)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        shutil.copy(self.folder / "client_key.pub", self.folder / "authorized_keys")
        self._start()

    def _make_user(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        try:
            pwd.getpwnam(USER)
        except KeyError:
            if shutil.which("useradd", path="/usr/sbin:/usr/bin") is None:
                raise MissingPartError("no useradd here: apt-get install passwd") from None
            subprocess.run(["/usr/sbin/useradd", "-m", "-p", "*", "-s", "/bin/bash", USER], check=True)
            self.made_user = True

    def _start(self) -> None:
        # Below the ports that the kernel hands out: nobody takes it while the daemon is away.
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for port in random.sample(range(lowest // 2, lowest), 100):
            with contextlib.suppress(OSError), socket.create_server((ADDRESS, port)):
                self.port = port
                break
        self._listen()

    def _listen(self) -> None:
        config = self.folder / "sshd.conf"
        threads = os.environ.get("OMP_NUM_THREADS")  # of a training there, as of one here
        environment = f"SetEnv OMP_NUM_THREADS={threads}\n{self.more}" if threads else self.more
        config.write_text(
            _CONFIG.format(
                port=self.port,
                address=ADDRESS,
                folder=self.folder,
                environment=environment,
                password="yes" if self.takes_passwords else "no",
            )
        )
        log = (self.folder / "sshd.log").open("ab")
        self._daemon = daemon = subprocess.Popen(
            [*self.within, "/usr/sbin/sshd", "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self.pid = daemon.pid
        key = (self.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[{ADDRESS}]:{self.port} {' '.join(key)}\n")
        deadline = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection((ADDRESS, self.port), 1):
                    if daemon.poll() is None:
                        return
                raise ConnectionRefusedError  # it was somebody else who answered
            except OSError as error:
                if daemon.poll() is not None or time.monotonic() > deadline:
                    text = (self.folder / "sshd.log").read_text()
                    raise MissingPartError(f"sshd did not come up: {text[-500:]}") from error
                time.sleep(0.02)

    def down(self) -> None:
        """Stop what was started, by pid, and remove the user that was made."""
        if self.pid:
            for pid in (*_children(self.pid), self.pid):
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    continue
        if self._daemon is not None:
            self._daemon.wait(timeout=10)
        if self.made_user:
            subprocess.run(
                ["pkill", "-KILL", "-u", self.user], check=False
            )  # the user is ours, and so is all of it
            time.sleep(0.2)
            subprocess.run(["/usr/sbin/userdel", "-r", "-f", self.user], check=True, capture_output=True)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Let nobody in for a while, and cut every open connection. What runs on the host goes on."""
        assert self._daemon is not None
        self.cut()
        self._daemon.kill()
        self._daemon.wait(timeout=10)
        self.cut()
        try:
            yield
        finally:
            self._listen()

    def cut(self) -> None:
        """Cut every open connection, as a broken link does; the daemon itself goes on."""
        for pid in _children(self.pid):
            try:
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended by itself meanwhile

    def streams(self) -> int:
        """Return how many TCP connections to the daemon are established, as the kernel lists them."""
        local = f"{int.from_bytes(socket.inet_aton(ADDRESS), 'little'):08X}:{self.port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # A row may be listed twice, if the list changes while it is read.
        return len({row[2] for row in rows if row[1] == local and row[3] == "01"})

    def connections(self) -> set[int]:
        """Return the pids of the daemon's processes, one for each open connection."""
        return {int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()}

    def let_in(self, key: Path, shell: str) -> None:
        """Let one more key in, to a login whose commands are read by another shell than the user's own."""
        public = key.with_name(f"{key.name}.pub").read_text()
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(f'command="{shell} -c \\"$SSH_ORIGINAL_COMMAND\\"" {public}')

    def ssh(self, *words: str, check: bool = True) -> str:
        """Run a command on the host by OpenSSH's own client, as a witness that is not our code."""
        command = [
            "ssh", "-F", "/dev/null", "-i", str(self.folder / "client_key"), "-p", str(self.port),
            "-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "BatchMode=yes",
            f"{self.user}@{ADDRESS}", shlex.join(words),
        ]  # fmt: skip
        said = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=180
        )
        if check and said.returncode != 0:
            raise AssertionError(f"{command}: {said.returncode}: {said.stderr}")
        return said.stdout

    def remove_root(self) -> None:
        """Remove the root, again while something in the background, such as a spare copy, still writes there."""
        root = shlex.quote(str(self.root))
        tries = f"for n in $(seq 50); do rm -rf {root} && exit; sleep 1; done; exit 1"
        self.ssh("sh", "-c", f"chmod -R u+rwx {root}; {tries}")

    def ssh_command(self, address: str = ADDRESS, port: int | None = None) -> str:
        """Return OpenSSH's client with its options for this host, as one text for `rsync -e` and shells."""
        port = port or self.port
        words = [
            *("ssh", "-F", "/dev/null", "-i", str(self.folder / "client_key"), "-p", str(port)),
            *("-o", f"UserKnownHostsFile={self.known_as(address, port)}", "-o", "BatchMode=yes"),
        ]
        return shlex.join(words)

    def known_as(self, address: str, port: int) -> str:
        """Return a known_hosts file for this host under another address, such as a relay's."""
        path = self.folder / f"known_hosts-{address}-{port}"
        key = (self.folder / "host_key.pub").read_text().split()[:2]
        path.write_text(f"[{address}]:{port} {' '.join(key)}\n")
        return str(path)

    def host(self, name: str = "A", **more: object) -> Host:
        """Return this host as the launcher knows it."""
        return Host.model_validate({"name": name, **self._keys(), **more})

    def _keys(self) -> dict[str, object]:
        return {
            "address": ADDRESS,
            "port": self.port,
            "user": self.user,
            "identity_file": str(self.folder / "client_key"),
            "known_hosts": str(self.known_hosts),
            "hold": HOLD_S,
        }

    def table(self, name: str = "A", **more: object) -> str:
        """Return the launch.toml table that names this host."""
        keys = {**self._keys(), **more}
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        return "\n".join([f"[hosts.{name}]", *lines, ""])


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    found = [int(word) for word in text.split()]
    return [*(grandchild for child in found for grandchild in _children(child)), *found]
