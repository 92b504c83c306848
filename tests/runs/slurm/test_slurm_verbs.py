"""The verbs about runs of a Slurm cluster, judged by Slurm's own programs and by a ledger that the training writes."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from testbed.client import Client, until
from testbed.kept import CLEAR_ROOT
from testbed.link import Link
from testbed.screen import Screen
from testbed.slurm_cluster import job_name

pytestmark = pytest.mark.testbed

STEPS = """
import os, signal, sys, time
import launcher_worker as worker
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
ledger = os.path.expanduser("~/ledger-" + os.environ["LAUNCH_RUN"])
def note(word):
    with open(ledger, "a") as file:
        file.write(f"{word}\\n")
asked = []
is_deaf = os.path.exists(os.path.expanduser("~/deaf"))
signal.signal(signal.SIGTERM, signal.SIG_IGN if is_deaf else lambda *_: asked.append(1))
note(f"from {begin} on {os.uname().nodename} with {os.environ.get('CUDA_VISIBLE_DEVICES')}")
for step in range(begin + 1, 100_001):
    time.sleep(0.05)
    worker.log(step, loss=1.0 / step)
    note(step)
    stops = asked or os.path.exists(os.path.expanduser("~/enough"))
    if step % 5 == 0 or stops:
        worker.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
    if stops:
        break
if not asked:
    worker.done(step)
"""


class Hive:
    """A client of the cluster `hive`, and what its witnesses say."""

    name = "hive"

    def __init__(self, client, cluster, login=0, **reached):
        self.client, self.cluster = client, cluster
        table = cluster.logins[login].table(self.name, **reached)
        (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\npartition = "batch"\n')
        client.script(STEPS)

    def words(self, *more):
        """The words of `launch` for a run."""
        return ("--host", self.name, "--profile", "cpu", *more, "--", "python", "train.py")

    def start(self, *more):
        """Launch a run; return its id."""
        return self.client.detached(*self.words(*more))

    def trains(self, run, more_than=0):
        """Wait until a run has trained more steps than so many."""
        until(lambda: len(self.ledger(run)) > more_than + 1, f"steps of {run}")

    def ledger(self, run):
        """What the training of a run wrote: a line at each start, and the steps."""
        return self.cluster.ssh("cat", f"ledger-{run}", check=False).splitlines()

    def node(self, run):
        """The machine on which a run's training began."""
        name = self.ledger(run)[0].split()[3]
        return next(node for node in self.cluster.nodes if node.name == name)

    def job(self, run):
        """The id of the job that is on record for a run."""
        return json.loads(self.cluster.ssh("cat", f".launch/runs/{run}/control/slurm.json"))["jobs"][-1]

    def jobs(self, run):
        """All jobs of a run that Slurm remembers, as (id, state)."""
        said = self.cluster.ssh("squeue", "--me", "-h", "--states=all", "-o", "%i %T %j")
        rows = (line.split() for line in said.splitlines())
        return [(job, state) for job, state, name in rows if name == job_name(run)]

    def saved(self, run):
        """The steps of a run's checkpoints, as its files say it."""
        script = (
            f"find .launch/runs/{run} -path '*/checkpoints/*' -name step -exec sh -c 'cat {{}}; echo' ';'"
        )
        return sorted(map(int, self.cluster.ssh("sh", "-c", script).split()))

    def end_jobs(self):
        """End the jobs of this client's runs at once."""
        for run in (path.name for path in self.client.runs.glob("[0-9]*")):
            for words in (("--batch", "--signal=KILL"), ()):
                self.cluster.ssh("scancel", *words, "--quiet", f"--name={job_name(run)}", check=False)

    def steps(self, job):
        """The names of the steps of a job, but for its script."""
        said = self.cluster.ssh("squeue", "--steps", "-h", "-o", "%i %j")
        rows = (line.split() for line in said.splitlines())
        return [name for step, name in rows if step.startswith(f"{job}.") and not step.endswith(".batch")]

    def row(self, run):
        """The line of `ps` about a run."""
        return self.client.summary(run, "--host", self.name)


@pytest.fixture(scope="module")
def hive(tmp_path_factory, slurm_for_all):
    """The cluster, with one run that trains on a card as long as the tests of this module last: `hive.run`."""
    client = Client(tmp_path_factory.mktemp("hive"))
    slurm_for_all.ssh("sh", "-c", f"rm -rf enough deaf; {CLEAR_ROOT}")
    made = Hive(client, slurm_for_all)
    made.run = made.start("--set", 'slurm.gres="gpu:1"')
    made.trains(made.run)
    yield made
    client.end_commands()
    slurm_for_all.clear()


@pytest.fixture
def lone(client, slurm_for_all):
    """A client of the cluster that has nothing on it; the jobs of its runs are ended afterwards, and no others."""
    slurm_for_all.ssh("rm", "-rf", "enough", "deaf")
    made = Hive(client, slurm_for_all)
    yield made
    made.end_jobs()


LATER = ("--set", 'slurm.extra=["--begin=now+1hour"]')
"""Has a job wait in the queue."""


# exec and shell


def test_exec_runs_in_the_node_of_the_run(hive):
    """In its code folder, with its variables and the card that Slurm gave to the job; the exit code is the command's."""
    script = (
        "hostname; basename $PWD; echo $LAUNCH_RUN $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES; echo oops >&2; exit 3"
    )
    done = hive.client.run("exec", hive.run, "--", "sh", "-c", script)
    assert done.returncode == 3
    assert done.stdout.split() == [hive.node(hive.run).name, "code", hive.run, hive.job(hive.run), "0"]
    assert done.stderr == "oops\n"
    assert hive.ledger(hive.run)[0].endswith("with 0")  # the training saw the same card


@pytest.mark.long
def test_exec_passes_bytes_on_as_they_are(hive):
    """A megabyte that is no text comes whole, and its digest is that of the node's sha256sum."""
    script = "head -c 1000000 /dev/urandom >/tmp/some; sha256sum /tmp/some >&2; cat /tmp/some"
    words = [*hive.client.program, "exec", hive.run, "--", "sh", "-c", script]
    done = subprocess.run(
        words, cwd=hive.client.project, env=hive.client.env, capture_output=True, timeout=60, check=True
    )
    assert len(done.stdout) == 1_000_000
    assert hashlib.sha256(done.stdout).hexdigest() == done.stderr.decode().split()[0]


@pytest.mark.long
@pytest.mark.parametrize("ending", ["ctrl-c", pytest.param("lost", marks=pytest.mark.long)])
def test_exec_leaves_no_step(hive, ending):
    """Ctrl-C ends the command in the node, and so does a client that dies: also what had left its session."""
    job = hive.job(hive.run)
    before = hive.steps(job)
    script = "(setsid sleep 987654 &); echo begun; sleep 987654"
    process = hive.client.start("exec", hive.run, "--", "sh", "-c", script)
    assert process.stdout.readline() == "begun\n"
    assert len(hive.steps(job)) == len(before) + 1
    process.send_signal(signal.SIGINT if ending == "ctrl-c" else signal.SIGKILL)
    code = process.wait(timeout=180)
    assert code == (130 if ending == "ctrl-c" else -signal.SIGKILL)
    until(lambda: hive.steps(job) == before, "the step to end")
    until(
        lambda: "987654" not in hive.node(hive.run).enter("ps", "ax", "-o", "args"),
        "what it had started to end",
    )
    assert hive.row(hive.run)["state"] == "running"


@pytest.mark.long
def test_shell_is_a_terminal_in_the_node(hive):
    """It has the size of the window, the run in its prompt, and ends without a step left."""
    job = hive.job(hive.run)
    before = hive.steps(job)
    words = [*hive.client.program, "shell", hive.run]
    env = {**hive.client.env, "TERM": "xterm"}
    with Screen(words, env, hive.client.project, width=90, height=20) as screen:
        prompt = f"({hive.run.rpartition('-')[2]})"
        screen.until(lambda lines: any(line.startswith(prompt) for line in lines))
        screen.type("stty size; hostname; tty\n")
        lines = screen.until(lambda lines: any(line.startswith("/dev/pts/") for line in lines))
        assert {"20 90", hive.node(hive.run).name} <= set(lines)
        screen.type("exit 5\n")
        screen.to_the_end()
    assert screen.process.returncode == 5
    until(lambda: hive.steps(job) == before, "the step to end")


@pytest.mark.long
def test_a_port_of_the_node_is_forwarded(hive):
    """What listens on the loopback of the run's node is reached from here."""
    code = "import http.server as s; s.ThreadingHTTPServer(('127.0.0.1', 18765), s.SimpleHTTPRequestHandler).serve_forever()"
    server = hive.client.start("exec", hive.run, "--", "python", "-c", code)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    until(lambda: ":494D 00000000:0000 0A" in hive.node(hive.run).enter("cat", "/proc/net/tcp"), "the server")
    carrier = hive.client.start("forward", hive.run, f"{port}:18765")

    def page():
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as there:
                there.sendall(b"GET /train.py HTTP/1.0\r\n\r\n")
                return b"".join(iter(lambda: there.recv(1 << 16), b""))
        except OSError:
            return b""

    until(lambda: b"launcher_worker" in page(), "the page")
    for process in (carrier, server):
        process.send_signal(signal.SIGINT)
        process.wait(timeout=180)


# stop


def test_a_queued_run(hive):
    """Nothing is executed beside it, and `stop` takes it out of the queue at once."""
    run = hive.start(*LATER)
    assert [state for _, state in hive.jobs(run)] == ["PENDING"]
    refused = hive.client.run("exec", run, "--", "true")
    assert refused.returncode == 4
    assert f"its job {hive.job(run)} waits for the time that it may begin at" in refused.stderr
    assert f"launch attach {run.rpartition('-')[2]}" in refused.stderr
    for words in ((), ("--json",)):
        read = hive.client.run("logs", run, *words)
        assert (read.returncode, read.stdout) == (0, "")
        (line,) = read.stderr.splitlines()
        assert line.startswith(f"  · its job {hive.job(run)} waits for the time that it may begin at")
    began = time.monotonic()
    assert "stopped: by-user" in hive.client.ok("stop", run)
    assert time.monotonic() - began < 5
    assert [state for _, state in hive.jobs(run)] == ["CANCELLED"]
    refused = hive.client.run("exec", run, "--", "true")
    assert refused.returncode == 4
    assert "its files are on the" in refused.stderr


@pytest.mark.long
def test_stop_saves_and_ends_the_job(lone):
    """The last step is saved, and then the job is cancelled: no exit status would say that somebody stopped it."""
    run = lone.start()
    lone.trains(run)
    said = lone.client.ok("stop", run)
    assert "stopped: by-user" in said
    last = int(lone.ledger(run)[-1])
    assert f"step {last}" in said
    assert lone.saved(run)[-1] == last
    until(lambda: [state for _, state in lone.jobs(run)] == ["CANCELLED"], "the job to end")


@pytest.mark.long
def test_stop_now_cancels_the_job(lone):
    """It saves nothing more, and a training that ignores SIGTERM ends too."""
    lone.cluster.ssh("touch", "deaf")
    run = lone.start()
    lone.trains(run)
    assert "stopped: by-user-now" in lone.client.ok("stop", "--now", run)
    until(lambda: [state for _, state in lone.jobs(run)] == ["CANCELLED"], "the job to end")
    steps = len(lone.ledger(run))
    assert lone.saved(run)[-1] <= steps
    assert lone.row(run)["state"] == "stopped"


@pytest.mark.long
def test_stop_of_a_training_that_ignores_it(lone):
    """It is killed after the grace of its plan, and the run has stopped as its user wished."""
    lone.cluster.ssh("touch", "deaf")
    run = lone.start("--set", "stop_grace_s=2")
    lone.trains(run)
    assert "stopped: by-user" in lone.client.ok("stop", run)
    until(lambda: all(state in ("COMPLETED", "CANCELLED") for _, state in lone.jobs(run)), "the job to end")


@pytest.mark.long
def test_stop_of_an_agent_that_hears_nothing(lone):
    """The job is cancelled after the grace: nothing of it is left, and the run has stopped as its user wished."""
    run = lone.start("--set", "stop_grace_s=2")
    lone.trains(run)
    node = lone.node(run)
    node.enter("sh", "-c", f"kill -STOP $(pgrep -f '[s]tep .*{run}') $(pgrep -f '[t]rain.py')")
    assert "stopped: by-user" in lone.client.ok("stop", run)
    until(lambda: [state for _, state in lone.jobs(run)] == ["CANCELLED"], "the job to end")


@pytest.mark.long
@pytest.mark.parametrize("how", ["silent_controller", "no_controller"])
def test_stop_while_the_controller_is_silent(lone, how):
    """A run that trains hears of it through its folder; of one that waits, it is said that nobody knows, and what to type."""
    queued = lone.start(*LATER)
    run = lone.start()
    lone.trains(run)
    with getattr(lone.cluster, how)():
        assert "stopped: by-user" in lone.client.ok("stop", run)
        began = time.monotonic()
        for words in (("stop", queued), ("stop", "--now", queued)):
            done = lone.client.run(*words)
            assert done.returncode == 4
            assert "Slurm does not answer" in done.stderr
            assert f"the end of {queued} is not confirmed" in done.stderr
            assert "launch ps --host hive" in done.stderr
        assert time.monotonic() - began < 90  # each command asks anew
    assert "its run was asked to stop" in lone.client.ok("sweep", "--host", "hive")
    assert [state for _, state in lone.jobs(queued)] == ["CANCELLED"]
    assert lone.row(queued)["state"] == "stopped"


# a submission without an answer, and one that is refused

LOST = {
    "says nothing": '/usr/bin/sbatch "$@" >/dev/null',
    "is killed": '/usr/bin/sbatch "$@" >/dev/null; kill -9 $$',
    "fails": '/usr/bin/sbatch "$@" >/dev/null; echo "sbatch: error: Unable to contact" >&2; exit 1',
    "hangs": '/usr/bin/sbatch "$@" >/dev/null; sleep 600',
}
"""How an `sbatch` ends whose job was submitted, in a shell."""


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how == "says nothing" else pytest.mark.long) for how in LOST]
)
def test_a_lost_answer_of_sbatch(hive, how):
    """The job is found again, and no other is submitted: not when somebody asks for the run to go on, either."""
    with hive.cluster.logins[0].wrapped("sbatch", LOST[how]):
        run = hive.start(*LATER)
    assert [job for job, _ in hive.jobs(run)] == [hive.job(run)]
    hive.client.run("recover", run)
    assert [job for job, _ in hive.jobs(run)] == [hive.job(run)]
    assert "stopped: by-user" in hive.client.ok("stop", run)
    assert [state for _, state in hive.jobs(run)] == ["CANCELLED"]


@pytest.mark.long
def test_a_job_that_appears_late_is_the_runs_own(hive):
    """The launch says that nobody knows, and keeps the run; the job takes it up when it begins."""
    late = (
        '(until [ -e $HOME/now ]; do sleep 0.1; done; /usr/bin/sbatch "$@" <$HOME/script) >/dev/null 2>&1 & '
        "cat >$HOME/script; sleep 1; exit 9"
    )
    before = {path.name for path in hive.client.runs.glob("[0-9]*")}
    with hive.cluster.logins[0].wrapped("sbatch", late):
        done = hive.client.run("--detach", *hive.words())
        assert done.returncode == 4
        assert "whether the job was submitted is not known" in done.stderr
        (run,) = {path.name for path in hive.client.runs.glob("[0-9]*")} - before
        assert f"launch stop {run.rpartition('-')[2]}" in done.stderr
        row = hive.row(run)
        assert row["state"] == "reserved"
        assert "may still appear" in row["evidence"]["service"]
        hive.cluster.ssh("touch", "now")
        hive.trains(run)
    assert [(job, state) for job, state in hive.jobs(run)] == [(hive.job(run), "RUNNING")]
    assert "stopped: by-user" in hive.client.ok("stop", run)


@pytest.mark.long
def test_what_slurm_refuses(hive):
    """Its own words are shown, with exit code 3; nothing is left of the run on the cluster or here."""
    before = {path.name for path in hive.client.runs.glob("[0-9]*")}
    there = hive.cluster.ssh("ls", ".launch/runs").split()
    with hive.cluster.logins[0].wrapped("sbatch", 'exec /usr/bin/sbatch "$@" --partition=none'):
        done = hive.client.run("--detach", *hive.words())
    assert done.returncode == 3
    assert "invalid partition specified: none" in done.stderr
    assert {path.name for path in hive.client.runs.glob("[0-9]*")} == before
    until(lambda: hive.cluster.ssh("ls", ".launch/runs").split() == there, "the run to be cleared away")


# two login nodes


@pytest.mark.long
def test_each_login_node_may_serve(lone, tmp_path):
    """A run that was launched through one of two behind a name is listed, followed, entered, stopped and resumed through the other."""
    client, one, two = lone.client, *lone.cluster.logins
    with Link(one.address, 22) as link:
        key = one.known_hosts.read_text().partition(" ")[2]
        known = tmp_path / "known_hosts"
        known.write_text(f"[{link.address}]:{link.port} {key}")
        hive = Hive(client, lone.cluster, address=link.address, port=link.port, known_hosts=str(known))
        run = hive.start()
        hive.trains(run)
        link.lead_to(two.address, 22)
        assert (hive.row(run)["state"], hive.row(run)["trouble"]) == ("running", None)
        follower = client.start("attach", run, "--json")
        until(lambda: "loss" in follower.stdout.readline(), "a step at the follower")
        assert "agent.pyz serve" in two.enter("ps", "ax", "-o", "args")
        assert client.ok("exec", run, "--", "hostname").strip() == hive.node(run).name
        assert "stopped: by-user" in client.ok("stop", run)
        assert follower.wait(timeout=180) != 0
        last = int(hive.ledger(run)[-1])
        assert client.ok("logs", run) == ""
        child = client.ok("resume", run, "--detach").split()[-1]
        hive.trains(child)
        assert hive.ledger(child)[0].startswith(f"from {last} ")
        link.lead_to(one.address, 22)
        assert hive.row(child)["state"] == "running"
        assert "stopped: by-user-now" in client.ok("stop", "--now", child)


# a run that goes on in another job


def _requeue_refused(hive, run):
    """Have Slurm tell a run that its time is nearly up, and then refuse to start its job again."""
    job = hive.job(run)
    hive.cluster.ssh("scontrol", "update", f"JobId={job}", "Requeue=0")
    hive.cluster.ssh("scancel", "--batch", "--signal=USR1", job)
    until(lambda: hive.row(run)["state"] == "waiting", "the run to wait")
    return job


@pytest.mark.long
def test_two_clients_that_have_a_run_go_on(lone, tmp_path):
    """One of them submits one job, through whichever login node; the run goes on from its last checkpoint with a card of the job."""
    run = lone.start("--set", 'slurm.gres="gpu:2"')
    lone.trains(run, 10)
    first = _requeue_refused(lone, run)
    row = lone.row(run)
    assert (row["state"], row["reason"]) == ("waiting", "client")
    assert "is not started again: " in row["evidence"]["service"]
    assert "Requested operation is presently disabled" in row["evidence"]["service"]
    lines = lone.ledger(run)
    other = Hive(Client(tmp_path / "other"), lone.cluster, login=1)
    both = [one.client.start("recover", run, "--host", "hive") for one in (lone, other)]
    said = ["".join(process.communicate(timeout=180)) for process in both]
    assert not any("Traceback" in text for text in said), said
    assert [process.returncode for process in both] in ([0, 0], [0, 1], [1, 0]), said
    lone.trains(run, len(lines) + 1)
    assert lone.ledger(run)[len(lines)].split() == [
        *("from", lines[-1], "on", lone.node(run).name, "with", "0,1")
    ]
    assert sorted(job for job, _ in lone.jobs(run)) == sorted([first, lone.job(run)])
    assert lone.client.ok("exec", run, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") == "0,1\n"


@pytest.mark.long
def test_a_run_whose_job_died_and_one_whose_job_was_cancelled(lone):
    """`attach` has the first go on in a new job; the second has stopped, and `resume` begins another run where it was."""
    run = lone.start()
    lone.trains(run, 5)
    node = lone.node(run)
    # As Slurm does with all of a job on a cluster that keeps jobs in cgroups.
    node.enter("sh", "-c", "kill -9 $(pgrep -f '[j]ob.*RUN|[s]tep .*RUN|[t]rain.py')".replace("RUN", run))
    until(lambda: lone.row(run)["state"] == "interrupted", "the run to be interrupted")
    before = len(lone.ledger(run))
    follower = lone.client.start("attach", run)
    lone.trains(run, before + 5)
    assert len(lone.jobs(run)) == 2
    lone.cluster.ssh("scancel", lone.job(run))
    out, err = follower.communicate(timeout=180)
    assert "cancelled-in-slurm" in out + err
    row = lone.row(run)
    assert (row["state"], row["reason"]) == ("stopped", "cancelled-in-slurm")
    refused = lone.client.run("recover", run)
    assert refused.returncode == 2
    assert f"launch resume {run.rpartition('-')[2]}" in refused.stderr
    assert len(lone.jobs(run)) == 2
    child = lone.client.ok("resume", run, "--detach").split()[-1]
    lone.trains(child)
    assert lone.ledger(child)[0].startswith(f"from {lone.ledger(run)[-1]} ")


# what is left over, and what is still needed


def _submit(hive, name, comment, folder):
    """Submit a job by hand that waits; return its id."""
    flags = (
        f"--job-name={name}",
        f"--comment={comment}",
        f"--chdir={folder}",
        "--hold",
        "--output=/dev/null",
    )
    return hive.cluster.submit("true", *flags)


def test_sweep_ends_jobs_of_runs_that_have_ended(hive):
    """And no others: not one that is called the same, not one of another root, not one that its run does not know."""
    run = hive.start(*LATER)
    hive.client.ok("stop", run)
    folder = f"/home/ada/.launch/runs/{run}"
    decoys = [
        _submit(hive, job_name(run), f"launch:{run}", "/home/ada"),
        _submit(hive, job_name(run), f"launch:{run}", f"/home/ada/.other/runs/{run}"),
        _submit(hive, job_name(run), "mine", folder),
        _submit(hive, "launch-mine", f"launch:{run}", folder),
        _submit(hive, job_name(run), f"launch:{run}", folder),
    ]
    job = _submit(hive, job_name(run), f"launch:{run}", folder)
    record = f"{folder}/control/slurm.json"
    known = json.loads(hive.cluster.ssh("cat", record))
    text = json.dumps({**known, "jobs": [*known["jobs"], job]})
    hive.cluster.ssh("sh", "-c", f"echo '{text}' >{record}")
    shown = json.loads(hive.client.ok("sweep", "--host", "hive", "--dry-run", "--json"))["items"]
    assert [(item["name"], item["run"], item["did"]) for item in shown] == [(job, run, "ended")]
    assert hive.cluster.state(job) == "PENDING"
    said = hive.client.ok("sweep", "--host", "hive")
    assert f"job {job}" in said
    assert "its run has ended" in said
    assert hive.cluster.state(job) == "CANCELLED"
    assert {hive.cluster.state(decoy) for decoy in decoys} == {"PENDING"}
    hive.client.ok("rm", "--force", "--here", run)
    assert f"job {decoys[-1]}" in hive.client.ok("sweep", "--host", "hive")
    assert [hive.cluster.state(decoy) for decoy in decoys] == ["PENDING"] * 4 + ["CANCELLED"]
    assert hive.row(hive.run)["state"] == "running"
    hive.cluster.ssh("scancel", *decoys[:-1])


NEWER_GC = """
import sys
sys.path.insert(0, sys.argv[1])
from launch_agent.host.garbage import Survey
survey = Survey("/home/ada/.launch", "/home/ada/.launch/agent/fedcba9876543210")
survey.look(lambda number: None)
print(*[item["path"] for item in survey.garbage()])
"""
"""What `gc` would remove for a client whose agent is another one, by the path of an agent."""


@pytest.mark.long
def test_a_queued_run_is_not_removed_and_keeps_what_it_needs(hive):
    """`rm` says what to type; `gc` of a newer client leaves the agent that the job starts, which the run names."""
    run = hive.start(*LATER)
    refused = hive.client.run("rm", "--force", run)
    assert refused.returncode == 1
    assert f"run {run} is reserved" in refused.stderr
    assert f"launch stop {run.rpartition('-')[2]}" in refused.stderr
    script = hive.cluster.ssh("scontrol", "write", "batch_script", hive.job(run), "-")
    agent = next(word for word in script.split() if word.endswith("/agent.pyz"))
    hive.cluster.ssh(
        "sh", "-c", "mkdir .launch/agent/0123456789abcdef; touch -d '2 days ago' .launch/agent/*"
    )
    found = hive.cluster.ssh("python3", "-I", "-c", NEWER_GC, agent).split()
    named = hive.cluster.ssh("grep", "-rhoE", '"agent_folder": ?"[^"]*', f".launch/runs/{run}", check=False)
    assert {line.rpartition('"')[2] for line in named.splitlines()} == {agent.rpartition("/")[0]}
    assert "agent/0123456789abcdef" in found
    assert not agent.startswith(tuple(f"/home/ada/.launch/{path}/" for path in found))
    hive.client.ok("stop", run)
    hive.client.ok("rm", "--force", "--here", run)


# the drill


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        "job-requeued",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in (
                "trainer-killed",
                "agent-killed",
                "checkpoint-torn",
            )
        ),
    ],
)
def test_a_drill_hurts_a_job(hive, fault):
    """A user proves on their own cluster that a run whose job Slurm starts again goes on; nothing is left of it."""
    before = {path.name for path in hive.client.runs.glob("[0-9]*")}
    done = hive.client.run("drill", "--host", "hive", "--fault", fault, "--json", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["result"], row["left"]) == ("ok", [])
    assert row["steps_again"] <= {"checkpoint-torn": 10}.get(fault, 5)
    assert {path.name for path in hive.client.runs.glob("[0-9]*")} == before
    assert not hive.cluster.ssh("squeue", "--me", "-h", f"--name={job_name(row['run'])}")
    assert row["run"] not in hive.cluster.ssh("ls", ".launch/runs")


# a batch

COUNTED = """
echo "$(date +%s.%N) $*" >>$HOME/squeues
exec /usr/bin/squeue "$@"
"""


def _batch(hive, count, seconds):
    """Submit a batch of runs that wait in the queue, watch it for so many seconds, and stop it; return what was seen of it.

    That is: its items, the questions that the queue was asked each second, the growth of the worker's memory in kB, and how
    many times as long as before it `ps` took.
    """
    lines = [
        'host = ["hive"]',
        'profile = "cpu"',
        'job = "waits.toml"',
        "[matrix]",
        f'"settings.number" = [{", ".join(map(str, range(count)))}]',
    ]
    job = 'name = "many"\ncommand = ["python", "train.py"]\nslurm.extra = ["--begin=now+1hour"]\n'
    (hive.client.project / "waits.toml").write_text(job)
    (hive.client.project / "many.toml").write_text("\n".join(lines) + "\n")
    alone, _ = timed_ps(hive)
    hive.cluster.ssh("rm", "-f", "squeues")
    with hive.cluster.logins[0].wrapped("squeue", COUNTED):
        worker = hive.client.start("batch", "many.toml")
        until(lambda: len(_queued(hive)) == count, "all jobs", 60 + 4 * count, every=0.5)
        before, began = _memory_kb(worker.pid), time.time()
        took, rows = timed_ps(hive)
        until(lambda: time.time() > began + seconds, "the time to pass", seconds + 10, every=0.5)
        asked_each_s = _asked_since(hive, began) / (time.time() - began)
        grown = _memory_kb(worker.pid) - before
        lines = map(json.loads, hive.client.ok("batch", "status", "many", "--json").splitlines())
        items = [line for line in lines if line["kind"] == "item"]
        hive.client.ok("batch", "stop", "many", timeout=600)
        worker.wait(timeout=180)
    return rows, items, asked_each_s, grown, took / alone


def timed_ps(hive):
    """How long the fastest of three `ps` took, in seconds, and its rows."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        rows = json.loads(hive.client.ok("ps", "--json", "--host", "hive", "--limit", "1000"))["runs"]
        times.append(time.monotonic() - began)
    return min(times), rows


def _queued(hive):
    return hive.cluster.ssh("squeue", "--me", "-h", "--states=PENDING", "-o", "%j").split()


def _memory_kb(pid):
    """The memory that a process has for itself, as the kernel says it."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")))


@pytest.mark.long
@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.long)])
def test_a_batch_that_waits_in_the_queue(lone, count):
    """All its jobs are submitted; one question a round is asked of the queue, however many wait; a stop takes all of them out."""
    rows, items, asked, grown, longer = _batch(lone, count, 5 if count == 5 else 30)
    print({"items": count, "squeue/s": asked, "grown_kb": grown, "ps takes times": longer})
    assert len(items) == count
    assert {item["state"] for item in items} == {"reserved"}
    words = r"its job \d+ waits for the time that it may begin at"
    assert not [item for item in items if not re.match(words, item["why"] or "")]
    assert len(rows) >= count
    assert asked < 1.5
    assert grown < 20_000
    assert longer < 5
    assert not _queued(lone)


@pytest.mark.long
def test_200_runs_that_wait_in_the_queue(lone):
    """Launched one by one, and followed by one client: a question a round is asked of the queue, by `ps` as well."""
    alone, _ = timed_ps(lone)
    lone.cluster.ssh("rm", "-f", "squeues")
    runs = [lone.start(*LATER) for _ in range(200)]
    assert len(_queued(lone)) == len(runs)
    with lone.cluster.logins[0].wrapped("squeue", COUNTED):
        follower = lone.client.start("attach", runs[-1])
        until(lambda: lone.cluster.ssh("cat", "squeues", check=False), "a first question")
        before, began = _memory_kb(follower.pid), time.time()
        until(lambda: time.time() > began + 30, "half a minute", 40, every=0.5)
        rate = _asked_since(lone, began) / 30
        grown = _memory_kb(follower.pid) - before
        times, asked = [], []
        for _ in range(5):
            began = time.time()
            rows = json.loads(lone.client.ok("ps", "--json", "--host", "hive"))["runs"]
            times.append(time.time() - began)
            asked.append(_asked_since(lone, began))
    print({"squeue/s": rate, "grown_kb": grown, "ps_s": times, "squeue by ps": asked})
    assert {row["state"] for row in rows if row["run"] in runs} == {"reserved"}
    assert rate < 1.5
    assert grown < 20_000
    assert min(times) < 5 * alone
    assert max(asked) <= 2, "its own question, and perhaps one of the follower's"
    lone.cluster.ssh("scancel", "--me")
    assert follower.wait(timeout=180) == 1

    def are_stopped():
        rows = json.loads(lone.client.ok("ps", "--json", "--host", "hive"))["runs"]
        return {row["reason"] for row in rows if row["run"] in runs} == {"cancelled-in-slurm"}

    until(are_stopped, "the cancels to be seen")


def _asked_since(hive, began):
    """How often the queue was asked since a moment, by a wrapper of `squeue`."""
    lines = hive.cluster.ssh("cat", "squeues", check=False).splitlines()
    return sum(float(line.split()[0]) > began for line in lines)


@pytest.mark.long
def test_a_run_whose_job_does_not_end_is_removed_once_it_has(lone):
    """`stop` says that the job is still there; `rm` waits, and cancels it before anything of the run goes."""
    run = lone.start()
    lone.trains(run)
    lone.node(run).enter("sh", "-c", f"kill -STOP $(pgrep -f '[a]gent.pyz job .*{run}')")
    said = lone.client.ok("stop", run)
    assert "stopped: by-user" in said
    assert f"still there: its job {lone.job(run)} is RUNNING" in said
    job = lone.job(run)
    lone.client.ok("rm", "--force", "--here", run)
    assert lone.cluster.state(job) in ("CANCELLED", "COMPLETING")
    assert run not in lone.cluster.ssh("ls", "-A", ".launch/runs")


@pytest.mark.long
def test_a_run_that_was_cancelled_in_slurm_stays_so_when_it_is_stopped(lone):
    """Whoever stops it puts on record what has become of it, and not a wish of theirs."""
    run = lone.start(*LATER)
    lone.cluster.ssh("scancel", lone.job(run))
    until(lambda: lone.row(run)["state"] == "stopped", "the cancel to be seen")
    assert json.loads(lone.client.ok("stop", run, "--json"))["reason"] == "cancelled-in-slurm"
    records = lone.cluster.ssh("sh", "-c", f"cat .launch/runs/{run}/record/0*/state.json").splitlines()
    state = json.loads(records[-1])
    assert (state["state"], state["reason"]) == ("stopped", "cancelled-in-slurm")
