"""init: a launch.toml for a host, made by asking or by options, tried at once, and never written over another."""

import json
import signal
import tomllib

import pytest
from testbed.client import LAUNCH
from testbed.screen import Screen

from launcher.errors import UsageError
from launcher.runs.launch.init_config import propose, write
from launcher.values.facts import Engine, Facts, Gpu, Interpreter
from launcher.values.host import Host

FACTS = Facts(
    host_id="h", boot_id="b", hostname="box", user="me", platform="linux", machine="x86_64", cpus=8, root="/r", python="p",
    gpus=(Gpu(index=0, uuid="GPU-1", name="NVIDIA TITAN RTX", capability="7.5", memory_mib=24220, driver="570.1"),),
)  # fmt: skip


def written(client):
    return tomllib.loads((client.project / "launch.toml").read_text())


def asked(client):
    """A client at a terminal: `launch init`."""
    env = {key: value for key, value in client.env.items() if key not in ("COLUMNS", "LINES")}
    return Screen([*LAUNCH, "init"], {**env, "TERM": "xterm"}, client.project, 100, 40)


def test_by_options_it_writes_the_file_and_runs_a_first_job(client):
    """Without a terminal; a launch then needs no --host. Nothing of the project was sent."""
    client.script("SECRET", "notes.txt")
    done = client.run("init", "--host", "local", "--yes")
    assert done.returncode == 0, done.stderr
    assert written(client) == {"host": "local"}
    assert "hello from" in done.stdout
    assert "runs in  the Python found there if it has what a job requires, else an environment" in done.stderr
    (run,) = (client.home / ".launch" / "runs").glob("*-hello-*")
    assert [path.name for path in run.rglob("*.*") if path.parent.name == "code"] == ["hello.py"]
    assert "local" in client.seen("--", "true")


def test_without_a_terminal_it_writes_and_starts_nothing_unasked(client):
    """It shows the file, and the command that writes it."""
    done = client.run("init", "--host", "local")
    assert (done.returncode, done.stdout) == (2, "")
    assert '| host = "local"' in done.stderr
    assert done.stderr.endswith("next   launch init --host local --yes\n")
    assert not list(client.project.iterdir())
    assert not (client.home / ".launch" / "runs").exists()
    client.ok("init", "--host", "local", "--yes", "--no-smoke")
    assert written(client) == {"host": "local"}
    assert not (client.home / ".launch" / "runs").exists()


def test_a_file_that_is_there_stays_as_it_is(client):
    """Whatever is in it."""
    client.script("# mine\n", "launch.toml")
    done = client.run("init", "--host", "local")
    assert done.returncode == 2
    assert "was not changed" in done.stderr
    assert (client.project / "launch.toml").read_text() == "# mine\n"
    assert not (client.home / ".launch" / "runs").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "launch init --host HOST"),
        (("--host", "lab.invalid"), 4, "lab.invalid"),
        (("--host", "nowhere"), 2, "unknown host 'nowhere'"),
        (("--host", "local", "--environment", "/nowhere"), 2, "launch probe --host local"),
    ],
)
def test_what_cannot_be_leaves_no_file(client, words, code, said):
    """No host, one that does not answer, an environment that is not there."""
    done = client.run("init", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not list(client.project.iterdir())


def test_a_person_is_asked_for_the_host_and_before_the_file_is_written(client):
    """No answer is the first one that is known; `n` and Ctrl-C write nothing."""
    with asked(client) as screen:
        screen.until(lambda lines: lines[-1].startswith("host"))
        screen.type("nowhere\n")
        screen.until(
            lambda lines: "unknown host 'nowhere'" in "".join(lines) and lines[-1].startswith("host")
        )
        screen.type("\n")
        screen.until(lambda lines: lines[-1].startswith("continue?"))
        screen.type("n\n")
        lines = screen.to_the_end()
        assert screen.process.returncode == 1
        assert lines[-1].endswith("nothing was written")
    with asked(client) as screen:
        screen.until(lambda lines: lines[-1].startswith("host"))
        screen.process.send_signal(signal.SIGINT)
        screen.to_the_end()
        assert screen.process.returncode == 130
        assert b"Traceback" not in screen.raw
    assert not list(client.project.iterdir())
    with asked(client) as screen:
        screen.until(lambda lines: lines[-1].startswith("host"))
        screen.type("local\n")
        screen.until(lambda lines: lines[-1].startswith("continue?"))
        screen.type("y\n")
        lines = screen.to_the_end()
        assert screen.process.returncode == 0
    assert any("succeeded" in line for line in lines)
    assert written(client) == {"host": "local"}


def test_json_has_what_was_written(client):
    """And the first job's records, one a line."""
    lines = [json.loads(line) for line in client.ok("init", "--host", "local", "--json", "-y").splitlines()]
    (told,) = [line for line in lines if line["kind"] == "init"]
    assert told["path"] == "launch.toml"
    assert (told["host"], told["profile"], told["runtime"]) == ("local", None, "native")
    assert lines[-1]["kind"] == "end"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("127.0.0.1", "127-0-0-1"),
        ("fe80::1", "fe80-1"),
        ("gpu.example.org", "gpu"),
        ("10gpus.example.org", "10gpus"),
        ("cafe", "cafe"),
    ],
)
def test_an_address_of_numbers_gives_a_name_as_a_whole(address, name):
    """Its first number would be that of many hosts."""
    assert propose(Host(name=address, address=address), None, FACTS).host == name


def test_an_address_gets_a_name_and_a_table():
    """With the card that was found."""
    host = Host(name="me@gpu.example.org:2222", address="gpu.example.org", user="me", port=2222)
    proposal = propose(host, None, FACTS)
    assert tomllib.loads(proposal.text) == {
        "host": "gpu",
        "hosts": {"gpu": {"address": "gpu.example.org", "user": "me", "port": 2222, "profile": "titan_rtx"}},
    }
    assert proposal.runtime == "native"


def test_a_login_node_is_written_as_a_cluster():
    """Its card and its engine do not matter: nothing is to run on it."""
    there = FACTS.model_copy(update={"has_slurm": True})
    host = Host(name="me@hive.example.org", address="hive.example.org", user="me")
    proposal = propose(host, "~/venvs/torch", there)
    assert (proposal.is_login_node, proposal.profile, proposal.runtime) == (True, None, "slurm")
    table = {"kind": "slurm", "address": "hive.example.org", "user": "me", "environment": "~/venvs/torch"}
    assert tomllib.loads(proposal.text) == {"host": "hive", "hosts": {"hive": table}}
    local = propose(Host(name="local"), None, there)
    assert tomllib.loads(local.text) == {"host": "local", "hosts": {"local": {"kind": "slurm"}}}


def test_no_first_job_is_run_on_a_login_node(client):
    """It is one by sbatch and a slurm.conf, here named by a variable."""
    programs = client.home / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (programs / "sbatch").chmod(0o755)
    (client.home / "slurm.conf").write_text("ClusterName=hive\n")
    client.variables["PATH"] = f"{programs}:{client.env['PATH']}"
    client.variables["SLURM_CONF"] = str(client.home / "slurm.conf")
    done = client.run("init", "--host", "local", "--yes")
    assert done.returncode == 0, done.stderr
    assert written(client) == {"host": "local", "hosts": {"local": {"kind": "slurm"}}}
    assert "launch --dry-run -- python train.py" in done.stderr
    assert not (client.home / ".launch" / "runs").exists()


def test_an_engine_or_an_environment_decides_where_jobs_run():
    """A container if there is an engine that can be used, your own environment if you name one."""
    docker = FACTS.model_copy(
        update={"engines": (Engine(name="docker", socket="/run/docker.sock", version="28.1"),)}
    )
    host = Host(name="gpu.example.org", address="gpu.example.org")
    assert propose(host, None, docker).runtime == "docker"
    interpreter = Interpreter(path="/v/bin/python", version="3.11.7", packages={"torch": "2.13.0"})
    proposal = propose(host, "/v", docker.model_copy(update={"interpreter": interpreter}))
    assert proposal.runtime == "native"
    assert tomllib.loads(proposal.text)["hosts"]["gpu"]["environment"] == "/v"
    assert "torch 2.13.0" in dict(proposal.lines)["runs in"]


def test_a_file_that_appears_meanwhile_stays(tmp_path):
    """Made by an editor, or by another `launch init`, while a person was asked."""
    (tmp_path / "launch.toml").write_text("# mine\n")
    with pytest.raises(UsageError, match="was not changed"):
        write(tmp_path / "launch.toml", 'host = "lab"\n')
    assert (tmp_path / "launch.toml").read_text() == "# mine\n"
