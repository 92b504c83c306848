"""Rentals whose key changed, and machines that another client of the account is to end, by the stand-in's own account."""

import os
import re
import signal
import subprocess
import sys

import pytest

ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
TRAIN = """
import os, time
print("begun", flush=True)
while not os.path.exists("/home/ubuntu/go"): print("waits", flush=True); time.sleep(0.2)
open("weights", "w").write("w" * 1000)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a run on a rented machine that nobody follows."""
    lambda_cloud.client.script(TRAIN)
    process = lambda_cloud.started("--", "python3", "train.py")
    process.kill()
    process.communicate()
    return lambda_cloud


def run_of(project):
    (rental,) = project.rentals()
    return rental.intent.run


def with_key_of(project, name):
    """Let the client have the key of another account."""
    other = project.service.account(name)
    project.client.variables["LAMBDA_API_KEY"] = other.key
    return other


def test_with_the_key_of_another_account_nothing_seems_to_be_gone(project):
    """No verb takes the other account's list for the truth, and none ends the rent in the ledger."""
    old = project.client.variables["LAMBDA_API_KEY"]
    with_key_of(project, "bob")
    project.instances.newest.kill()
    for words in (("attach", "last"), ("recover", "last"), ("stop", "last", "--yes")):
        seen = project.client.run(*words)
        assert seen.returncode == 4, seen.stderr
    assert project.rentals()[0].is_open
    seen = project.client.run("reconcile")
    assert seen.returncode == 1
    assert "rented with another API key" in seen.stderr
    assert f"launch reconcile --dismiss {run_of(project)[-6:]}" in seen.stderr
    assert project.rentals()[0].is_open
    project.client.variables["LAMBDA_API_KEY"] = old
    named = ("reconcile", "--adopt", project.rentals()[0].instance)
    assert project.client.run(*named).returncode == 1  # it does not answer: what is there would be lost
    assert project.client.run(*named, "--force").returncode == 0
    assert project.ours() == []


@pytest.mark.long
def test_what_was_rented_with_a_lost_key_is_dismissed_without_a_claim(project):
    """It is spoken of no more, and not said to be gone; with the key that can end it that is refused."""
    run = run_of(project)
    seen = project.client.run("reconcile", "--dismiss", run[-6:])
    assert (seen.returncode, "can end its machine" in seen.stderr) == (2, True)
    old = project.client.variables["LAMBDA_API_KEY"]
    with_key_of(project, "bob")
    said = project.client.ok("reconcile", "--dismiss", run[-6:])
    assert "may still be billed" in said
    (rental,) = project.rentals()
    assert (rental.state, rental.ended, rental.cents) == ("dismissed", None, None)
    assert project.ours() == [rental.instance]
    assert project.client.run("reconcile").returncode == 0
    project.clock.sleep(5 * 3600)
    assert "rented beyond" not in project.client.run("profile", "list").stderr
    assert run not in project.client.ok("hosts")
    row = project.client.summary(run)
    assert row["state"] == "running"  # its machine still answers
    assert "gone" not in project.client.ok("ps")
    assert "no open rental is on record" in project.client.run("reconcile", "--dismiss", run[-6:]).stderr
    project.client.variables["LAMBDA_API_KEY"] = old
    assert project.client.run("reconcile").returncode == 0
    assert project.ours() == []  # its time is up, and this key's list has it
    assert project.rentals()[0].state == "ended"


@pytest.mark.long
def test_a_new_key_of_the_same_account_is_no_other_account(project):
    """The list has the machine, so its run is looked after, comes home, and its machine ends."""
    run = run_of(project)
    (account,) = project.service.state.accounts
    account.key = project.client.variables["LAMBDA_API_KEY"] = "secret_alice_0123456789abcdef0123"
    assert project.client.run("reconcile").returncode == 0
    assert project.ledger.is_held(project.rentals()[0].nonce)
    assert len(project.ours()) == 1
    project.go()
    project.until_gone()
    assert (project.client.runs / run / "outputs" / "weights").read_text() == "w" * 1000
    project.until_left()


CRONTAB = """#!/bin/sh
# crontab(1) as cron's page has it: -l prints the table, - takes a new one from standard input
table="$HOME/table"
case "$1" in
    -l) cat "$table" ;;
    -) cat >"$table.new" && mv "$table.new" "$table" ;;
    *) exit 1 ;;
esac
"""


@pytest.mark.long
def test_the_line_for_cron_ends_the_rent_after_its_limit_and_removes_itself(project, tmp_path):
    """On a machine with the key and without the ledger: not before the limit; then it ends it, and the line is gone."""
    (rental,) = project.rentals()
    process = project.client.start("attach", "last")
    assert "waits" in "".join(process.stdout.readline() for _ in range(2))  # it follows
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=180)
    line = re.search(r"(\d+ \* \* \* \* launch reconcile --adopt .*)", said)[1].strip()
    assert f"--adopt {rental.instance} --after " in line
    project.end_keepers()
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    for name, text in (
        ("crontab", CRONTAB),
        (
            "launch",
            f'#!/bin/sh\nexec {sys.executable} -c "from launcher.cli import main; main()" "$@"\n',
        ),
    ):
        (other / "bin" / name).write_text(text)
        (other / "bin" / name).chmod(0o755)
    (other / "table").write_text(f"0 4 * * * backup\n{line}\n")
    own = other / ".config" / "launch" / "hosts.toml"
    own.parent.mkdir(parents=True)
    own.write_text((project.client.project / "launch.toml").read_text())
    variables = {**os.environ, **project.client.variables, "HOME": str(other)}
    variables["PATH"] = f"{other / 'bin'}:{os.environ['PATH']}"
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "LAUNCH_RUNS"):
        variables.pop(name, None)
    command = line.split(" ", 5)[5]

    def hour():
        done = subprocess.run(
            ["sh", "-c", command],
            check=False,
            cwd=other,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    code, said = hour()
    assert code == 5, said
    assert re.search(rf"{rental.instance}: not before {line.split('--after ')[1].split()[0]},", said), said
    assert project.ours() == [rental.instance]
    assert line in (other / "table").read_text()
    project.clock.sleep(5 * 3600)
    code, said = hour()
    assert code == 0, said
    assert "files that are only on it are lost" in said
    assert project.ours() == []
    assert (other / "table").read_text() == "0 4 * * * backup\n"
