"""`launch doctor`: the rows of this computer and of each host, from real hosts, and nothing that it must not do."""

import json
import os
import platform
import re
import shlex
import signal
import socket
import subprocess

import pytest
from testbed.client import LAUNCH, until
from testbed.kaggle_account import habits
from testbed.kaggle_service import KaggleService
from testbed.screen import Screen

from launcher.config.lookup import Lookup
from launcher.planning.host_readiness import machine_rows
from launcher.runs.this_computer import computer_rows
from launcher.values.facts import Facts
from launcher.values.host import Host

pytestmark = pytest.mark.slow(reason="each test starts clients that ask hosts")

FACTS = {
    "host_id": "0", "boot_id": "b", "hostname": "h", "user": "u", "platform": "linux", "machine": "x86_64",
    "cpus": 2, "free_gb": 100.0, "root": "/r", "python": "3.11.2", "pythons": [],
    "interpreter": {"path": "/usr/bin/python3", "version": "3.11.2", "has_ensurepip": True},
}  # fmt: skip
GPU = {"index": 0, "uuid": "u", "name": "NVIDIA L40S", "driver": "580"}
ENGINE = {"name": "docker", "socket": "/var/run/docker.sock"}


@pytest.fixture
def silence():
    """A server that takes connections and never says a word, until it is closed."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server


def told(client, *words, code):
    """The answer as JSON, each list of rows by its names; its exit code is as expected."""
    done = client.run("doctor", *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ready"] == (code == 0)
    hosts = {one["host"]: {row["name"]: row for row in one["rows"]} for one in found["hosts"]}
    return {row["name"]: row for row in found["computer"]}, hosts


def states(rows):
    return {name: row["state"] for name, row in rows.items()}


def table(name, port, **more):
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    return "\n".join([f"[hosts.{name}]", 'address = "127.0.0.1"', f"port = {port}", *lines, ""])


def test_a_computer_that_has_everything_is_ready(client):
    """Its programs and folders have rows, and itself is a host; exit code 0."""
    computer, hosts = told(client, code=0)
    assert {"launcher", "python", "ssh", "ssh keys", "git", "launch.toml", "runs", "index"} <= computer.keys()
    assert {row["state"] for row in computer.values()} <= {"ok", "unknown"}
    assert str(client.runs) in computer["runs"]["found"]
    assert [*hosts] == ["local"]
    assert hosts["local"]["disk"]["found"].endswith(str(client.home / ".launch"))


def test_a_person_sees_one_line_for_a_ready_host_and_the_next_step_for_another(client, ssh_host):
    client.script(ssh_host.table("lab") + table("office", 1), "launch.toml")
    done = client.run("doctor")
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "this computer"
    assert any(line[1:].startswith(" lab     no GPU, ") for line in lines)
    at = lines.index("✗ office")
    assert lines[at + 1] == "  ✗ connection   127.0.0.1:1 refuses the connection; is sshd running?"
    assert lines[at + 2].strip() == "try   ssh -p 1 127.0.0.1 true"
    assert lines[-1] == "1 of 3 hosts lack something   all rows of one   launch doctor office"


def test_one_host_is_shown_in_full_by_any_of_its_names(client, ssh_host):
    """As an argument, as --host, and by its address; two different ones are a mistake."""
    client.script(ssh_host.table("lab"), "launch.toml")
    computer, hosts = told(client, "lab", code=0)
    assert computer == {}
    assert [*states(hosts["lab"])] == ["connection", "python", "environment", "docker", "cards", "disk"]
    assert hosts["lab"]["connection"]["found"].startswith(f"{ssh_host.user}@")
    assert told(client, "--host", "lab", code=0)[1].keys() == {"lab"}
    assert told(client, "me@127.0.0.1:1", code=3)[1].keys() == {"me@127.0.0.1:1"}
    shown = client.ok("doctor", "lab")
    assert "✓ connection" in shown
    assert "this computer" not in shown
    for words, said in ((("lab", "--host", "local"), "are two hosts"), (("lamb",), "did you mean 'lab'?")):
        done = client.run("doctor", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_each_way_to_fail_has_its_row(client, ssh_host, tmp_path):
    """A key that is not known, a login that is refused, no Python, a wrong root, a closed port."""
    (tmp_path / "none").write_text("")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    client.script(
        ssh_host.table("stranger", known_hosts=str(tmp_path / "none"))
        + ssh_host.table("closed", identity_file=str(tmp_path / "key"))
        + ssh_host.table("bare", python="/no/python3")
        + ssh_host.table("rootless", root="/proc/launch")
        + ssh_host.table("carded", profile="l40s")
        + ssh_host.table("misspelt", profile="l40z")
        + ssh_host.table("contained", runtime="docker")
        + table("down", 1),
        "launch.toml",
    )
    _, hosts = told(client, code=3)
    lacking = {
        host: {name: row for name, row in rows.items() if row["state"] == "lacking"}
        for host, rows in hosts.items()
    }
    names = {host: [*rows] for host, rows in lacking.items()}
    assert names == {
        "local": [],
        "stranger": ["host key"],
        "closed": ["login"],
        "bare": ["probe"],
        "rootless": ["probe"],
        "carded": ["cards"],
        "misspelt": ["settings"],
        "contained": ["docker"],
        "down": ["connection"],
    }
    assert "ssh-keyscan" in lacking["stranger"]["host key"]["next"]
    assert "python = " in lacking["bare"]["probe"]["next"]
    assert "root = " in lacking["rootless"]["probe"]["next"]
    assert "did you mean 'l40s'?" in lacking["misspelt"]["settings"]["found"]
    assert all(row["next"] for rows in lacking.values() for row in rows.values())
    assert not any(
        row["found"].startswith(f"{host}:") for host, rows in lacking.items() for row in rows.values()
    )


def test_thirty_hosts_that_hang_or_are_down_are_asked_at_once(client, silence):
    """Each has its row, in the order of the file; those that are waited for are named."""
    names = [f"down{number}" for number in range(15)] + [f"hang{number}" for number in range(15)]
    ports = {name: silence.getsockname()[1] if name.startswith("hang") else 1 for name in names}
    client.script("".join(table(name, port) for name, port in ports.items()), "launch.toml")
    process = client.start("doctor", "--json")
    assert re.match(r"waiting for (\w+, ){4}\w+ and \d+ more\n", process.stderr.readline())
    silence.close()
    out, err = process.communicate(timeout=180)
    assert (process.returncode, err) == (3, "")
    hosts = json.loads(out)["hosts"]
    assert [one["host"] for one in hosts] == ["local", *names]
    assert [one["ready"] for one in hosts] == [True, *[False] * 30]
    assert {one["rows"][0]["name"] for one in hosts[1:]} == {"connection"}


def test_ctrl_c_ends_it_without_a_word(client, silence):
    client.script(table("hang", silence.getsockname()[1]), "launch.toml")
    process = client.start("doctor")
    assert process.stderr.readline().startswith("waiting for hang")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_terminal_shows_who_is_waited_for_and_nothing_of_it_stays(client, silence):
    client.script(table("hang", silence.getsockname()[1]), "launch.toml")
    env = {key: value for key, value in client.env.items() if key not in ("COLUMNS", "NO_COLOR")}
    with Screen([*LAUNCH, "doctor"], {**env, "TERM": "xterm-256color"}, client.project, 80) as screen:
        screen.until(lambda lines: lines[-1:] == ["waiting for hang"])
        silence.close()
        lines = screen.to_the_end()
    assert lines[0] == "this computer"
    assert not [line for line in lines if line.startswith("waiting")]
    assert max(map(len, lines)) <= 80


def test_a_reader_that_leaves_ends_it_quietly(client):
    """As `head` does, also before the first line."""
    for reader in ("head -1", "true"):
        done = subprocess.run(
            ["sh", "-c", f"{shlex.join([*LAUNCH, 'doctor'])} | {reader}"],
            cwd=client.project,
            env=client.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout in ("this computer\n", "")
        assert not [line for line in done.stderr.splitlines() if not line.startswith("waiting for ")]


def test_an_untrusted_file_leads_to_no_host(client):
    """Its hosts are named as untrusted, and none is contacted; a value that is trusted is no obstacle."""
    client.variables["LAUNCH_TRUST"] = ""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        client.script(table("lab", server.getsockname()[1]), "launch.toml")
        computer, hosts = told(client, code=3)
        with pytest.raises(TimeoutError):
            server.accept()
    assert computer["launch.toml"]["state"] == "lacking"
    assert "hosts.lab.address" in computer["launch.toml"]["found"]
    assert states(hosts["lab"]) == {"trust": "lacking"}
    assert "launch trust" in hosts["lab"]["trust"]["next"]
    done = client.run("doctor", "lab")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not trusted yet" in done.stderr


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ('[hosts.lab]\naddress = "x"\nport = "22"\n', "settings", "launch.toml: hosts.lab.port"),
        ("hosts = ", "settings", "launch.toml"),
        ('host = "nowhere"\n', "launch.toml", "unknown host 'nowhere'"),
    ],
    ids=["key", "toml", "default"],
)
def test_a_file_that_is_wrong_is_a_row(client, text, name, said):
    """What can be known without it is shown all the same."""
    client.script(text, "launch.toml")
    computer, hosts = told(client, code=3)
    assert computer[name]["state"] == "lacking"
    assert said in computer[name]["found"]
    assert computer["git"]["state"] == "ok"
    assert [*hosts] in ([], ["local"])


def test_credentials_are_named_and_never_shown(client, tmp_path):
    """Variables and files by their names; an account that answers has its hours, without a session."""
    with KaggleService(tmp_path / "service") as service:
        service.account()
        client.script(f'[hosts.k]\nkind = "kaggle"\napi = "{service.base}"\n', "launch.toml")
        client.variables |= {
            "KAGGLE_USERNAME": "alice",
            "KAGGLE_KEY": "key-of-alice",
            "LAMBDA_API_KEY": "key-of-lambda",
        }
        done = client.run("doctor", "--json")
        assert done.returncode == 0, done.stdout
        assert {line["method"] for line in service.calls()} == {"GetAcceleratorQuotaStatistics"}
        found = json.loads(done.stdout)
        names = [row["found"] for row in found["computer"] if row["name"] == "credentials"]
        assert [name.rpartition("   ")[2] for name in names] == [
            "KAGGLE_USERNAME and KAGGLE_KEY",
            "LAMBDA_API_KEY",
        ]
        assert "key-of" not in done.stdout + done.stderr + client.run("doctor", "-v").stderr
        (rows,) = [one["rows"] for one in found["hosts"] if one["host"] == "k"]
        assert [(row["name"], row["state"]) for row in rows] == [("credentials", "ok"), ("hours", "ok")]
        service.state.habits.used_s = service.state.habits.quota_s
        rows = told(client, "k", code=3)[1]["k"]
        assert states(rows) == {"credentials": "ok", "hours": "lacking"}
        client.variables["KAGGLE_KEY"] = "wrong"
        assert states(told(client, "k", code=3)[1]["k"]) == {"credentials": "lacking"}


def test_a_trial_runs_one_session_and_deletes_it(client, tmp_path):
    """Only after a question; what refuses the push is a row, and so is a kernel that cannot be deleted."""
    with KaggleService(tmp_path / "service", habits()) as service:
        service.account()
        settings = f'[hosts.k]\nkind = "kaggle"\napi = "{service.base}"\ninternet = '
        client.script(f"{settings}true\n", "launch.toml")
        client.variables |= {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "key-of-alice"}
        asked = client.run("doctor", "k", "--probe")
        assert (asked.returncode, "--probe --yes" in asked.stderr, service.calls("SaveKernel")) == (
            2,
            True,
            [],
        )
        denied = "Permission 'kernelSessions.enableInternet' was denied"
        service.fail("SaveKernel", "status", status=403, message=denied)
        refused = json.loads(client.run("doctor", "k", "--probe", "--yes", "--json").stdout)
        (phone,) = [row for row in refused["hosts"][0]["rows"] if row["state"] == "lacking"]
        assert (phone["name"], "verify your phone" in phone["next"]) == ("phone", True)
        client.script(f"{settings}false\n", "launch.toml")
        service.habits.shows_after_s = 2.0
        rows = told(client, "k", "--probe", "--yes", code=0)[1]["k"]
        assert {name: state for name, state in states(rows).items() if name != "hours"} == {
            "credentials": "ok",
            "session": "ok",
            "phone": "unknown",
            "deletion": "ok",
        }
        assert f"Python {platform.python_version()}" in rows["session"]["found"]
        assert len([line for line in service.calls("SaveKernel") if line["accepted"]]) == 1
        assert service.state.kernels == {}
        service.fail("DeleteKernel", "status", status=503)
        rows = told(client, "k", "--probe", "--yes", code=3)[1]["k"]
        (left,) = service.state.kernels
        assert f"kaggle kernels delete {left}" in rows["deletion"]["next"]


def test_a_credentials_file_that_cannot_be_used_is_a_row(client):
    """Of this computer, and of the account that it would open."""
    (client.home / ".kaggle").mkdir()
    (client.home / ".kaggle" / "kaggle.json").write_text("{")
    computer, hosts = told(client, code=3)
    assert "is not JSON" in computer["credentials"]["found"]
    assert states(hosts["kaggle"]) == {"settings": "lacking"}
    assert states(hosts["local"])["python"] == "ok"


def test_the_keys_are_those_of_the_agent_and_of_the_usual_files(client, tmp_path, monkeypatch):
    """An agent that hangs or is gone costs its row alone."""
    keys = client.home / ".ssh"
    keys.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "id_ed25519"], check=True)
    monkeypatch.setenv("HOME", str(client.home))
    monkeypatch.chdir(client.project)

    def row(path=None):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path)) if path else monkeypatch.delenv(
            "SSH_AUTH_SOCK", raising=False
        )
        (found,) = [row for row in computer_rows(Lookup()) if row.name == "ssh keys"]
        return found.state, found.found

    assert row() == ("ok", "no ssh-agent, ~/.ssh/id_ed25519")
    assert row(tmp_path / "none") == ("unknown", "ssh-agent does not answer, ~/.ssh/id_ed25519")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    try:
        until((tmp_path / "agent").exists, "the agent")
        assert row(tmp_path / "agent") == ("ok", "0 in ssh-agent, ~/.ssh/id_ed25519")
        env = {**os.environ, "SSH_AUTH_SOCK": str(tmp_path / "agent")}
        subprocess.run(["ssh-add", "-q", keys / "id_ed25519"], env=env, check=True)
        (keys / "id_ed25519").unlink()
        assert row(tmp_path / "agent") == ("ok", "1 in ssh-agent")
        (keys / "lab_key").touch()
        (client.project / "launch.toml").write_text(
            table("lab", 22, identity_file="~/.ssh/lab_key") + table("gone", 22, identity_file="~/.ssh/none")
        )
        client.run("trust", "--yes")
        assert row(tmp_path / "agent") == ("ok", "1 in ssh-agent, ~/.ssh/lab_key")
    finally:
        agent.terminate()
        agent.wait()


def test_a_folder_for_runs_that_cannot_be_is_a_row(client):
    client.script("", "runs")
    computer, _ = told(client, code=3)
    assert "is not a folder" in computer["runs"]["found"]
    assert "LAUNCH_RUNS" in computer["runs"]["next"]


def rows_of(changed, **host):
    """The rows of a machine with these facts, by their names."""
    named = Lookup().profiles_meant(host["profile"]) if "profile" in host else ()
    lab = Host(name="lab", address="lab", **host)
    return {row.name: row for row in machine_rows(lab, Facts.model_validate({**FACTS, **changed}), named)}


@pytest.mark.parametrize(
    ("name", "changed", "host", "state"),
    [
        ("python", {"interpreter": {"path": "/x", "error": "No such file"}}, {}, "lacking"),
        ("python", {"interpreter": None}, {}, "unknown"),
        ("environment", {"interpreter": {"path": "/x", "version": "3.8.1"}}, {}, "lacking"),
        ("environment", {"interpreter": {"path": "/x", "version": "3.8.1"}, "pythons": None}, {}, "unknown"),
        ("environment", {"interpreter": None, "uv": {"path": "/uv", "version": "1"}}, {}, "ok"),
        ("environment", {"interpreter": None}, {"environment": "/venv"}, "ok"),
        ("environment", {"interpreter": None, "engines": [{**ENGINE, "version": "27.3"}]}, {}, "ok"),
        ("environment", {"interpreter": None, "engines": [{**ENGINE, "version": "27.3"}]}, {"runtime": "native"}, "lacking"),
        ("docker", {}, {}, "ok"),
        ("docker", {}, {"runtime": "docker"}, "lacking"),
        ("docker", {"engines": [{**ENGINE, "error": "Permission denied"}]}, {}, "unknown"),
        ("docker", {"engines": [{**ENGINE, "error": "Permission denied"}]}, {"runtime": "docker"}, "lacking"),
        ("docker", {"engines": [{**ENGINE, "error": "Permission denied"}]}, {"sudo": True}, "ok"),
        ("docker", {"engines": [{**ENGINE, "error": "Permission denied"}]}, {"environment": "/venv"}, "ok"),
        ("docker", {"engines": [{**ENGINE, "name": "podman", "version": "5.0"}]}, {}, "ok"),
        ("docker", {"engines": [{**ENGINE, "version": "18.09"}]}, {}, "unknown"),
        ("cards", {"gpus": [GPU]}, {"profile": "l40s"}, "ok"),
        ("cards", {"gpus": [GPU]}, {"profile": "t4"}, "lacking"),
        ("cards", {}, {"profile": "a100"}, "lacking"),
        ("cards", {}, {"profile": "cpu"}, "ok"),
        ("cards", {"gpu_error": "nvidia-smi has failed"}, {}, "lacking"),
        ("cards", {"gpus": [{**GPU, "compute_mode": "prohibited"}]}, {}, "lacking"),
        ("GPU 0", {"gpus": [{**GPU, "xids": [79]}]}, {}, "unknown"),
        ("processes", {"gpus": [GPU], "holders_error": "silence"}, {}, "unknown"),
        ("disk", {"free_gb": 0.5}, {}, "lacking"),
        ("disk", {"free_gb": None}, {}, "unknown"),
        ("disk", {"file_system": {"error": "Read-only file system"}}, {}, "lacking"),
        ("slurm", {"has_slurm": True}, {}, "lacking"),
        ("logout", {"ends_with_logout": True}, {}, "lacking"),
    ],
)  # fmt: skip
def test_the_facts_of_a_machine_decide_its_rows(name, changed, host, state):
    """A row that is lacking has a next step, and no name of its host."""
    row = rows_of(changed, **host)[name]
    assert row.state == state
    assert state != "lacking" or row.next
    assert not row.found.startswith("lab")
