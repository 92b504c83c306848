"""A real Slurm cluster: two login nodes and two compute nodes, each a machine of its own, with one shared /home.

    with slurm_cluster() as cluster:
        job = cluster.submit("hostname >where")
        cluster.until_state(job, "COMPLETED")

The controller is on login1. The client reaches the login nodes alone, by ssh; the compute nodes have a network with the
login nodes that the client has no address on. Each machine has its own pids, name, machine id, /tmp, /run and /dev/shm.
Nodes have two cards each as far as Slurm knows: character devices that nothing opens. Needs root, slurm-wlm and munge; with
accounting also slurmdbd and mariadb-server; with a home over FUSE bindfs.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from testbed.cards import Cards
from testbed.client import until
from testbed.machine import Machine, check_parts, ip, make_bridge, wait_until
from testbed.missing_part import MissingPartError

Share = Literal["plain", "fuse", "fuse-forwarding"]
SHARES: dict[Share, str] = {
    "plain": "mount --bind",
    "fuse": "bindfs",
    "fuse-forwarding": "bindfs --enable-lock-forwarding --multithreaded",
}
"""How each machine gets the shared home. Through plain FUSE a lock is seen on its own machine alone."""
USERS = ("ada", "bob")
_NODES_NETWORK = "10.215.0"
_FIRST_NETWORK, _NETWORKS = 1, 250
_FOLDERS = Path("/srv")  # /tmp and /var/tmp are each machine's own, and a Python there is refused
_PARTS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge"}
_ACCOUNTING_PARTS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
_SHARE_PARTS = {"bindfs": "bindfs"}

_CONF = """\
ClusterName={name}
SlurmctldHost=login1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
{settings}
NodeName=node1 NodeAddr={network}.21 CPUs=4 RealMemory=4000 Gres=gpu:a100:2 Feature=a100 State=UNKNOWN
NodeName=node2 NodeAddr={network}.22 CPUs=4 RealMemory=4000 Gres=gpu:a100:2 Feature=a100 State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES PriorityTier=10 MaxTime=7-0 State=UP
PartitionName=spare Nodes=ALL PriorityTier=1 MaxTime=7-0 State=UP
PartitionName=short Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=10 State=UP
"""
"""`batch` takes nodes from jobs of `spare`."""
SETTINGS = {
    "SlurmdTimeout": "10",  # Slurm's own default of 300 s would make a test of a lost node wait
    "KillWait": "5",
    "MinJobAge": "300",
    "JobRequeue": "1",
    "AccountingStorageType": "accounting_storage/none",
}
"""What a test may set otherwise."""
_ACCOUNTING = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "login1",
    "AccountingStorageTRES": "gres/gpu",
}

_MUNGE_SCRIPT = """\
#!/bin/sh
set -e
exec >>"{folder}/console.log" 2>&1
mkdir /run/munge
munged --force --log-file="{folder}/munged.log" --seed-file="{folder}/munge.seed"
"""
_DATABASE_SCRIPT = """\
mkdir /run/mysqld
setsid --fork mariadbd --no-defaults --user=root --datadir="{folder}/database" --socket=/run/mysqld/mysqld.sock \\
    --skip-networking --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0
until [ -S /run/mysqld/mysqld.sock ]; do sleep 0.05; done
slurmdbd
until grep -q ":1AA3 00000000:0000 0A" /proc/net/tcp; do sleep 0.05; done
"""  # 1AA3 is its port, 6819
_DATABASE_CONF = """\
AuthType=auth/munge
DbdHost=login1
SlurmUser=root
PidFile=/run/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageUser=root
"""


class SlurmMachine(Machine):
    """A node of a cluster. A login node has an address for the client, and all have one for each other."""

    own_folders = ("/tmp", "/dev/shm")

    def __init__(self, name: str, number: int, cluster: SlurmCluster, is_login: bool) -> None:
        """Name it; `number` makes its addresses."""
        super().__init__(name, number, cluster.folder / name, homes=cluster.homes)
        self.is_login = is_login
        self.share = SHARES[cluster.share]
        self.address = f"{cluster.network if is_login else _NODES_NETWORK}.{number}"
        self._number = number
        self._cluster = cluster
        self._links: list[str] = []

    @property
    def programs(self) -> Path:
        """What a compute node has as /usr/local/bin."""
        return self.folder / "programs"

    @contextlib.contextmanager
    def carded(self, *kinds: str) -> Iterator[Cards]:
        """Let a compute node's nvidia-smi report these cards for a while; without, it has no such program."""
        cards = Cards(self.folder / "cards")
        cards.put(*kinds)
        program = self.programs / "nvidia-smi"
        program.write_text(f'#!/bin/sh\nexec {cards.folder}/nvidia-smi "$@"\n')
        program.chmod(0o755)
        try:
            yield cards
        finally:
            program.unlink()
            cards.close()

    @contextlib.contextmanager
    def wrapped(self, program: str, script: str) -> Iterator[None]:
        """Let a login node find this shell script before a program of Slurm's, which it may start as /usr/bin/NAME, for a while."""
        self.programs.mkdir(exist_ok=True)
        path = self.programs / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        self.enter("mount", "--bind", str(self.programs), "/usr/local/bin")
        try:
            yield
        finally:
            self.enter("umount", "--lazy", "/usr/local/bin")
            path.unlink()

    def _connect(self) -> None:
        self._join(self._cluster.nodes_bridge, "eth1", f"{_NODES_NETWORK}.{self._number}")
        if self.is_login:
            self._join(self._cluster.bridge, "eth0", self.address)

    def _join(self, bridge: str, interface: str, address: str) -> None:
        link = f"{bridge}-{self._number}"
        mac = ":".join(["02", "00", *(f"{int(part):02x}" for part in address.split("."))])
        ip("link", "add", link, "type", "veth", "peer", "name", interface, "netns", str(self.pid))
        self._links.append(link)
        ip("link", "set", link, "master", bridge, "up")
        self.enter("ip", "addr", "add", f"{address}/24", "dev", interface)
        self.enter("ip", "link", "set", interface, "address", mac, "up")

    def _answers(self) -> bool:
        return _listens(self, 22)

    def kill(self) -> None:
        """Let it die at once, as a host does that loses its power."""
        super().kill()
        for link in self._links:
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
        self._links.clear()

    def set_link(self, state: str) -> None:
        """Pull the cable to the other nodes (`down`) or put it back (`up`): packets vanish."""
        ip("link", "set", f"{self._cluster.nodes_bridge}-{self._number}", state)

    # its daemons

    def signal(self, daemon: str, name: str) -> None:
        """Send a signal to a daemon that wrote /run/DAEMON.pid, and to no other process."""
        self.enter("sh", "-c", f'kill -{name} "$(cat /run/{daemon}.pid)"')

    def is_running(self, daemon: str) -> bool:
        """Whether a daemon is alive."""
        check = f'read pid </run/{daemon}.pid && grep -q "^State:.[^Z]" /proc/$pid/status && echo yes'
        return bool(self.enter("sh", "-c", check, check=False))

    def end_daemon(self, daemon: str, by: str = "TERM") -> None:
        """End a daemon alone; the jobs that it started go on.

        A controller that is killed loses its last seconds: a job of these is forgotten, or starts a second time.
        """
        self.signal(daemon, by)
        until(lambda: not self.is_running(daemon), f"{daemon} to end")

    def start_daemon(self, daemon: str) -> None:
        """Start a daemon of Slurm's again."""
        self.enter(daemon)


class SlurmCluster:
    """The machines and what tests ask them. A witness: all questions go to Slurm's own programs, by ssh as a user or as root."""

    def __init__(self, share: Share = "plain", has_accounting: bool = False, name: str = "testbed") -> None:
        """Choose how the home is shared, and what the cluster is called. Raises MissingPartError."""
        check_cluster_parts(share, has_accounting)
        self.share: Share = share
        self.has_accounting = has_accounting
        self.name = name
        self.settings = {**SETTINGS, **(_ACCOUNTING if has_accounting else {})}
        self._number, self._reservation = _reserve_network()
        self.network = f"10.214.{self._number}"
        self.bridge = f"lsc{self._number}"
        self.nodes_bridge = f"lsn{self._number}"
        self.homes = _FOLDERS / f"launch-testbed-slurm-{self._number}-home"
        self.folder = _FOLDERS / f"launch-testbed-slurm-{self._number}"
        self.logins = [SlurmMachine(f"login{n}", 10 + n, self, is_login=True) for n in (1, 2)]
        self.nodes = [SlurmMachine(f"node{n}", 20 + n, self, is_login=False) for n in (1, 2)]

    @property
    def machines(self) -> list[SlurmMachine]:
        """All four, the controller's first."""
        return [*self.logins, *self.nodes]

    @property
    def controller(self) -> SlurmMachine:
        """The login node that slurmctld runs on."""
        return self.logins[0]

    # its life

    def up(self) -> None:
        """Make it and start it; wait until both nodes are idle. Raises MissingPartError."""
        self._remove()  # what a test run has left that was killed
        make_bridge(self.bridge, f"{self.network}.1")
        make_bridge(self.nodes_bridge, address=None)
        self.homes.mkdir()
        self.folder.mkdir()
        # Four copies of /etc take a second in memory, and many on a busy disk.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", self.folder], check=True)
        (self.folder / "state").mkdir(mode=0o700)
        (self.folder / "dev").mkdir()
        for number in (0, 1):
            path = self.folder / "dev" / f"gpu{number}"
            os.mknod(path, mode=stat.S_IFCHR | 0o666, device=os.makedev(1, 3))
        key = secrets.token_bytes(128)
        for machine in self.machines:
            machine.make(*((user, "/bin/bash") for user in USERS))
            self._configure(machine, key)
        for name in ("host_key", "host_key.pub", "client_key", "client_key.pub"):
            # As two machines behind one name have it.
            shutil.copy(self.logins[0].folder / name, self.logins[1].folder / name)
        for user in USERS:
            shutil.copy(self.logins[0].folder / "client_key.pub", self.logins[1].folder / "keys" / user)
        if self.has_accounting:
            self._make_database()
        self._write_settings()
        for machine in self.machines:
            machine.up()
        wait_until(self.is_idle, self._log, timeout=180, what="the cluster")

    def _configure(self, machine: SlurmMachine, key: bytes) -> None:
        etc = machine.folder / "etc"
        (etc / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{_NODES_NETWORK}.{other._number} {other.name}\n" for other in self.machines)
        )
        (etc / "munge").mkdir(exist_ok=True)
        path = etc / "munge" / "munge.key"
        path.unlink(missing_ok=True)
        path.write_bytes(key)
        path.chmod(0o400)
        (etc / "slurm").mkdir(exist_ok=True)
        (etc / "slurm" / "gres.conf").write_text(
            f"NodeName=node[1-2] Name=gpu Type=a100 File={self.folder}/dev/gpu[0-1]\n"
        )
        script = _MUNGE_SCRIPT
        if machine is self.controller:
            script += f"{_DATABASE_SCRIPT if self.has_accounting else ''}slurmctld\n"
        elif not machine.is_login:
            machine.programs.mkdir()
            script += 'mount --bind "{folder}/programs" /usr/local/bin\nslurmd\n'
        (machine.folder / "boot").mkdir()
        path = machine.folder / "boot" / "slurm"
        path.write_text(script.format(folder=machine.folder))
        path.chmod(0o755)

    def _make_database(self) -> None:
        folder = self.controller.folder
        path = folder / "etc" / "slurm" / "slurmdbd.conf"
        path.write_text(_DATABASE_CONF.format(folder=folder))
        path.chmod(0o600)
        subprocess.run(
            [
                *("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={folder / 'database'}"),
                *("--auth-root-authentication-method=socket", "--skip-test-db", "--skip-name-resolve"),
            ],
            check=True,
            capture_output=True,
        )

    def _write_settings(self) -> None:
        settings = "\n".join(f"{key}={value}" for key, value in self.settings.items())
        text = _CONF.format(name=self.name, folder=self.folder, network=_NODES_NETWORK, settings=settings)
        for machine in self.machines:
            (machine.folder / "etc" / "slurm" / "slurm.conf").write_text(text)

    def down(self) -> None:
        """End it all and remove it."""
        for machine in self.machines:
            machine.kill()
        self._remove()
        self._reservation.close()

    def _remove(self) -> None:
        for bridge in (self.bridge, self.nodes_bridge):
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
        if self.folder.is_mount():
            subprocess.run(["umount", "--lazy", self.folder], check=True)
        for folder in (self.folder, self.homes):
            if folder.exists():
                shutil.rmtree(folder)

    def _log(self) -> str:
        logs = (self.folder / "slurmctld.log", self.controller.folder / "slurmdbd.log")
        paths = [*logs, *(machine.folder / "console.log" for machine in self.machines)]
        return "\n".join(path.read_text()[-300:] for path in paths if path.exists())

    # what a test does to it

    @contextlib.contextmanager
    def configured(self, **settings: str) -> Iterator[None]:
        """Set values of slurm.conf for a while, such as JobRequeue="0"."""
        before = dict(self.settings)
        try:
            self._reconfigure({**before, **settings})
            yield
        finally:
            self._reconfigure(before)

    def _reconfigure(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self._write_settings()
        said = self.controller.enter("sh", "-c", "scontrol reconfigure 2>&1 || echo refused")
        assert not said, f"{settings}: {said}"

    @contextlib.contextmanager
    def silent_controller(self) -> Iterator[None]:
        """Let the controller answer nobody for a while; it takes connections, as a stuck one does."""
        self.controller.signal("slurmctld", "STOP")
        try:
            yield
        finally:
            self.controller.signal("slurmctld", "CONT")

    @contextlib.contextmanager
    def no_controller(self) -> Iterator[None]:
        """Let no controller run for a while."""
        self.controller.end_daemon("slurmctld")
        try:
            yield
        finally:
            self.controller.start_daemon("slurmctld")
            until(
                lambda: "is UP" in self.controller.enter("scontrol", "ping", check=False),
                "the controller to answer",
            )

    @contextlib.contextmanager
    def drained(self, *nodes: SlurmMachine, reason: str = "testbed") -> Iterator[None]:
        """Let no job start on some nodes for a while; those that run there go on."""
        names = ",".join(node.name for node in nodes)
        self.controller.enter("scontrol", "update", f"NodeName={names}", "State=DRAIN", f"Reason={reason}")
        try:
            yield
        finally:
            self.controller.enter("scontrol", "update", f"NodeName={names}", "State=RESUME")

    @contextlib.contextmanager
    def graced(self, seconds: int) -> Iterator[None]:
        """Give jobs of `spare` so many seconds before they make way, for a while."""
        words = ("scontrol", "update", "PartitionName=spare")
        self.controller.enter(*words, f"GraceTime={seconds}")
        try:
            yield
        finally:
            self.controller.enter(*words, "GraceTime=0")

    def reboot(self, machine: SlurmMachine) -> None:
        """Let a machine lose its power and boot again."""
        machine.kill()
        machine.up()

    def clear(self) -> None:
        """End every job, and wait until both nodes are idle: what a test does that shares the cluster with others."""
        for words in (("--batch", "--signal=KILL"), ()):
            for user in USERS:
                self.controller.enter("scancel", *words, "--quiet", f"--user={user}", check=False)
        until(
            lambda: not self.controller.enter("squeue", "--noheader") and self.is_idle(),
            "an idle cluster",
            60,
        )

    # what a test asks it

    def is_idle(self) -> bool:
        """Whether both nodes answer and have no job."""
        said = self.controller.enter(
            "sinfo", "--noheader", "--partition=batch", "--states=idle", "-o", "%D %t", check=False
        )
        return said.split() == ["2", "idle"]

    def ssh(self, *words: str, user: str = USERS[0], login: int = 0, check: bool = True) -> str:
        """Run a command on a login node as a user."""
        return self.logins[login].ssh(*words, user=user, check=check)

    def submit(self, script: str, *flags: str, user: str = USERS[0], login: int = 0) -> str:
        """Submit lines of a shell script from the user's home, and return the job's id."""
        words = ("sbatch", "--parsable", *flags, f"--wrap={script}")
        return self.ssh(*words, user=user, login=login).strip().partition(";")[0]

    def job(self, job: str) -> dict[str, str]:
        """Return what `scontrol show job` says of a job, values without spaces alone; {} if Slurm has forgotten it."""
        said = self.controller.enter("scontrol", "--oneliner", "show", "job", job, check=False)
        return dict(re.findall(r"(?:^| )([A-Z][\w/:]*)=(\S*)", said))

    def state(self, job: str) -> str:
        """Return the state of a job in Slurm's word, such as PENDING."""
        return self.job(job).get("JobState", "")

    def accounted(self, job: str) -> tuple[str, str]:
        """Return the state and the exit status of a job's last start by accounting, which learns of them seconds late."""
        said = self.controller.enter("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", job).split(
            "\n"
        )[0]
        state, _, code = said.partition("|")
        return state.split(" ")[0], code

    def until_state(self, job: str, *states: str, timeout: float = 180) -> dict[str, str]:
        """Wait until a job is in one of some states; return what is said of it."""
        until(lambda: self.state(job) in states, f"job {job} to be {' or '.join(states)}", timeout)
        return self.job(job)

    def start_now(self, job: str) -> None:
        """Let a job begin that waits out the two minutes after a requeue; Slurm may set them once more while it cleans up."""

        def has_begun() -> bool:
            state = self.state(job)
            if state == "PENDING":
                time.sleep(1.1)  # a node refuses a job that it has ended in the same second
                self.controller.enter("scontrol", "update", f"JobId={job}", "StartTime=now")
            return state not in ("PENDING", "COMPLETING", "REQUEUED")  # of the start before

        until(has_begun, f"job {job} to begin", 90, every=1)


def _listens(machine: Machine, port: int) -> bool:
    """Whether something in a machine listens at a TCP port: the client may have no way to it."""
    rows = [line.split() for line in machine.enter("cat", "/proc/net/tcp").splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def job_name(run: str) -> str:
    """What the jobs of a run are called."""
    return run.partition("-")[2]


@contextlib.contextmanager
def slurm_cluster(
    share: Share = "plain", has_accounting: bool = False, name: str = "testbed"
) -> Iterator[SlurmCluster]:
    """Give a cluster that is up, and remove it. Raises MissingPartError."""
    cluster = SlurmCluster(share, has_accounting, name)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def check_cluster_parts(share: Share, has_accounting: bool) -> None:
    """Raise MissingPartError, with what to install, where no cluster can be."""
    check_parts()
    parts = {**_PARTS, **(_ACCOUNTING_PARTS if has_accounting else {})}
    if share != "plain":
        parts |= _SHARE_PARTS
    for part, package in parts.items():
        if shutil.which(part, path="/usr/sbin:/usr/bin") is None:
            raise MissingPartError(f"no {part} here: apt-get install {package}")


def _reserve_network() -> tuple[int, socket.socket]:
    """Return a number that no other cluster on this machine has, and what holds it until it is closed."""
    for number in range(_FIRST_NETWORK, _FIRST_NETWORK + _NETWORKS):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0launch-testbed-slurm-{number}")
        except OSError:
            reservation.close()
        else:
            return number, reservation
    raise MissingPartError("250 clusters run on this machine already")
