"""Files that are taken for credentials, by their names and by what is in them; and files that only look like some."""

import datetime as dt
import json
import random
import string
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    pkcs12,
)

from launcher.config import resolve
from launcher.upload import loading
from launcher.upload.default_exclusions import of_name

NAMES = [
    "application_default_credentials.json", "adc.json", "adc-prod.json", "credentials.json", "Credentials.JSON",
    "client_secret.json", "client_secret_123.apps.googleusercontent.com.json", ".cargo/credentials.toml",
    ".cargo/credentials", ".config/modal/x", ".config/runpod/x", ".config/openai/x", ".config/doppler/x", ".config/gcloud/x",
    ".runpod/config.toml", ".authinfo", ".authinfo.gpg", ".mylogin.cnf", ".vault_pass", ".vault_pass.txt", "vault_pass.txt",
    ".vault-password", ".htpasswd", "terraform.tfstate", "terraform.tfstate.backup", "prod.tfvars", "prod.auto.tfvars.json",
    "rclone.conf", "kubeconfig", "lab.kubeconfig", "tls.key", "krb5.keytab", "home.ovpn", "pip.conf", "pip.ini", "netrc",
    "prod.env", ".secrets.toml", ".secrets", ".bash_history", ".zsh_history", ".python_history", ".psql_history", ".histfile",
    "fish_history", ".Rhistory", ".Renviron",
]  # fmt: skip
OTHERS = [
    "tokenizer.json", "config.json", "special_tokens_map.json", "adcopy.json", "adc.jsonl", "fake_credentials.json",
    "credentials.jsonl", "credentials.py", "secrets.py", "history.json", "training_history.json", "netrc/code.py",
    "kubeconfig/code.py", "pip.conf.md", "environment.yml", "keys.txt", "turkey", "monkey.jsonl", "vault_pass.py", "env.py",
    "tfstate.py", "client_secret.py", ".config/matplotlib/x", "openai/x", "cargo/credentials.toml", "key", "keytab.txt",
]  # fmt: skip

PEM = b"""-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIH5fPVZCXnCJP9GDqf4cRqyVhGYfMHm4xAXHd2Jd4ZxIoAoGCCqGSM49
-----END EC PRIVATE KEY-----
"""
LOCKED = PEM.replace(b"-\nMHc", b"-\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,21FB9A\n\nMHc")
PUTTY = b"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 1\nAAAA\n"
AGE = b"# created: 2026-01-01\n# public key: age1x\nAGE-SECRET-KEY-1" + b"Q" * 58 + b"\n"
ACCOUNT = {"type": "service_account", "private_key": PEM.decode()}
USER = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "1//c"}
CONTENTS = {
    "pem": PEM,
    "openssh": b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n",
    "after a line": b"# the key of the lab\n" + PEM,
    "after attributes": b"Bag Attributes\n    friendlyName: a\nKey Attributes: <No Attributes>\n" + PEM,
    "indented": b"key: |\n" + b"".join(b"    " + line for line in PEM.splitlines(keepends=True)),
    "locked, after a line": b"# mine\n" + LOCKED,
    "lines of windows": b"mine\r\n" + PEM.replace(b"\n", b"\r\n"),
    "ssh2": b"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\nP2/56wAAAi4\n",
    "pgp": b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n",
    "utf-16, as PowerShell writes": PEM.decode().encode("utf-16"),
    "utf-16 be": b"\xfe\xff" + PEM.decode().encode("utf-16-be"),
    "utf-16 without a mark": (b"mine\n" + PEM).decode().encode("utf-16-le"),
    "utf-8 with a mark": b"\xef\xbb\xbf" + PEM,
    "padded behind": PEM + b" " * 900_000,
    "padded with zeros": PEM + b"\0" * 100_000,
    "padded before": b"\n" * 900_000 + PEM,
    "padded lines before": b"# mine\n" * 100_000 + PEM,
    "putty": PUTTY,
    "age": AGE,
    "service account": json.dumps(ACCOUNT).encode(),
    "service account, pretty": json.dumps(ACCOUNT, indent=2).encode(),
    "service account, padded": b" " * 900_000 + json.dumps(ACCOUNT).encode() + b" " * 50_000,
    "another name for the key": json.dumps({"app": {"privateKey": PEM.decode()}}).encode(),
    "refresh token": json.dumps(USER).encode(),
    "refresh token, utf-16": json.dumps(USER).encode("utf-16"),
    "refresh token below": json.dumps({"tokens": {"refresh_token": "abc"}}, indent=1).encode(),
    "refresh token, padded within": json.dumps(USER).encode().replace(b", ", b"," + b" " * 100_000),
    "sso": json.dumps({"accessToken": "a", "refreshToken": "b"}).encode(),
}
WORDS = {"".join(random.Random(seed).choices(string.ascii_lowercase, k=8)): seed for seed in range(20_000)}
NOT_SECRET = {
    "bundle": Path(certifi.where()).read_bytes(),
    "about keys": b"A key begins with\n-----BEGIN RSA PRIVATE KEY-----\nand goes on in base64.\n",
    "an elided key": b"like this:\n\n-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n",
    "a parser of keys": b'BEGIN = "-----BEGIN PRIVATE KEY-----"\nAGE = "AGE-SECRET-KEY-1"\nTOKEN = {"refresh_token": "x"}\n',
    "a data set with such words": b'{"text": "a"}\n{"refresh_token": "abc"}\n',
    "a data set of code": b'{"code": "x"}\n' + json.dumps({"text": "see\n" + PEM.decode()}).encode() + b"\n",
    "a schema": json.dumps({"refresh_token": {"type": "string"}, "type": "service_account"}).encode(),
    "a vocabulary": json.dumps({"model": {"vocab": {**WORDS, "refresh_token": 7}}}).encode(),
    "nested without end": b'{"refresh_token":' + b"[" * 50_000,
    "numbers": bytes(range(256)) * 2000,
    "zero": b"\0" * 200_000,
    "0": b"0",
    "": b"",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project's folder, in which the command is given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = (tmp_path / "project").resolve()
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def put(folder, name, content=b"x"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def load():
    return loading.load(resolve.task(None, ["true"], [], None))


def sent(loaded):
    return {entry.name for entry in loaded.tree.entries if entry.folder is None}


def test_credentials_by_name_stay_behind_and_what_sounds_like_them_travels(folder):
    """In any folder; a folder may be called as the file is."""
    for name in NAMES:
        put(folder, f"deep/{name}")
    for name in OTHERS:
        put(folder, name)
    loaded = load()
    assert sent(loaded) == set(OTHERS)
    assert {one.why.is_secret for one in loaded.selection.left_out} == {True}


def test_a_rule_with_the_ending_of_a_secret_includes_it(folder):
    """As `!*.pem` does: nobody writes `!*.tfvars` who means something else."""
    names = ("a.key", "b.env", "c.tfvars", "d.keytab")
    for name in names:
        put(folder, name)
    put(folder, ".launchignore", b"!*.key\n!*.env\n!*.tfvars\n!*.keytab\n")
    assert sent(load()) == {*names, ".launchignore"}
    assert of_name("a.key", "", is_folder=False).is_secret


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_private_key_or_a_token_is_known_by_its_content(folder, kind):
    """A second launch, which finds the file in its cache, says the same."""
    put(folder, "notes.txt", CONTENTS[kind])
    put(folder, "other.txt")
    for _ in range(2):
        loaded = load()
        assert sent(loaded) == {"other.txt"}
        assert [(one.path, one.why.is_secret) for one in loaded.selection.left_out] == [("notes.txt", True)]


def keys():
    """Make keys of each kind, by a library that others wrote."""
    yield rsa.generate_private_key(65537, 2048)
    yield dsa.generate_private_key(2048)
    yield from map(ec.generate_private_key, (ec.SECP256R1(), ec.SECP521R1()))
    yield ed25519.Ed25519PrivateKey.generate()


def certificate_of(key):
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(x509.Name([])).serial_number(1)
    made = made.public_key(key.public_key()).not_valid_before(day).not_valid_after(day + dt.timedelta(days=9))
    return made.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def test_real_keys_stay_behind_in_every_form_and_what_is_public_travels(folder):
    """In DER and PEM, locked or not, with a certificate or without; a certificate and a public key alone are public."""
    lock = BestAvailableEncryption(b"x")
    for number, key in enumerate(keys()):
        forms = [PrivateFormat.PKCS8]
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            forms.append(PrivateFormat.TraditionalOpenSSL)
        for turn, form in enumerate(forms):
            put(folder, f"key-{number}-{turn}-der", key.private_bytes(Encoding.DER, form, NoEncryption()))
            put(
                folder,
                f"key-{number}-{turn}-pem",
                b"# a\n" + key.private_bytes(Encoding.PEM, form, NoEncryption()),
            )
        put(folder, f"key-{number}-locked-der", key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, lock))
        certificate = certificate_of(key)
        put(
            folder,
            f"key-{number}-12",
            pkcs12.serialize_key_and_certificates(b"a", key, certificate, None, lock),
        )
        chain = certificate.public_bytes(Encoding.PEM)
        put(folder, f"key-{number}-chain", chain + key.private_bytes(Encoding.PEM, forms[-1], NoEncryption()))
        put(folder, f"public-{number}-chain", chain)
        for turn, encoding in enumerate((Encoding.DER, Encoding.PEM)):
            put(folder, f"public-{number}-{turn}", certificate.public_bytes(encoding))
            public = key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
            put(folder, f"public-{number}-{turn}-key", public)
    loaded = load()
    assert {one.path for one in loaded.selection.left_out} == {path.name for path in folder.glob("key-*")}
    assert sent(loaded) == {path.name for path in folder.glob("public-*")}


@pytest.mark.parametrize("kind", NOT_SECRET)
def test_what_only_looks_like_a_key_travels(folder, kind):
    """Certificates and public keys are made to be shown; a text about keys is no key, nor is a data set of code."""
    put(folder, "file", NOT_SECRET[kind])
    assert sent(load()) == {"file"}


def test_of_a_large_file_both_ends_are_read_and_no_more(folder):
    """A terabyte with a hole in it; a key in the middle is not found, as the page says."""
    put(folder, "weights.bin")
    with (folder / "weights.bin").open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(PEM)
    assert sent(load()) == {"weights.bin"}
    with (folder / "weights.bin").open("r+b") as file:
        file.seek(-len(PEM) - 1, 2)
        file.write(b"\n" + PEM)
    assert sent(load()) == set()


def test_what_was_judged_by_fewer_rules_is_judged_again(folder, tmp_path, monkeypatch):
    """A cache of the launcher before knows this file, and says that it is no key."""
    monkeypatch.setattr("launcher.upload.digests.SETTLED_NS", -(10**18))
    with monkeypatch.context() as before:
        before.setattr("launcher.upload.digests.holds_private_key", lambda _: False)
        put(folder, "notes.txt", AGE)
        assert sent(load()) == {"notes.txt"}
    (cache,) = (tmp_path / "cache").rglob("digests/*.json")
    known = json.loads(cache.read_text())
    cache.write_text(json.dumps({path: values for path, values in known.items() if isinstance(values, list)}))
    assert sent(load()) == set()
