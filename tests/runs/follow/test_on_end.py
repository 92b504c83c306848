"""`on_end`: told by the host when a run ends, with nobody here. Witnesses: a ledger outside the run, and an HTTP server."""

import contextlib
import http.server
import json
import os
import secrets
import signal
import threading

import pytest
from testbed.client import processes_of, until

pytestmark = pytest.mark.slow(reason="each test starts clients and runs")


@pytest.fixture
def ledger(client):
    """A file that a run's `on_end` appends to, with the words that do."""
    path = client.home / "ledger"
    path.touch()
    client.script(f'on_end = ["sh", "-c", "cat >> {path}; echo >> {path}"]\n', "launch.toml")

    def lines():
        return [json.loads(line) for line in path.read_text().splitlines()]

    return lines


@contextlib.contextmanager
def webhook(status=200):
    """A server that answers with a status; its port, and what it was sent: paths and bodies."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], got
        server.shutdown()


def test_each_end_is_told_once_with_nobody_here(client, ledger):
    """A success, a failure and a stop, each by one line with what a program needs; `launch.toml` sets it for all jobs."""
    client.script("import time; print('up', flush=True); time.sleep(600)")
    ids = [client.detached("--", "true"), client.detached("--", "false")]
    until(lambda: len(ledger()) == 2, "both notices")
    ids.append(client.detached("--", "python", "train.py"))
    client.ok("stop", ids[2])
    assert {one["run"]: (one["state"], one["reason"]) for one in ledger()} == {
        ids[0]: ("succeeded", "exit-only"), ids[1]: ("failed", "exit-nonzero"), ids[2]: ("stopped", "by-user"),
    }  # fmt: skip
    assert len(ledger()) == 3
    first = next(one for one in ledger() if one["run"] == ids[0])
    assert (first["version"], first["kind"], first["job"], first["host"]) == (1, "run-ended", "true", "local")
    assert first["text"].startswith("succeeded: true ")
    assert first["rehearsed"] is False


@pytest.mark.long
def test_an_agent_that_dies_changes_nothing(client, ledger):
    """Killed in the middle, the run goes on by itself: two attempts, one notice."""
    client.script(
        "import os, time\nif os.path.exists('killed'): raise SystemExit\nopen('up', 'w').close(); time.sleep(600)"
    )
    (client.project / "job.toml").write_text('name = "t"\ncommand = ["python", "train.py"]\nrestart = true\n')
    run = client.detached("--job", "./job.toml")
    folder = client.home / ".launch" / "runs" / run
    until(lambda: (folder / "work" / "code" / "up").exists(), "the training")
    (folder / "work" / "code" / "killed").touch()
    agent = json.loads((folder / "record" / "0002" / "attempt.json").read_text())["agent"]["pid"]
    os.kill(agent, signal.SIGKILL)
    until(lambda: ledger(), "the notice")
    client.ok("attach", run)
    (told,) = ledger()
    assert (told["run"], told["state"], told["attempt"]) == (run, "succeeded", 2)


def test_an_agent_that_dies_while_it_tells_has_not_failed_the_run(client):
    """The next one records the end that was told, with its step and loss, and neither trains nor tells again."""
    client.script("print({'loss': 1.5, 'step': 7}); open('began', 'a').write('x')\n")
    told = client.home / "told"
    words = f'on_end=["sh", "-c", "echo $LAUNCH_STATE >> {told}; kill -9 $PPID"]'
    run = client.detached("--set", words, "--", "python", "train.py")
    said = client.ok("attach", run)
    assert told.read_text() == "succeeded\n"
    assert (client.home / ".launch" / "runs" / run / "work" / "code" / "began").read_text() == "x"
    (row,) = json.loads(client.ok("ps", "--json"))["runs"]
    assert (row["state"], row["loss"]) == ("succeeded", 1.5), said


def test_a_webhook_s_address_is_a_secret(client):
    """It is posted to from the host; its address is in no file of the run, on either side, and in no argv."""
    token = secrets.token_hex(16)
    with webhook() as (port, got):
        client.variables["HOOK"] = f"http://127.0.0.1:{port}/{token}"
        run = client.detached("--set", "on_end=$HOOK", "--", "true")
        client.ok("attach", run)
    ((path, body),) = got
    assert (path, body["run"], body["state"]) == (f"/{token}", run, "succeeded")
    assert body["text"] == body["content"]
    folders = (client.home / ".launch", client.runs)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if token.encode() in path.read_bytes()]


def test_what_goes_wrong_is_told_and_the_run_has_succeeded_all_the_same(client):
    """A server that refuses: the end says so. A missing secret, and words that are no address, end the launch."""
    with webhook(503) as (port, got):
        said = client.seen("--set", f"on_end=http://127.0.0.1:{port}/x", "--", "true")
        assert len(got) == 1
    assert "succeeded" in said
    assert "! on_end: exit 1: the webhook answers 503" in said
    for written, words in (
        ("$NOT_SET", "secret NOT_SET: it is not set here"),
        ("notify.sh", "expected a list of words"),
        ("https://hooks.slack.com/services/T0/B0/x", "the address of a webhook"),
        ("https://discord.com/api/webhooks/1/x", "the address of a webhook"),
        ('["curl", "https://ada:pw@x.invalid/"]', "a user or password in a URL"),
    ):
        done = client.run("--set", f"on_end={written}", "--", "true")
        assert done.returncode in (2, 3), done.stderr
        assert words in done.stdout + done.stderr
        assert "T0/B0" not in done.stdout + done.stderr


def test_one_that_hangs_keeps_nobody_from_stopping(client):
    """`stop --now` is done within its time, and nothing is left."""
    client.script("import time; time.sleep(600)")
    run = client.detached("--set", 'on_end=["sh", "-c", "sleep 600"]', "--", "python", "train.py")
    done = client.run("stop", "--now", run)
    assert (done.returncode, "stopped" in done.stdout) == (0, True), done.stdout + done.stderr
    state = json.loads(client.ok("ps", "--json"))["runs"][0]
    assert (state["state"], state["reason"]) == ("stopped", "by-user-now")
    until(lambda: processes_of(client.home / ".launch" / "runs" / run) == [], "the end of all of it")


def test_a_command_has_the_run_s_secrets_and_its_folder(client):
    """As the training has them: a script that was sent, and the token that it needs."""
    client.variables["HUB_TOKEN"] = value = secrets.token_hex(12)
    client.script(
        'printf %s "$HUB_TOKEN-$LAUNCH_STATE" > ../artifacts/told; echo $HUB_TOKEN; exit 4\n', "tell.sh"
    )
    run = client.detached("--secret", "HUB_TOKEN", "--set", 'on_end=["sh", "tell.sh"]', "--", "true")
    said = client.seen("attach", run)
    assert "on_end: exit 4: ***" in said
    assert (
        client.home / ".launch" / "runs" / run / "work" / "artifacts" / "told"
    ).read_text() == f"{value}-succeeded"
