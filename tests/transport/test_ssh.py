"""Hosts over SSH, against a real sshd: who is let in, who is believed, and what is said where either fails."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import paramiko
import pytest
from cryptography.exceptions import InvalidTag
from testbed.client import missing, until
from testbed.sshd import ADDRESS
from testbed.tables import mostly_long

from launcher.errors import ConnectionLostError, UnreachableError
from launcher.transport.connecting import connect
from launcher.transport.ssh.ssh import SshConnection
from launcher.transport.ssh.ssh_wire import Wire
from launcher.values.host import Host

pytestmark = pytest.mark.testbed


def keygen(path):
    """A fresh key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def fingerprint(path):
    """The SHA-256 of a public key, as OpenSSH tells it."""
    said = subprocess.run(["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True).stdout
    return re.search(r"SHA256:\S+", said)[0]


def use(client, lab, **more):
    """Write the host into the client's project, with other keys than the usual ones."""
    text = lab.table()
    for key, value in more.items():
        text = re.sub(rf"(?m)^{key} = .*\n", "", text) + f'{key} = "{value}"\n'
    (client.project / "launch.toml").write_text(text)


def refused(client, lab, *words):
    """What is said to somebody who does not get in: exit code 4, one message, and nothing made over there."""
    before = lab.ssh("sh", "-c", f"find {lab.root} 2>/dev/null | sort")
    done = client.run(*(words or ("probe", "--host", "A")))
    assert done.returncode == 4, done.stdout + done.stderr
    assert done.stdout == ""
    assert lab.ssh("sh", "-c", f"find {lab.root} 2>/dev/null | sort") == before
    return done.stderr


def test_an_unknown_host_key_is_refused_and_the_command_that_is_offered_mends_it(client, lab):
    """Its fingerprint is OpenSSH's; run as it stands, the ssh-keyscan line makes the next call work."""
    known = client.home / "known_hosts"
    use(client, lab, known_hosts=known)
    said = refused(client, lab)
    assert fingerprint(lab.folder / "host_key.pub") in said
    assert "ED25519" in said
    command = re.search(r"ssh-keyscan .*", said)[0]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, env=client.env)
    assert '"host": "A"' in client.ok("probe", "--host", "A", "--json")


@mostly_long("folder", ["with space", "it's", "a;b"], ci=(1,))
def test_the_offered_command_can_be_pasted_whatever_the_file_is_called(client, lab, folder):
    """A known_hosts file in a folder with a space or a quote in its name, which the command makes."""
    use(client, lab, known_hosts=f"~/{folder}/known_hosts")
    command = re.search(r"(?<=if you trust it   ).*", refused(client, lab))[0]
    subprocess.run(["sh", "-c", command], cwd=client.home, check=True, capture_output=True, env=client.env)
    assert (client.home / folder).stat().st_mode & 0o077 == 0
    client.ok("probe", "--host", "A")


@mostly_long("words", ["ps", "gc --dry-run", "hosts"], ci=(0,))
def test_a_key_is_accepted_on_purpose_by_any_verb_and_only_once(client, lab, words):
    """The fingerprint is said, the key noted, and the next command needs no leave."""
    known = client.home / "known_hosts"
    use(client, lab, known_hosts=known)
    where = [] if words == "hosts" else ["--host", "A"]
    done = client.run(*words.split(), *where, "--accept-new-host-key")
    assert done.returncode == 0, done.stderr
    assert fingerprint(lab.folder / "host_key.pub") in done.stderr
    assert known.stat().st_mode & 0o077 == 0
    assert fingerprint(known) == fingerprint(lab.folder / "host_key.pub")
    client.ok("probe", "--host", "A")


@pytest.mark.parametrize(
    "words", [("probe", "--host", "A"), ("ps", "--host", "A"), ("--host", "A", "--", "true")], ids=" ".join
)
def test_no_verb_believes_an_unknown_key(client, lab, words):
    """Listing, probing and launching refuse alike, and keep no trace in the project."""
    use(client, lab, known_hosts=client.home / "none")
    assert "host key is not known" in refused(client, lab, *words)
    assert not client.runs.exists()


@pytest.fixture
def changed(client, lab):
    """A known_hosts file that holds another key for the host."""
    other = keygen(client.home / "other")
    known = client.home / "known_hosts"
    kind, key = (client.home / "other.pub").read_text().split()[:2]
    known.write_text(f"[{ADDRESS}]:{lab.port} {kind} {key}\n")
    use(client, lab, known_hosts=known)
    return other


def test_a_changed_host_key_is_said_loudly_with_both_fingerprints(client, lab, changed):
    """CHANGED, what it shows, what was known; exit code 4."""
    said = refused(client, lab)
    assert "CHANGED" in said
    shown, known = re.search(r"shows \S+ (SHA256:\S+?),? .*?(SHA256:\S+)", said, re.DOTALL).groups()
    assert shown == fingerprint(lab.folder / "host_key.pub")
    assert known == fingerprint(f"{changed}.pub")


def test_the_command_offered_for_a_changed_key_mends_it(client, lab, changed):
    """The old key is removed and the new one scanned, in one line."""
    command = re.search(r"ssh-keygen -R .*", refused(client, lab))[0]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, env=client.env)
    client.ok("probe", "--host", "A")


def test_a_hashed_known_hosts_file_is_read(client, lab):
    """As Debian writes it."""
    known = client.home / "known_hosts"
    known.write_bytes(lab.known_hosts.read_bytes())
    subprocess.run(["ssh-keygen", "-H", "-f", str(known)], check=True, capture_output=True)
    assert ADDRESS not in known.read_text()
    use(client, lab, known_hosts=known)
    client.ok("probe", "--host", "A")


A_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + b"A" * 43
BAD_LINES = {
    "a hash that is none": b"|1|bad " + A_KEY,
    "a hash of nothing": b"|1|| " + A_KEY,
    "a hash without base64": b"|1|" + b"!" * 28 + b"|x " + A_KEY,
    "no base64": b"host ssh-rsa not-base64",
    "a key cut short": b"host ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA",
    "a number below zero": b"host ssh-rsa AAAAB3NzaC1yc2EAAAABgAAAAAEB",
    "a kind of key that nobody knows": b"host ssh-new AAAA",
    "another marker": b"@unheard-of host ssh-ed25519 AAAA",
    "a marker alone": b"@revoked",
    "a certificate authority": b"@cert-authority * ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
    "Latin-1": b"caf\xe9 ssh-ed25519 AAAA # Jos\xe9",
    "bytes": bytes(range(256)),
    "one word": b"host",
}


@mostly_long("line", [*BAD_LINES.values(), b"\n".join(BAD_LINES.values())], ids=[*BAD_LINES, "all"], ci=(-1,))
def test_a_line_of_known_hosts_that_is_none_is_passed_over(client, lab, line):
    """As ssh does: the good line behind it counts, with a plain name and with a hashed one."""
    known = client.home / "known_hosts"
    known.write_bytes(line + b"\n" + lab.known_hosts.read_bytes())
    use(client, lab, known_hosts=known)
    client.ok("probe", "--host", "A")
    known.write_bytes(lab.known_hosts.read_bytes())
    subprocess.run(["ssh-keygen", "-H", "-f", str(known)], check=True, capture_output=True)
    known.write_bytes(line + b"\n" + known.read_bytes())
    client.ok("probe", "--host", "A")


def test_known_hosts_may_have_more_blanks_and_carriage_returns(client, lab):
    """As a hand, or an editor of another system, leaves them."""
    known = client.home / "known_hosts"
    known.write_bytes(b" \t" + lab.known_hosts.read_bytes().replace(b" ", b"  \t").replace(b"\n", b"\r\n"))
    use(client, lab, known_hosts=known)
    client.ok("probe", "--host", "A")


@mostly_long("mark", ["#", "# ", " #", "#old,"], ci=(0, 3))
def test_a_line_that_is_commented_out_is_no_known_key(client, lab, mark):
    """Whoever put the # there does not trust it any more."""
    known = client.home / "known_hosts"
    known.write_text(f"{mark}{lab.known_hosts.read_text()}")
    use(client, lab, known_hosts=known)
    assert "host key is not known" in refused(client, lab)


def test_a_certificate_authoritys_key_is_no_hosts_own(client, lab):
    """The line that trusts whom it signs does not let the host itself show that key."""
    known = client.home / "known_hosts"
    known.write_text(f"@cert-authority {lab.known_hosts.read_text()}")
    use(client, lab, known_hosts=known)
    assert "host key is not known" in refused(client, lab)


@mostly_long("place", ["*", "first", "last", "hashed", "another host"], ci=(0, 3))
@pytest.mark.parametrize("is_changed", [False, True], ids=["known", "another known"])
def test_a_revoked_key_is_refused_and_no_way_round_is_offered(client, lab, place, is_changed):
    """Wherever the @revoked line stands and whatever else is known of the host."""
    line = lab.known_hosts.read_text()
    kind, key = line.split()[1:3]
    other = (keygen(client.home / "other").with_name("other.pub")).read_text()
    good = f"[{ADDRESS}]:{lab.port} {other}" if is_changed else line
    names = {"*": "*", "hashed": "|1|" + "A" * 27 + "=|" + "A" * 27 + "=", "another host": "elsewhere"}
    bad = f"@revoked {names.get(place, line.split()[0])} {kind} {key}\n"
    known = client.home / "known_hosts"
    known.write_text(bad + good if place != "last" else good + bad)
    use(client, lab, known_hosts=known)
    said = refused(client, lab)
    assert "REVOKED" in said
    assert fingerprint(lab.folder / "host_key.pub") in said
    assert "ssh-keyscan" not in said


def test_a_key_that_the_host_does_not_know_is_refused_with_the_user(client, lab):
    """As whom we tried, where, and the plain ssh line that shows the same."""
    use(client, lab, identity_file=keygen(client.home / "stranger"))
    said = refused(client, lab)
    assert f"as {lab.user}" in said
    assert f"-p {lab.port} {lab.user}@{ADDRESS} true" in said


@pytest.mark.parametrize("what", ["missing", "no key", "a passphrase"])
def test_a_key_file_that_cannot_be_used_is_refused_in_words(client, lab, what):
    """Not there, no key at all, or locked: exit code 4 and what to do."""
    path = client.home / "key"
    if what == "no key":
        path.write_text("not a key\n")
    elif what == "a passphrase":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path)], check=True)
    use(client, lab, identity_file=path)
    said = refused(client, lab)
    assert said.startswith("A")
    assert "passphrase" in said or what != "a passphrase"
    assert str(path) in said or what == "a passphrase"


def test_a_closed_port_is_refused_by_the_host(client, lab):
    """Address and port are named, and the question that helps."""
    with socket.create_server((ADDRESS, 0)) as probe:
        port = probe.getsockname()[1]
    text = re.sub(r"(?m)^port = .*", f"port = {port}", lab.table())
    (client.project / "launch.toml").write_text(text)
    said = refused(client, lab)
    assert "refuses" in said
    assert f"{ADDRESS}:{port}" in said


def test_something_else_on_the_port_is_told_within_its_deadline(client, lab):
    """A server that speaks no SSH is no host."""
    with socket.create_server((ADDRESS, 0)) as server:
        text = re.sub(r"(?m)^port = .*", f"port = {server.getsockname()[1]}", lab.table())
        (client.project / "launch.toml").write_text(text)
        process = client.start("probe", "--host", "A")
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"220 mail.example.org ESMTP\r\n")
            peer.shutdown(socket.SHUT_WR)
            _, err = process.communicate(timeout=180)
    assert process.returncode == 4
    assert "Traceback" not in err
    assert err.startswith("A")


@mostly_long(
    "words", [("probe", "--host", "A"), ("ps", "--host", "A"), ("--host", "A", "--", "true")], ci=(2,)
)
def test_a_name_that_means_no_address_is_told(client, lab, words):
    """By a table, for any verb; where such names are written."""
    use(client, lab, address="no-such-host.invalid")
    said = refused(client, lab, *words)
    assert "no-such-host.invalid" in said
    assert "launch.toml" in said


def test_an_alias_of_the_ssh_config_is_a_host_without_any_file_of_ours(client, ssh_host):
    """Address, port, user, key and known hosts all come from ~/.ssh/config."""
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text(
        f"Host box\n  HostName {ADDRESS}\n  Port {ssh_host.port}\n  User {ssh_host.user}\n"
        f"  IdentityFile {ssh_host.folder}/client_key\n  UserKnownHostsFile {ssh_host.known_hosts}\n"
    )
    assert f"{ssh_host.user}@" in client.ok("probe", "--host", "box")


def alias(client, ssh_host, more="", name="box", known_hosts=None):
    """Return a block of ~/.ssh/config that names the host; `more` comes first in it, and so it counts."""
    return (
        f"Host {name}\n  {more}\n  HostName {ADDRESS}\n  Port {ssh_host.port}\n  User {ssh_host.user}\n"
        f"  IdentityFile {ssh_host.folder}/client_key\n"
        f"  UserKnownHostsFile {known_hosts or ssh_host.known_hosts}\n"
    )


@pytest.fixture
def ssh_config(client):
    """Write ~/.ssh/config."""
    (client.home / ".ssh").mkdir()
    return lambda text: (client.home / ".ssh" / "config").write_bytes(text.encode("latin-1"))


def test_a_connection_begins_where_the_configuration_says(client, ssh_host, ssh_config):
    """As ssh's own does, by sshd's log; and no address of another family is used."""
    ssh_config(alias(client, ssh_host, "BindAddress 127.0.0.9"))
    client.ok("probe", "--host", "box")
    assert "from 127.0.0.9 port" in (ssh_host.folder / "sshd.log").read_text()
    ssh_config(alias(client, ssh_host, "AddressFamily inet6"))
    done = client.run("probe", "--host", "box")
    assert (done.returncode, "no TCP address" in done.stderr) == (4, True), done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("BindAddress nowhere.invalid", "BindAddress nowhere.invalid: "),
        ("BindAddress 192.0.2.7", "BindAddress 192.0.2.7: "),
        ("KexAlgorithms diffie-hellman-group18-sha512", "KexAlgorithms diffie-hellman-group18-sha512: "),
        ("MACs umac-64@openssh.com", "MACs umac-64@openssh.com: "),
        ("PubkeyAuthentication no", "(PubkeyAuthentication no in ~/.ssh/config)"),
        ("PreferredAuthentications password", "(PreferredAuthentications password in ~/.ssh/config)"),
    ],
)
def test_an_option_of_ssh_that_prevents_the_login_is_named(client, ssh_host, ssh_config, line, said):
    """The host is not blamed for it."""
    ssh_config(alias(client, ssh_host, line))
    done = client.run("probe", "--host", "box")
    assert (done.returncode, said in done.stderr) == (4, True), done.stderr


BAD_CONFIGS = {
    "Port abc": "abc",
    'UserKnownHostsFile "/a b': "quotes",
    "Port 22\nMatch host": "Match",
    'Port 22\nMatch host "a': "quotes",
    "Compression": "compression",
    "ProxyJump box": "hops",
    "ProxyJump hop\nHost hop\n  Port abc": "abc",
}


@pytest.mark.parametrize(("line", "part"), BAD_CONFIGS.items(), ids=BAD_CONFIGS)
def test_an_ssh_config_that_cannot_be_used_is_told_as_a_file_of_yours(
    client, ssh_host, ssh_config, line, part
):
    """Exit code 2, the file, what is wrong, and how ssh says it."""
    ssh_config(alias(client, ssh_host, line))
    done = client.run("probe", "--host", "box")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "~/.ssh/config" in done.stderr
    assert part in done.stderr
    assert "ssh -G" in done.stderr


@mostly_long(
    "line",
    ["# Jos\xe9", "ForwardAgent ask", "ConnectTimeout none", "CanonicalizeHostname yes"],
    ids=ascii,
    ci=(0, 3),
)
def test_an_ssh_config_that_ssh_can_use_is_used(client, ssh_host, ssh_config, line):
    """Bytes that are no UTF-8, and settings that are none of ours."""
    ssh_config(alias(client, ssh_host, line))
    client.ok("probe", "--host", "box")


@pytest.mark.parametrize("is_set", [True, False])
def test_a_key_that_a_variable_names_is_found_as_by_ssh(client, ssh_host, ssh_config, is_set):
    """`ssh -G` leaves `${NAME}` as it is, and ssh itself ends if it is not set."""
    text = alias(client, ssh_host).replace(str(ssh_host.folder / "client_key"), "${A_FOLDER}/client_key")
    assert "A_FOLDER" in text
    ssh_config(text)
    if is_set:
        client.variables["A_FOLDER"] = str(ssh_host.folder)
        client.ok("probe", "--host", "box")
    else:
        done = client.run("probe", "--host", "box")
        assert done.returncode == 2, done.stdout + done.stderr
        assert "~/.ssh/config: ${A_FOLDER} is not set in the environment" in done.stderr


FASTEST_FIRST = (
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"  # of OpenSSH's default
)


@mostly_long(
    ("line", "offered"),
    [
        ("Compression no", FASTEST_FIRST),
        ("Ciphers aes256-ctr,aes128-gcm@openssh.com", "aes256-ctr,aes128-gcm@openssh.com"),
        ("Ciphers chacha20-poly1305@openssh.com,aes256-cbc", "aes256-cbc"),
        ("Ciphers -*-ctr", "aes128-gcm@openssh.com,aes256-gcm@openssh.com"),
        ("Ciphers chacha20-poly1305@openssh.com", FASTEST_FIRST),
    ],
    ci=(0, 1, 3),
)
def test_ciphers_are_those_of_the_ssh_config_and_else_the_fastest_of_its_default(
    client, ssh_config, line, offered
):
    """paramiko has no chacha20-poly1305."""
    assert offers(client, ssh_config, line)[2:4] == [offered, offered]


def test_key_exchanges_and_macs_are_those_of_the_ssh_config(client, ssh_config):
    """paramiko adds words about extensions to the key exchanges."""
    kex, *_, mac, _ = offers(client, ssh_config, "KexAlgorithms ecdh-sha2-nistp384\n  MACs hmac-sha2-512")
    assert [one for one in kex.split(",") if one.startswith(("curve", "ecdh", "diffie", "mlkem"))] == [
        "ecdh-sha2-nistp384"
    ]
    assert mac == "hmac-sha2-512"


def offers(client, ssh_config, line):
    """Return the lists of algorithms that launch offers to a server, which reads no further: RFC 4253, 7.1."""
    with socket.create_server((ADDRESS, 0)) as server:
        ssh_config(f"Host box\n  HostName {ADDRESS}\n  Port {server.getsockname()[1]}\n  {line}\n")
        probe = client.start("probe", "--host", "box")
        with server.accept()[0] as stream, stream.makefile("rb") as read:
            stream.sendall(b"SSH-2.0-reads\r\n")
            assert read.readline().startswith(b"SSH-2.0-")
            read.read(4 + 1 + 1 + 16)  # length, padding, kind of message, cookie
            lists = [read.read(int.from_bytes(read.read(4), "big")).decode() for _ in range(6)]
        probe.communicate()
    return lists


@pytest.mark.parametrize("address", ["caf\xe9\xff", "..", "a" * 70 + ".example"], ids=ascii)
def test_an_address_that_can_be_none_is_told(client, ssh_host, ssh_config, address):
    """Exit code 4 and the address, as for one that nobody has."""
    ssh_config(f"Host box\n  HostName {address}\n")
    done = client.run("probe", "--host", "box")
    assert done.returncode == 4
    assert done.stderr.startswith("box: ")


def test_a_key_file_of_bytes_is_told(client, lab):
    """Another program's key, say: exit code 4 and the file."""
    (client.home / "key").write_bytes(b"\xe9\xff\x00" * 100)
    use(client, lab, identity_file=client.home / "key")
    assert str(client.home / "key") in refused(client, lab)


def jump(client, ssh_host, ssh_config, *, hop=None, box=None):
    """Write a box behind a hop, which is the same sshd, with a known_hosts file for each."""
    ssh_config(
        alias(client, ssh_host, "ProxyJump hop", known_hosts=box)
        + alias(client, ssh_host, name="hop", known_hosts=hop)
    )


def test_a_host_behind_another_is_reached(client, ssh_host, ssh_config):
    """By ProxyJump, where both are known."""
    jump(client, ssh_host, ssh_config)
    client.ok("probe", "--host", "box")


@pytest.mark.parametrize("which", ["hop", "box"])
@pytest.mark.parametrize("what", ["not known", "CHANGED", "REVOKED"])
def test_every_hops_key_is_checked_and_its_own_file_is_named(client, ssh_host, ssh_config, which, what):
    """The way there is no more trusted than the host; what is offered mends the file of the one that was refused."""
    known = client.home / f"known_{which}"
    line = ssh_host.known_hosts.read_text()
    other = keygen(client.home / "other").with_name("other.pub").read_text()
    known.write_text(
        {"not known": "", "CHANGED": f"{line.split()[0]} {other}", "REVOKED": line + f"@revoked {line}"}[what]
    )
    jump(client, ssh_host, ssh_config, **{which: known})
    done = client.run("probe", "--host", "box")
    assert done.returncode == 4, done.stderr
    assert what in done.stderr
    if what != "REVOKED":
        assert str(known) in done.stderr


def transports(patience_s=0.0):
    """The threads of connections that are open in this process; one that was closed may take a moment to see it."""
    found = [thread for thread in threading.enumerate() if isinstance(thread, paramiko.Transport)]
    for thread in found:
        thread.join(patience_s)
    return [thread for thread in found if thread.is_alive()]


def test_hanging_up_leaves_no_connection_on_any_hop(client, ssh_host, ssh_config, monkeypatch):
    """Neither to the host nor to what stands before it."""
    jump(client, ssh_host, ssh_config)
    monkeypatch.setenv("HOME", str(client.home))
    agent = connect(Host(name="box", address="box"))
    assert len(transports()) == 2
    agent.close()
    assert transports(5) == []


@mostly_long("words", [("probe", "--host", "A"), ("--host", "A", "--", "true")], ids=" ".join, ci=(1,))
@pytest.mark.parametrize("banner", [b"", b"SSH-2.0-slow\r\n"], ids=["silent", "banner"])
def test_ctrl_c_while_connecting_ends_the_command(client, lab, words, banner):
    """A server that never answers holds nobody: 130, no traceback, long before its deadline would end it."""
    with socket.create_server((ADDRESS, 0)) as server:
        text = re.sub(r"(?m)^port = .*", f"port = {server.getsockname()[1]}", lab.table())
        (client.project / "launch.toml").write_text(text)
        process = client.start(*words)
        peer, _ = server.accept()
        maps = Path(f"/proc/{process.pid}/maps")
        # The connection began before. A command that still loads ends by the signal itself.
        until(lambda: "pydantic_core" in maps.read_text(), "the command runs")
        with peer:
            peer.sendall(banner)
            assert not banner or peer.recv(100).startswith(b"SSH-2.0-")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=5)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_ctrl_c_while_connecting_leaves_no_connection():
    """Whoever goes on after it, as a test or a notebook does, has no thread or socket left over."""
    with socket.create_server((ADDRESS, 0)) as server:

        def interrupt():
            peer, _ = server.accept()
            with peer, contextlib.suppress(ConnectionResetError):
                os.kill(os.getpid(), signal.SIGINT)
                while peer.recv(1 << 16):
                    pass

        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            connect(Host(name="box", address=ADDRESS, port=server.getsockname()[1]))
        assert transports(5) == []
        thread.join(5)
        assert not thread.is_alive(), "the server sees the end of the connection"


REFUSALS = ["unknown key", "stranger", "no such address", "closed port", "no agent"]


@pytest.mark.parametrize("why", REFUSALS)
def test_a_dry_run_refuses_nothing_where_a_profile_is_named(client, lab, why):
    """The plan needs no host; why the gate saw none is a note. Without a profile it is the answer."""
    with socket.create_server((ADDRESS, 0)) as probe:
        port = probe.getsockname()[1]
    changes = {
        "unknown key": {"known_hosts": client.home / "none"},
        "stranger": {"identity_file": keygen(client.home / "stranger")},
        "no such address": {"address": "no-such-host.invalid"},
        "closed port": {"address": f"{ADDRESS}:{port}"},
        "no agent": {"root": "/proc/none"},
    }[why]
    use(client, lab, **changes)
    if why == "closed port":
        path = client.project / "launch.toml"
        path.write_text(re.sub(r"(?m)^port = .*\n", "", path.read_text()))
    done = client.run("--dry-run", "--host", "A", "--profile", "cpu")
    assert done.returncode == 0, done.stderr
    assert "not checked against the host: A" in done.stdout + done.stderr
    assert client.run("--dry-run", "--host", "A").returncode == 4


@mostly_long("shell", ["csh", "tcsh", "dash", "zsh", "fish"], ci=(0,))
def test_a_launch_goes_through_whatever_shell_the_login_has(client, lab, shell):
    """The agent is handed over, and a run goes to its end below a root with every odd character in its name."""
    if shutil.which(shell) is None:
        missing(f"no {shell} here: apt-get install {shell}")
    key = keygen(client.home / f"key_{shell}")
    lab.let_in(key, shell)
    root = f"{lab.home}/{shell}'s !odd $root"
    use(client, lab, identity_file=key, root=root)
    assert "succeeded" in client.seen("--host", "A", "--", "true")
    assert "agent" in lab.ssh("ls", root)
    lab.ssh("rm", "-r", root)


NOISE = {
    "a line": "echo noise",
    "many lines": "for i in $(seq 200); do echo noise $i; done",
    "a title without a line break": r"printf '\033]0;title\007'",
    "on both streams": "echo noise; echo more >&2",
    "late words on stderr": "echo noise; (for n in 1 2 3 4 5 6 7 8; do echo late >&2; sleep .1; done) >/dev/null &",
}


@pytest.fixture
def bashrc(lab):
    """Put a line first into the rc file of the host's user; it is as it was afterwards."""
    path = f"{lab.home}/.bashrc"
    lab.ssh("sh", "-c", f"touch {path}; cp -p {path} {path}.kept")
    yield lambda line: lab.ssh("sh", "-c", f"{{ echo {shlex.quote(line)}; cat {path}.kept; }} > {path}")
    lab.ssh("mv", f"{path}.kept", path)


@mostly_long("noise", NOISE.values(), ids=NOISE, ci=(4,))
def test_a_login_that_prints_before_us_is_no_hindrance(client, lab, bashrc, noise):
    """A banner, a title, a chatty rc file: probing and launching work behind each."""
    bashrc(noise)
    assert "noise" in lab.ssh("true") or "title" in lab.ssh("true"), "the login is noisy"
    assert '"host": "A"' in client.ok("probe", "--host", "A", "--json")
    assert "succeeded" in client.seen("--host", "A", "--", "true")


ENDS = {
    "echo not available >&2; exit 3": "ended with exit status 3 before an agent began; it said: not available",
    "set -e; false": "ended with exit status 1 before an agent began, without output",
    "exec sh -c 'exec tmuxx attach'": "ended with exit status 127 before an agent began; it said: .*tmuxx.*",
    "PATH=/nowhere": "ended with exit status 127 before an agent began; it said: .*sh: not found",
    "kill -9 $$": "ended before an agent began, without output",
}


@mostly_long("line", ENDS, ci=(0, 4))
def test_a_login_that_ends_before_us_is_told_in_its_own_words(client, lab, bashrc, line):
    """With its exit status, and the files to look into: exit code 4, not a hang."""
    bashrc(f'case "$BASH_EXECUTION_STRING" in *LAUNCH-AGENT*) {line};; esac')
    done = client.run("probe", "--host", "A")
    assert done.returncode == 4
    assert re.search(
        f"^A: its login shell {ENDS[line]}\n  does ~/.bashrc, .* end it, .*try   ssh ", done.stderr
    )


@mostly_long("line", ["echo first; read x", "echo first; exec sh"], ci=(0,))
def test_a_login_that_waits_for_input_is_told(lab, bashrc, line):
    """No agent begins, and there is no end either."""
    bashrc(f'case "$BASH_EXECUTION_STRING" in *LAUNCH-AGENT*) {line};; esac')
    files = {"identity_file": str(lab.folder / "client_key"), "known_hosts": str(lab.known_hosts)}
    host = Host(name="A", address=ADDRESS, port=lab.port, user=lab.user, **files)
    with contextlib.closing(SshConnection(host).only_link()) as link:
        link.settimeout(30.0)
        assert link.recv(1 << 16) == b"first\n"
        link.settimeout(1.0)
        with pytest.raises(ConnectionLostError) as lost:
            link.recv(1 << 16)
    assert "its login shell has begun no agent within 1 s; it said: first\n  does ~/.bashrc, " in str(
        lost.value
    )


def test_a_variable_of_the_login_that_breaks_python_does_not_break_the_agent(client, lab, bashrc):
    """The agent runs without PYTHONHOME; a Python that does not start is told with what it says."""
    bashrc("export PYTHONHOME=/nowhere")
    assert '"host": "A"' in client.ok("probe", "--host", "A", "--json")
    broken = f"{lab.home}/broken"
    lab.ssh(
        "sh",
        "-c",
        f"printf '#!/bin/sh\n[ \"$1\" = -V ] && echo Python 3.11.2 || {{ echo no codec >&2; exit 1; }}\n' >{broken}; chmod +x {broken}",
    )
    (client.project / "launch.toml").write_text(lab.table(python=broken))
    done = client.run("probe", "--host", "A")
    assert done.returncode == 4
    assert f"no Python >= 3.8 starts there, but {broken} 3.11.2 (no codec)" in done.stderr


def test_a_launch_says_as_whom_and_by_which_key(client, lab):
    """It shows the user, the address and the host key's fingerprint it has believed."""
    out = client.seen("--host", "A", "--", "true")
    assert f"{lab.user}@{ADDRESS}" in out
    assert fingerprint(lab.folder / "host_key.pub") in out


def test_a_byte_that_is_changed_on_the_way_is_told_in_words(monkeypatch, lab):
    """The cipher notices it, with an error that is not a class of paramiko."""
    read = paramiko.Packetizer.read_message

    def read_damaged(self):
        if self._Packetizer__block_engine_in is not None:
            raise InvalidTag
        return read(self)

    monkeypatch.setattr(paramiko.Packetizer, "read_message", read_damaged)
    where = {"address": ADDRESS, "port": lab.port, "user": lab.user}
    files = {"identity_file": str(lab.folder / "client_key"), "known_hosts": str(lab.known_hosts)}
    with pytest.raises(UnreachableError, match="damaged on the way"):
        connect(Host(name="A", hold=0, **where, **files)).close()


def test_a_stream_that_is_opened_while_its_connection_ends_is_an_error(monkeypatch, lab):
    """It was a channel that takes no byte, for ever: paramiko ends the channels it has, and later wakes who opens one."""
    is_ending, close = threading.Event(), paramiko.Packetizer.close

    def close_late(self):
        ended = threading.current_thread()
        if isinstance(ended, paramiko.Transport) and not is_ending.is_set():
            known = set(ended.channel_events)
            is_ending.set()
            until(lambda: set(ended.channel_events) - known, "the stream that is asked for")
        close(self)

    monkeypatch.setattr(paramiko.Packetizer, "close", close_late)
    files = {"identity_file": str(lab.folder / "client_key"), "known_hosts": str(lab.known_hosts)}
    host = Host(name="A", address=ADDRESS, port=lab.port, user=lab.user, **files)
    with contextlib.closing(SshConnection(host)) as connection:
        assert connection.open_program(["true"]).recv(1) == b""  # sshd has made the process that is to die
        lab.cut()
        assert is_ending.wait(30)
        with pytest.raises(ConnectionLostError, match="A: the connection broke"):
            connection.open_socket("/run/nothing")


def test_a_stream_on_a_lost_connection_takes_nothing_with_an_error_of_the_system(monkeypatch, lab):
    """paramiko raises EOFError, which libraries above take for the end of the input."""
    files = {"identity_file": str(lab.folder / "client_key"), "known_hosts": str(lab.known_hosts)}
    host = Host(name="A", address=ADDRESS, port=lab.port, user=lab.user, **files)

    def lost(_self, _data):
        raise BrokenPipeError

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        contextlib.closing(SshConnection(host)) as connection,
    ):
        stream = connection.open_port(server.getsockname()[1])
        monkeypatch.setattr(Wire, "send", lost)
        with pytest.raises(ConnectionResetError, match="it was closed"):
            stream.sendall(b"anything")
