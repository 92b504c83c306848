"""A launch that rents its machine: what is rented, logged in to, brought home and ended, by the stand-in's own account."""

import fcntl
import re
import secrets
import signal
import subprocess
from pathlib import Path

import pytest
from testbed.client import until
from testbed.key_witness import KeyWitness
from testbed.machine import PATH
from testbed.tables import mostly_long

ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
TRAIN = """
import os, sys, time
print("on", os.uname().nodename, os.environ["USER"], flush=True)
os.makedirs("out", exist_ok=True)
open("out/weights", "w").write("w" * 1000)
while "wait" in sys.argv and not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)
sys.exit("fail" in sys.argv)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def home_of(project, run):
    return (project.client.runs / run / "outputs" / "out" / "weights").read_text() == "w" * 1000


def test_a_run_on_a_rented_machine(project):
    """It is rented, booted and logged in to, the run's files come home, and then the machine is gone."""
    said = project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    assert rental.state == "ended"
    assert project.ours() == []
    assert home_of(project, rental.intent.run)
    stages = re.findall(r"✓ (\w+) ", said)
    order = ["rent", "boot", "login", "connect", "probe", "sweep", "ship", "start", "home", "end"]
    assert [stage for stage in stages if stage in order] == order
    assert "on rented-0 ubuntu" in said
    assert f"at most ${rental.cents / 100:.2f}" in said
    assert project.service.state.violations == []


@pytest.mark.long
def test_the_host_key_of_user_data_serves_for_the_first_contact_only(project):
    """The machine has another one after it, which known_hosts has alone."""
    process = project.started("--", "python3", "train.py", "wait")
    machine, (rental,) = project.instances.newest, project.rentals()
    (call,) = project.service.of("launch")
    known = (project.ledger.place(rental.nonce) / "known_hosts").read_text().split()
    assert known == [machine.address, *machine.public_host_key().split()]
    assert known[2] not in call["body"]["user_data"]
    assert machine.served_host_keys() == {known[2]}
    project.go()
    process.communicate(timeout=180)
    assert process.returncode == 0


def see_a_word_there(project):
    """Fail if the witness does not see a word that a process on the machine shows."""
    word = secrets.token_hex(16)
    machine = str(project.instances.newest.pid)
    shows = ["nsenter", "-t", machine, "--all", "--", "sh", "-c", "sleep 3; :", word]
    with KeyWitness(word) as witness:
        process = subprocess.Popen(shows, env={"PATH": PATH, "WORD": word})
        until(lambda: witness.argv and witness.variables, "the word")
        process.wait()


def test_no_byte_of_the_key_is_anywhere(project):
    """Neither in a file of the client or of the machine, in a command line, in a variable there, nor in what is printed or sent."""
    key = f"secret_{secrets.token_hex(16)}"
    project.service.account("carol", key)
    project.client.variables["LAMBDA_API_KEY"] = key
    with KeyWitness(key) as witness:
        process = project.started("--verbose", "--", "python3", "train.py", "wait")
        see_a_word_there(project)
        folder = Path(f"/proc/{project.instances.newest.pid}/root/run")  # the others stay when it dies
        assert not [one for one in folder.rglob("*") if one.is_file() and key.encode() in one.read_bytes()]
        process.send_signal(signal.SIGINT)  # to a keeper
        said = "".join(process.communicate(timeout=180))
        said += project.client.seen("hosts") + project.client.seen("reconcile", "--verbose")
        project.go()
        project.until_gone()
        until(lambda: not project.keepers(), "the keeper's end")
        assert witness.looks > 10
    assert witness.argv == witness.variables == set()
    assert key not in said
    assert project.service.of("launch")[0]["body"]["user_data"]
    assert not [call for call in project.service.calls if key in str(call)]
    folders = [project.client.home, project.client.project, project.instances.folder]
    found = subprocess.run(
        ["grep", "-rlF", key, *folders], capture_output=True, text=True, check=False
    ).stdout
    assert found == ""


@pytest.mark.long
def test_a_failed_run_comes_home_too(project):
    """The exit code is the run's, and its rent is over."""
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py", "fail")
    assert done.returncode == 1
    (rental,) = project.rentals()
    assert home_of(project, rental.intent.run)
    assert rental.state == "ended"
    assert project.ours() == []


def test_who_detaches_leaves_a_keeper(project):
    """It holds the rental's lock from the first moment, brings the files home and ends the rent; a cron line is printed."""
    done = project.client.run("--detach", *ON_RENTED, "--", "python3", "train.py", "wait")
    assert done.returncode == 0, done.stderr
    (rental,) = project.rentals()
    assert project.ledger.is_held(rental.nonce)
    assert len(project.ours()) == 1
    assert f"launch reconcile --adopt {rental.instance}" in done.stderr
    again = project.client.run("reconcile", "--json")
    assert '"verdict": "wanted"' in again.stdout
    assert again.returncode == 0
    project.go()
    project.until_gone()
    until(lambda: not project.ledger.is_held(rental.nonce), "the keeper's end")
    assert home_of(project, rental.intent.run)
    assert project.rentals()[0].state == "ended"


@pytest.mark.long
def test_ctrl_c_detaches_to_a_keeper(project):
    """The run goes on, and its rent ends without the client that was interrupted."""
    process = project.started("--", "python3", "train.py", "wait")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert "downloads its files, then terminates the machine" in said
    (rental,) = project.rentals()
    assert project.ledger.is_held(rental.nonce)
    project.go()
    project.until_gone()
    until(lambda: not project.ledger.is_held(rental.nonce), "the keeper's end")
    assert home_of(project, rental.intent.run)


@pytest.mark.long
def test_a_client_that_is_killed_while_its_run_goes_on(project):
    """`launch reconcile` has the run looked after again, and one that is over comes home before its machine ends."""
    process = project.started("--", "python3", "train.py", "wait")
    process.kill()
    process.communicate()
    (rental,) = project.rentals()
    assert not project.ledger.is_held(rental.nonce)
    assert project.client.run("reconcile").returncode == 0
    assert project.ledger.is_held(rental.nonce)
    project.go()
    project.until_gone()
    assert home_of(project, rental.intent.run)


def test_a_stop_ends_the_rent(project):
    """Nobody follows the run any more: a process of ours does it."""
    process = project.started("--", "python3", "train.py", "wait")
    process.kill()
    process.communicate()
    project.client.ok("stop", "--yes", "last")
    project.until_gone()
    assert home_of(project, project.rentals()[0].intent.run)
    until(lambda: not project.keepers(), "the keeper's end")


@pytest.mark.long
def test_attach_looks_after_it_again(project):
    """Its follower was killed; whoever attaches brings the files home and ends the rent."""
    process = project.started("--", "python3", "train.py", "wait")
    process.kill()
    process.communicate()
    project.go()
    assert project.client.run("attach", "last").returncode == 0
    (rental,) = project.rentals()
    assert rental.state == "ended"
    assert project.ours() == []
    assert home_of(project, rental.intent.run)
    again = project.client.run("attach", "last")
    assert again.returncode == 0, again.stderr


@pytest.mark.long
def test_keep_leaves_the_machine(project):
    """It says what that costs, and the machine can be ended by name."""
    project.table(keep=True)
    said = project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    assert "its machine is kept" in said
    assert "$1.99/h" in said
    (instance,) = project.ours()
    assert project.client.run("reconcile").returncode == 0
    assert project.ours() == [instance]
    assert project.client.run("reconcile", "--adopt", instance).returncode == 0
    assert project.ours() == []
    assert project.rentals()[0].state == "ended"


@pytest.mark.long
def test_a_plan_that_cannot_work_there_ends_the_rent(project):
    """What the probe finds is another card than was offered: nothing runs, and what was paid is said."""
    project.instances.put_card("t4")
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 3
    assert "at most $0.17" in done.stderr
    assert project.ours() == []
    assert project.rentals()[0].state == "ended"
    assert not [*project.client.runs.glob("2*")]


@pytest.mark.long
def test_an_image_that_does_not_take_the_host_key(project):
    """It is refused and ended; with --accept-new-host-key it is used, and its key is replaced all the same."""
    project.instances.honours_host_key = False
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 4
    assert "--accept-new-host-key" in done.stderr
    assert "at most $0.17" in done.stderr
    assert project.ours() == []
    said = project.client.seen(*ON_RENTED, "--accept-new-host-key", "--", "python3", "train.py")
    assert "✓ succeeded" in said
    assert project.ours() == []


@pytest.mark.long
def test_no_capacity_tries_the_next(project):
    """The list says free, the launch says no: the next type is rented."""
    code = "instance-operations/launch/insufficient-capacity"
    project.service.fail("launch", "status", status=400, code=code)
    said = project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    assert "gpu_1x_a100_sxm4 in us-east-1" in said
    assert [rental.state for rental in project.rentals()] == ["refused", "ended"]


@pytest.mark.long
def test_nothing_free_and_wait(project):
    """Without --wait it is refused; with it the client looks again until one is free."""
    kinds = project.service.state.kinds
    free = {name: dict(kinds[name].free) for name in ("gpu_1x_a100", "gpu_1x_a100_sxm4")}
    for name in free:
        kinds[name].free.clear()
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 3
    assert "--wait" in done.stderr
    assert project.rentals() == ()

    def one_day(line):
        if line["call"] == "types" and len(project.service.of("types")) == 6:
            kinds["gpu_1x_a100"].free["us-west-1"] = 1

    project.service.before = one_day
    assert project.client.run(*ON_RENTED, "--wait=1h", "--", "python3", "train.py").returncode == 0
    assert project.ours() == []


@pytest.mark.long
def test_a_boot_for_ever(project):
    """After 15 minutes it is ended, with what it cost."""
    project.service.state.habits.boot_s = 1e6
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 4
    assert "still 'booting' after 90" in done.stderr
    assert re.search(r"cost at most \$0\.5\d", done.stderr)
    assert project.ours() == []


@pytest.mark.long
def test_every_verb_warns_of_what_is_past_its_limit(project):
    """One line, from the ledger alone: the service is not asked."""
    process = project.started("--", "python3", "train.py", "wait")
    process.kill()
    process.communicate()
    project.clock.sleep(5 * 3600)
    calls = len(project.service.calls)
    said = project.client.run("profile", "list").stderr
    assert "rented beyond its limit" in said
    assert "launch reconcile" in said
    assert len(project.service.calls) == calls
    project.go()
    project.client.run("reconcile")
    assert project.ours() == []
    assert "rented beyond" not in project.client.run("profile", "list").stderr


SAVES = """
import os, signal, sys, time
os.makedirs("out", exist_ok=True)
def save(*_):
    open("out/weights", "w").write("w" * 1000)
    for step in (80, 750, 9):
        os.makedirs(f"out/checkpoint-{step}")
        open(f"out/checkpoint-{step}/weights", "w").write("w")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
time.sleep(300)
"""


def test_past_the_deadline_the_run_saves_and_waits(project):
    """The agent on the machine has the script save; that comes home, and the machine is gone before its limit and a grace."""
    project.client.script(SAVES)
    (project.client.project / "job.toml").write_text(
        'name = "saves"\ncommand = ["python3", "train.py"]\nstop_grace_s = 2\n'
    )
    process = project.started("--job", "job.toml")
    (rental,) = project.rentals()
    project.clock.sleep(rental.intent.deadline - rental.download_reserve_s - project.clock.now())
    project.instances.newest.rent_ends(rental.intent.run)
    said = "".join(process.communicate(timeout=120))
    assert process.returncode == 5, said
    (rental,) = project.rentals()
    assert rental.state == "ended"
    assert project.ours() == []
    assert home_of(project, rental.intent.run)
    assert "waiting" in said
    assert re.search(r"✗ stopped .* its machine's time was up", said), said
    assert "signal" not in said.partition("✗ stopped")[2]
    assert re.search(r"none of its checkpoints is launcher's\n  its own  \S*/out/checkpoint-750 ", said), said
    row = project.client.ok("ps")
    assert "its rented machine is gone: it was ended at its limit" in row
    assert f"at most ${rental.cents / 100:.2f}" in row


@pytest.mark.long
@pytest.mark.parametrize("how", ["preempted", "gone", "terminating"])
def test_a_machine_that_is_taken_away(project, how):
    """The follower says why, and what it cost; ps and attach say it too, and nothing of ours is listed."""
    process = project.started("--", "python3", "train.py", "wait")
    (one,) = project.service.alive()
    now = project.clock.now()
    if how == "preempted":
        one.status = "preempted"
    elif how == "gone":
        one.gone = now
    else:
        one.asked_to_end, one.gone = now, now + 30
    project.instances.end(one)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said
    (rental,) = project.rentals()
    assert rental.state == "ended"
    assert project.ours() == []
    words = {
        "preempted": "taken the machine away",
        "gone": "it was ended elsewhere",
        "terminating": "it was ended elsewhere",
    }
    assert words[how] in said
    assert f"launch rerun {rental.intent.run[-6:]} --host rented" in said  # it had no checkpoint
    assert f"at most ${rental.cents / 100:.2f}" in said
    assert f"at most ${rental.cents / 100:.2f}" in project.client.ok("ps")
    attached = project.client.run("attach", "last")
    assert attached.returncode == 4
    assert "its rented machine is gone" in attached.stderr


@pytest.mark.long
def test_an_unhealthy_machine_is_said_and_ended_at_its_limit(project):
    """Its link is lost: what the provider says is a note, with the cost; at the limit and a grace the rent is ended."""
    process = project.started("--", "python3", "train.py", "wait")
    (one,) = project.service.alive()
    one.status = "unhealthy"
    project.instances.end(one)
    before = len(project.service.of("instances"))
    until(lambda: len(project.service.of("instances")) > before, "a look while the link is lost", timeout=90)
    project.clock.sleep(5 * 3600)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said
    assert "'unhealthy'" in said
    assert "its time was up" in said
    assert project.ours() == []
    assert project.rentals()[0].why == "limit"


@mostly_long("call", ["launch", "instances"], ci=(0,))
def test_ctrl_c_before_the_run_began(project, call):
    """While it is launched, or boots: what was rented is ended at once, and what was paid is said."""
    done = []

    def interrupt(line):
        if line["call"] == call and not done:
            done.append(process.send_signal(signal.SIGINT))

    project.service.after = interrupt
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    _, said = process.communicate(timeout=180)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert re.search(r"\$0\.\d\d", said), said
    assert project.ours() == []
    assert not [rental for rental in project.rentals() if rental.is_open]


@pytest.mark.long
def test_ctrl_c_while_the_launch_waits_for_its_turn(project):
    """Nothing was sent, so nothing is rented, nothing has to be reconciled, and that is said."""
    project.client.ok("offers")
    (requests,) = project.client.home.rglob("pace/*.requests")
    with requests.with_suffix(".launches").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # as another client that launches has it
        process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
        lines = iter(process.stderr.readline, "")
        assert any("waits at least 12 s" in line for line in lines)
        until(project.rentals, "the record of the launch to come")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=180)
    assert (process.returncode, "nothing was rented" in said) == (130, True), said
    assert "launch reconcile" not in said
    assert project.service.of("launch") == []
    (rental,) = project.rentals()
    assert not rental.is_open
    assert project.client.run("reconcile").returncode == 0


@pytest.mark.long
def test_ctrl_c_while_the_machine_is_ended(project):
    """Its files are here: that is said, and that a process ends the rent."""
    pressed = []

    def interrupt(line):
        if line["call"] == "terminate" and not pressed:
            pressed.append(process.send_signal(signal.SIGINT))

    project.service.before = interrupt
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    _, said = process.communicate(timeout=90)
    assert pressed
    assert process.returncode == 0, said
    assert "not all of its files are here" not in said
    assert re.search(r"all of its files are here; process \d+ ends the rental: \$0\.\d\d", said), said
    assert "crontab" not in said
    project.until_gone()
