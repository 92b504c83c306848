"""A clone with every hostile file that we could think of, then each verb in it. The witness is strace."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys

import pytest
from testbed.client import LAUNCH, missing

pytestmark = pytest.mark.slow(reason="every verb runs under strace")

RUN, OTHER = "261128-x-abc123", "261128-y-def456"
EVIL = '#!/bin/sh\ntouch "{mark}"\nexec {python} "$@"\n'
HOST = {"name": "local", "python": "./evil.sh"}
RECORD = {"version": 1, "run": RUN, "host": HOST, "root": "", "launched": 1.0, "order": 1, "plan": ""}
TABLES = """
host = "evil"
on_end = ["./evil.sh"]
[hosts.local]
python = "./evil.sh"
environment = "./evil.sh"
[hosts.evil]
address = "127.0.0.9"
port = 9
identity_file = "./id"
known_hosts = "./known_hosts"
[hosts.hive]
kind = "slurm"
address = "127.0.0.9"
"""
JOB = 'name = "evil"\ncommand = ["./evil.sh"]\nsecrets = ["HOME_KEY"]\non_end = ["./evil.sh"]\n[data]\ntrain = "outside"\n'
REMOTE = {
    **RECORD,
    "run": OTHER,
    "host": {"name": "kaggle", "kind": "kaggle", "kaggle": {"api": "https://127.0.0.9:9"}},
}
FILES = {
    "launch.toml": TABLES,
    "evil.toml": JOB,
    "sweep.toml": 'command = ["./evil.sh"]\nhost = "me@127.0.0.9:9"\nsecrets = ["HOME_KEY"]\n[matrix]\nlr = [1, 2]\n',
    "jobs/sft.toml": JOB,
    "profiles/cpu.toml": "name = [[[[",
    "images/Dockerfile": "FROM evil",
    "requirements.txt": "--index-url http://127.0.0.9:9/\nevil @ file:///etc/passwd\n",
    "pyproject.toml": "[tool.uv]\nindex-url = 'http://127.0.0.9:9'\n",
    "train.py": "print(1)\n",
    "evil.sh": EVIL,
    "json.py": "import os; os.system('./evil.sh -c 1')\n",
    "sitecustomize.py": "import os; os.system('./evil.sh -c 1')\n",
    "sub/HEAD": "ref: refs/heads/main\n",
    "sub/config": '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = "./evil.sh"\n',
    "sub/objects/.k": "",
    "sub/refs/.k": "",
    f"runs/{RUN}/client.json": json.dumps(RECORD),
    f"runs/{RUN}/plan.json": json.dumps(
        {"version": 1, "command": ["./evil.sh"], "secrets": ["HOME_KEY"], "host": "evil"}
    ),
    f"runs/{RUN}/request.json": json.dumps(
        {"version": 1, "folder": ".", "request": {"words": ["./evil.sh"]}}
    ),
    f"runs/{RUN}/moved.json": json.dumps({"run": OTHER, "host": "evil", "root": "a", "abandoned": 1.0}),
    f"runs/{RUN}/.last-seen.json": json.dumps({"run": RUN, "state": "running"}),
    f"runs/{RUN}/.pulled.jsonl": '["artifacts/x", 1, "0", 1]\n',
    f"runs/{RUN}/.shown.json": "[" * 9000,
    f"runs/{RUN}/.kept-checkpoint.json": json.dumps({"name": "../../..", "step": 1, "time": 1.0}),
    f"runs/{RUN}/0001/attempt.json": json.dumps({"kind": "attempt", "attempt": 1, "time": 1e300}),
    f"runs/{RUN}/0001/state.json": json.dumps({"state": "running", "step": 9, "loss": "=1"}),
    f"runs/{RUN}/0001/events.jsonl": '{"kind":"metric","step":1,"values":{"=HYPERLINK(1)":1,"\\u001b[31m":2}}\n'
    + "[" * 9000,
    f"runs/{RUN}/0001/log.txt": "\x1b]0;evil\x07\x1b[31mloss\n",
    f"runs/{OTHER}/client.json": json.dumps(REMOTE),
    f"runs/{OTHER}/0001/state.json": json.dumps({"state": "interrupted"}),
    f"runs/.abandoned/{RUN}": "",
    "runs/.ended.jsonl": f'["0.1.0",4]\n{{"summary":{{"run":"{RUN}"}}}}\n',
    "runs/.launches": "9" * 9000,
    "runs/batches/evil/.made": "",
    "runs/batches/evil/.open": "",
    "runs/batches/evil/worker.json": json.dumps({"pid": 1, "machine": "x"}),
}
LINKS = {
    "outside": "{victim}/id_ed25519",
    f"runs/{RUN}/artifacts": "{victim}",
    f"runs/{RUN}/outputs": "{victim}",
    f"runs/{RUN}/checkpoints": "{victim}",
    f"runs/{RUN}/tensorboard": "{victim}",
    f"runs/{RUN}/loss.png": "{victim}/id_ed25519",
    f"runs/{RUN}/0002": "{victim}",
    f"runs/{RUN}/.parts": "{victim}",
    f"runs/{RUN}/.mirror.lock": "{victim}/new",
    f"runs/{OTHER}/plan.json": "/dev/zero",
    "runs/261128-z-aaaaaa": "{victim}",
    "runs/batches/linked": "{victim}",
}
PIPES = [
    ".gitignore",
    ".launchignore",
    "notes.env",
    f"runs/{OTHER}/0001/log.txt",
    f"runs/{OTHER}/0001/events.jsonl",
]
VERBS = [
    *(
        "ps",
        "ps --here --json",
        "ps --watch --json",
        "hosts",
        "hosts --all",
        "probe --host evil",
        "explain",
        "offers",
    ),
    *(
        f"{verb} {RUN}"
        for verb in (
            "logs",
            "metrics",
            "metrics --csv",
            "plot",
            "ls",
            "diagnose",
            "explain",
            "attach",
            "pull",
        )
    ),
    *(
        f"{verb} {RUN}"
        for verb in (
            "stop",
            "stop --now",
            "rm --yes",
            "rm --here",
            "resume",
            "rerun",
            "rerun --dry-run",
            "recover",
            "shell",
        )
    ),
    *(
        "logs last",
        "attach last",
        "recover --all",
        "recover",
        f"exec {RUN} -- true",
        f"cp {RUN}:x .",
        f"forward {RUN} 80",
    ),
    *(
        f"compare {RUN} {OTHER}",
        f"compare {RUN} {OTHER} --diff",
        f"logs {OTHER}",
        f"metrics {OTHER}",
        f"pull {OTHER}",
    ),
    *(
        "gc --host evil",
        "sweep --host evil",
        "reconcile",
        "image list --host evil",
        "image show",
        "profile list",
    ),
    *(
        "batch list",
        "batch status evil",
        "batch resume evil",
        "batch resume evil --yes",
        "batch stop evil",
        "batch rm evil",
    ),
    *("batch sweep.toml --dry-run", "batch sweep.toml", "--dry-run -- python train.py", "-- python train.py"),
    *(
        "--dry-run --job evil.toml --host hive",
        "--job evil.toml",
        "--dry-run --set code=sub -- python train.py",
    ),
    *(
        "verify --host evil --job evil.toml",
        "drill --host evil",
        "init --host evil",
        "--env-file notes.env -- true",
    ),
]
STRANGE = re.compile(
    r'^\d+ +(?:execve\("(?P<program>[^"]+)"|connect\([^)]*(?P<net>AF_INET6?)|open(?:at)?\((?:AT_FDCWD, )?"(?P<file>/[^"]+)", [^)]*(?:O_WRONLY|O_RDWR|O_CREAT))'
)


class Clone:
    """The clone, the folder of the victim's that its links name, and the marker that its programs leave."""

    def __init__(self, client, folder):
        self.client, self.victim, self.mark = client, folder / "victim", folder / "started"
        self.victim.mkdir()
        (self.victim / "id_ed25519").write_text("a key")
        origin = folder / "origin"
        for name, text in FILES.items():
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            (origin / name).write_text(
                text.replace("{mark}", str(self.mark)).replace("{python}", sys.executable)
            )
        (origin / "evil.sh").chmod(0o755)
        for name, target in LINKS.items():
            (origin / name).symlink_to(target.replace("{victim}", str(self.victim)))
        queue = sqlite3.connect(origin / "runs/batches/evil/queue.sqlite")
        queue.executescript(
            "CREATE TABLE batch (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
            "CREATE VIEW run AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x AS run, x AS item FROM c;"
        )
        queue.close()
        commit = ("-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-qm", "x")
        for words in (("init", "-q"), ("add", "-fA"), commit):
            subprocess.run(["git", "-C", str(origin), *words], check=True)
        client.project.rmdir()
        subprocess.run(["git", "clone", "-q", str(origin), str(client.project)], check=True)
        for name in PIPES:  # git carries no pipe: an archive does
            (client.project / name).unlink(missing_ok=True)
            os.mkfifo(client.project / name)
        client.variables |= {"LAUNCH_TRUST": "", "HOME_KEY": "a-secret-of-the-user"}

    def strange_acts(self, verb, log, *, has_terminal):
        """Run a verb under strace; return the programs of the clone that it began, where it connected, and what it opened elsewhere to write."""
        traced = [
            "strace",
            "-f",
            "--seccomp-bpf",
            "-qq",
            "-s",
            "300",
            "-e",
            "trace=execve,connect,open,openat",
            "-o",
            str(log),
        ]
        # As the installed program, which has no module of the folder on its path.
        words = [*traced, sys.executable, "-P", *LAUNCH[1:], *verb.split()]
        if has_terminal:
            words = ["script", "-qec", " ".join(f"'{word}'" for word in words), "/dev/null"]
        env = self.client.env
        try:
            done = subprocess.run(
                ["timeout", "-k", "1", "5" if "--watch" in verb else "60", *words],
                cwd=self.client.project,
                env=env,
                input="",
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        finally:
            self.client.end_commands()
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        assert "--watch" in verb or done.returncode not in (124, 137), f"{verb} hangs"
        clone, home = str(self.client.project), str(self.client.home)
        found = []
        for line in log.read_text(errors="replace").splitlines():
            if (act := STRANGE.match(line)) is None:
                continue
            program, file = act["program"], act["file"]
            if program is not None and os.path.realpath(os.path.join(clone, program)).startswith(clone):
                found.append(line)
            if act["net"] or (
                file is not None and not file.startswith((clone, home, "/dev/", "/proc/", "/tmp/launch"))
            ):
                found.append(line)
        return found


@pytest.mark.parametrize(
    ("verbs", "has_terminal"),
    [
        pytest.param(VERBS[::3], False, id="no terminal"),
        pytest.param(VERBS[1::9], True, id="terminal"),
        pytest.param(VERBS, False, id="no terminal, all", marks=pytest.mark.long),
        pytest.param(VERBS, True, id="terminal, all", marks=pytest.mark.long),
    ],
)
def test_nothing_in_a_clone_is_believed(client, tmp_path, verbs, has_terminal):
    """No verb starts a program of the clone, opens a connection, or writes outside of the clone and the user's own folders."""
    for program in ("strace", "script"):
        if shutil.which(program) is None:
            missing(f"no {program} here: apt-get install strace bsdutils")
    assert len(FILES) + len(LINKS) + len(PIPES) >= 40
    clone = Clone(client, tmp_path)
    acts = {verb: clone.strange_acts(verb, tmp_path / "strace", has_terminal=has_terminal) for verb in verbs}
    assert {verb: found[:5] for verb, found in acts.items() if found} == {}
    assert not clone.mark.exists()
    assert [path.name for path in clone.victim.iterdir()] == ["id_ed25519"]
    assert (clone.victim / "id_ed25519").read_text() == "a key"
