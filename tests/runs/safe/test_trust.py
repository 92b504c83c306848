"""What a clone says of hosts, secrets and ends counts once a person has said yes. The witnesses are a program and a listener."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import LAUNCH, Client, until
from testbed.screen import Screen

from launcher.config import trust

FILES = {
    "launch.toml": """
host = "evil"
on_end = ["./evil.sh"]
[hosts.evil]
address = "127.0.0.1"
port = {port}
[hosts."127.0.0.1:{port}"]
hold = 0
[hosts.local]
python = "./evil.sh"
[hosts.k]
kind = "kaggle"
api = "http://127.0.0.1:{port}"
[hosts.rented]
kind = "lambda-cloud"
max_hours = 4
api = "http://127.0.0.1:{port}"
[hosts.hive]
kind = "slurm"
address = "127.0.0.1"
port = {port}
""",
    "jobs/ends.toml": 'name = "ends"\ncommand = ["true"]\non_end = "http://127.0.0.1:{port}"\n',
    "jobs/asks.toml": 'name = "asks"\ncommand = ["true"]\nsecrets = ["MY_TOKEN"]\n',
    "asks.toml": 'command = ["true"]\nhost = "me@127.0.0.1:{port}"\nsecrets = ["MY_TOKEN"]\n',
    "free.toml": 'host = "local"\nprofile = "cpu"\n[hosts.local]\nprofile = "cpu"\nhold = 5\n',
    "evil.sh": '#!/bin/sh\ntouch "{mark}"\nexec {python} "$@"\n',
    "train.py": "print(1)\n",
}
REACHING = [
    "hosts",
    "hosts --json",
    "ps",
    "probe",
    *(f"probe --host {host}" for host in ("evil", "local", "k", "rented", "hive", "127.0.0.1:{port}")),
    *(f"ps --host {host}" for host in ("evil", "local", "rented", "hive")),
    "-- python train.py",
    "--dry-run -- python train.py",
    "--detach --host local -- python train.py",
    *(f"--dry-run --host {host} -- python train.py" for host in ("evil", "local", "k", "rented", "hive")),
    *("--host kaggle --job ends", "--host kaggle --job asks", "--dry-run --job jobs/asks.toml"),
    *("explain", "explain --host local", "image show", "image list --host evil"),
    *("gc --host evil", "sweep --host local", "offers", "reconcile", "verify --host local -- true"),
    *(
        "drill --host local",
        "batch asks.toml",
        "batch asks.toml --dry-run",
        "init --host evil",
        "profile list",
    ),
]


@pytest.fixture
def listener():
    """The attacker's host and service: whoever connects there is seen."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


class Clone:
    """A clone of the attacker's repository in the client's project, and what shows that its word was believed."""

    def __init__(self, client: Client, listener: socket.socket, folder: Path) -> None:
        self.client, self._listener, self._mark = client, listener, folder / "started"
        self.port = listener.getsockname()[1]
        origin = folder / "origin"
        for name, text in FILES.items():
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            filled = text.replace("{port}", str(self.port)).replace("{mark}", str(self._mark))
            (origin / name).write_text(filled.replace("{python}", sys.executable))
        (origin / "evil.sh").chmod(0o755)
        commit = ("-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-qm", "x")
        for words in (("init", "-q"), ("add", "-A"), commit):
            subprocess.run(["git", "-C", str(origin), *words], check=True)
        client.project.rmdir()
        subprocess.run(["git", "clone", "-q", str(origin), str(client.project)], check=True)
        client.variables |= {
            "LAUNCH_TRUST": "",
            **dict.fromkeys(("KAGGLE_KEY", "LAMBDA_API_KEY", "MY_TOKEN"), "s3cr3t"),
            "KAGGLE_USERNAME": "alice",
            "https_proxy": "http://127.0.0.1:9",  # the services themselves are not asked
        }

    def was_believed(self) -> list[str]:
        """Return what was started or contacted since."""
        seen = ["a program"] if self._mark.exists() else []
        self._mark.unlink(missing_ok=True)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
                seen.append("a connection")
        return seen

    def contacts(self, *words: str) -> None:
        """Let a command connect there; it waits for an answer that never comes, and is ended."""
        process = self.client.start(*words)
        until(lambda: "a connection" in self.was_believed(), "its connection")
        process.kill()
        process.communicate()

    def asked(self, *words: str) -> Screen:
        """The same client at a terminal."""
        env = {key: one for key, one in self.client.env.items() if key not in ("COLUMNS", "LINES")}
        return Screen([*LAUNCH, *words], {**env, "TERM": "xterm"}, self.client.project, 100, 40)


@pytest.fixture
def clone(client, listener, tmp_path):
    """See Clone."""
    return Clone(client, listener, tmp_path)


def test_no_verb_starts_or_contacts_what_a_clone_names(clone):
    """Without a terminal each either does without it or refuses, and says what to type."""
    for words in REACHING:
        done = clone.client.run(*words.replace("{port}", str(clone.port)).split())
        assert not clone.was_believed(), words
        if done.returncode == 2 and not words.startswith("init"):
            assert "launch trust" in done.stderr, (words, done.stderr)


def test_a_host_that_is_not_trusted_is_listed_so(clone):
    """It has a row, and no facts."""
    rows = {row["host"]: row for row in json.loads(clone.client.ok("hosts", "--json"))["hosts"]}
    for name in ("evil", "local", "k", "rented", "hive"):
        assert "launch trust" in rows[name]["problem"]
        assert rows[name]["facts"] is None


@pytest.mark.parametrize("words", ["launch --host ", "launch probe --host ", "launch --job "])
def test_completion_offers_names_and_starts_nothing(clone, words):
    """A shell asks at each key, also at a terminal."""
    before = words.split(" ")
    clone.client.variables |= {
        "_LAUNCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(before),
        "COMP_CWORD": str(len(before) - 1),
    }
    said = clone.client.start().communicate(timeout=180)[0]
    assert ("asks" if "--job" in words else "evil") in said.split()
    assert not clone.was_believed()
    with clone.asked() as screen:
        assert "trust" not in "".join(screen.to_the_end())
    assert not clone.was_believed()


def test_what_was_trusted_counts_until_it_changes(clone):
    """`launch trust --yes` is remembered; a profile may change, an address may not; `--revoke` forgets."""
    client, file = clone.client, clone.client.project / "launch.toml"
    said = client.run("trust", "--yes").stderr
    assert f"hosts.evil.port = {clone.port}" in said
    assert 'hosts.local.python = "./evil.sh"' in said
    assert 'secrets = ["MY_TOKEN"]' in said
    client.run("probe", "--host", "local")
    assert clone.was_believed() == ["a program"]
    clone.contacts("--dry-run", "--host", "k", "--", "true")
    written = file.read_text()
    file.write_text(f"# mine\n{written}".replace("[hosts.local]", '[hosts.local]\nprofile = "cpu"\nhold = 9'))
    client.run("probe", "--host", "local")
    assert clone.was_believed() == ["a program"]
    file.write_text(written.replace('"127.0.0.1"', '"127.0.0.2"'))
    assert "not trusted yet" in client.run("probe", "--host", "local").stderr
    assert not clone.was_believed()
    file.write_text(written)
    client.run("probe", "--host", "local")
    assert clone.was_believed() == ["a program"]
    assert "launch.toml" in client.run("trust", "--revoke").stderr
    assert "not trusted yet" in client.run("probe", "--host", "local").stderr
    assert not clone.was_believed()


def test_all_is_shown_before_it_is_trusted(clone):
    """Also without a terminal; the hint trusts what was asked about and no more."""
    done = clone.client.run("trust")
    assert done.returncode == 2
    assert 'on_end = ["./evil.sh"]' in done.stderr
    assert 'secrets = ["MY_TOKEN"]' in done.stderr
    assert "launch trust jobs/asks.toml --yes" in clone.client.run("trust", "jobs/asks.toml").stderr


def test_trust_is_for_one_folder(clone, tmp_path):
    """Another clone of the same repository is asked about anew."""
    clone.client.ok("trust", "--yes")
    clone.client.project.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "other")
    clone.client.project = tmp_path / "other"
    assert "not trusted yet" in clone.client.run("probe", "--host", "local").stderr
    assert not clone.was_believed()


def test_launch_trust_names_folders_for_a_machine_without_a_person(clone, tmp_path):
    """With all below them; a relative name, which a clone's folder could have, is none."""
    for named in (".", "", str(tmp_path / "home"), f"{clone.client.project}-2"):
        clone.client.variables["LAUNCH_TRUST"] = named
        done = clone.client.run("probe", "--host", "local")
        assert ("does not name an absolute folder" in done.stderr) == (named == ".")
        assert not clone.was_believed(), named
    for named in (str(clone.client.project), f"/nowhere{os.pathsep}{tmp_path}"):
        clone.client.variables["LAUNCH_TRUST"] = named
        clone.client.run("probe", "--host", "local")
        assert clone.was_believed() == ["a program"], named


def test_a_person_at_a_terminal_is_asked_once(clone):
    """No is the default, and nothing was begun by then. A yes is remembered."""
    with clone.asked("probe", "--host", "local") as screen:
        screen.until(lambda lines: lines[-1].startswith("continue?"))
        assert 'hosts.local.python = "./evil.sh"' in "\n".join(screen.lines())
        assert not clone.was_believed()
        screen.type("\n")
        screen.to_the_end()
        assert screen.process.returncode == 2
    assert not clone.was_believed()
    with clone.asked("probe", "--host", "local") as screen:
        screen.until(lambda lines: lines[-1].startswith("continue?"))
        screen.type("y\n")
        screen.to_the_end()
    assert clone.was_believed() == ["a program"]
    with clone.asked("probe", "--host", "local") as screen:
        assert "continue?" not in "".join(screen.to_the_end())
    assert clone.was_believed() == ["a program"]


def test_hosts_of_this_user_need_no_trust(clone):
    """Those of the user's own file, and what a launch.toml says beside that leads nowhere."""
    client = clone.client
    own = client.home / ".config" / "launch" / "hosts.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f'[hosts.mine]\naddress = "127.0.0.1"\nport = {clone.port}\n')
    clone.contacts("ps", "--host", "mine")
    (client.project / "launch.toml").write_bytes((client.project / "free.toml").read_bytes())
    assert "nothing was sent" in client.planned("--", "true")
    client.ok("hosts")


def test_a_table_that_replaces_the_users_own_is_called_that(clone):
    """Its keys alone would need no trust."""
    client = clone.client
    client.variables["LAUNCH_TRUST"] = ""
    own = client.home / ".config" / "launch" / "hosts.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[hosts.mine]\naddress = "127.0.0.1"\n')
    (client.project / "launch.toml").write_text('[hosts.mine]\nkind = "slurm"\npartition = "gpu"\n')
    done = client.run("--host", "mine", "--dry-run", "--", "true")
    assert done.returncode == 2
    assert (
        "not trusted yet: hosts.mine.kind, hosts.mine.partition\n  it replaces [hosts.mine] of ~/.config"
        in done.stderr
    )


def test_what_init_writes_is_trusted(client):
    """With an environment it holds a value that needs trust."""
    client.variables["LAUNCH_TRUST"] = ""
    client.ok("init", "--host", "local", "--environment", sys.executable, "--no-smoke", "--yes")
    assert "environment" in (client.project / "launch.toml").read_text()
    client.ok("probe")


def test_options_are_the_users_own_word(clone):
    """A job's secrets or end, given by `--set`, is not the file's. An option beside it changes nothing of what was trusted."""
    client = clone.client
    (client.project / "launch.toml").unlink()
    client.planned("--job", "asks", "--set", "secrets=[]")
    client.planned("--set", 'on_end=["true"]', "--", "true")
    assert client.run("--dry-run", "--job", "asks", "--set", "seed=3").returncode == 2
    client.ok("trust", "jobs/asks.toml", "--yes")
    client.planned("--job", "asks", "--set", "seed=3")
    assert client.run("--dry-run", "--job", "ends").returncode == 2


def test_a_probe_imports_nothing_of_the_folder_that_it_is_typed_in(clone):
    """Python's `-c` looks for modules in the working folder first."""
    client = clone.client
    (client.project / "launch.toml").unlink()
    for name in ("json", "platform", "struct", "torch", "sitecustomize"):
        client.script(f"open({str(client.home / 'imported')!r}, 'w')\n", f"{name}.py")
    client.ok("explain", "--json")
    client.planned("--with", "torch", "--", "true")
    assert not (client.home / "imported").exists()


@pytest.mark.parametrize(
    ("tables", "counting"),
    [
        ({"hosts": {"lab": {"profile": "t4"}}}, {"hosts.lab.address"}),
        ({"hosts": {"alias": {"profile": "t4", "runtime": "native", "hold": 5}}}, set()),
        (
            {"hosts": {"alias": {"kind": "slurm", "partition": "gpu", "extra": ["--x"]}}},
            {"hosts.alias.kind", "hosts.alias.extra"},
        ),
        ({"hosts": {"local": {"build": {"pip_conf": "x"}}}}, {"hosts.local.build"}),
        ({"hosts": {"a b": {"env": "x"}}}, {'hosts."a b".env', 'hosts."a b".address'}),
        ({"host": "own", "profile": "t4", "job": "sft"}, set()),
        ({"host": "me@10.0.0.1"}, {"host"}),
        ({"host": "gpu.example.org"}, {"host"}),
        ({"host": "gpu-7"}, {"host"}),
        ({"host": "fd00::1"}, {"host"}),
        ({"host": "127.0.0.1%.lab"}, {"host"}),
        ({"host": "kaggle"}, set()),
        ({"hosts": {"kaggle": {"kind": "kaggle", "accelerator": "NvidiaTeslaT4"}}}, set()),
        ({"hosts": {"k": {"kind": "kaggle", "accelerator": "NvidiaTeslaT4"}}}, {"hosts.k.kind"}),
        ({"hosts": {"local": {"kind": "kaggle"}}}, {"hosts.local.kind"}),
        ({"hosts": {"kaggle": {"kind": "slurm"}}}, {"hosts.kaggle.kind", "hosts.kaggle.address"}),
        ({"hosts": {"own": {"profile": "t4"}}}, {"hosts.own.profile"}),
        ({"hosts": {"r": {"kind": "lambda-cloud", "max_hours": 4}}}, {"hosts.r.kind", "hosts.r.max_hours"}),
    ],
)
def test_what_leads_somewhere_or_chooses_a_program_needs_trust(tables, counting):
    """And nothing else; a table without an address leads to its name."""
    assert set(trust.project_values(tables, ["own"], ["alias"])) == counting


def test_a_batch_counts_as_its_jobs_do():
    """Its settings and matrix are those of `--set`."""
    tables = {
        "host": ["lab", "me@10.0.0.1"],
        "settings": {"on_end": ["x"], "seed": 1},
        "matrix": {"host": ["a.example.org"], "lr": [1]},
        "run": [{"secrets": ["A"]}, {"host": "lab", "settings": {"secrets": ["B"]}}],
    }
    found = set(trust.job_values(tables, ["lab"]))
    assert found == {"host", "settings.on_end", "matrix.host", "run.1.secrets", "run.2.settings.secrets"}
    quoted = {"settings": {"on_end.0": "x"}, "matrix": {"host": ["lab", "kaggle"]}}
    assert set(trust.job_values(quoted, ["lab"])) == {"settings.on_end.0"}
    assert set(trust.job_values({"host": "lab"}, [])) == {"host"}


def test_a_question_shows_no_escapes():
    """A value cannot paint over what stands before it."""
    lines = trust.describe(Path("launch.toml"), {"hosts.a.python": "x\x1b[2A\x9b2K\u202e"})
    assert all(line.isprintable() for line in lines)
