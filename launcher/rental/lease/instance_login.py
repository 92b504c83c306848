"""The login to a newly rented machine, before its run: replace the host key and set the machine up."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import NamedTuple

from launcher.agent.record.rundir import RENTED
from launcher.base.clock import Clock, look_again_after
from launcher.errors import (
    AuthRefusedError,
    HostError,
    HostKeyError,
    NoKeyError,
    ServiceError,
    UnreachableError,
)
from launcher.rental.renting import RentalReason
from launcher.transport.ssh.ssh import SshConnection
from launcher.values.host import Host

LOOK_S = 5.0
KEYS_S = 30.0
"""The seconds that a machine may refuse the keys after its sshd has answered.

Cloud-init may still install them.
"""
RESTART_S, AGAIN_S = 60.0, 0.5
"""The seconds that sshd may take to restart, and the interval between checks."""
PIECE = 1 << 16
MAX_OUTPUT = 1 << 20
MAX_WAIT_S = 1800.0
"""The maximum duration of a script on the machine, in seconds."""
NEW_HOST_KEY = """\
set -e
umask 077
rm -f /etc/ssh/ssh_host_ed25519_key.new /etc/ssh/ssh_host_ed25519_key.new.pub
ssh-keygen -q -t ed25519 -N '' -C '' -f /etc/ssh/ssh_host_ed25519_key.new
mv /etc/ssh/ssh_host_ed25519_key.new.pub /etc/ssh/ssh_host_ed25519_key.pub
mv /etc/ssh/ssh_host_ed25519_key.new /etc/ssh/ssh_host_ed25519_key
find /etc/ssh -name 'ssh_host_*_key*' ! -name 'ssh_host_ed25519_key*' -delete
if [ -d /run/systemd/system ]; then
    systemctl restart ssh 2>/dev/null || systemctl restart sshd
else
    pkill -HUP -o -x sshd
fi
cat /etc/ssh/ssh_host_ed25519_key.pub
"""
"""Generates a new host key on the machine and prints its public part. Open connections stay open."""


class ScriptResult(NamedTuple):
    """The exit code of a script on the machine, and its output on both streams."""

    code: int
    text: str


class InstanceLogin:
    """An open login."""

    def __init__(self, host: Host) -> None:
        """Log in, and check the host key. Raises HostError."""
        self.host = host
        self._link = SshConnection(host).only_link()

    @property
    def about(self) -> str:
        """The user, the address and the host key."""
        return self._link.about

    def as_root(self, script: str) -> ScriptResult:
        """Run a shell script with `sudo -n`.

        Raises UnreachableError after MAX_WAIT_S or if the link is lost.
        """
        return self.run(f"exec sudo -n sh -c {shlex.quote(script)}")

    def run(self, script: str) -> ScriptResult:
        """Run a shell script. Raises UnreachableError after MAX_WAIT_S or if the link is lost."""
        command = f"exec 2>&1; {script}"
        channel = self._link.open_program(["sh", "-c", command])
        text, until = b"", time.monotonic() + MAX_WAIT_S
        try:
            channel.settimeout(MAX_WAIT_S)
            while piece := channel.recv(PIECE):
                text = (text + piece)[-MAX_OUTPUT:]
                channel.settimeout(max(0.1, until - time.monotonic()))
            return ScriptResult(channel.recv_exit_status(), text.decode(errors="replace"))
        except OSError as error:
            name = self.host.name
            raise UnreachableError(name, f"{name}: a script there did not end: {error}") from error
        finally:
            channel.close()

    def replace_host_key(self) -> str:
        """Generate a new host key on the machine. Return its public part. Raises HostError."""
        said = self.as_root(NEW_HOST_KEY)
        lines = [line.split() for line in said.text.splitlines()]  # sudo may print messages too
        words = next((line for line in lines if line[:1] == ["ssh-ed25519"] and len(line) > 1), [])
        if said.code != 0 or not words:
            name = self.host.name
            why = printable_end(said.text) or f"exit code {said.code}"
            raise HostError(name, f"{name}: its host key could not be replaced: {why}")
        return " ".join(words[:2])

    def note_end(self, left_s: float, run: str | None = None) -> None:
        """Write the end of the rental, by the machine's own clocks, to launcher's folder there and to `run`.

        During the current boot the boot clock decides, because the wall clock of a new machine may still be
        adjusted. Raises HostError.
        """
        root = self.host.root
        folder = f'"$HOME"/{shlex.quote(root[2:])}' if root.startswith("~/") else shlex.quote(root)
        left = f"{max(0.0, left_s):.0f}"
        script = (
            f"umask 077; mkdir -p {folder} && now=$(date +%s) && up=$(cut -d. -f1 /proc/uptime) && "
            "boot=$(cat /proc/sys/kernel/random/boot_id) && "
            f"""printf '{{"until": %d, "uptime": %d, "boot": "%s"}}\\n' $((now + {left})) $((up + {left})) "$boot" """
            f">{folder}/{RENTED}"
        )
        if run is not None:  # the run may have been removed, or not have started
            control = f"{folder}/runs/{shlex.quote(run)}/control"
            script += f" && {{ [ ! -d {control} ] || {{ cp {folder}/{RENTED} {control}/{RENTED}.new && mv {control}/{RENTED}.new {control}/{RENTED}; }}; }}"
        said = self.run(script)
        if said.code != 0:
            name = self.host.name
            raise HostError(name, f"{name}: {root} cannot be written there: {printable_end(said.text)}")

    def close(self) -> None:
        """Log out."""
        self._link.close()


def log_in(host: Host, clock: Clock, until: float, report: Callable[[str], None]) -> InstanceLogin:
    """Log in to a machine that has just booted, as soon as it accepts a login.

    Raises HostKeyError at once. Raises ServiceError `no-login` at once if there is no key to offer, within
    KEYS_S if the keys are refused, and at `until` if the machine does not answer.
    """
    has_refused = False
    while True:
        try:
            return InstanceLogin(host)
        except (UnreachableError, AuthRefusedError) as error:
            words, now = str(error).splitlines()[0], clock.now()
            why = f"{host.name}: it has booted, but the login failed: {words}"
            if isinstance(error, AuthRefusedError):
                until, has_refused = until if has_refused else min(until, now + KEYS_S), True
            if isinstance(error, NoKeyError) or now >= until:
                raise ServiceError(host.name, RentalReason.NO_LOGIN, why) from error
            report(words)
        clock.sleep(LOOK_S)


def log_in_again(host: Host, report: Callable[[str], None]) -> InstanceLogin:
    """Log in to a machine whose sshd is restarting with a new host key; `host` already has that key.

    During the restart the machine refuses connections or still shows the old key. Raises HostError if that
    lasts longer than RESTART_S.
    """
    until = time.monotonic() + RESTART_S
    while True:
        try:
            return InstanceLogin(host)
        except (UnreachableError, HostKeyError) as error:
            if time.monotonic() >= until:
                raise
            report(str(error).splitlines()[0])
        look_again_after(AGAIN_S)


def printable_end(text: str, most: int = 300) -> str:
    """Return the last line of a script's output, in printable characters."""
    from launcher.base.text import printable

    lines = [line for line in text.splitlines() if line.strip()]
    return printable(lines[-1][-most:]) if lines else ""
