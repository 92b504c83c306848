"""A rented machine in bad luck: keys that change, folders that go away, full disks, second interrupts: no data and no orphan is left."""

import contextlib
import re
import shutil
import signal
import subprocess

import pytest
from testbed.client import until
from testbed.lambda_cloud import KEY

from launcher.runs.rented import final_download
from launcher.values.reported.output import RunOutput

ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
TRAIN = """
import os, sys, time
os.makedirs("out", exist_ok=True)
open("out/weights", "w").write("w" * 1000)
print("begun", flush=True)
while "wait" in sys.argv and not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)
"""
NEW_KEY = "secret_alice_0000111122223333444"


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def weights(project, run):
    return project.client.runs / run / "outputs" / "out" / "weights"


def killed(project):
    """Start a run on a rented machine, and kill the client that follows it; return its rental."""
    process = project.started("--", "python3", "train.py", "wait")
    process.kill()
    process.communicate()
    return project.rentals()[-1]


def replace_key(project):
    """Give the account another key, and the client too."""
    project.service.state.accounts[0].key = NEW_KEY
    project.client.variables["LAMBDA_API_KEY"] = NEW_KEY


@pytest.mark.long
def test_a_key_that_was_replaced_costs_no_data(project):
    """`launch reconcile` with the new one leaves a machine whose run goes on, and brings home what is over."""
    rental = killed(project)
    replace_key(project)
    said = project.client.run("reconcile")
    assert [one.id for one in project.service.alive()] == [rental.instance], said.stderr
    project.go()
    project.until_gone()
    assert weights(project, rental.intent.run).read_text() == "w" * 1000
    project.until_left()


@pytest.mark.long
@pytest.mark.parametrize("what", ["runs", "tenancy"])
def test_a_run_of_which_nothing_is_known_here_keeps_its_machine_until_the_limit(project, what):
    """The folder of the runs is not there just now, or a record is damaged: it is said, and nothing is ended before."""
    rental = killed(project)
    away = project.client.project / "away"
    tenancy = project.ledger.place(rental.nonce) / "tenancy.json"
    if what == "runs":
        project.client.runs.rename(away)
    else:
        tenancy.write_text("{")
    done = project.client.run("reconcile")
    assert "left until its limit" in done.stderr
    assert [one.id for one in project.service.alive()] == [rental.instance]
    project.clock.sleep(5 * 3600)
    project.client.run("reconcile")
    assert project.ours() == []


@pytest.mark.long
def test_a_second_ctrl_c_does_not_hide_what_is_still_rented(project):
    """The machine is being ended: whoever does not wait for that hears what it costs and what ends it."""
    pressed = []

    def interrupt(line):
        if line["call"] == ("terminate" if pressed else "instances"):
            pressed.append(process.send_signal(signal.SIGINT))

    project.service.before = interrupt
    project.service.fail("terminate", "status", status=503, times=1000)
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    _, said = process.communicate(timeout=90)
    assert len(project.ours()) == 1
    assert "nothing is left" not in said
    assert re.search(r"still rented: \$0\.\d\d so far.*launch reconcile", said), said
    assert process.returncode == 4
    project.service.before = lambda _line: None
    project.service._faults.clear()
    assert project.client.run("reconcile").returncode == 0
    assert project.ours() == []


@pytest.mark.long
def test_an_end_that_the_key_does_not_allow_says_what_goes_on_being_paid(project):
    """The files are home; the machine is not ended."""
    process = project.started("--", "python3", "train.py", "wait")
    project.service.state.accounts[0].key = NEW_KEY
    project.go()
    _, said = process.communicate(timeout=90)
    assert process.returncode == 4
    assert len(re.findall(r"still rented: \$0\.\d\d so far", said)) == 1, said
    assert "✓ succeeded" in said
    assert "runs/" + project.rentals()[0].intent.run in said
    assert weights(project, project.rentals()[0].intent.run).exists()
    assert not project.keepers()
    assert len(project.ours()) == 1
    replace_key(project)
    assert project.client.run("attach", "last").returncode == 0
    assert project.ours() == []


@pytest.mark.long
def test_files_that_cannot_come_home_are_tried_again_until_the_limit(project):
    """The follower says so and leaves it to a process, which ends the machine once its time is up."""
    project.table(max_hours=0.25)
    project.service.state.habits.boot_s = 15
    (project.client.project / "train.py").write_text(
        'import os; os.makedirs("out"); open("out/weights", "w").write("w"); os.mkfifo("out/pipe"); os.mkdir("out/no")\n'
        'open("out/no/no", "w").write("x"); os.chmod("out/no", 0)\n'
    )
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert "files are missing here" in done.stderr, done.stderr
    assert "keeps trying" in done.stderr
    assert len(project.ours()) == 1
    project.clock.sleep(1800)
    project.until_gone()
    project.until_left()
    (rental,) = project.rentals()
    assert rental.state == "ended"
    assert rental.ended >= rental.intent.deadline
    assert weights(project, rental.intent.run).read_text() == "w"


@pytest.mark.long
def test_a_clock_that_jumps_ahead_costs_no_data(project):
    """The time seems to be up in the middle of a run: what there is comes home before the machine is ended."""
    process = project.started("--", "python3", "train.py", "wait")
    project.clock.sleep(24 * 3600)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 4
    assert "its time was up" in said
    assert project.ours() == []
    (rental,) = project.rentals()
    assert weights(project, rental.intent.run).read_text() == "w" * 1000
    assert f"at most ${rental.cents / 100:.2f}" in said


@pytest.mark.long
def test_a_list_that_lacks_a_machine_once_does_not_end_it(project):
    """Its link is lost, and the list does not have it: it is asked for by its id first."""
    process = project.started("--", "python3", "train.py", "wait")
    looked = []

    def lacks(line):
        if line["call"] == "instance":
            looked.append(line)
        if line["call"] == "instances" and not looked:
            project.service.fail("instances", "answer", data=[])

    project.service.before = lacks
    project.instances.newest.enter("pkill", "-f", "sshd: ubuntu")
    until(lambda: looked, "a look for the instance", timeout=60)
    project.go()
    _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert weights(project, project.rentals()[0].intent.run).exists()
    assert project.ours() == []


@pytest.mark.long
def test_a_ledger_that_is_removed_while_its_run_goes_on(project):
    """Whoever follows the run still brings it home and ends the rent."""
    process = project.started("--", "python3", "train.py", "wait")
    (rental,) = project.rentals()
    for path in project.ledger.place("x").parent.glob("*.jsonl"):
        path.unlink()
    project.go()
    _, said = process.communicate(timeout=90)
    assert project.ours() == [], said
    assert process.returncode == 0, said
    assert weights(project, rental.intent.run).exists()


@pytest.mark.long
def test_a_folder_of_rentals_that_is_removed_is_said(project):
    """With it went what the machine is known by, so nothing can come home: how to end it is said."""
    process = project.started("--", "python3", "train.py", "wait")
    (rental,) = project.rentals()
    shutil.rmtree(project.ledger.place("x").parent)
    project.go()
    _, said = process.communicate(timeout=90)
    assert process.returncode == 4
    assert re.search(r"still rented: \$0\.\d\d so far", said), said
    assert f"launch reconcile --adopt {rental.instance}" in said
    assert project.client.run("reconcile", "--adopt", rental.instance, "--yes").returncode == 0
    assert project.ours() == []


@pytest.mark.long
def test_a_keeper_that_cannot_be_started_is_said(project):
    """Its log cannot be written: the machine is said to be still rented."""
    process = project.started("--", "python3", "train.py", "wait")
    (rental,) = project.rentals()
    (project.ledger.place(rental.nonce) / "keeper.log").mkdir()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=180)
    assert "Traceback" not in said
    assert process.returncode == 4
    assert re.search(r"still rented: \$0\.\d\d so far", said), said
    assert f"--adopt {rental.instance}" in said


@pytest.mark.long
def test_a_service_that_is_gone_keeps_no_reconcile_of_another(project):
    """Both were rented at; the error of the first one is raised at the end."""
    rental = killed(project)
    services = project.ledger.place("services")
    services.write_text(f"http://127.0.0.1:9/api/v1\n{services.read_text()}")
    project.clock.sleep(5 * 3600)
    done = project.client.run("reconcile")
    assert done.returncode == 4
    assert project.ours() == []
    assert project.ledger.rental(rental.nonce).state == "ended"
    services.write_text("not an address\n")
    done = project.client.run("reconcile")
    assert done.returncode == 2
    assert "services" in done.stderr


@pytest.mark.long
def test_a_line_that_was_cut_off_hides_no_limit(project):
    """The warning of every verb comes all the same."""
    rental = killed(project)
    path = project.ledger.place(f"{rental.nonce}.jsonl")
    path.write_bytes(path.read_bytes() + b'{"kind": "end\n')
    project.clock.sleep(5 * 3600)
    assert "rented beyond its limit" in project.client.run("profile", "list").stderr
    path.write_bytes(path.read_bytes() + b'{"kind": "extra"}\n')
    assert "a rental record cannot be read" in project.client.run("profile", "list").stderr


@pytest.mark.long
def test_a_wait_outlasts_an_outage(project):
    """Of the service, while nothing is free."""
    kinds = project.service.state.kinds
    for name in ("gpu_1x_a100", "gpu_1x_a100_sxm4"):
        kinds[name].free.clear()

    def later(line):
        count = len(project.service.of("types"))
        if line["call"] == "types" and count in (3, 4):
            project.service.fail("types", "status", status=503)
        if line["call"] == "types" and count == 6:
            kinds["gpu_1x_a100"].free["us-west-1"] = 1

    project.service.before = later
    done = project.client.run(*ON_RENTED, "--wait=1h", "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    assert project.ours() == []


@pytest.mark.long
def test_an_sshd_that_takes_its_time_to_start_again(project):
    """With its new host key: the next connection is refused for a while."""
    project.instances.sshd_pause_s = 3
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    assert project.ours() == []


@pytest.mark.parametrize("how", ["secret", "env-file", "other name", "variable", "words"])
def test_the_key_never_goes_to_a_machine(project, how):
    """Whoever hands it to the job, by whatever name, is refused before anything is rented."""
    (project.client.project / "my.env").write_text(
        f"{'WHATEVER' if how == 'other name' else 'LAMBDA_API_KEY'}='x {KEY}'\n"
    )
    words = {
        "secret": ("--secret", "LAMBDA_API_KEY"),
        "variable": ("-e", f"SETTING=x{KEY}x"),
        "words": (),
    }.get(how, ("--env-file", "my.env"))
    more = (KEY,) if how == "words" else ()
    done = project.client.run(*ON_RENTED, *words, "--", "python3", "train.py", *more)
    assert done.returncode in (2, 3), done.stderr
    assert KEY not in done.stdout + done.stderr
    assert project.service.of("launch") == []


@pytest.mark.long
def test_a_limit_of_any_size_can_be_said(project):
    """A cost that allows ages is a year, and the times of it can be shown."""
    project.table(max_hours=1e3, max_cost=1e30)
    project.client.planned(*ON_RENTED, "--", "python3", "train.py")
    text = (project.client.project / "launch.toml").read_text().replace("max_hours = 1000.0\n", "")
    (project.client.project / "launch.toml").write_text(text)
    said = project.client.run("--yes", "--detach", *ON_RENTED, "--", "python3", "train.py")
    assert said.returncode == 0, said.stderr
    assert "at most $17,432.40" in said.stderr
    project.until_gone()
    project.until_left()


def test_a_price_that_rises_between_offer_and_launch(project):
    """What was agreed to is not exceeded: it is ended before the run begins."""

    def rise(line):
        if line["call"] == "launch":
            project.service.state.kinds["gpu_1x_a100"].cents = 1990

    project.service.before = rise
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 4
    assert "an hour costs $19.90, and not $1.99" in done.stderr
    assert project.ours() == []
    assert not [*project.client.runs.glob("2*")]


@pytest.mark.long
def test_a_project_file_that_breaks_while_its_run_goes_on(project):
    """The process that is left behind needs it no more."""
    process = project.started("--", "python3", "train.py", "wait")
    (project.client.project / "launch.toml").write_text("[hosts\n")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    project.go()
    project.until_gone()
    (rental,) = project.rentals()
    assert weights(project, rental.intent.run).exists()
    project.until_left()


@pytest.mark.long
def test_a_disk_that_fills_up_while_a_run_is_followed(project, small_disk):
    """The follower fails, and says who tries again; once there is room all comes home, and the rent ends."""
    project.client.runs.symlink_to(small_disk)
    project.client.variables["LAUNCH_RUNS"] = str(small_disk)
    process = project.started("--", "python3", "train.py", "wait")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    project.go()
    _, said = process.communicate(timeout=90)
    assert "Traceback" not in said
    assert re.search(r"keeps trying .* \$0\.\d\d so far", said), said
    assert len(project.ours()) == 1
    filler.unlink()
    project.clock.sleep(400)
    project.until_gone()
    project.until_left()
    (rental,) = project.rentals()
    assert weights(project, rental.intent.run).read_text() == "w" * 1000
    assert rental.ended < rental.intent.deadline


@pytest.mark.long
def test_a_terminal_that_is_closed_leaves_a_keeper(project):
    """SIGHUP is as Ctrl-C; before the run began what was rented is ended."""
    process = project.started("--", "python3", "train.py", "wait")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=180)
    (rental,) = project.rentals()
    assert project.ledger.is_held(rental.nonce)
    project.go()
    project.until_gone()
    project.until_left()
    assert weights(project, rental.intent.run).exists()
    done = []

    def hang_up(line):
        if line["call"] == "instances" and not done:
            done.append(process.send_signal(signal.SIGHUP))

    project.service.after = hang_up
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    process.communicate(timeout=180)
    assert project.ours() == []


@pytest.mark.long
def test_a_reader_that_goes_away_while_it_boots_leaves_no_machine(project):
    """As `launch … 2>&1 | head` does: what is said goes nowhere, and the rent is ended."""
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    closed = []

    def close(line):
        if line["call"] == "launch":
            closed.append(process.stderr.close())

    project.service.after = close
    with process.stdout as out:
        out.read()
    process.wait(timeout=180)
    assert closed
    assert project.ours() == []
    assert not [rental for rental in project.rentals() if rental.is_open]


@pytest.mark.long
def test_a_wrong_id_to_adopt_is_said(project):
    """Else one would think that it has been ended."""
    done = project.client.run("reconcile", "--adopt", "0123456789abcdef")
    assert "0123456789abcdef is not in the list of any account here" in done.stderr
    assert done.returncode == 1


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 1])
def test_a_script_s_own_checkpoints_come_home(project, code):
    """As a Trainer of Hugging Face saves them: they may be all that there is, whether it succeeds or fails."""
    project.client.script(
        f"""
import os, sys
for number in (5, 10):
    os.makedirs(f"out/checkpoint-{{number}}")
    open(f"out/checkpoint-{{number}}/model.safetensors", "w").write("m" * 1000)
sys.exit({code})
"""
    )
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == code
    (rental,) = project.rentals()
    assert rental.state == "ended"
    out = project.client.runs / rental.intent.run / "outputs" / "out"
    for number in (5, 10):
        assert (out / f"checkpoint-{number}" / "model.safetensors").read_text() == "m" * 1000


def test_the_newest_of_each_series_of_checkpoints_comes_home(monkeypatch):
    """Older ones only as long as they are small together; of launcher's own one is enough, which comes another way."""
    monkeypatch.setattr(final_download, "OLDER_BYTES", 25)
    paths = [
        *(f"code/out/checkpoint-{number}/{name}" for number in (9, 10, 100, 1000) for name in "ab"),
        "code/out/checkpoint-best/a",
        "artifacts/checkpoint-3/a",
        "checkpoints/step-7/a",
    ]
    files = [RunOutput(path=path, size=10, kind="checkpoint", changed_ns=0) for path in paths]
    assert final_download.own_checkpoints(files) == [
        "artifacts/checkpoint-3",
        "out/checkpoint-100",
        "out/checkpoint-1000",
        "out/checkpoint-best",
    ]


@pytest.mark.long
@pytest.mark.parametrize("why", ["refuses every key", "requires a key, and none is available"])
def test_a_machine_that_does_not_let_us_in_is_not_paid_for_long(project, why):
    """It has another key than the account said, or we have none: it is ended soon, with what it cost and what to write."""
    file = project.client.home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    key = project.service.state.accounts[0].keys["key0"]
    good = key["public_key"] = file.with_name("key.pub").read_text()
    project.table(key="ours", identity_file=str(file))

    def turn(line):
        if line["call"] == "launch":
            key["public_key"] = good.replace("AAAAI", "AAAAJ")
            if "none" in why:
                file.unlink()

    project.service.before = turn
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 4, done.stderr
    message, mend = done.stderr.splitlines()[-2:]
    (rental,) = project.rentals()
    assert why in message
    assert f"it was ended, and cost at most ${rental.cents / 100:.2f}" in message
    assert 'identity_file = "…", the private half of key = "ours"' in mend
    assert project.ours() == []
    assert rental.ended - rental.ready < 120


@pytest.mark.long
def test_a_launch_that_made_nothing_is_said_to_have_made_nothing(project):
    """Its client was killed before the service took it: what it may have cost, how long is looked for it, and what it was."""

    def kill(line):
        if line["call"] == "launch":
            process.kill()
            return True
        return None

    project.service.before = kill
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    process.communicate(timeout=180)
    project.service.before = lambda _line: None
    assert "nothing or $" in project.client.run("reconcile", "--dry-run").stdout
    done = project.client.run("reconcile")
    assert done.returncode == 0, done.stderr
    assert "its launch has made no instance: nothing was rented" in done.stdout
    waits = re.findall(r"for (\d) more minutes? at most", done.stderr)
    assert waits == ["5", "4", "3", "2", "1"], done.stderr


@pytest.mark.long
def test_a_second_stop_while_the_machine_goes_back_says_so(project):
    """It does not answer any more, and its provider takes its time: what the run has come to, and what it costs."""
    killed(project)
    run = project.rentals()[0].intent.run
    with project.service.holding("terminate"):
        project.client.ok("stop", "--yes", run)
        until(lambda: project.rentals()[0].state == "ending", "the keeper's call to end it")
        project.instances.newest.kill()
        done = project.client.run("stop", "--yes", run)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"has stopped, and its rented machine is being given back; rent \$0\.\d\d so far", done.stdout
    )
    project.until_gone()
    project.until_left()


@pytest.mark.long
def test_what_reconcile_has_ended_is_in_its_list_with_its_cost(project):
    """Its client is dead, and its time is up: the log comes home first, and then it is ended."""
    killed(project)
    project.clock.sleep(5 * 3600)
    done = project.client.run("reconcile")
    assert done.returncode == 0, done.stderr
    (rental,) = project.rentals()
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(rental.instance)]
    assert f"${rental.cents / 100:.2f}" in row
    assert "ended" in row
    assert "nothing is rented" not in done.stdout


@pytest.mark.long
def test_an_orphan_costs_something_before_it_is_ended_too(project):
    """Its client was killed before it knew the instance: a dry run says what it costs, as the end does."""

    def kill(line):
        if line["call"] == "launch":
            process.kill()

    project.service.after = kill
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    process.communicate(timeout=180)
    project.service.after = lambda _line: None
    project.clock.sleep(600)
    (one,) = project.ours()
    shown = project.client.run("reconcile", "--dry-run").stdout
    (row,) = [line for line in shown.splitlines() if line.startswith(one)]
    assert "orphan" in row
    assert re.search(r"\$0\.[1-9]\d", row), row
