"""`ssh` is the judge: over one table of configurations we accept the hosts and the keys that it accepts, and no other.

Each case runs the real program and our connection with the same configuration against one sshd.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
from testbed.client import missing
from testbed.hardware_key import HardwareKey
from testbed.sshd import ADDRESS
from testbed.tables import mostly_long

from launcher.errors import HostError
from launcher.transport.ssh.ssh import SshConnection
from launcher.values.host import Host

pytestmark = pytest.mark.testbed

HOST_KEYS = {
    "ed": "ed25519",
    "rsa": "rsa",
    "p256": "ecdsa -b 256",
    "p384": "ecdsa -b 384",
    "p521": "ecdsa -b 521",
}
OTHER_KEYS = {"other": "ed25519", "third": "ed25519", "ca": "ed25519", "rsa_ca": "rsa"}
CERTIFICATES = {  # of the host's keys; their authority, and more words for ssh-keygen
    "ed": ("ca", "-n box.example,n1.cluster"),
    "rsa": ("rsa_ca", "-t rsa-sha2-256 -n box.example"),
    "p256": ("ca", "-n box.example -V 20200101:20210101"),
    "p384": ("ca", "-n box.example -O critical:launch=yes"),
    "p521": ("ca", "-n box.example -V 20900101:20910101"),
}
SSHD = """\
Port {port}
ListenAddress {ADDRESS}
ListenAddress {outer}
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
"""


class Case(NamedTuple):
    """A known_hosts file, lines of the configuration, and what we say if ssh refuses: every part of it.

    In both, {ed} is the host's public key of that name, {FOLDER}/ed.pub its file, {at} the host's name in known_hosts
    files. `stricter` says why we refuse what ssh accepts.
    """

    known: str = ""
    config: str = ""
    says: str = ""
    stricter: str = ""


CERT = "HostKeyAlias box.example"
P256, P384, P521, RSA = (
    f"{CERT}\nHostKeyAlgorithms {one}-cert-v01@openssh.com,{one}"
    for one in ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "rsa-sha2-512")
)
CHECKED = "CheckHostIP yes\nHostKeyAlgorithms ssh-ed25519"
CASES = {
    "known": Case("{at} {ed}"),
    "known by its RSA key alone": Case("{at} {rsa}"),
    "known by its ECDSA key alone": Case("{at} {p384}"),
    "nothing known": Case("", says="not known"),
    "another name known": Case("elsewhere {ed}", says="not known"),
    "another key known": Case("{at} {other}", says="CHANGED|intercepts|compare it first"),
    "another kind of key changed": Case("{at} {other}", "HostKeyAlgorithms rsa-sha2-512", "CHANGED"),
    "one of two keys of one kind": Case("{at} {other}\n{at} {ed}"),
    "one of three keys of one kind": Case("{at} {other}\n{at} {third}\n{at} {ed}"),
    "none of two keys of one kind": Case("{at} {other}\n{at} {third}", says="CHANGED| or SHA256:"),
    "the right kind is known, and a wrong one of another": Case("{at} {rsa}\n{at} {other}", says="CHANGED"),
    "a kind that is not to be used": Case("{at} {ed}", "HostKeyAlgorithms rsa-sha2-512", "CHANGED"),
    "an alias": Case("box.example {ed}", CERT),
    "an alias with two keys of one kind": Case("box.example {other}\nbox.example {ed}", CERT),
    "an alias in capitals": Case("box.example {ed}", "HostKeyAlias Box.Example"),
    "an alias has no port": Case("[box.example]:{port} {ed}", CERT, "not known"),
    "an alias, and the address known": Case("{at} {ed}", CERT, "not known"),
    "a name without its port": Case(f"{ADDRESS} {{ed}}"),
    "another key for the name without its port": Case(f"{ADDRESS} {{other}}", says="not known"),
    "another key for the name with its port": Case(
        f"{{at}} {{other}}\n{ADDRESS} {{ed}}", "HostKeyAlgorithms ssh-ed25519", "CHANGED"
    ),
    "patterns": Case("[127.0.0.?]:* {ed}"),
    "a pattern that leaves it out": Case(f"*,!{{at}},!{ADDRESS} {{ed}}", says="not known"),
    "two names": Case("elsewhere,{at} {ed}"),
    "a hashed name": Case("{hashed} {ed}"),
    "a hashed name with two keys": Case("{hashed} {other}\n{hashed} {ed}"),
    "another hashed name": Case(
        "|1|AAAAAAAAAAAAAAAAAAAAAAAAAAA=|AAAAAAAAAAAAAAAAAAAAAAAAAAA= {ed}", says="not known"
    ),
    "a hashed name with another key": Case("{hashed} {other}", says="CHANGED"),
    "revoked": Case("{at} {ed}\n@revoked {at} {ed}", says="REVOKED|known_hosts:2"),
    "revoked for all": Case("{at} {ed}\n@revoked * {ed}", says="REVOKED"),
    "revoked, and its RSA key known": Case("{at} {rsa}\n@revoked {at} {ed}"),
    "revoked for another name": Case(
        "{at} {ed}\n@revoked elsewhere {ed}", says="REVOKED", stricter="someone else may hold that key"
    ),
    "a key of another is revoked": Case("{at} {ed}\n@revoked * {other}"),
    "a file of revoked keys": Case("{at} {ed}", "RevokedHostKeys {folder}/ed.pub", "REVOKED|/ed.pub"),
    "a file of revoked keys without ours": Case("{at} {ed}", "RevokedHostKeys {folder}/other.pub"),
    "a revocation list": Case("{at} {ed}", "RevokedHostKeys {folder}/ed.krl", "REVOKED|/ed.krl"),
    "a revocation list without our key": Case("{at} {ed}", "RevokedHostKeys {folder}/other.krl"),
    "revoked keys that are not there": Case(
        "{at} {ed}", "RevokedHostKeys /none/revoked", "cannot be checked|/none/revoked"
    ),
    "revoked keys that are none": Case(
        "{at} {ed}", "RevokedHostKeys {folder}/noise", "cannot be checked|/noise"
    ),
    "an authority": Case("@cert-authority box.example {ca}", CERT),
    "an authority for a pattern": Case("@cert-authority *.example {ca}", CERT),
    "an authority, and another key known": Case(
        "box.example {other}\n@cert-authority box.example {ca}", CERT
    ),
    "an authority of other names": Case(
        "@cert-authority *.cluster {ca}", CERT, "not known|no @cert-authority line"
    ),
    "another authority": Case(
        "@cert-authority box.example {other}", CERT, "not known|no @cert-authority line"
    ),
    "another authority, and the key known": Case("@cert-authority * {other}\nbox.example {ed}", CERT),
    "a certificate for other names": Case(
        "@cert-authority * {ca}", "HostKeyAlias far.example", "not known|not for far.example"
    ),
    "a certificate for other names, and the key known": Case("@cert-authority * {ca}\n{at} {ed}"),
    "an authority's key is not the host's": Case("@cert-authority box.example {ed}", CERT, "not known"),
    "an expired certificate": Case(
        "@cert-authority * {ca}",
        P256,
        "not known|it expired on 20",
    ),
    "an expired certificate, and the key known": Case("@cert-authority * {ca}\nbox.example {p256}", P256),
    "an expired certificate, and another key known": Case(
        "@cert-authority * {ca}\nbox.example {other}",
        P256,
        "CHANGED|it expired on 20",
    ),
    "a certificate of the future": Case(
        "@cert-authority * {ca}",
        P521,
        "not known|valid only from 2",
    ),
    "a certificate with critical options": Case(
        "@cert-authority * {ca}",
        P384,
        "not known|critical options",
    ),
    "an RSA authority": Case("@cert-authority * {rsa_ca}", RSA),
    "an RSA authority whose algorithm is left out": Case(
        "@cert-authority * {rsa_ca}",
        RSA + "\nCASignatureAlgorithms ssh-ed25519",
        "not known|CASignatureAlgorithms",
    ),
    "a revoked authority": Case("@cert-authority * {ca}\n@revoked * {ca}", CERT, "REVOKED"),
    "a revoked key with a certificate": Case("@cert-authority * {ca}\n@revoked * {ed}", CERT, "REVOKED"),
    "a revoked authority, and the key known": Case("box.example {ed}\n@revoked * {ca}", CERT, "REVOKED"),
    "an authority in a file of revoked keys": Case(
        "@cert-authority * {ca}", CERT + "\nRevokedHostKeys {folder}/ca.pub", "REVOKED|/ca.pub"
    ),
    "an authority in a revocation list": Case(
        "@cert-authority * {ca}", CERT + "\nRevokedHostKeys {folder}/ca.krl", "REVOKED|/ca.krl"
    ),
    "new keys are accepted": Case("", "StrictHostKeyChecking accept-new"),
    "new keys are accepted, a changed one is not": Case(
        "{at} {other}", "StrictHostKeyChecking accept-new", "CHANGED"
    ),
    "new keys are accepted, a revoked one is not": Case(
        "@revoked * {ed}", "StrictHostKeyChecking accept-new", "REVOKED"
    ),
    "nothing is checked, and nothing known": Case("", "StrictHostKeyChecking no"),
    "nothing is checked": Case(
        "{at} {other}", "StrictHostKeyChecking no", "CHANGED", stricter="a changed key is never accepted"
    ),
    "no check of this machine": Case(
        "", "NoHostAuthenticationForLocalhost yes", "not known", stricter="a tunnel ends on this machine too"
    ),
    "a program that knows": Case("", 'KnownHostsCommand /bin/echo %H "{ed}"'),
    "a program that knows another key": Case("", 'KnownHostsCommand /bin/echo %H "{other}"', "CHANGED"),
    "a program that revokes": Case("{at} {ed}", 'KnownHostsCommand /bin/echo @revoked %H "{ed}"', "REVOKED"),
    "a program that fails": Case("{at} {ed}", "KnownHostsCommand /bin/false", "KnownHostsCommand /bin/false"),
}

OF_A_NAME = {
    "the address has the same key": Case("{name_at} {ed}\n{outer_at} {ed}", CHECKED),
    "the address has another key": Case(
        "{name_at} {ed}\n{outer_at} {other}", CHECKED, "CheckHostIP|intercepts|compare it first"
    ),
    "the address has another key, and nobody asks": Case("{name_at} {ed}\n{outer_at} {other}"),
    "an alias, and the address has another key": Case(
        "box.example {ed}\n{outer_at} {other}", f"{CERT}\n{CHECKED}", "CheckHostIP"
    ),
    "the address alone is known": Case("{outer_at} {ed}", CHECKED, "not known"),
    "the address is not known": Case("{name_at} {ed}", CHECKED),
    "new keys are accepted, and the address has another": Case(
        "{outer_at} {other}", f"{CHECKED}\nStrictHostKeyChecking accept-new", "CheckHostIP"
    ),
    "certified, and the address has another key": Case(
        "@cert-authority * {ca}\n{outer_at} {other}", "CheckHostIP yes"
    ),
}


class Lab:
    """One sshd with five keys and their certificates, and the parts that the cases name."""

    def __init__(self, ssh_host, folder):
        self.folder, self.host = folder, ssh_host
        self.outer = _own_address()
        for name, kind in {**HOST_KEYS, **OTHER_KEYS}.items():
            _keygen(*f"-q -t {kind} -N".split(), "", "-f", folder / name)
        for name, (authority, more) in CERTIFICATES.items():
            _keygen("-q", "-s", folder / authority, "-I", name, "-h", *more.split(), folder / f"{name}.pub")
        for name in ("ed", "other", "ca"):
            _keygen("-q", "-k", "-f", folder / f"{name}.krl", folder / f"{name}.pub")
        (folder / "noise").write_text("neither keys\nnor a list\n")
        shutil.copy(ssh_host.folder / "authorized_keys", folder)
        with socket.create_server((ADDRESS, 0)) as probe:
            self.port = probe.getsockname()[1]
        keys = "".join(
            f"HostKey {folder}/{one}\nHostCertificate {folder}/{one}-cert.pub\n" for one in HOST_KEYS
        )
        (folder / "sshd.conf").write_text(SSHD.format(**vars(self), ADDRESS=ADDRESS) + keys)
        with (folder / "sshd.log").open("wb") as log:
            self.sshd = subprocess.Popen(
                ["/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd.conf"], stderr=log, start_new_session=True
            )
        _until_it_listens(self.port)
        at = f"[{ADDRESS}]:{self.port}"
        self.words = {
            **{
                one: " ".join((folder / f"{one}.pub").read_text().split()[:2])
                for one in (*HOST_KEYS, *OTHER_KEYS)
            },
            "folder": folder,
            "port": self.port,
            "at": at,
            "hashed": _hashed(folder, at),
            "name_at": f"[box.example]:{self.port}",
            "outer_at": f"[{self.outer}]:{self.port}",
        }

    def config(self, case, home, name=ADDRESS):
        """Write a case's known_hosts file, and return its configuration."""
        known = home / "known_hosts"
        known.write_text(case.known.format(**self.words) + "\n")
        lines = [
            *case.config.format(**self.words).split("\n"),
            f"HostName {name}",
            f"Port {self.port}",
            f"User {self.host.user}",
            f"UserKnownHostsFile {known}",
            "GlobalKnownHostsFile none",
            "HashKnownHosts no",
        ]
        if "IdentityFile" not in case.config:
            lines.append(f"IdentityFile {self.host.folder}/client_key")
        return "Host box\n" + "".join(f"  {line}\n" for line in lines if line)


def _keygen(*words):
    subprocess.run(["ssh-keygen", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _hashed(folder, name):
    path = folder / "hashed"
    path.write_text(f"{name} {(folder / 'ed.pub').read_text()}")
    _keygen("-q", "-H", "-f", path)
    return path.read_text().split()[0]


def _own_address():
    """The address of this machine that is not its loopback: ssh compares no others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            missing("CheckHostIP needs an address beside loopback")
        return probe.getsockname()[0]


def _until_it_listens(port):
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection((ADDRESS, port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "sshd did not come up"
            time.sleep(0.02)
        else:
            return


@pytest.fixture(scope="module")
def lab(ssh_host):
    folder = ssh_host.folder / "parity"
    folder.mkdir(mode=0o755)
    made = Lab(ssh_host, folder)
    yield made
    os.kill(made.sshd.pid, signal.SIGTERM)
    made.sshd.wait()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of one's own, with no agent."""
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def by_ssh(home, *before):
    """Return whether the real program connects, and what it says."""
    done = subprocess.run(
        [*before, "ssh", "-F", home / ".ssh" / "config", "-o", "BatchMode=yes", "box", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0, done.stderr


def by_us():
    """Return "" if our connection comes about, else what it says."""
    try:
        SshConnection(Host(name="box", address="box", python="true")).only_link().close()
    except HostError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_host_key_is_judged_as_ssh_judges_it(lab, home, case):
    """Both accept, or both refuse; what we say names the cause, and no revoked key gets a way round."""
    (home / ".ssh" / "config").write_text(lab.config(case, home))
    known = (home / "known_hosts").read_bytes()
    accepts, their_words = by_ssh(home)
    (home / "known_hosts").write_bytes(known)
    our_words = by_us()
    assert accepts == (not case.says or bool(case.stricter)), their_words
    assert bool(our_words) == bool(case.says), our_words or their_words
    assert not [part for part in case.says.split("|") if part not in our_words], our_words
    if "REVOKED" in case.says or "cannot be checked" in case.says:
        assert "ssh-keyscan" not in our_words
        assert "ssh-keygen -R" not in our_words
        assert "--accept-new-host-key" not in our_words


WITH_HOSTS = 'mount --bind "$1" /etc/hosts; shift; exec "$@"'
BY_US = """
from launcher.errors import HostError
from launcher.transport.ssh.ssh import SshConnection, SshLink
from launcher.values.host import Host
try:
    SshConnection(Host(name="box", address="box", python="true")).only_link().close()
except HostError as error:
    print(error)
"""


@mostly_long("case", OF_A_NAME.values(), ids=OF_A_NAME, ci=(0, 1, 6))
def test_the_key_of_an_address_is_compared_as_ssh_compares_it(lab, home, case):
    """CheckHostIP, for a name that only this test's own /etc/hosts has: ssh compares none on loopback."""
    if os.geteuid() != 0:
        missing("an /etc/hosts of its own needs root")
    (home / "hosts").write_text(f"{lab.outer} box.example\n")
    private = ["unshare", "--mount", "sh", "-ec", WITH_HOSTS, "sh", home / "hosts"]
    (home / ".ssh" / "config").write_text(lab.config(case, home, "box.example"))
    known = (home / "known_hosts").read_bytes()
    accepts, their_words = by_ssh(home, *private)
    learnt = (home / "known_hosts").read_bytes()
    (home / "known_hosts").write_bytes(known)
    ours = [*private, sys.executable, "-c", BY_US]
    our_words = subprocess.run(ours, capture_output=True, text=True, check=True).stdout
    assert accepts == (not case.says), their_words
    assert not [part for part in case.says.split("|") if part not in our_words], our_words
    assert bool(our_words) == bool(case.says), our_words
    assert not accepts or (home / "known_hosts").read_bytes() == learnt, "the same is learnt"


USERS = {  # keys that only a certificate lets in, and the words by which it is signed
    "signed": "-n {user}",
    "expired": "-n {user} -V 20200101:20210101",
    "early": "-n {user} -V 20900101:20910101",
    "anothers": "-n root",
    "hosts": "-h -n {user}",
    "rsa_signed": "-n {user}",
    "bare": "",
}
LOGINS = {
    "a certificate beside its key": Case(config="IdentityFile {folder}/signed"),
    "an RSA key's certificate": Case(config="IdentityFile {folder}/rsa_signed"),
    "an expired certificate": Case(
        config="IdentityFile {folder}/expired", says="refuses every key|expired-cert.pub: it expired on 20"
    ),
    "a certificate of the future": Case(
        config="IdentityFile {folder}/early", says="refuses every key|early-cert.pub: it is valid only from 2"
    ),
    "a certificate for another user": Case(
        config="IdentityFile {folder}/anothers", says="anothers-cert.pub: it is for root, not for "
    ),
    "a host's certificate": Case(
        config="IdentityFile {folder}/hosts", says="it is not a certificate for users"
    ),
    "a certificate in a file of its own": Case(
        config="IdentityFile {folder}/bare\nCertificateFile {folder}/bare-signed.pub"
    ),
    "a certificate of another key": Case(
        config="IdentityFile {folder}/bare\nCertificateFile {folder}/signed-cert.pub",
        says="refuses every key",
    ),
    "a key without its certificate": Case(config="IdentityFile {folder}/bare", says="refuses every key"),
    "a hardware key in an agent": Case(config="IdentityAgent {home}/chip\nIdentityFile /none"),
    "a hardware key in an agent, and its file": Case(
        config="IdentityAgent {home}/chip\nIdentityFile {home}/chip.pub\nIdentitiesOnly yes"
    ),
    "a hardware key without an agent": Case(
        config="IdentityFile {home}/chip.pub",
        says="a hardware key, which launch can use through ssh-agent only|ssh-add ",
    ),
    "a library for keys in hardware": Case(
        config="IdentityFile /none\nPKCS11Provider /none/chip.so",
        says="through ssh-agent only|ssh-add -s /none/chip.so",
    ),
}


@pytest.fixture(scope="module")
def users(lab):
    """Keys of users in the lab's folder, signed by its authority, which its sshd knows."""
    with (lab.folder / "authorized_keys").open("a") as file:
        file.write(f"cert-authority {lab.words['ca']}\n")
    for name, more in USERS.items():
        path = lab.folder / name
        _keygen("-q", "-t", "rsa" if name.startswith("rsa") else "ed25519", "-N", "", "-f", path)
        if more:
            _keygen(
                "-q",
                "-s",
                lab.folder / "ca",
                "-I",
                name,
                *more.format(user=lab.host.user).split(),
                f"{path}.pub",
            )
    (lab.folder / "kept.pub").write_bytes((lab.folder / "bare.pub").read_bytes())
    _keygen("-q", "-s", lab.folder / "ca", "-I", "bare", "-n", lab.host.user, lab.folder / "kept.pub")
    (lab.folder / "kept-cert.pub").rename(lab.folder / "bare-signed.pub")
    return lab


@pytest.mark.parametrize("case", LOGINS.values(), ids=LOGINS)
def test_a_user_gets_in_by_the_keys_by_which_ssh_gets_in(users, home, case):
    """Certificates and hardware keys; who is refused reads what is wrong with what he has."""
    chip = HardwareKey(home / "chip")
    (home / "chip.pub").write_text(chip.public + "\n")
    with (users.folder / "authorized_keys").open("a") as file:
        file.write(f"{chip.public}\n")
    case = case._replace(known="{at} {ed}", config=case.config.replace("{home}", str(home)))
    (home / ".ssh" / "config").write_text(users.config(case, home))
    accepts, their_words = by_ssh(home)
    our_words = by_us()
    chip.close()
    assert accepts == (not case.says), their_words
    assert bool(our_words) == bool(case.says), our_words
    assert not [part for part in case.says.split("|") if part not in our_words], our_words
