"""A host that has no way to it but through another: on a network of its own, which only its hop has a cable to."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from testbed.client import MIRRORED, missing, until
from testbed.machine import HIDDEN_GATE, Machine
from testbed.missing_part import MissingPartError
from testbed.tables import mostly_long

pytestmark = pytest.mark.testbed
STEPS = """
import os, time, launcher_worker as w
for i in range(1, 61):
    while i in (30, 60) and not os.path.exists(os.path.expanduser("~/%d" % i)):
        time.sleep(0.05)
    time.sleep(0.1)
    w.log(i, loss=1 / i)
w.done(60)
"""
SUMS = f"sha256sum {MIRRORED} && sha256sum plan.json && sha256sum code/train.py"
HOST_SUMS = (
    f"cd record && sha256sum {MIRRORED} && cd ../control && sha256sum plan.json"
    " && cd ../work && sha256sum code/train.py"
)


@pytest.fixture(scope="module")
def vault(machines):
    """The machine behind the first one."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    machine = Machine("vault", 43, folder / "vault", behind=machines[0])
    try:
        machine.make()
        machine.up()
        yield machine
    except MissingPartError as error:
        missing(str(error))
    finally:
        machine.down()
        folder.rmdir()


@pytest.fixture
def way(client, machines, vault):
    """Write ~/.ssh/config, in which `gate` leads to `vault`; return where their known_hosts may be changed."""

    def write(**known):
        lines = []
        for name, machine, more in (("gate", machines[0], ""), ("vault", vault, "  ProxyJump gate\n")):
            lines.append(
                f"Host {name}\n{more}  HostName {machine.address}\n  User {machine.user}\n"
                f"  IdentityFile {machine.folder}/client_key\n"
                f"  UserKnownHostsFile {known.get(name, machine.known_hosts)}\n"
            )
        (client.home / ".ssh").mkdir(exist_ok=True)
        (client.home / ".ssh" / "config").write_text("".join(lines))

    write()
    for machine in (machines[0], vault):
        machine.ssh("rm", "-rf", ".launch")
    return write


def logins(machine):
    """Whence each login on a machine came, by its own sshd."""
    log = (machine.folder / "console.log").read_text()
    return re.findall(r"Accepted publickey for \S+ from (\S+)", log)


def processes(machine):
    """What runs as a machine's user, by its own ps."""
    return machine.enter("ps", "-o", "args=", "-u", machine.user, check=False).splitlines()


def test_nobody_but_its_hop_has_a_way_to_it(machines, vault):
    """What the other tests here rest on: no connection from the client's side or the neighbour's, one from the hop's."""
    scan = "ssh-keyscan", "-T", "2", vault.address
    here = subprocess.run(scan, capture_output=True, text=True, check=False)
    assert "ssh-" not in here.stdout
    assert "ssh-" not in machines[1].enter(*scan, check=False)
    assert "ssh-" in machines[0].enter("ssh-keyscan", "-T", "20", vault.address)


@pytest.mark.long
def test_a_run_there_outlives_cuts_of_either_hop_and_leaves_nothing(
    client, machines, vault, way, record_property
):
    """Every login there comes from the hop; the mirror is the record; no session, process or file of ours stays behind."""
    gate = machines[0]
    client.script(STEPS)
    before = len(logins(vault))
    process = client.start("--host", "vault", "--", "python", "train.py")

    def steps():
        return sum(path.read_bytes().count(b'"metric"') for path in client.runs.glob("*/0002/events.jsonl"))

    for machine, wanted, held in ((gate, 1, 30), (vault, 30, 60)):
        until(lambda wanted=wanted: steps() >= wanted, f"step {wanted} in the mirror")
        assert any("train.py" in line for line in processes(vault))
        came = len(logins(vault))
        machine.cut()
        until(lambda came=came: len(logins(vault)) > came, "the client to come back")
        # What is logged from here on comes by the new connection alone: else one return might mend both cuts.
        vault.enter("touch", f"/home/ada/{held}")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert err.count("the link is back") == 2
    run = next(client.runs.glob("[0-9]*"))
    there = vault.ssh("sh", "-c", f"cd ~/.launch/runs/{run.name} && {HOST_SUMS}")
    (run / "code").mkdir()
    (run / "code" / "train.py").write_text(STEPS)
    here = subprocess.run(["sh", "-c", SUMS], cwd=run, capture_output=True, text=True, check=True).stdout
    record_property("done", "behind a hop that alone reaches it: the hop cut, then the host")
    record_property("end", "succeeded")
    record_property("identical", "yes" if here == there else "no")
    record_property("reconnects", err.count("the link is back"))
    assert here == there
    assert steps() == 60
    until(lambda: not gate.sessions() and not vault.sessions(), "the sessions to end")
    until(lambda: not processes(gate) and not processes(vault), "the processes to end")
    assert set(logins(vault)[before:]) == {HIDDEN_GATE}
    assert ".launch" not in gate.ssh("ls", "-A").split()


@pytest.mark.parametrize("which", ["gate", "vault"])
@mostly_long("what", ["not known", "CHANGED"], ci=(1,))
def test_a_launch_is_refused_at_the_hop_whose_key_is_wrong(client, machines, vault, way, which, what):
    """Exit code 4 and its name; nobody logs in there or beyond, and nothing is written on either side."""
    gate = machines[0]
    shows, other = {"gate": (gate, vault), "vault": (vault, gate)}[which]
    key = " ".join((other.folder / "host_key.pub").read_text().split()[:2])
    known = client.home / "known"
    known.write_text(f"{shows.address} {key}\n" if what == "CHANGED" else "")
    way(**{which: known})
    before = len(logins(gate)), len(logins(vault))
    done = client.run("--host", "vault", "--", "true")
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"vault{', hop gate' if which == 'gate' else ''}'s host key" in done.stderr
    assert what in done.stderr
    assert (len(logins(gate)), len(logins(vault))) == (before[0] + (which == "vault"), before[1])
    until(lambda: not gate.sessions() and not vault.sessions(), "the sessions to end")
    for machine in (gate, vault):
        assert ".launch" not in machine.ssh("ls", "-A").split()
    assert not list(client.runs.glob("[0-9]*"))
