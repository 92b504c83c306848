"""The file that travels: the same bytes whoever packs it, whole or replaced on the host, at home on any Python >= 3.8."""

import contextlib
import glob
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.client import REPOSITORY, channel_to, missing
from testbed.tables import mostly_long

from launcher.errors import AgentError, HostError
from launcher.transport.agent_file import MAGIC, agent_file, shell_command
from launcher.transport.channel import AgentChannel
from launcher.transport.client.host_client import HostClient
from launcher.transport.connecting import connect
from launcher.values.host import Host


def pack_elsewhere(folder, **environment):
    """The digest that a fresh process finds, in another folder, time zone, umask and hash seed."""
    code = "import os; os.umask(0o077); from launcher.transport.agent_file import agent_file; print(agent_file().digest)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_same_sources_give_the_same_bytes_in_any_process(tmp_path):
    """Neither time, place, locale nor hash seed gets into the file; its name is its content's."""
    here = agent_file()
    assert hashlib.sha256(here.data).hexdigest() == here.digest
    assert pack_elsewhere(tmp_path, PYTHONHASHSEED="1", TZ="Asia/Tokyo", LC_ALL="C") == here.digest
    assert pack_elsewhere("/", PYTHONHASHSEED="2", TZ="UTC") == here.digest


def test_it_holds_the_agent_and_the_worker_as_they_are_and_nothing_else():
    """Every file of launcher/agent, the worker as a package of its own, and the line that starts it."""
    remote = REPOSITORY / "launcher" / "agent"
    wanted = {
        f"launch_agent/{path.relative_to(remote).as_posix()}": path.read_bytes()
        for path in remote.rglob("*.py")
    }
    worker = REPOSITORY / "launcher" / "worker" / "launcher_worker"
    wanted |= {
        f"launcher_worker/{path.relative_to(worker).as_posix()}": path.read_bytes()
        for path in worker.rglob("*.py")
    }
    assert {"launcher_worker/__main__.py", "launcher_worker/guard/judge.py"} < wanted.keys()
    with zipfile.ZipFile(io.BytesIO(agent_file().data)) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert b"launch_agent.main" in found.pop("__main__.py")
    sizes = {name: len(data) for name, data in found.items() if name.startswith("launcher_worker/")}
    assert json.loads(found.pop("launcher_worker.json"))["sizes"] == sizes
    assert found == wanted


def place_of(root):
    (path,) = Path(root).glob("agent/*/agent.pyz")
    return path


@pytest.fixture
def installed(tmp_path):
    """A host on which the agent has been once."""
    host = Host(name="local", root=str(tmp_path / "root"))
    with channel_to(host) as agent:
        agent.call("ping")
    return host


def test_a_host_has_the_file_after_the_first_contact(installed):
    """Whole, under a name that is its content's, in a folder that is ours alone."""
    path = place_of(installed.root)
    assert path.read_bytes() == agent_file().data
    assert path.parent.name == agent_file().digest[:16]
    assert path.parent.stat().st_mode & 0o077 == 0
    agent, code, worker = sorted(path.parent.iterdir())
    assert agent.name == "agent.pyz"
    assert re.fullmatch(r"code-[a-z0-9-]+-[0-9a-f]{8}", code.name)
    assert re.fullmatch(r"worker-[0-9a-f]{16}", worker.name)
    assert [inner.name for inner in worker.iterdir()] == ["launcher_worker"]


@mostly_long(
    "spoil",
    [
        lambda data: data[:0],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"\0" * len(data),
        None,
    ],
    ids=["emptied", "cut short", "longer", "zeroed", "removed"],
    ci=(3, 4),
)
def test_a_file_that_is_not_whole_is_replaced_at_the_next_contact(installed, spoil):
    """A full disk, a crash or a hand in between: the agent that runs is the one that was packed here."""
    path = place_of(installed.root)
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(path.read_bytes()))
    with channel_to(installed) as agent:
        assert agent.call("ping").values == {}
    assert path.read_bytes() == agent_file().data


def test_a_worker_that_is_not_whole_is_replaced_at_the_next_contact(installed):
    """Every module that scripts import is proven like the agent's own file."""
    (module,) = place_of(installed.root).parent.glob("worker-*/launcher_worker/guard/judge.py")
    whole = module.read_bytes()
    module.write_bytes(whole[: len(whole) // 2])
    with channel_to(installed) as agent:
        agent.call("ping")
    assert module.read_bytes() == whole
    assert len(list(place_of(installed.root).parent.iterdir())) == 3


def test_a_file_that_is_whole_is_not_sent_again(installed):
    """The second contact costs no upload."""
    before = place_of(installed.root).stat()
    connect(installed).close()
    after = place_of(installed.root).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def interpreters():
    """Every Python >= 3.8 on PATH or in ~/.pyenv/versions, one a version by its name; the one we run on among them."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    folders = [folder for folder in os.get_exec_path() if not folder.endswith("/shims")]  # pyenv's run none
    for folder, minor in itertools.product(folders, range(8, 16)):
        if os.access(path := os.path.join(folder, f"python3.{minor}"), os.X_OK):
            found.setdefault(f"3.{minor}", path)
    for path in glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")):
        minor = int(Path(path).parts[-3].split(".")[1])
        if minor >= 8:
            found.setdefault(f"3.{minor}", path)
    return sorted(found.items(), key=lambda pair: int(pair[0][2:]))


SCRIPT = "import launcher_worker as w\nw.log(1, loss=0.5)\nw.done(1)\n"


@pytest.mark.slow(reason="a run under each interpreter from 3.8 on")
@mostly_long(
    ("version", "python"), interpreters(), ids=lambda value: value if value[0].isdigit() else "", ci=(0, -1)
)
def test_a_run_goes_from_start_to_end_under_this_interpreter(client, version, python):
    """Agent, keeper, supervisor and worker are at home on it: a metric, the marker, a success."""
    (client.project / "launch.toml").write_text(
        f"[hosts.local]\npython = '{python}'\nenvironment = '{python}'\n"
    )
    client.script(SCRIPT)
    assert "succeeded" in client.seen("--", "python", "train.py")
    assert "0.5" in client.ok("metrics", "last")
    (run,) = (client.home / ".launch" / "runs").iterdir()
    assert (run / "record" / "keeper.log").read_text() == ""


def boot(shell, home, python=None, root="~/.launch", path=None):
    """What a login shell prints for our line, when its client hangs up at once."""
    return subprocess.run(
        [*shell, shell_command(python, root)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        env={"HOME": str(home), "PATH": path or os.environ["PATH"]},
    ).stdout  # fmt: skip


def test_the_boot_line_begins_a_line_of_its_own(tmp_path):
    """A login that prints a title or a prompt without a line break does not hide the agent."""
    noisy = ["sh", "-c", "printf 'title\\007'; eval \"$1\"", "_"]
    assert "LAUNCH-AGENT 1 need" in boot(noisy, tmp_path).splitlines()


def test_a_host_without_a_python_says_so(tmp_path):
    """No interpreter of any name: one line, and an end."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    assert boot(["/bin/sh", "-c"], tmp_path, path=str(tmp_path / "bin")).strip() == "LAUNCH-AGENT 1 no-python"


def test_a_python_that_is_too_old_is_passed_over(tmp_path):
    """The first name on PATH may be an old one; the next is asked."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    old = tmp_path / "bin" / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert "LAUNCH-AGENT 1 need" in boot(["/bin/sh", "-c"], tmp_path, path=str(tmp_path / "bin"))


def old(folder, name, said, stream=1):
    """A program that answers as an interpreter that is too old."""
    path = folder / name
    path.write_text(f'#!/bin/sh\n[ "$1" = -V ] || exit 1\nprintf "{said}" >&{stream}\n')
    path.chmod(0o755)


@pytest.fixture
def old_pythons(tmp_path):
    """A PATH with nothing but a shell and two old interpreters."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    old(folder, "python3", "Python 3.6.9\\n")
    old(folder, "python", "Python 2.7.18\\n", stream=2)
    return folder


def test_what_is_too_old_is_named_with_its_version(tmp_path, old_pythons):
    """One line holds all that was seen, whatever stream they answer on."""
    said = boot(["/bin/sh", "-c"], tmp_path, path=str(old_pythons))
    assert said.strip() == "LAUNCH-AGENT 1 no-python python3 3.6.9, python 2.7.18"


def test_a_broken_interpreter_says_why_and_begins_no_line(tmp_path, old_pythons):
    """Its words stay in ours, patterns and magic lines too."""
    old(old_pythons, "python3.9", "error: * no libpython\\nLAUNCH-AGENT 1 have\\n", stream=2)
    said = boot(["/bin/sh", "-c"], tmp_path, path=str(old_pythons)).strip().splitlines()
    assert len(said) == 1
    assert "python3.9 error: * no libpython LAUNCH-AGENT 1 have, python 2.7.18" in said[0]


REAL_OLD = {"2.7.18": "python2.7", "3.6.15": "python3.6", "3.7.16": "python3.7"}


@pytest.mark.parametrize("version", REAL_OLD)
def test_a_real_old_interpreter_is_named_with_its_version(tmp_path, version):
    """As pyenv builds it."""
    real = Path(f"~/.pyenv/versions/{version}/bin/{REAL_OLD[version]}").expanduser()
    if not real.exists():
        pytest.skip(f"no Python {version} here: pyenv install {version}")
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "python3").symlink_to(real)
    said = boot(["/bin/sh", "-c"], tmp_path, path=str(tmp_path))
    assert said.strip() == f"LAUNCH-AGENT 1 no-python python3 {version}"


def test_the_users_message_lists_what_was_found(client, ssh_host, old_pythons):
    """Over SSH, with what to do; exit code 4."""
    old_pythons.parent.chmod(0o755)
    place = Path(tempfile.mkdtemp())
    shutil.copytree(old_pythons, place / "bin", symlinks=True)
    place.chmod(0o755)
    try:
        (client.project / "launch.toml").write_text(ssh_host.table(python=str(place / "bin" / "python3")))
        done = client.run("probe", "--host", "A")
    finally:
        shutil.rmtree(place)
    assert done.returncode == 4
    assert f"A: no Python >= 3.8 starts there, but {place}/bin/python3 3.6.9" in done.stderr
    assert 'python = "/path/to/python3" under [hosts.A]' in done.stderr


class OneLine:
    """A link that says one line and no more."""

    about = "a line"

    def __init__(self, line):
        self._rest = line
        self.is_closed = False

    def settimeout(self, timeout):
        """There is nothing to wait for."""

    def recv(self, size):
        """Return what is left of the line."""
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def sendall(self, data):
        """Take it."""

    def close(self):
        """Remember it."""
        self.is_closed = True


@given(st.binary(max_size=3000).map(lambda said: said.replace(b"\n", b" ")))
def test_whatever_a_host_says_of_its_pythons_is_text(said):
    """Printable and bounded, behind our own words; the link is closed."""
    link = OneLine(MAGIC + b"no-python " + said + b"\n")
    with pytest.raises(HostError) as caught:
        AgentChannel("lab", link)
    first, _, more = str(caught.value).partition("\n")
    assert first.startswith("lab: no Python >= 3.8 starts there")
    assert first.isprintable()
    assert len(first) < 600
    assert more.startswith("  install one")
    assert link.is_closed


@pytest.mark.parametrize(
    "root", ["~/a b", "/tmp/$(touch pwned)/'q'", '"; touch pwned; "'], ids=["space", "command", "quotes"]
)
def test_a_root_is_a_word_and_no_command(tmp_path, root):
    """Whatever is in the root's name, the host's shell takes it for a name."""
    root = root.replace("/tmp", str(tmp_path))
    done = subprocess.run(
        ["sh", "-c", shell_command(None, root)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=tmp_path, check=False,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert "LAUNCH-AGENT 1 need" in done.stdout
    assert not list(tmp_path.rglob("pwned"))


SHELLS = ["sh", "bash", "dash", "ksh", "zsh", "csh", "tcsh", "fish"]
ODD = r"""it's !odd !! !$ \ \' \\ "$HOME" `id` {a,b} * ? ~ ^a^b # ü"""


@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell_reads_the_line_alike(tmp_path, shell):
    """The same words come out of every shell that is installed here, whatever is in the root's and the Python's name."""
    if shutil.which(shell) is None:
        missing(f"no {shell} here: apt-get install {shell}")
    python = tmp_path / "it's !odd \\python"
    python.symlink_to(sys.executable)
    command = shell_command(str(python), str(tmp_path / ODD))
    done = subprocess.run(
        [shell, "-c", command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.stdout == "\nLAUNCH-AGENT 1 need\n", done.stderr
    assert list((tmp_path / ODD).glob("agent/*"))
    assert "\n" not in command


@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell_says_that_there_is_no_python(tmp_path, shell):
    """The search ends in its one line there too."""
    if shutil.which(shell) is None:
        missing(f"no {shell} here: apt-get install {shell}")
    assert boot([shell, "-c"], tmp_path, python="/no/python").strip() == "LAUNCH-AGENT 1 no-python"


@pytest.mark.testbed
def test_a_root_that_takes_no_file_has_an_agent_all_the_same(small_disk):
    """A client of another version must stop and list the runs of a full disk: its agent is held in memory, and starts none."""
    host = Host(name="local", root=str(small_disk))
    with channel_to(host) as agent:
        agent.call("ping")
    shutil.rmtree(small_disk / "agent")
    with (small_disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    for _ in range(2):
        with channel_to(host) as agent:
            desk = HostClient(agent)
            assert desk.runs.summaries() == []
            assert desk.upkeep.collect_garbage(print, dry_run=False).items == []
            with pytest.raises(AgentError, match="does not take the agent's file"):
                agent.call("create", b"{}", run="261122-new-aaaaaa")
    assert not (small_disk / "runs").exists()
    assert not list(small_disk.glob("agent/*/agent.pyz*"))
