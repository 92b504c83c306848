"""Who we are: ssh-agent, key files, passphrases and certificates, judged by whether a real sshd lets us in."""

import os
import pty
import re
import select
import shutil
import subprocess

import pytest
from testbed.sshd import ADDRESS

pytestmark = pytest.mark.testbed
PHRASE = "correct horse"


def keygen(path, phrase=""):
    """A fresh key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", str(path)], check=True)
    return path


@pytest.fixture
def locked(client, lab):
    """A key with a passphrase, let in, and named in the client's project."""
    key = keygen(client.home / "locked", PHRASE)
    lab.let_in(key, "/bin/sh")
    (client.project / "launch.toml").write_text(lab.table(identity_file=str(key)))
    return key


def at_a_terminal(client, *words, answers):
    """Run `launch …` with a terminal of its own on which somebody types; return exit code and what was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        from testbed.client import LAUNCH

        os.chdir(client.project)
        os.execve(LAUNCH[0], [*LAUNCH, *words], {**client.env, "TERM": "xterm"})  # noqa: S606 - no shell is the point
    shown, asked = b"", 0
    try:
        while select.select([terminal], [], [], 60)[0]:
            shown += os.read(terminal, 1 << 16)
            if len(re.findall(rb"\(not shown\):\r\n", shown)) > asked < len(answers):
                os.write(terminal, f"{answers[asked]}\n".encode())
                asked += 1
    except OSError:
        shown += b""  # the end of a terminal, as Linux tells it
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_a_passphrase_is_asked_for_on_the_terminal_once_for_all_hops(client, lab, locked):
    """A wrong one, then the right one; the hop and the host behind it share the answer, and it is never shown."""
    (client.home / ".ssh").mkdir()
    common = f"  HostName {ADDRESS}\n  Port {lab.port}\n  User {lab.user}\n  IdentityFile {locked}\n"
    common += f"  UserKnownHostsFile {lab.known_hosts}\n"
    (client.home / ".ssh" / "config").write_text(f"Host hop\n{common}Host box\n  ProxyJump hop\n{common}")
    code, shown = at_a_terminal(client, "--host", "box", "--", "true", answers=["wrong", PHRASE])
    assert code == 0, shown
    assert "succeeded" in shown
    assert shown.count("Passphrase of") == 2
    assert PHRASE not in shown
    record = b"".join(path.read_bytes() for path in client.project.rglob("*") if path.is_file())
    assert PHRASE.encode() not in record


@pytest.mark.long
def test_a_wrong_passphrase_is_asked_for_three_times(client, locked):
    """Then exit code 4 and the line that mends it."""
    code, shown = at_a_terminal(client, "probe", "--host", "A", answers=["a", "b", "c", PHRASE])
    assert code == 4, shown
    assert shown.count("Passphrase of") == 3
    assert f"ssh-add {locked}" in shown
    assert "Traceback" not in shown


def test_without_a_terminal_the_message_says_how_the_key_is_unlocked(client, locked):
    """Nobody to ask: exit code 4 at once."""
    done = client.run("probe", "--host", "A")
    assert done.returncode == 4
    assert f"ssh-add {locked}" in done.stderr


@pytest.fixture
def agent(client, monkeypatch):
    """An ssh-agent of the test's own; add keys to it."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent here: apt-get install openssh-client")
    path = client.home / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE)
    process.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield lambda *words, **more: subprocess.run(["ssh-add", "-q", *map(str, words)], check=True, **more)
    process.terminate()
    process.communicate()


def test_a_key_that_the_agent_holds_needs_no_passphrase(client, lab, agent):
    """The locked file stands in the table, its open twin in the agent; a stranger's key before it does no harm."""
    agent(keygen(client.home / "stranger"))
    key = keygen(client.home / "held")
    lab.let_in(key, "/bin/sh")
    agent(key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", PHRASE, "-f", key], check=True)
    (client.project / "launch.toml").write_text(lab.table(identity_file=str(key)))
    client.ok("probe", "--host", "A")


@pytest.mark.parametrize("only", ["yes", "no"])
def test_identities_only_keeps_the_agents_other_keys_back(client, lab, agent, only):
    """With it a key that only the agent holds is not offered, as with ssh."""
    key = keygen(client.home / "elsewhere")
    lab.let_in(key, "/bin/sh")
    agent(key)
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text(
        f"Host box\n  HostName {ADDRESS}\n  Port {lab.port}\n  User {lab.user}\n  IdentitiesOnly {only}\n"
        f"  IdentityFile {keygen(client.home / 'other')}\n  UserKnownHostsFile {lab.known_hosts}\n"
    )
    assert client.run("probe", "--host", "box").returncode == (4 if only == "yes" else 0)


@pytest.mark.parametrize("where", ["file", "agent"])
def test_a_certificate_lets_us_in(client, lab, agent, where):
    """A key that the host does not know, signed by an authority that it does: from the file, and from the agent."""
    authority, key = keygen(client.home / "authority"), keygen(client.home / "signed")
    subprocess.run(
        ["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", lab.user, f"{key}.pub"], check=True
    )
    with (lab.folder / "authorized_keys").open("a") as file:
        file.write(f"cert-authority {authority.with_name('authority.pub').read_text()}")
    if where == "agent":
        agent(key)
        key = keygen(client.home / "other")
    (client.project / "launch.toml").write_text(lab.table(identity_file=str(key)))
    client.ok("probe", "--host", "A")
