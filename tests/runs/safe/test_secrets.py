"""Secrets: the training has them, and nothing else that a run leaves or shows does. grep and /proc are the witnesses."""

import base64
import hashlib
import json
import os
import re
import secrets
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from testbed.client import channel_to, processes_of, until

from launcher.errors import AgentError
from launcher.values.host import Host

pytestmark = pytest.mark.slow(reason="each test starts clients and a run")

SAYS_IT = """
import atexit, base64, json, os, socket, time, urllib.parse
import launcher_worker as worker
token, key = os.environ["HF_TOKEN"], os.environ["SIGNING_KEY"]
print("token", token, json.dumps({token: key}), repr(key), "[%s]" % key)
print(urllib.parse.quote(token + "/" + key), urllib.parse.urlencode({"key": key}))
print(base64.b64encode(token.encode()).decode(), base64.b64encode(key.encode()).decode())
for letter in token + "|" + key + "\\n":
    os.write(1, letter.encode())
    time.sleep(0.001)
worker.log(1, **{token: 1.0, "said": "it is " + key, "loss": token})
raw = socket.socket(socket.AF_UNIX)
raw.connect(os.environ["LAUNCH_SOCKET"])
raw.sendall(b"x" * 190 + token.encode() + b"\\n")
raw.sendall(json.dumps({"kind": "consumed", "values": {"knobs": [token]}}).encode() + b"\\n")
raw.close()
os.write(1, b"the token's beginning is no token: " + token[:8].encode() + b"\\n")
print("recorded:", os.environ["WANDB_MODE"], os.environ["PYTHONPATH"].endswith(":src"))
print("waits", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
atexit.register(os.write, 1, token.encode())
raise KeyError(token)
"""


TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ"


@pytest.fixture
def values(monkeypatch):
    """Two secrets in the client's environment, one of several lines, quotes and letters beyond ASCII."""
    made = {
        "HF_TOKEN": "hf_" + secrets.token_urlsafe(24),
        "SIGNING_KEY": f'-----BEGIN "KEY"-----\n{secrets.token_hex(24)}\n{secrets.token_hex(20)} é%\\\n-----END-----',
    }
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    return made


def traces(values):
    """What nobody may find: the values, their lines, and what they are in base64."""
    lines = [line.strip() for value in values.values() for line in value.splitlines() if len(line) > 30]
    return [*lines, *(base64.b64encode(value.encode()).decode().rstrip("=") for value in values.values())]


def found_in(folder, values):
    """The files below a folder in which grep finds a trace."""
    words = [word for trace in traces(values) for word in ("-e", trace)]
    done = subprocess.run(
        ["grep", "-rlaF", *words, "."], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return sorted(done.stdout.split())


def processes_with(what, values):
    """The pids whose `cmdline` or `environ` holds a trace, ours left out."""
    wanted = [trace.encode() for trace in traces(values)]
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / what).read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if any(one in text for one in wanted):
            found.append(int(entry.name))
    return found


ASKED = ("-s", "HF_TOKEN", "--secret", "SIGNING_KEY")
PLAIN = ("-e", "WANDB_MODE=offline", "--env", "PYTHONPATH=src")


def as_env_file(values, path):
    """The two secrets in a file: one as it is, one in double quotes."""
    quoted = values["SIGNING_KEY"].replace("\\", "\\\\").replace('"', '\\"')
    path.write_text(f'export HF_TOKEN={values["HF_TOKEN"]}\nSIGNING_KEY="{quoted}"\n')
    return str(path)


@pytest.mark.parametrize("place", ["local", pytest.param("A", marks=[pytest.mark.testbed, pytest.mark.long])])
def test_the_training_alone_has_them(client, values, place, request):
    """However a script lets them out, the record holds stars; while it runs one file of mode 600 has them, then none."""
    root = client.home / ".launch" if place == "local" else request.getfixturevalue("lab").root
    client.script(SAYS_IT)
    asked = ASKED
    if place == "local":  # from a file; the shell has others
        asked = ("--env-file", as_env_file(values, client.home.parent / "job.env"))
        client.variables.update(HF_TOKEN="another", SIGNING_KEY="another")
    said = client.seen("--detach", "--host", place, *asked, *PLAIN, "--", "python", "train.py")
    run = said.split()[-1]
    folder = root / "runs" / run
    until(lambda: b"waits" in (folder / "record" / "0002" / "log.txt").read_bytes(), "the script's words")
    running = [
        json.loads(line) for line in (folder / "record" / "0002" / "events.jsonl").read_text().splitlines()
    ]
    assert found_in(folder, values) == ["./record/secrets.env"]
    assert stat.S_IMODE((folder / "record" / "secrets.env").stat().st_mode) == 0o600
    assert processes_with("cmdline", values) == []
    assert processes_with("environ", values) == [running[0]["values"]["pid"]]
    live = client.start("logs", "--follow", run), client.start("attach", run, "--json")
    (folder / "work" / "code" / "go").touch()
    until(lambda: '"failed"' in (folder / "record" / "0002" / "state.json").read_text(), "the end")
    shown = [text for one in live for text in one.communicate()]
    assert "***|***" in shown[0]
    seen = client.ok("logs", run) + "".join(shown)
    assert not (folder / "record" / "secrets.env").exists()
    for where in (folder, client.project, client.home):
        assert found_in(where, values) == []
    assert not [trace for trace in traces(values) if trace in said + seen]
    log = (client.runs / run / "0002" / "log.txt").read_text()
    assert log.splitlines()[0] == 'token *** {"***": "***"} \'***\' [***]'
    assert "\n***|***\n" in log
    assert log.endswith("***")
    assert values["HF_TOKEN"][:8] in log, "only whole values are hidden"
    assert "recorded: offline True" in log
    events = [
        json.loads(line) for line in (folder / "record" / "0002" / "events.jsonl").read_text().splitlines()
    ]
    (metric,) = [one["values"] for one in events if one["kind"] == "metric"]
    assert metric == {"***": 1.0, "said": "it is ***", "loss": "***"}
    assert [one for one in events if one["values"].get("not-an-event") == "x" * 190 + "***"]
    plan = json.loads((folder / "control" / "plan.json").read_text())
    assert plan["secrets"] == ["HF_TOKEN", "SIGNING_KEY"]
    assert plan["variables"] == {"WANDB_MODE": "offline", "PYTHONPATH": "src"}


WAITS = """
import hashlib, os, sys, time
with open(sys.argv[1], "a") as ledger:
    print(hashlib.sha256(os.environb[b"HF_TOKEN"]).hexdigest(), file=ledger)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("verb", ["attach", pytest.param("stop", marks=pytest.mark.long)])
def test_an_interrupted_run_keeps_them_until_it_ends(client, monkeypatch, verb):
    """Nobody holds the run: who goes on with it finds the same bytes; who ends it leaves none."""
    value = os.fsdecode(b"\xff\xfe not text \x01 " + secrets.token_bytes(8).replace(b"\0", b"0"))
    monkeypatch.setenv("HF_TOKEN", value)
    client.script(WAITS)
    client.script(
        f'name = "x"\ncommand = ["python", "train.py", "{client.home}/ledger"]\n'
        'restart = true\nsecrets = ["HF_TOKEN"]\n',
        "x.toml",
    )
    run = client.detached("--job", "x.toml")
    folder = client.home / ".launch" / "runs" / run
    ledger = client.home / "ledger"
    until(lambda: ledger.exists() and ledger.read_text().endswith("\n"), "the first attempt")
    for pid in processes_of(folder):
        if b"agent.pyz" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    until(lambda: client.summary(run)["state"] == "interrupted", "the run to be seen as interrupted")
    monkeypatch.delenv("HF_TOKEN")
    assert (folder / "record" / "secrets.env").exists()
    (folder / "work" / "code" / "go").touch()
    assert "succeeded" in client.seen("attach", run) if verb == "attach" else client.ok("stop", run)
    wanted = [hashlib.sha256(os.fsencode(value)).hexdigest()] * (2 if verb == "attach" else 1)
    assert ledger.read_text().split() == wanted
    assert not (folder / "record" / "secrets.env").exists()


@pytest.mark.long
def test_an_attempt_without_its_secrets_does_not_start(client, values):
    """A file that somebody has removed is told by the names that are missing, not by a KeyError in the script."""
    client.script("import os, time; print('up', flush=True); time.sleep(600)")
    run = client.detached("--secret", "HF_TOKEN", "--set", "restart=true", "--", "python", "train.py")
    folder = client.home / ".launch" / "runs" / run
    until(lambda: (folder / "record" / "0002" / "log.txt").read_bytes(), "the first attempt")
    (folder / "record" / "secrets.env").unlink()
    agent = json.loads((folder / "record" / "0002" / "attempt.json").read_text())["agent"]["pid"]
    os.kill(agent, signal.SIGKILL)
    until(lambda: client.summary(run)["state"] == "waiting", "the next agent to find that it is missing")
    row = client.summary(run)
    assert (row["reason"], row["evidence"]) == ("secret", {"secrets": "missing: HF_TOKEN"})
    client.ok("stop", run)


def test_what_was_never_started_leaves_none(tmp_path):
    """They are put into a new file, through no link, and go with a run that its client left before the start."""
    run = "0101-x-aaaa"
    folder = tmp_path / "runs" / run
    with channel_to(Host(name="local", root=str(tmp_path))) as agent:
        with pytest.raises(AgentError, match="no run"):
            agent.call("secrets", b'{"A": "never"}', run=run)
        agent.call("create", b"{}\n", run=run, env=None, gpus=None)
        (folder / "record" / "secrets.env").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(AgentError):
            agent.call("secrets", b'{"A": "never"}', run=run)
        (folder / "record" / "secrets.env").unlink()
        with pytest.raises(AgentError, match="not a table of secrets") as told:
            agent.call("secrets", b'{"A": "never" and more', run=run)
        assert "never" not in str(told.value)
        agent.call("secrets", b'{"A": "never"}', run=run)
        assert stat.S_IMODE((folder / "record" / "secrets.env").stat().st_mode) == 0o600
    until(lambda: not folder.exists(), "the agent to clear away")
    assert not (tmp_path / "elsewhere").exists()


def refused(client, *words):
    """What is said to a launch: exit code 2, nothing sent, and no value in the words."""
    done = client.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "SESAME" not in done.stderr
    assert not (client.home / ".launch" / "runs").exists()
    return done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NOT_SET", "export NOT_SET="),
        ("EMPTY", "export EMPTY="),
        ("SHORT", "fewer than 4 characters"),
        ("HF_TOKEN=hf_SESAME", "give only its name"),
        ("hf-SESAME", "name of an environment variable"),
        ("LAUNCH_TOKEN", "LAUNCH_TOKEN"),
        ("LD_PRELOAD", "LD_PRELOAD"),
        ("PATH", "PATH"),
    ],
)
def test_what_can_be_no_secret_is_refused_without_repeating_it(client, monkeypatch, name, told):
    """On the command line and in a job's file: before anything is sent, with the next command to type."""
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("SHORT", "abc")
    client.script(f'name = "x"\ncommand = ["true"]\nsecrets = ["{name}"]\n', "x.toml")
    assert told in refused(client, "--secret", name, "--", "true")
    assert told in refused(client, "--job", "x.toml")


def test_a_value_in_the_job_itself_is_refused(client, monkeypatch):
    """A plan goes on record, so a secret in its command or its settings would be none."""
    monkeypatch.setenv("HF_TOKEN", "hf_SESAME")
    said = refused(client, "--secret", "HF_TOKEN", "--", "python", "train.py", "--token=hf_SESAME")
    assert "the job's command" in said
    assert "the job's settings" in refused(client, "--secret", "HF_TOKEN", "--set", "settings.a=xhf_SESAMEx")


def test_a_dry_run_shows_names_alone(client, values):
    """The plan is the same bytes whatever the values are."""
    words = (*ASKED, "--dry-run", "--profile", "cpu")
    said = client.ok(*words, "--json", "--", "true")
    assert json.loads(said)["plan"]["secrets"] == ["HF_TOKEN", "SIGNING_KEY"]
    shown = client.ok(*words, "--", "true")
    assert "HF_TOKEN, SIGNING_KEY" in shown
    assert not [value for value in values.values() if value in said + shown]


@pytest.mark.parametrize(
    "words",
    [
        ["-s", "NOT_SET", "--", "true"],
        ["-s", "HF_TOKEN", "--", "echo", "hf_SESAME"],
        ["-s", "SHORT", "--", "true"],
        ["-e", f"A={TOKEN}", "--", "true"],
    ],
    ids=["not set", "recorded", "too short", "a variable"],
)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_dry_run_refuses_the_secrets_that_a_launch_refuses(client, monkeypatch, words, more):
    """With the launch's words and exit code."""
    monkeypatch.setenv("HF_TOKEN", "hf_SESAME")
    monkeypatch.setenv("SHORT", "abc")
    before = client.run(*words)
    code, why = before.returncode, before.stderr
    dry = client.run("--dry-run", "--profile", "cpu", *more, *words)
    dry_code, shown, err = dry.returncode, dry.stdout, dry.stderr
    (first, *_) = why.strip().splitlines()
    assert code == (3 if TOKEN in words[1] else 2)
    assert dry_code == code
    assert first.removeprefix("refused before anything was sent: ") in shown + err
    assert TOKEN not in shown + err + why


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_dry_run_shows_no_value_that_it_refuses(client, more):
    """However it is given: as a variable of the command line or a file, or as the address of a webhook."""
    client.script(
        f'name = "x"\ncommand = ["true"]\non_end = "https://hooks.slack.com/{TOKEN}"\n[variables]\nA = "{TOKEN}"\n',
        "x.toml",
    )
    for words in (
        ["--job", "x.toml"],
        ["-e", f"A={TOKEN}", "--", "true"],
        ["--set", f'variables.B="{TOKEN}"', "--", "true"],
        ["-e", "A_PASSWORD=" + TOKEN[8:], "--", "true"],
    ):
        dry = client.run("--dry-run", "--profile", "cpu", *more, *words)
        code, shown, err = dry.returncode, dry.stdout, dry.stderr
        assert TOKEN[8:] not in shown + err
        assert (code, "recorded" in shown) == (3, True)


IN_COLOUR = """
import os, sys
token = os.environ["HF_TOKEN"]
middle = len(token) // 2
for between in ("\\x1b[0m\\x1b[35m", "\\x1b[1C", "\\x1b]8;;https://example.org\\x1b\\\\", "\\r", "\\b", "\\x1b(B", "x\\b"):
    os.write(1, ("key \\x1b[32m" + token[:middle] + between).encode())
    os.write(2, (token[middle:] + "\\x1b[0m\\n").encode())
raise KeyError(token[:middle] + "\\x1b[0m" + token[middle:])
"""


def test_escapes_in_a_secret_do_not_show_it(client, values):
    """As rich prints a key in colours: not on the screen, in any file here or on the host, nor by any verb."""
    client.script(IN_COLOUR)
    done = client.run("-s", "HF_TOKEN", "--", "python", "train.py")
    shown = (
        done.stdout
        + done.stderr
        + "".join(
            client.seen(verb, "last", *more)
            for verb, more in (
                ("logs", ()),
                ("logs", ("--json",)),
                ("diagnose", ()),
                ("diagnose", ("--json",)),
            )
        )
    )
    kept = [
        path.read_bytes().decode("utf-8", "replace")
        for folder in (client.runs, client.home / ".launch" / "runs")
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert shown.count("key ***") >= 7
    token = values["HF_TOKEN"]
    for text in (shown, *kept):
        plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\]8;;[^\x1b]*\x1b\\\\|\x1b\(B|x\x08|[\r\x08]", "", text)
        assert token not in plain
        assert json.dumps(token)[1:-1] not in re.sub(r"\\u001b\[[0-9;]*m", "", plain)


NAMES = """
import os, pathlib, time
token = os.environ["HF_TOKEN"]
artifacts = pathlib.Path(os.environ["LAUNCH_ARTIFACTS"])
(artifacts / f"model-{token}.bin").write_text("weights")
folder = pathlib.Path("out") / token
folder.mkdir(parents=True)
(folder / "log.txt").write_text("said")
print("waits", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
(artifacts / f"late-{token}.txt").write_text("late")
"""


def test_a_secret_in_the_name_of_a_file_is_neither_shown_nor_kept_here(client, values):
    """While the run has it, and once it is erased: such a file comes under another name, and none is lost."""
    client.script(NAMES)
    run = client.detached("-s", "HF_TOKEN", "--", "python", "train.py")
    until(lambda: "waits" in client.seen("logs", run), "the training's files")
    verbs = (("ls", run), ("ls", run, "--json"), ("pull", run), ("ps", "--json"))
    live = [client.seen(*words) for words in verbs]
    (go,) = client.home.glob(".launch/runs/*/work/code")
    (go / "go").touch()
    client.run("attach", run)
    ended = [
        client.seen(*words) for words in (*verbs, ("pull", run, "--all", "--json"), ("rm", run, "--yes"))
    ]
    token = values["HF_TOKEN"]
    assert token not in "".join(live + ended)
    assert not [path for path in client.project.rglob("*") if token in str(path)]
    for listed in (live[1], ended[1]):
        assert "model-{secret}.bin" in listed
        assert "out/{secret}/log.txt" in listed
    assert "late-{secret}.txt" in ended[1]
    here = sorted(path.read_text() for path in client.runs.rglob("model*.bin"))
    assert here == ["weights"]
    assert [path.read_text() for path in client.runs.rglob("{secret}/log.txt")] == ["said"]
    assert not list(client.home.glob(f".launch/runs/{run}*"))
