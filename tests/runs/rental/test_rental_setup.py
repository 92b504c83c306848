"""The setup of a rented machine for containers: its script runs as root on a machine of the testbed, over ssh and sudo.

Only the tools at its edge are not the real ones: apt-get, systemctl, docker and nvidia-ctk behave as documented, see
setup_tools.py. What they were called for, and the files that they leave, are the witness.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import testbed
from testbed.client import missing
from testbed.lambda_machines import USER, RentedMachine
from testbed.missing_part import MissingPartError
from testbed.tables import mostly_long

from launcher.errors import ServiceError
from launcher.rental.lease.instance_login import InstanceLogin
from launcher.runs.follow.view import NullStage
from launcher.runs.rented.rental_setup import set_up
from launcher.values.host import Host

TOOLS = Path(testbed.__path__[0]) / "setup_tools.py"
FAKED = ("apt-get", "systemctl", "docker", "dockerd", "nvidia-ctk", "nvidia-smi", "sleep")
READY = {
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}},
}


class Prepared:
    """A machine, and the folder that is root's path there."""

    def __init__(self, machine, log):
        """Begin with a machine that has nothing."""
        self.machine, self.log = machine, log
        self.folder = machine.folder / "tools"
        self.settings = machine.folder / "etc" / "docker" / "daemon.json"

    def reset(self, *there, settings=None, engine=None, **state):
        """Let it have these tools, and this daemon.json, which its engine has read."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.settings.parent, ignore_errors=True)
        self.folder.mkdir()
        for source in ("/usr/sbin", "/usr/bin"):
            for path in Path(source).iterdir():
                if path.name not in FAKED and not (self.folder / path.name).is_symlink():
                    (self.folder / path.name).symlink_to(path)
        shutil.copy(TOOLS, self.folder / TOOLS.name)
        (self.folder / TOOLS.name).chmod(0o755)
        for name in ("apt-get", "systemctl", "sleep", *there):
            (self.folder / name).symlink_to(TOOLS.name)
        if settings is not None:
            self.settings.parent.mkdir(parents=True)
            self.settings.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        known = {"lists_locked": 0, "dpkg_locked": False, "unknown": [], "is_updated": False}
        found = engine if engine is not None else settings if isinstance(settings, dict) else {}
        values = {**known, "engine": found if "docker" in there else None, **state}
        (self.folder / "state.json").write_text(json.dumps(values))

    def set_up(self):
        """Set it up; return what the stage says."""
        host = Host(
            name="rented",
            address=self.machine.address,
            user=USER,
            identity_file=str(self.machine.folder / "client_key"),
            known_hosts=str(self.machine.known_hosts),
        )
        stage = NullStage()
        login = InstanceLogin(host)
        try:
            set_up(login, self.log, stage)
        finally:
            login.close()
        return stage.text

    @property
    def calls(self):
        """What was called that may change something, since the last look."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [
            line.replace("-q -y -o DPkg::Lock::Timeout=300 ", "")
            for line in lines
            if not line.startswith("docker ")
        ]

    def is_ready(self):
        """Whether the file and the engine have NVIDIA's runtime and cgroupfs."""
        engine = json.loads((self.folder / "state.json").read_text())["engine"]
        return [
            (one.get("exec-opts"), "nvidia" in one.get("runtimes", {}))
            for one in (json.loads(self.settings.read_text()), engine)
        ] == [(READY["exec-opts"], True)] * 2


@pytest.fixture(scope="module")
def machine():
    """A machine whose root has the tools of a folder."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    made = RentedMachine("setup", 200, folder / "machine")
    try:
        made.make((USER, "/bin/bash"), groups={"docker": []})
        made.apply("", [], honours_host_key=True)
        sudoers = made.folder / "etc" / "sudoers.d" / USER
        sudoers.chmod(0o640)
        sudoers.write_text(f'Defaults secure_path="{made.folder}/tools"\n{sudoers.read_text()}')
        sudoers.chmod(0o440)
        made.up()
        yield made
    except MissingPartError as error:
        missing(str(error))
    finally:
        made.kill()
        shutil.rmtree(folder)


@pytest.fixture
def prepared(machine, tmp_path):
    """The machine, for one test."""
    return Prepared(machine, tmp_path / "setup.log")


def test_all_is_there(prepared):
    """Nothing is changed, and nothing restarted."""
    prepared.reset("docker", "nvidia-smi", "nvidia-ctk", settings=READY)
    before = prepared.settings.stat()
    assert prepared.set_up() == "nothing to do"
    assert prepared.calls == []
    after = prepared.settings.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert prepared.log.read_text().splitlines()[-2:] == ["docker 27.5.1", "done: nothing to do"]


def test_the_toolkit_is_missing(prepared):
    """It is installed, the engine gets its runtime and cgroupfs, and is restarted once; the second time nothing happens."""
    prepared.reset("docker", "nvidia-smi")
    assert prepared.set_up() == "nvidia-container-toolkit daemon.json"
    assert prepared.calls == [
        "apt-get update",
        "apt-get install nvidia-container-toolkit",
        "nvidia-ctk runtime configure --runtime=docker",
        "systemctl restart docker",
    ]
    assert prepared.is_ready()
    assert prepared.set_up() == "nothing to do"
    assert prepared.calls == []


def test_docker_is_missing(prepared):
    prepared.reset("nvidia-smi", "nvidia-ctk")
    assert prepared.set_up() == "docker daemon.json"
    assert prepared.calls[:2] == ["apt-get update", "apt-get install docker.io"]
    assert prepared.is_ready()
    assert prepared.set_up() == "nothing to do"
    assert prepared.calls == []


def test_both_are_missing(prepared):
    prepared.reset("nvidia-smi")
    assert prepared.set_up() == "docker nvidia-container-toolkit daemon.json"
    assert prepared.is_ready()


def test_a_machine_without_a_card_needs_no_toolkit(prepared):
    prepared.reset()
    assert prepared.set_up() == "docker"
    assert prepared.calls == ["apt-get update", "apt-get install docker.io"]
    assert not prepared.settings.exists()


def test_what_else_the_engine_is_set_to_stays(prepared):
    """Another cgroup driver gives way; no other key is touched."""
    own = {
        "exec-opts": ["native.cgroupdriver=systemd", "isolation=default"],
        "log-driver": "local",
        "mtu": 1400,
    }
    prepared.reset("docker", "nvidia-smi", "nvidia-ctk", settings=own)
    assert prepared.set_up() == "daemon.json"
    assert json.loads(prepared.settings.read_text()) == {
        **own,
        "exec-opts": ["isolation=default", "native.cgroupdriver=cgroupfs"],
        "runtimes": READY["runtimes"],
    }
    assert prepared.calls[-1] == "systemctl restart docker"


def test_an_engine_that_has_not_read_its_settings_is_restarted(prepared):
    """As after a setup that broke off between the file and the restart."""
    prepared.reset("docker", "nvidia-smi", "nvidia-ctk", settings=READY, engine={})
    assert prepared.set_up() == "restart"
    assert prepared.calls == ["systemctl restart docker"]
    assert prepared.is_ready()


@mostly_long("lock", [{"lists_locked": 3}, {"dpkg_locked": True}], ci=(1,))
def test_another_apt_at_work_is_waited_for(prepared, lock):
    """As a fresh machine's own updates are: dpkg's lock by apt's option, that of the lists by trying again."""
    prepared.reset("docker", "nvidia-smi", **lock)
    assert prepared.set_up() == "nvidia-container-toolkit daemon.json"
    assert prepared.is_ready()
    assert prepared.calls.count("apt-get update") == 1 + lock.get("lists_locked", 0)


@mostly_long(
    ("how", "why"),
    [
        ({"unknown": ["nvidia-container-toolkit"]}, "E: Unable to locate package nvidia-container-toolkit"),
        ({"lists_locked": 1000}, "E: Unable to lock directory /var/lib/apt/lists/"),
    ],
    ci=(0,),
)
def test_a_package_that_cannot_be_installed(prepared, how, why):
    """It is `setup-failed`, with what apt said and the log that has all of it; the engine is not touched."""
    prepared.reset("docker", "nvidia-smi", **how)
    with pytest.raises(ServiceError) as caught:
        prepared.set_up()
    assert caught.value.reason == "setup-failed"
    assert why in str(caught.value)
    assert str(prepared.log) in str(caught.value)
    assert 'runtime = "native"' in str(caught.value)
    assert why in prepared.log.read_text()
    assert "systemctl restart docker" not in prepared.calls
    assert not prepared.settings.exists()


def test_an_engine_that_does_not_come_up(prepared):
    """Its settings were no JSON before: they stay as they are, and the failure names them."""
    prepared.reset("docker", "nvidia-smi", "nvidia-ctk", settings='{"mtu": 1400,}')
    with pytest.raises(ServiceError) as caught:
        prepared.set_up()
    assert caught.value.reason == "setup-failed"
    assert "/etc/docker/daemon.json" in str(caught.value)
    assert prepared.settings.read_text() == '{"mtu": 1400,}'


def test_an_engine_that_is_down(prepared):
    prepared.reset("docker", "nvidia-smi", "nvidia-ctk", settings=READY)
    values = json.loads((prepared.folder / "state.json").read_text())
    (prepared.folder / "state.json").write_text(json.dumps({**values, "engine": None}))
    assert prepared.set_up() == "restart"
    assert prepared.is_ready()


def test_the_tools_are_those_of_the_folder(prepared):
    """Nothing of this machine is asked: its own docker, apt-get and systemctl are not on that path."""
    prepared.reset()
    there = {name for name in FAKED if os.path.lexists(prepared.folder / name)}
    assert there == {"apt-get", "systemctl", "sleep"}
