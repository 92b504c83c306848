"""A host whose login needs a person: launch uses the connection that the user's ssh holds open. Witnesses: sshd's log, ssh itself."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from testbed.client import missing, until
from testbed.missing_part import MissingPartError
from testbed.sshd import SshHost

pytestmark = [pytest.mark.testbed, pytest.mark.slow(reason="an sshd of its own, and several commands")]
PASSWORD = "hunter2-of-the-test"
LONG = "import time\nprint('step 1 loss 0.5')\ntime.sleep(600)\n"


@pytest.fixture
def strict(client):
    """An sshd that wants a key and a password, as a host of the client whose ssh has a ControlPath."""
    if os.geteuid() != 0:
        pytest.skip("setting a user's password needs root")
    host = SshHost(Path(tempfile.mkdtemp(prefix="launch-testbed-")))
    host.more, host.takes_passwords = "AuthenticationMethods publickey,password", True
    try:
        host.up()
    except MissingPartError as error:
        missing(str(error))
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["/usr/sbin/usermod", "-p", hashed, host.user], check=True)
    folder = client.home / ".ssh"
    folder.mkdir(mode=0o700)
    sockets = host.folder / "cm"  # a socket's path may have 107 bytes
    sockets.mkdir(mode=0o700)
    (folder / "config").write_text(f"Host *\n  ControlPath {sockets}/%C\n")
    client.script(host.table("A"), "launch.toml")
    client.script("print('step 1 loss 0.5')\n")
    yield host
    subprocess.run(["/usr/sbin/usermod", "-p", "*", host.user], check=True)
    host.down()
    shutil.rmtree(host.folder)


def logged_in(client, said):
    """Type the command that was offered, and the password; return the words that end the connection."""
    login = re.search(r"launch uses that connection   (ssh -fN .*)", said)[1]
    asking = client.home / "askpass"
    asking.write_text(f"#!/bin/sh\necho {PASSWORD}\n")
    asking.chmod(0o700)
    of_user = f"ssh -F {client.home}/.ssh/config"  # ssh itself takes the home folder from the system
    environment = {**client.env, "SSH_ASKPASS": str(asking), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["sh", "-c", login.replace("ssh", of_user, 1)], env=environment, check=True, timeout=30)
    return login.replace("ssh -fN", f"{of_user} -O exit", 1)


def test_a_host_that_wants_a_password_is_used_by_the_connection_of_ssh(client, strict):
    """Refused with the command to type; then a whole run, its files and its logs, and one login with a password."""
    refused = client.run("probe", "--host", "A")
    assert refused.returncode == 4
    assert "accepts the key, but requires password too" in refused.stderr
    leave = logged_in(client, refused.stderr)
    done = client.run("--host", "A", "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    assert "by the connection that your ssh holds open" in done.stderr
    assert "step 1 loss 0.5" in client.ok("logs", "last")
    held = client.seen("--host", "A", "--detach", "--", "python3", "-c", "import time; time.sleep(600)")
    run = held.split()[-1]
    assert client.ok("exec", run, "--", "echo", "hello").strip() == "hello"
    client.ok("stop", run)
    subprocess.run(["sh", "-c", leave], env=client.env, check=True, capture_output=True)
    until(lambda: client.run("ps", "--host", "A").returncode == 4, "the end of the connection")
    assert (strict.folder / "sshd.log").read_text().count("Accepted password") == 1


def test_a_socket_that_others_could_replace_is_not_used(client, strict):
    """Whoever listens there would read all that is sent."""
    leave = logged_in(client, client.run("probe", "--host", "A").stderr)
    client.ok("probe", "--host", "A")
    (strict.folder / "cm").chmod(0o777)
    assert client.run("probe", "--host", "A").returncode == 4
    (strict.folder / "cm").chmod(0o700)
    subprocess.run(["sh", "-c", leave], env=client.env, check=True, capture_output=True)


def test_a_connection_that_was_killed_is_made_again_by_the_same_command(client, strict):
    """Its socket is still there, and `ssh -M` would make no connection beside it."""
    leave = logged_in(client, client.run("probe", "--host", "A").stderr)
    check = leave.replace("-O exit", "-O check", 1)
    said = subprocess.run(["sh", "-c", check], env=client.env, check=True, capture_output=True, text=True)
    os.kill(int(re.search(r"pid=(\d+)", said.stderr)[1]), signal.SIGKILL)
    until(lambda: client.run("probe", "--host", "A").returncode == 4, "the end of the connection")
    assert list((strict.folder / "cm").iterdir())
    leave = logged_in(client, client.run("probe", "--host", "A").stderr)
    client.ok("probe", "--host", "A")
    subprocess.run(["sh", "-c", leave], env=client.env, check=True, capture_output=True)


def test_the_end_of_the_connection_names_the_run_that_continues(client, strict):
    """Its follower ends, for only a person can log in; what has arrived is still shown."""
    leave = logged_in(client, client.run("probe", "--host", "A").stderr)
    client.script(LONG)
    with client.start("--host", "A", "--", "python3", "-u", "train.py") as following:
        until(lambda: "loss 0.5" in client.run("logs", "last").stdout, "the first step")
        subprocess.run(["sh", "-c", leave], env=client.env, check=True, capture_output=True)
        said = following.communicate(timeout=60)[1]
    assert following.returncode == 4
    run = re.search(r"the run is not affected; follow it again   launch attach (\w+)", said)[1]
    logs = client.run("logs", run)
    assert (logs.returncode, "step 1 loss 0.5" in logs.stdout) == (0, True)
    assert "requires password too" in logs.stderr
    leave = logged_in(client, said)
    client.ok("stop", run)
    subprocess.run(["sh", "-c", leave], env=client.env, check=True, capture_output=True)
