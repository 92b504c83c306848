"""What arrives on a host, judged there: no secret, the modes as they were, and nothing large that nobody wanted to send."""

import json
import os
import pty
import subprocess

import pytest
from testbed.client import LAUNCH

pytestmark = pytest.mark.testbed

MARK = "s3cret-of-the-test"
KEY = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{MARK}\n-----END OPENSSH PRIVATE KEY-----\n"
PLANTED = {
    ".env": MARK,
    "app/.env.production": MARK,
    ".netrc": MARK,
    ".ssh/id_rsa": MARK,
    ".aws/credentials": MARK,
    "id_ed25519": MARK,
    "tls.pem": MARK,
    "deploy": KEY,
    "conf/pip.conf": f"[global]\nindex-url = https://me:{MARK}@pypi.example.org/simple\n",
    ".kaggle/kaggle.json": MARK,
    ".venv/secret": MARK,
    "data/.git-credentials": MARK,
}
"""Twelve kinds of secrets. The launch.toml of the testbed, which names the pip.conf, is one more."""
BUILD = '[hosts.A.build]\npip_conf = "conf/pip.conf"\n'


def put(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def plant(client, lab):
    """Put the secrets, and what travels beside them, into the project."""
    put(client.project, PLANTED)
    put(
        client.project,
        {".venv/pyvenv.cfg": "", "id_map.json": "{}", "id_embeddings.pt": "x", "data/a.jsonl": "{}"},
    )
    (client.project / "link").symlink_to("deploy")
    (client.project / "launch.toml").write_text(f"{lab.table()}\n{BUILD}# {MARK}\n")
    client.script("print(1)")


def code_of(lab, client):
    (run,) = [path.name for path in client.runs.glob("[0-9]*")]
    return f"{lab.root}/runs/{run}/work/code"


@pytest.mark.parametrize("uses_git", [pytest.param(False, marks=pytest.mark.long), True])
def test_no_planted_secret_is_on_the_host(client, lab, uses_git):
    """Twelve kinds, searched for by `grep -r` there, in a plain folder and where git tracks them; `id_map.json` travels."""
    plant(client, lab)
    if uses_git:
        subprocess.run(["git", "init", "-q"], cwd=client.project, check=True)
        subprocess.run(["git", "add", "-f", "."], cwd=client.project, check=True)
    out = client.seen("--host", "A", "--set", "data.train=./data", "--", "python", "train.py")
    assert lab.ssh("grep", "-r", "-l", "-a", MARK, str(lab.root), check=False) == ""
    there = lab.ssh("sh", "-c", f"cd {code_of(lab, client)} && find . -type f | sort").split()
    assert there == ["./data/a.jsonl", "./id_embeddings.pt", "./id_map.json", "./train.py"]
    assert (
        lab.ssh("sh", "-c", f"find -L {code_of(lab, client)}/../data -type f")
        .rstrip()
        .endswith("data/train/data/a.jsonl")
    )
    (line,) = [line for line in out.splitlines() if " ship " in line]
    assert "left out: " in line
    assert ".env" in line
    assert "not sent: link -> deploy (points to an excluded path)" in out


def test_what_a_launchignore_includes_arrives(client, lab):
    """It includes a file that git ignores and one of our own list; what it leaves out stays."""
    project = client.project
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    put(project, {".gitignore": "*.bin\n", ".launchignore": "big.txt\n!small.bin\n!.env\n", "big.txt": "x"})
    put(project, {"small.bin": "x", "other.bin": "x", ".env": "x"})
    client.script("print(1)")
    client.ok("--host", "A", "--", "python", "train.py")
    there = lab.ssh("sh", "-c", f"cd {code_of(lab, client)} && find . -type f | sort").split()
    assert there == ["./.env", "./.gitignore", "./.launchignore", "./small.bin", "./train.py"]


def test_modes_and_empty_folders_arrive(client, lab):
    """A private file stays private, a script can write into the folder that it expects."""
    project = client.project
    put(project, {"private.txt": "x", "tool.sh": "#!/bin/sh\n"})
    (project / "private.txt").chmod(0o600)
    (project / "tool.sh").chmod(0o750)
    (project / "out" / "deep").mkdir(parents=True)
    (project / "out" / "deep").chmod(0o700)
    client.script("open('out/deep/x', 'w').write('x')")
    client.ok("--host", "A", "--", "python", "train.py")
    code = code_of(lab, client)
    modes = lab.ssh(
        "stat", "-c", "%a", *(f"{code}/{name}" for name in ("private.txt", "tool.sh", "out/deep"))
    )
    assert modes.split() == ["600", "750", "700"]
    assert lab.ssh("cat", f"{code}/out/deep/x") == "x"


def answer_at_a_terminal(client, answer, *words):
    """Launch in a terminal where the question is answered; return the exit code and what the terminal showed."""
    ours, theirs = pty.openpty()
    env = {**client.env, "TERM": "xterm-256color"}
    with subprocess.Popen(
        [*LAUNCH, *words],
        cwd=client.project,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        process_group=0,
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
                if answer and shown.rstrip().endswith(b"[y/N]:"):
                    os.write(ours, answer)
                    answer = b""
        except OSError:  # how Linux says that the other end is closed
            os.close(ours)
    return process.returncode, shown.decode(errors="replace")


@pytest.mark.long
def test_much_is_asked_about_before_it_travels_and_not_again(client, lab):
    """300 MB: refused without a terminal, with the file's name; at a terminal by the answer; unchanged, never again."""
    client.script("print(1)")
    with (client.project / "weights.bin").open("wb") as file:
        file.truncate(300_000_000)
    words = ("--host", "A", "--", "python", "train.py")
    for options in ((), ("--json",)):
        done = client.run(*options, *words)
        assert done.returncode == 3
        assert "300.0 MB  weights.bin" in done.stderr
        assert "--yes" in done.stderr
    assert "would refuse: 2 files, 300.0 MB" in client.planned(*words)
    runs = lab.ssh("sh", "-c", f"ls {lab.root}/runs || true")
    code, shown = answer_at_a_terminal(client, b"n\n", *words)
    assert (code, "weights.bin" in shown) == (3, True)
    assert lab.ssh("sh", "-c", f"ls {lab.root}/runs || true") == runs
    code, shown = answer_at_a_terminal(client, b"y\n", *words)
    assert code == 0, shown
    again = client.seen(*words)
    assert "none to send" in again
    (client.project / "more.txt").write_text("of which the host has no copy")
    assert "1 of 3 files sent" in client.seen(*words)
    with (client.project / "weights.bin").open("ab") as file:
        file.write(b"x")
    assert client.run(*words).returncode == 3
    assert "1 of 3 files sent" in client.seen("--yes", *words)


def test_many_files_are_asked_about(client):
    """20,000 small ones are a mistake as often as a large one is."""
    folder = client.project / "many"
    folder.mkdir()
    for number in range(20_001):
        (folder / str(number)).touch()
    done = client.run("--", "true")
    assert done.returncode == 3
    assert "20,001 files" in done.stderr


@pytest.mark.parametrize(
    "where", ["home", "/", *(pytest.param(one, marks=pytest.mark.long) for one in ("/etc", "/tmp"))]
)
def test_a_folder_that_is_no_project_is_refused_before_a_host_is_asked(client, where):
    """Exit code 3 and what to do; `--dry-run` says it too."""
    folder = str(client.home) if where == "home" else where
    for options in ((), ("--dry-run",)):
        done = subprocess.run(
            [*LAUNCH, *options, "--profile", "cpu", "--", "true"],
            cwd=folder, env={**client.env, "LAUNCH_RUNS": str(client.runs)}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        text = done.stdout if options else done.stderr
        assert "would refuse: the folder to send" in text if options else "refused before anything" in text
        assert "cd into the project's folder" in text
    assert not (client.home / ".launch" / "runs").exists()


def test_a_script_gets_the_cargo(client):
    """`--json` of a launch and of a dry run hold the same object; a dry run names every path too."""
    put(client.project, {".env": "x", "big.csv": "x" * 2000})
    client.script("print(1)")
    words = ("--json", "--", "python", "train.py")
    dry = json.loads(client.planned(*words))["cargo"]
    assert dry.pop("paths") == ["big.csv", "train.py"]
    lines = [json.loads(line) for line in client.ok(*words).splitlines()]
    (selection,) = [line for line in lines if line.get("kind") == "cargo"]
    assert {key: selection[key] for key in dry} == dry
    assert (selection["files"], selection["largest"][0]) == (2, {"path": "big.csv", "bytes": 2000})
    assert selection["left_out"] == [
        {"key": None, "path": ".env", "why": "credentials", "bytes": 1, "at_least": False}
    ]
