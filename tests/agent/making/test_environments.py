"""Environments on their host: what counts as whole, what is half-made, what no plan names, and what a maker is told."""

import ensurepip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import missing
from testbed.wheels import make_wheel

from launcher.agent.host import garbage, leftovers, probe_host
from launcher.agent.making import environment_build, environment_seal, environment_steps, installed_torch
from launcher.agent.record.locks import Lock
from launcher.agent.record.rundir import Run
from launcher.agent.system import process

NAME, OTHER = "0123456789ab", "ba9876543210"


@pytest.fixture
def root(tmp_path):
    """A root with one environment that is whole."""
    put(tmp_path, NAME)
    locks = tmp_path / "hosts" / process.host_id() / "locks"
    locks.mkdir(parents=True)
    return tmp_path


def put(root, name, *, marked=True):
    path = root / "envs" / process.host_id() / name
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to("/bin/sh")
    if marked:
        environment_seal.seal(str(path), {"python": "3.12"})
    return path


def hold(root, name):
    return Lock.take(str(root / "hosts" / process.host_id() / "locks" / environment_build.lock_of(name)))


def test_one_counts_once_it_is_sealed_and_while_its_python_is_there(root):
    """A host whose Python went with an upgrade has none."""
    path = put(root, OTHER, marked=False)
    assert not environment_build.is_whole(str(path))
    environment_seal.seal(str(path), {"python": "3.12"})
    assert environment_build.is_whole(str(path))
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").symlink_to("/usr/bin/python3.99")
    assert not environment_build.is_whole(str(path))


def test_a_removal_that_is_broken_off_leaves_nothing_that_counts(root, monkeypatch):
    """The marker goes first."""
    path = environment_build.path_of(str(root), NAME)

    def torn(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(environment_build.shutil, "rmtree", torn)
    with pytest.raises(KeyboardInterrupt):
        environment_build.remove(path)
    assert os.path.isdir(path)
    assert not environment_build.is_whole(path)
    assert list(environment_build.half_made(str(root))) == [path]


def test_a_sweep_takes_what_is_half_made_unless_somebody_is_at_it(root):
    """The lock is the proof; age is none."""
    left, held = put(root, OTHER, marked=False), put(root, "c" * 12, marked=False)
    lock = hold(root, "c" * 12)
    found = leftovers.sweep(str(root), dry_run=False)
    assert [(one["kind"], one["did"]) for one in found] == [("half-made environment", "removed")]
    assert [
        left.exists(),
        held.exists(),
        environment_build.is_whole(environment_build.path_of(str(root), NAME)),
    ] == [
        False,
        True,
        True,
    ]
    lock.release()


def test_garbage_is_what_no_plan_names_and_nobody_makes(root):
    """An environment of another host in a shared home is never judged."""
    put(root, OTHER)
    busy = put(root, "c" * 12)
    lock = hold(root, "c" * 12)
    elsewhere = root / "envs" / "another-host" / OTHER
    elsewhere.mkdir(parents=True)
    run = root / "runs" / "1122-a-abcd"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"environment": {"name": NAME}}))
    survey = garbage.Survey(str(root), "none")
    survey.look(lambda _count: None)
    items = [one for one in survey.garbage() if one["kind"] == "environment"]
    assert [os.path.basename(one["path"]) for one in items] == [OTHER]
    assert items[0]["bytes"] > 0
    garbage.collect(str(root), items, lambda _count: None)
    assert sorted(os.listdir(root / "envs" / process.host_id())) == sorted([NAME, busy.name])
    assert elsewhere.exists()
    lock.release()


@pytest.mark.parametrize("name", ["", "..", "../../x", "0123456789AB", "0123456789abc", None, 5])
def test_what_is_no_name_leads_nowhere(name, root):
    """A path never comes from a request."""
    with pytest.raises(environment_build.EnvironmentBuildError):
        environment_build.path_of(str(root), name)


# who fills it


@pytest.fixture
def bare_pip(monkeypatch, tmp_path):
    """A host whose pip is not set up, and the folder of a build."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "XDG_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(environment_steps, "_SYSTEM_FILES", (str(tmp_path / "pip.conf"),))
    (tmp_path / "build").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("of_host", "of_client", "variable", "fills"),
    [
        ("", "", "", True),
        ("[global]\ncert = /x\ntimeout = 9\n", "", "", True),
        ("[global]\nindex-url = https://site/simple\n", "", "", False),
        ("[install]\nfind_links = /w\n", "", "", False),
        ("[global]\nindex-url =\n", "", "", True),
        (
            "[global]\nindex-url = https://site\nfind-links = /w\n",
            "[global]\nindex-url = https://mine\n",
            "",
            True,
        ),
        ("[global]\nproxy = http://p\n", "[global]\nindex-url = https://mine\n", "", False),
        ("", "", "PIP_EXTRA_INDEX_URL", False),
        ("", "", "PIP_NO_INPUT", True),
        ("not a file of settings", "", "", True),
    ],
)
def test_a_host_whose_pip_is_set_up_is_filled_by_pip(
    bare_pip, monkeypatch, of_host, of_client, variable, fills
):
    """uv would ask PyPI where the site has an index of its own; what the client gives replaces the host's."""
    (bare_pip / "pip.conf").write_text(of_host)
    (bare_pip / "build" / "pip_conf").write_text(of_client)
    if variable:
        monkeypatch.setenv(variable, "x")
    maker = {"kind": "venv", "uv": "/x/uv"}
    assert environment_steps.uv_that_fills(str(bare_pip / "build"), maker) == ("/x/uv" if fills else None)
    assert environment_steps.uv_that_fills(str(bare_pip / "build"), {"kind": "venv"}) is None


# how it is filled


def asked(folder, index, others):
    (folder / "torch.txt").write_text("torch==2.13.0\n")
    (folder / "requirements.txt").write_text(others)
    maker = {"kind": "venv", "program": "/x/python", "interpreter": "/x/python"}
    return environment_steps.EnvironmentOptions(maker, index)


def test_uvs_cache_lies_where_no_container_writes(tmp_path, monkeypatch):
    """An environment's files are links to it: who writes to the one writes to the other, which then runs on the host."""
    monkeypatch.setenv("UV_CACHE_DIR", "/proc/none")  # on another disk
    path = environment_build.path_of(str(tmp_path), NAME)
    run = Run(str(tmp_path / "runs" / "261122-train-k3f9w2"))
    folder = Path(environment_steps.cache_variables(path)["UV_CACHE_DIR"])
    assert tmp_path in folder.parents
    assert not {Path(run.cache), Path(run.path)} & {folder, *folder.parents}


@pytest.mark.parametrize(
    ("index", "others", "steps"),
    [
        ("https://torch", "a\n", ["venv", "torch", "requirements"]),
        ("https://torch", "", ["venv", "torch"]),
        (None, "a\n", ["venv", "requirements"]),
        (None, "", ["venv", "torch"]),
    ],
)
@pytest.mark.parametrize("uv", [None, "/x/uv"])
def test_what_comes_from_one_index_is_installed_in_one_step(tmp_path, index, others, steps, uv):
    """Each step costs seconds. torch's own index is asked for torch alone."""
    commands = list(environment_steps.steps(str(tmp_path), "/env", asked(tmp_path, index, others), uv))
    assert [step for step, _ in commands] == steps
    assert [words for step, words in commands if index in words] == [
        words for step, words in commands if step == "torch" and index
    ]
    assert [words[-1].rpartition("/")[2] for _, words in commands[1:]] == [
        f"{step}.txt" for step in steps[1:]
    ]
    assert all(any(word.endswith("torch.txt") for word in words) for _, words in commands[1:])


# how it is checked

TORCH_2_13 = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.13.0+cu126'
debug = False
cuda: Optional[str] = '12.6'
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = None
"""


@pytest.mark.parametrize(
    ("text", "torch", "cuda"),
    [
        (TORCH_2_13, "2.13.0+cu126", "12.6"),
        ("__version__ = '2.6.0'\ncuda = None\n", "2.6.0", None),
        ("__version__ = '2.6.0'\n", None, None),
        ("cuda = None\n", None, None),
        ("__version__ = version()\ncuda = None\n", None, None),
        ("__version__ = 2\ncuda = None\n", None, None),
        ("__version__ = '2.6.0'\ncuda = 13\n", None, None),
        ("def", None, None),
        (b"\xff\x00".decode("latin-1"), None, None),
        (None, None, None),
    ],
)
def test_torch_says_in_a_text_which_one_it_is(tmp_path, text, torch, cuda):
    """Where it does not, nothing is guessed: it is imported."""
    if text is not None:
        file = tmp_path / "lib" / "python3.11" / "site-packages" / "torch" / "version.py"
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="latin-1")
    found = installed_torch.installed_torch(str(tmp_path))
    if torch is None:
        assert found is None
    else:
        assert found == {"python": "3.11", "torch": torch, "cuda": cuda, "error": None, "architectures": None}


PIP = """\
WARNING: something
accelerate 1.15.0 requires numpy, which is not installed.
peft 0.21.2 has requirement torch>=3, but you have torch 2.13.0.
"""
UV = """\
Using Python 3.11.2 environment at: v
Checked 2 packages in 0.31ms
Found 2 incompatibilities
The package `accelerate` requires `numpy>=1.17`, but it's not installed
The package `peft` requires `torch>=3`, but `2.13.0` is installed
"""


@pytest.mark.parametrize("output", [PIP, UV])
def test_conflicts_begin_with_the_package(output):
    """pip and uv have their own words; a plan is held against the first one."""
    found = environment_steps.conflicts(output)
    assert [line.split()[0] for line in found] == ["accelerate", "peft"]
    assert "numpy" in found[0]
    assert "`" not in "".join(found)


@pytest.mark.slow(reason="makes an environment")
@pytest.mark.parametrize("by", ["uv", "pip"])
def test_a_conflict_is_seen_by_uv_and_by_pip(tmp_path, by):
    """The real programs, and a package without the one that it needs."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        missing("uv is not installed: pip install uv")
    make_wheel(tmp_path, "small", "1.0", needs="nosuch>=2")
    path = str(tmp_path / "env")
    subprocess.run([uv, "venv", "--quiet", path], check=True)
    pips = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    wanted = ["small", *(map(str, pips) if by == "pip" else ())]
    folder = ["--no-deps", "--no-index", "--find-links", str(tmp_path)]
    install = [uv, "pip", "install", "--quiet", *folder, "--python", f"{path}/bin/python"]
    subprocess.run([*install, *wanted], check=True)
    words = environment_steps.check(path, uv if by == "uv" else None)
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0
    (line,) = environment_steps.conflicts(done.stdout)
    assert line.startswith("small ")
    assert "nosuch" in line


# what the probe says


def made_python(folder, *, has_ensurepip, lib="lib"):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").write_text("#!/bin/sh\necho Python 3.11.4\n")
    (folder / "bin" / "python3").chmod(0o755)
    stdlib = folder / lib / "python3.11" / "ensurepip"
    stdlib.mkdir(parents=True)  # Debian leaves the folder of a removed package where bytecode lies in it
    if has_ensurepip:
        (stdlib / "__init__.py").touch()
    return str(folder / "bin" / "python3")


@pytest.mark.parametrize("lib", ["lib", "lib64"])
def test_ensurepip_is_looked_for_where_a_python_has_its_library(tmp_path, lib):
    """Beside it, behind a link to it, and behind the settings of an environment that is a copy."""
    with_it = made_python(tmp_path / "a", has_ensurepip=True, lib=lib)
    without = made_python(tmp_path / "b", has_ensurepip=False, lib=lib)
    assert probe_host._has_ensurepip(with_it, "3.11.4")
    assert not probe_host._has_ensurepip(with_it, "3.12.1")
    assert not probe_host._has_ensurepip(without, "3.11.4")
    (tmp_path / "link").symlink_to(with_it)
    assert probe_host._has_ensurepip(str(tmp_path / "link"), "3.11.4")
    copy = made_python(tmp_path / "copy", has_ensurepip=False)
    (tmp_path / "copy" / "pyvenv.cfg").write_text(f"version = 3.11.4\nhome = {tmp_path}/a/bin\n")
    assert probe_host._has_ensurepip(copy, "3.11.4")


def test_uv_is_found_beside_the_path_too_and_must_run(tmp_path, monkeypatch):
    """Where its installer puts it, which a login without a shell's start-up does not look at."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(probe_host, "_UV_FOLDERS", ("~/.local/bin",))
    assert probe_host._uv() is None
    program = tmp_path / ".local" / "bin" / "uv"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'uv 0.9.1 (abc 2026-01-01)'\n")
    program.chmod(0o755)
    assert probe_host._uv() == {"path": str(program), "version": "0.9.1"}
    program.write_text("#!/bin/sh\nexit 1\n")
    assert probe_host._uv() is None


def system(folder, *, cgroup="0::/user.slice/user-1000.slice/session-3.scope", **files):
    """A file system with logind's settings; `etc_b` is /etc/systemd/logind.conf.d/b.conf."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text(f"{cgroup}\n")
    for name, text in files.items():
        place, _, part = name.partition("_")
        path = folder / place / "systemd" / (f"logind.conf.d/{part}.conf" if part else "logind.conf")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Login]\n{text}\n")
    return str(folder)


@pytest.mark.parametrize(
    ("more", "ends"),
    [
        ({}, False),
        ({"etc": "#KillUserProcesses=yes"}, False),
        ({"etc": "KillUserProcesses=yes"}, True),
        ({"etc": "KillUserProcesses = true"}, True),
        ({"etc": "KillUserProcesses=yes", "etc_b": "KillUserProcesses=no"}, False),
        ({"etc": "KillUserProcesses=no", "run_a": "KillUserProcesses=yes"}, True),
        ({"run_a": "KillUserProcesses=yes", "etc_a": ""}, False),
        ({"etc_a": "KillUserProcesses=yes", "run_b": "KillUserProcesses=no"}, False),
        ({"etc": "KillUserProcesses=yes\nKillExcludeUsers=root ada"}, False),
        ({"etc": "KillUserProcesses=yes\nKillOnlyUsers=bob"}, False),
        ({"etc": "KillUserProcesses=yes", "cgroup": "0::/system.slice/ssh.service"}, False),
        ({"etc": "KillUserProcesses=yes", "cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice"}, False),
    ],
)  # fmt: skip
def test_what_logind_does_at_logout_is_read_as_logind_reads_it(tmp_path, monkeypatch, more, ends):
    """Drop-ins by name, /etc before /run; not for a login that is none of its sessions."""
    monkeypatch.setattr(probe_host, "user", lambda: "ada")
    assert probe_host._ends_with_logout(system(tmp_path, **more)) is ends
