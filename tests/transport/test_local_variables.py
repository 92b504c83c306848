"""A run on this machine has the client's variables that are listed, and no credentials. The witness is /proc."""

import json
from pathlib import Path

import pytest
from testbed.client import channel_to, processes_of, until

from launcher.base import own_variables
from launcher.transport.local_variables import is_inherited
from launcher.values.host import Host

HERE = Host(name="local")
SECRETS = ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "SSH_AUTH_SOCK", "MY_CLOUD_CRED")
PLAIN = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "https_proxy", "NO_PROXY", "LC_ALL")
LOOKS = """
import json, os, time
print(json.dumps(sorted(os.environ)), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def names_of(pid):
    """The names of a process's variables."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return {pair.partition("=")[0] for pair in text.split("\0") if pair}


def test_no_process_of_a_local_run_has_what_is_not_listed(client, monkeypatch):
    """Neither keeper, agent nor training; what the job names comes as ever, and what is listed stays."""
    for name in SECRETS:
        monkeypatch.setenv(name, "value-of-it")
    for name in PLAIN:
        monkeypatch.setenv(name, "1")
    client.script(LOOKS)
    words = ("-e", "AWS_REGION=eu", "-s", "WANDB_API_KEY", "--", "python", "train.py")
    run = client.home / ".launch" / "runs" / client.detached(*words)
    log = run / "record" / "0002" / "log.txt"
    until(lambda: log.read_bytes().endswith(b"\n"), "the training's look around")
    own = set(json.loads(log.read_text()))
    processes = {pid: names_of(pid) for pid in processes_of(run)}
    assert len(processes) == 3
    (run / "work" / "code" / "go").touch()
    assert {"AWS_REGION", "WANDB_API_KEY"} <= own
    assert own & set(SECRETS) == {"WANDB_API_KEY"}
    assert sorted(len(names & set(SECRETS)) for names in processes.values()) == [0, 0, 1]
    assert all(set(PLAIN) <= names for names in processes.values())


@pytest.mark.parametrize(
    ("setting", "inherited"), [("listed", set()), ("inherit", {"AWS_SECRET_ACCESS_KEY"})]
)
def test_a_setting_of_this_machine_passes_all(tmp_path, monkeypatch, setting, inherited):
    """Seen in the variables of the agent, which all that it starts inherits."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "value-of-it")
    host = Host(name="local", root=str(tmp_path / "root"), variables=setting)
    with channel_to(host) as channel:
        channel.call("ping")  # the agent has become what it is
        names = names_of(channel._link._process.pid)
    assert names & {"AWS_SECRET_ACCESS_KEY"} == inherited
    assert "PATH" in names


def test_what_a_command_sets_for_itself_no_run_inherits(tmp_path, monkeypatch):
    """With all variables inherited, too; what the user has set stays the user's."""
    monkeypatch.setattr(own_variables, "_own", set())
    monkeypatch.setenv("OF_US", "")
    monkeypatch.delenv("OF_US")
    monkeypatch.setenv("OF_USER", "kept")
    own_variables.set_own("OF_US", "1")
    own_variables.set_own("OF_USER", "1")
    with channel_to(Host(name="local", root=str(tmp_path / "root"), variables="inherit")) as channel:
        channel.call("ping")
        names = names_of(channel._link._process.pid)
    assert names & {"OF_US", "OF_USER"} == {"OF_USER"}
    assert own_variables.inherited()["OF_USER"] == "kept"


def test_the_setting_is_this_machines_alone(client):
    """On another host there is nothing to inherit; the message says what to do."""
    client.script('[hosts.lab]\naddress = "lab.example"\nvariables = "inherit"\n', "launch.toml")
    done = client.run("--host", "lab", "--dry-run", "--", "true")
    assert done.returncode == 2
    assert "launch.toml: hosts.lab.variables" in done.stderr
    assert "-e NAME=VALUE" in done.stderr


@pytest.mark.parametrize(
    ("name", "is_so"),
    [
        *(dict.fromkeys(("PATH", "LC_TIME", "HTTPS_PROXY", "no_proxy", "CUDA_HOME", "HF_HOME", "XDG_CACHE_HOME"), True).items()),
        *(dict.fromkeys(("HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "LAUNCH_TOKEN", "SLURM_JOB_ID"), True).items()),
        *(dict.fromkeys(("UV_INDEX_LAB_PASSWORD", "NVIDIA_API_KEY", "SLURM_JWT", "UV_PUBLISH_TOKEN"), False).items()),
        *(dict.fromkeys(("DOCKER_AUTH_CONFIG", "path", "MY_PATH", "PATHS", "OMP", "GITHUB_TOKEN", "LS_COLORS"), False).items()),
    ],
)  # fmt: skip
def test_the_list_is_of_names_and_beginnings(name, is_so):
    """A name that sounds like a credential's is on it in no case."""
    assert is_inherited(HERE, name) is is_so
