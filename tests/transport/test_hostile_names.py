"""What a cloned repository writes as an address or a user never reaches a shell: OpenSSH's own rules for names."""

import json
import shutil
import subprocess

import pytest
from testbed.client import missing

from launcher.errors import BadFileError
from launcher.values.host import Host
from launcher.values.parsing import build

pytestmark = pytest.mark.testbed

RUNS = (
    "$(>{pwned})",
    "`>{pwned}`",
    ";>{pwned}",
    "&>{pwned}",
    "|>{pwned}",
    "'$(>{pwned})'",
    '"$(>{pwned})"',
    "\n>{pwned}\n",
    "$(>${{IFS}}{pwned})",
)
ADDRESSES = (
    *(f"x{one}" for one in RUNS),
    "-oProxyCommand=>{pwned}",
    "x$IFS",
    "x\\",
    "x{{a,b}}",
    "x,y",
    "x<y",
    "x y",
    "x\ty",
    "x\x7f",
)
USERS = (
    *(f"u{one}" for one in RUNS),
    "-oProxyCommand=>{pwned}",
    "u -x",
    "u\\",
    "u{{a}}",
    "u<y",
    "u\x01",
    "u\x7f",
)
FINE = ("x", "x-y.example", "10.0.0.1", "fe80::1", "fe80::1%eth0", "X_1", "x.y.", "a:b")
FINE_USERS = ("ada", "ada@corp", "DOM\\ada", "ada.l-1_x", "a b", "a$b", "100%", "a,b")


@pytest.mark.parametrize("programs", [pytest.param("ssh", marks=pytest.mark.long), "no ssh"])
def test_no_name_of_a_repository_reaches_the_shell_of_a_proxy_command(client, programs, tmp_path):
    """Each is exit code 2 with the file and the key; nothing has run, whether `ssh -G` reads the configuration or not."""
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text("Host *\n  ProxyCommand nc %h %p %r %n\n")
    (tmp_path / "bin").mkdir()
    if programs == "no ssh":
        client.variables["PATH"] = str(tmp_path / "bin")
    pwned = tmp_path / "pwned"
    tables = [{"address": one} for one in ADDRESSES] + [{"address": "x", "user": one} for one in USERS]
    for table in tables:
        written = {key: value.format(pwned=pwned) for key, value in table.items()}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in written.items())
        (client.project / "launch.toml").write_text(f"[hosts.box]\n{lines}")
        done = client.run("probe", "--host", "box")
        assert not pwned.exists(), written
        assert done.returncode == 2, (written, done.stderr)
        assert f"launch.toml: hosts.box.{list(table)[-1]} = " in done.stderr


@pytest.mark.parametrize("programs", ["ssh", pytest.param("no ssh", marks=pytest.mark.long)])
def test_no_name_of_a_command_line_or_a_table_reaches_it_either(client, programs, tmp_path):
    """A pattern of the configuration takes any name, and a table's own name is its address."""
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text("Host *.lab\n  ProxyCommand nc %h %p\n")
    (tmp_path / "bin").mkdir()
    if programs == "no ssh":
        client.variables["PATH"] = str(tmp_path / "bin")
    name = f"x$(>{tmp_path / 'pwned'}).lab"
    done = client.run("probe", "--host", name)
    assert done.returncode == 2, done.stderr
    assert "--host: address = " in done.stderr
    (client.project / "launch.toml").write_text(f'host = "box"\n[hosts.{json.dumps(name)}]\nport = 22\n')
    done = client.run("probe", "--host", name)
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "pwned").exists()


def test_what_ssh_refuses_on_its_command_line_we_refuse_and_what_it_takes_we_take():
    """`ssh -G` judges each name; before OpenSSH 9.6 it took them all."""
    if shutil.which("ssh") is None or _ssh_takes("x$(y)", "u"):
        missing("an ssh that checks names, as OpenSSH 9.6 does")
    for one in (*ADDRESSES, *FINE):
        written = one.format(pwned="y")
        if not _ssh_takes(written, "u"):
            assert not _we_take(address=written), written
    for one in (*USERS, *FINE_USERS):
        written = one.format(pwned="y")
        if not _ssh_takes("x", written):
            assert not _we_take(address="x", user=written), written
    for one in FINE:
        assert _ssh_takes(one, "u"), one
        assert _we_take(address=one), one
    for one in FINE_USERS:
        assert _ssh_takes("x", one), one
        assert _we_take(address="x", user=one), one


def _ssh_takes(address, user):
    words = ["ssh", "-G", "-F", "/dev/null", "-l", user, "--", address]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _we_take(**table):
    try:
        build(Host, {"name": "box", **table}, file="launch.toml")
    except BadFileError:
        return False
    return True
