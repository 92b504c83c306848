"""What this Python has compiled of the agent: used at the next start, and never when it may be another's or half-written."""

import functools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.tables import mostly_long

from launcher.agent import compiled_code
from launcher.agent.making import image_code
from launcher.transport.agent_file import agent_file

PING = json.dumps({"id": 1, "verb": "ping", "args": {}}).encode() + b"\n"
COUNTING = """
import builtins, runpy, sys
compiled, compile_it = [], compile
BEFORE = ("__main__.py", "launch_agent/__init__.py", "launch_agent/compiled_code.py")
def counting(source, name, *more, **words):
    if "launch_agent" in str(name) and not str(name).endswith(BEFORE):
        compiled.append(name)
    return compile_it(source, name, *more, **words)
builtins.compile = counting
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(len(compiled), file=sys.stderr)
"""


@pytest.fixture
def agent(tmp_path):
    """An agent's file that has never run."""
    path = tmp_path / "agent.pyz"
    path.write_bytes(agent_file().data)
    return path


def ping(agent, **more):
    """Have the agent answer once; return how many of its modules were compiled for that."""
    code = "import sys; sys.argv = sys.argv[1:]\n" + COUNTING
    words = [sys.executable, "-I", "-c", code, str(agent), "serve", str(agent.parent / "root")]
    done = subprocess.run(words, input=PING, capture_output=True, check=False, timeout=60, **more)
    assert done.stdout == b'{"ok":{},"id":1}\n', done.stderr.decode()
    return int(done.stderr.split()[-1])


def compile_all(agent, folder):
    """Have the agent compile all of itself into a folder, as in a container of an image."""
    words = [sys.executable, "-I", str(agent), "compile"]
    subprocess.run(words, check=True, env={**os.environ, compiled_code.FOLDER: str(folder)}, timeout=60)


def code_of(agent):
    """The file with what was compiled."""
    (path,) = agent.parent.glob(f"{compiled_code.PREFIX}*")
    return path


def test_a_module_is_compiled_once(agent):
    """The second start finds all that the first one has loaded, and nobody else may read or change it."""
    assert ping(agent) > 20
    assert ping(agent) == 0
    assert str(code_of(agent)) == compiled_code.path_of(str(agent))
    assert code_of(agent).stat().st_mode & 0o777 == 0o600


@mostly_long("share", [0.0, 0.01, 0.5, 0.999], ci=(2,))
@pytest.mark.parametrize("spoil", ["cut", "zeroed", "changed"])
def test_what_is_half_written_is_not_used(agent, share, spoil):
    """A crash or a full disk at any byte: the agent answers, and the file is whole again afterwards."""
    ping(agent)
    path = code_of(agent)
    whole = path.read_bytes()
    at = int(len(whole) * share)
    rest = {"cut": b"", "zeroed": bytes(len(whole) - at), "changed": bytes([whole[at] ^ 1]) + whole[at + 1 :]}
    path.write_bytes(whole[:at] + rest[spoil])
    compiled = ping(agent)
    assert compiled > 0 or at == 0 == len(path.read_bytes())
    ping(agent)
    assert ping(agent) == 0


@mostly_long("mode", [0o620, 0o602, 0o666], ci=(2,))
def test_what_others_can_write_to_is_neither_read_nor_written(agent, mode):
    """As the agent's own file."""
    ping(agent)
    path = code_of(agent)
    path.chmod(mode)
    before = path.read_bytes()
    assert ping(agent) > 20
    assert path.read_bytes() == before


def test_a_link_is_not_followed(agent, tmp_path):
    """Nobody has the agent write into another file."""
    other = tmp_path / "other"
    other.write_bytes(b"")
    os.symlink(other, compiled_code.path_of(str(agent)))
    assert ping(agent) > 20
    assert other.read_bytes() == b""


def test_a_file_that_was_replaced_does_not_run_the_code_of_the_one_before(agent):
    """What a damaged file was compiled to is never used for its successor."""
    ping(agent)
    new = agent.with_name("new")
    new.write_bytes(agent_file().data)
    new.replace(agent)
    assert ping(agent) > 20
    assert ping(agent) == 0


def test_a_folder_that_takes_nothing_costs_only_time(agent):
    """A read-only disk: each start compiles."""
    os.symlink("/nowhere/at/all", compiled_code.path_of(str(agent)))
    assert ping(agent) > 20
    assert ping(agent) > 20


def test_many_at_once_record_it_once(agent):
    """The first ones to start do not each add their own copy."""
    words = [sys.executable, "-I", str(agent), "serve", str(agent.parent / "root")]
    serving = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    for process in serving:
        assert process.communicate(PING, timeout=120)[0] == b'{"ok":{},"id":1}\n'
    ping(agent)
    size = code_of(agent).stat().st_size
    assert ping(agent) == 0
    code_of(agent).unlink()
    ping(agent)
    assert size <= 2 * code_of(agent).stat().st_size


def test_a_disk_that_becomes_full_leaves_whole_records(agent):
    """What does not fit is taken back: the file is not begun anew, which would make room as if there were some."""
    most = 150_000
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    ping(agent, preexec_fn=limit)
    path = code_of(agent)
    before, known = path.stat(), path.read_bytes()
    assert 0 < before.st_size < most
    assert ping(agent) > 0
    assert path.stat().st_ino == before.st_ino
    assert path.read_bytes().startswith(known)
    assert ping(agent) == 0


def test_an_image_compiles_all_of_the_agent_into_a_folder_of_its_own(agent, monkeypatch):
    """Beside the agent's file nothing is added, and whoever is told the folder compiles nothing, though it takes nothing more."""
    folder = Path(image_code.folder_of(str(agent), "1"))
    folder.mkdir(parents=True)
    assert not image_code.is_compiled(str(agent), str(folder))
    compile_all(agent, folder)
    assert image_code.is_compiled(str(agent), str(folder))
    assert [path.name for path in agent.parent.iterdir() if path.is_file()] == [agent.name]
    (made,) = folder.iterdir()
    assert made.stat().st_mode & 0o777 == 0o600
    before = made.read_bytes()
    for module in ("training/attempts", "training/contain", "diagnosis/diagnose", "cards/lease"):
        assert f"launch_agent.{module.replace('/', '.')}".encode() in before
    monkeypatch.setenv(compiled_code.FOLDER, str(folder))
    assert ping(agent) == 0
    assert made.read_bytes() == before


def test_what_an_image_compiled_of_another_file_of_the_agent_does_not_count(agent):
    """A file of the agent that was brought again is compiled again."""
    folder = Path(image_code.folder_of(str(agent), "1"))
    folder.mkdir(parents=True)
    compile_all(agent, folder)
    new = agent.with_name("new")
    new.write_bytes(agent_file().data)
    new.replace(agent)
    assert not image_code.is_compiled(str(agent), str(folder))


def test_a_folder_of_an_image_that_is_gone_costs_only_time(agent, monkeypatch):
    """Each start compiles."""
    monkeypatch.setenv(compiled_code.FOLDER, str(agent.parent / "gone"))
    assert ping(agent) > 20
    assert ping(agent) > 20
