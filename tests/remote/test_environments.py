"""Environments on their host: what counts as whole, what is half-made, what no plan names, and what a maker is told."""

import json
import os

import pytest

from launcher.remote.host import garbage, leftovers, probe_host
from launcher.remote.making import environment_build, environment_steps
from launcher.remote.record.locks import Lock
from launcher.remote.system import process

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
        environment_build.seal(str(path), {"python": "3.12"})
    return path


def hold(root, name):
    return Lock.take(str(root / "hosts" / process.host_id() / "locks" / environment_build.lock_of(name)))


def test_one_counts_once_it_is_sealed_and_while_its_python_is_there(root):
    """A host whose Python went with an upgrade has none."""
    path = put(root, OTHER, marked=False)
    assert not environment_build.is_whole(str(path))
    environment_build.seal(str(path), {"python": "3.12"})
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
    items = [one for one in garbage.garbage(str(root), "none") if one["kind"] == "environment"]
    assert [os.path.basename(one["path"]) for one in items] == [OTHER]
    assert items[0]["bytes"] > 0
    garbage.collect(str(root), items)
    assert sorted(os.listdir(root / "envs" / process.host_id())) == sorted([NAME, busy.name])
    assert elsewhere.exists()
    lock.release()


@pytest.mark.parametrize("name", ["", "..", "../../x", "0123456789AB", "0123456789abc", None, 5])
def test_what_is_no_name_leads_nowhere(name, root):
    """A path never comes from a request."""
    with pytest.raises(environment_build.MakingError):
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
    asked = {"maker": {"kind": "venv", "uv": "/x/uv"}}
    assert environment_steps.uv_that_fills(str(bare_pip / "build"), asked) == ("/x/uv" if fills else None)
    assert environment_steps.uv_that_fills(str(bare_pip / "build"), {"maker": {"kind": "venv"}}) is None


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
