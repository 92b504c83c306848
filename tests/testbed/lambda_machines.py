"""The machines behind the instances of Lambda Cloud's stand-in: real ones, which take their `user_data` as cloud-init would.

An instance has its own pids, mounts, name, users and sshd, see machine.py, and a card that nvidia-smi reports. It shares this
machine's network, with a loopback address of its own on port 22, so that no bridge is needed. The user is `ubuntu`, with
sudo and no password, whose key is that of the account.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from testbed.cache import Say, base_image
from testbed.cards import Cards
from testbed.engine import Engine
from testbed.lambda_service import LambdaService
from testbed.lambda_state import Instance
from testbed.machine import Machine, check_parts

USER = "ubuntu"
UNDERSTOOD = {"ssh_keys", "ssh_deletekeys", "users", "runcmd"}
FIRST_NUMBER = 60
HOST_KEY = Path("/etc/ssh/ssh_host_ed25519_key")


class InstanceMachine(Machine):
    """A machine that takes its `user_data` as cloud-init would."""

    engine: Engine | None = None

    @property
    def host_key(self) -> Path:
        """Where cloud-init puts it."""
        return HOST_KEY

    @property
    def known_hosts(self) -> Path:
        """A file with the host key that it has now."""
        path = self.folder / "known_hosts"
        new = self.folder / f"known_hosts.{os.getpid()}"
        new.write_text(f"{self.address} {self.public_host_key()}\n")
        new.replace(path)  # a client may be reading it
        return path

    def apply(self, text: str, public_keys: list[str], *, honours_host_key: bool) -> list[Any]:
        """Do what cloud-init does before sshd starts; return what it runs afterwards."""
        config = read_user_data(text)
        ssh = self.folder / "etc" / "ssh"
        for path in ssh.glob("ssh_host_*_key*"):
            path.unlink()
        key = self.folder / str(HOST_KEY).lstrip("/")
        given = config.get("ssh_keys", {}) if honours_host_key else {}
        if given:
            assert set(given) == {"ed25519_private", "ed25519_public"}, sorted(given)
            key.write_text(given["ed25519_private"])
            key.chmod(0o600)
            key.with_name(f"{key.name}.pub").write_text(given["ed25519_public"])
        else:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        witness = (self.folder / "client_key.pub").read_text().strip()  # for `ssh`, which is not our code
        (self.folder / "keys" / USER).write_text("".join(f"{one}\n" for one in [*public_keys, witness]))
        for user in config.get("users", []):
            self._add_user(user["name"], user.get("shell", "/bin/bash"))
            keys = self.folder / "keys" / user["name"]
            keys.write_text("".join(f"{one}\n" for one in user.get("ssh_authorized_keys", [])))
        sudoers = self.folder / "etc" / "sudoers.d" / USER
        sudoers.write_text(f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
        sudoers.chmod(0o440)
        return config.get("runcmd", [])

    def rent_ends(self, run: str) -> None:
        """Tell a run there that the time of its machine is up, in the file that tells it of another limit."""
        (told,) = (self.homes / USER).rglob("rented.json")
        control = told.parent / "runs" / run / "control"
        rent = json.loads(told.read_text())
        left_s = rent["until"] - time.time()
        new = control / "rented.json.new"
        new.write_text(json.dumps({**rent, "until": time.time(), "uptime": rent["uptime"] - left_s}))
        shutil.chown(new, control.stat().st_uid, control.stat().st_gid)
        new.replace(control / "rented.json")

    def public_host_key(self) -> str:
        """Return the public part of the host key that it has now."""
        path = self.folder / f"{str(HOST_KEY).lstrip('/')}.pub"
        return " ".join(path.read_text().split()[:2])

    def served_host_keys(self) -> set[str]:
        """Return the host keys that its sshd shows, by ssh-keyscan."""
        said = subprocess.run(
            ["ssh-keyscan", "-T", "5", self.address], capture_output=True, text=True, check=True
        )
        return {line.split()[2] for line in said.stdout.splitlines() if not line.startswith("#")}


class RentedMachine(InstanceMachine):
    """One with this machine's network, and an address of its own on loopback."""

    network = ()

    def __init__(self, name: str, number: int, folder: Path) -> None:
        """Name it; `number` makes its address, which no other test process has."""
        rest, pid = divmod(os.getpid(), 200)
        address = f"127.{20 + pid}.{rest % 250}.{1 + number % 250}"
        super().__init__(name, 2, folder, sshd=f"ListenAddress {address}\n")
        self.address = address

    def _connect(self) -> None:
        """Do nothing: it has this machine's network."""


def read_user_data(text: str) -> dict[str, Any]:
    """Return what a `user_data` asks for; only what is understood here may be in it. JSON is YAML too."""
    if not text:
        return {}
    head, _, body = text.partition("\n")
    assert head == "#cloud-config", head
    config = json.loads(body)
    assert config.keys() <= UNDERSTOOD, sorted(config.keys() - UNDERSTOOD)
    return config


_SLOW_SSHD = """\
set -e
mkdir /run/real
touch /run/real/sshd
mount --bind /usr/sbin/sshd /run/real/sshd
printf '#!/bin/sh\\ncase " $* " in *" -R "*) ;; *) sleep %s ;; esac\\nexec /run/real/sshd "$@"\\n' "$1" >/run/slow-sshd
chmod 755 /run/slow-sshd
mount --bind /run/slow-sshd /usr/sbin/sshd
"""
"""Lets sshd wait so many seconds, refusing all, each time that it starts again."""


class Instances:
    """The machines of a stand-in's instances, each up from its launch to its end."""

    def __init__(self, service: LambdaService, card: str = "a100_40gb", say: Say | None = None) -> None:
        """Give each instance one card of a kind; with `say`, also a network of its own, on the bridge, and an engine."""
        check_parts()
        if say is not None:
            base_image(say)
        self._say = say
        self.breaks_engine = False
        self.sshd_pause_s = 0.0
        self.service = service
        self.folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
        self.folder.chmod(0o755)
        self.honours_host_key = True
        self.files: set[str] = set()  # of the home of each machine that boots from now on
        self.machines: dict[str, InstanceMachine] = {}
        self._cards = Cards(self.folder / "cards")
        self._cards.put(card)
        self._ending = threading.Lock()
        self._thread = ThreadPoolExecutor(1)  # a machine dies with the thread that boots it
        service.state.on_start = self.start
        service.state.on_end = self.end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End them all."""
        for machine in self.machines.values():
            with self._ending:
                machine.kill()
            if machine.engine is not None:
                machine.engine.remove_cgroups()
        self._thread.shutdown()
        shutil.rmtree(self.folder)

    def start(self, one: Instance) -> tuple[str, int]:
        """Boot the machine of an instance; one that a test itself has started has none."""
        if not one.body.get("user_data"):
            return "127.0.0.1", 22
        number = len(self.machines)
        kind = RentedMachine if self._say is None else InstanceMachine
        machine = kind(f"rented-{number}", FIRST_NUMBER + number, self.folder / one.id)
        self.machines[one.id] = machine
        machine.make((USER, "/bin/bash"), groups={"docker": []})
        account = next(who for who in self.service.state.accounts if who.name == one.account)
        names = one.body["ssh_key_names"]
        keys = [key["public_key"] for key in account.keys.values() if key["name"] in names]
        commands = machine.apply(one.body.get("user_data", ""), keys, honours_host_key=self.honours_host_key)
        for name in self.files:
            (machine.homes / USER / name).touch()
        rc = machine.homes / USER / ".bashrc"
        rc.write_text(f'export PATH="{self._cards.folder}:$PATH"\n')
        if self._say is not None and not self.breaks_engine:
            machine.engine = Engine(machine)
            (machine.engine.folder / "cards").symlink_to(self._cards.folder)
            machine.engine.configure(runtimes={"nvidia": {"path": "runc"}})
        self.boot(machine)
        if machine.engine is not None:
            machine.engine.wait()
            machine.engine.load_base()
        if self.sshd_pause_s:
            machine.enter("sh", "-c", _SLOW_SSHD, "slow", str(self.sshd_pause_s))
        for command in commands:
            machine.enter(*(command if isinstance(command, list) else ["sh", "-c", command]))
        return machine.address, 22

    def boot(self, machine: InstanceMachine) -> None:
        """Boot a machine that was killed once more."""
        self._thread.submit(machine.up).result()

    def end(self, one: Instance) -> None:
        """Let the machine of an instance die, as a terminated one does."""
        if one.id in self.machines:
            with self._ending:  # a call that ends it may be under way when the test ends
                self.machines[one.id].kill()

    def put_card(self, kind: str) -> None:
        """Let all of them have one card of another kind from now on."""
        self._cards.put(kind)

    @property
    def newest(self) -> InstanceMachine:
        """The machine that was booted last."""
        return list(self.machines.values())[-1]
