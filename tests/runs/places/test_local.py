"""Runs on this machine, through the command line and a real agent: from start to every kind of end."""

import json
import os
import re
import signal
from itertools import pairwise

import pytest
from testbed.client import processes_of, until

pytestmark = pytest.mark.slow(reason="each test starts clients and a run, from start to end")

AWARE = """
import os, signal, sys, time
import launcher_worker as worker
steps = worker.knobs().steps
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
def write(folder, step):
    with open(os.path.join(folder, "step"), "w") as file:
        file.write(str(step))
print("begin at", begin, flush=True)
ledger = open(worker.knobs().settings["ledger"], "a", buffering=1)
for step in range(begin + 1, steps + 1):
    time.sleep(float(worker.knobs().settings["pause"]))
    print(step, file=ledger)
    worker.log(step, loss=1.0 / step)
    hold = worker.knobs().settings.get("hold")
    while hold and step == 9 and not resumed and not stopping and not os.path.exists(hold):
        time.sleep(0.01)
    if step % 5 == 0 or stopping:
        worker.save(step, lambda folder: write(folder, step))
    if stopping:
        sys.exit(0)
with open(os.path.join(worker.knobs().artifacts, "weights"), "w") as file:
    file.write("trained")
worker.done(steps)
"""

JOB = """
name = "steps"
command = ["python", "train.py"]
steps = 20
[settings]
pause = 0.02
hold = ""
"""

METRIC = {"version", "kind", "run", "attempt", "rank", "step", "time", "name", "value", "rehearsed"}


HELD = ("--set", "settings.hold=go")
"""The first attempt waits behind its ninth step until it is told to go on, by `go_on`, or to end."""


def go_on(client, run):
    """Let a run that is held train to its end."""
    (run_folder(client, run) / "work" / "code" / "go").touch()


@pytest.fixture
def aware(client):
    """A project whose job uses the worker: it logs, saves, resumes and says that it is done."""
    client.script(AWARE)
    client.script(JOB + f"ledger = {json.dumps(str(client.home / 'ledger'))}\n", "steps.toml")
    return client


def run_folder(client, run):
    return client.home / ".launch" / "runs" / run


def ledger(client, run):
    """What the training itself wrote of its steps, from the host's own files."""
    lines = []
    for path in sorted(run_folder(client, run).glob("record/[0-9]*/events.jsonl")):
        lines += [json.loads(line) for line in path.read_text().splitlines()]
    return [(one["attempt"], one["step"]) for one in lines if one["kind"] == "metric"]


def trained(client):
    """The steps in the order in which they were trained, from a file outside the run."""
    return [int(line) for line in (client.home / "ledger").read_text().split()]


def assert_nothing_skipped(steps, last, lost_at_most):
    """Every step was trained, in order, but for one return to a checkpoint; nothing more was trained twice."""
    back = next((i for i, (a, b) in enumerate(pairwise(steps)) if b <= a), len(steps) - 1)
    first, second = steps[: back + 1], steps[back + 1 :]
    assert first == list(range(1, len(first) + 1))
    assert not second or second == list(range(second[0], last + 1))
    assert (second or first)[-1] == last
    assert not second or 0 <= first[-1] - second[0] + 1 <= lost_at_most


def step_reached(client, run, step):
    return lambda: any(found >= step for _, found in ledger(client, run))


def test_a_job_that_uses_the_worker_succeeds_and_its_artifacts_come_home(aware):
    """Exit 0 and the completion marker make a success; the artifacts lie beside the mirror."""
    out = aware.seen("--job", "steps.toml")
    assert "succeeded" in out
    (run,) = [path for path in aware.runs.iterdir() if path.is_dir()]
    assert (run / "artifacts" / "weights").read_text() == "trained"
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.*"))
    assert aware.summary(run.name)["state"] == "succeeded"


def test_a_script_that_knows_nothing_of_us_needs_no_file(client, tmp_path):
    """`launch -- python train.py` runs it in this folder, with its words as they are. Only its exit code speaks; to stop it stops nothing.

    What it writes can be read by colleagues if its login lets them; what is ours below the root cannot.
    """
    client.script(f"import sys; print(sys.argv[1:]); open({str(tmp_path / 'shared')!r}, 'w').close()")
    umask = os.umask(0o022)
    try:
        client.ok("--", "python", "train.py", "--lr", "1e-4", "a b", "$HOME;'\"", "")
    finally:
        os.umask(umask)
    assert "['--lr', '1e-4', 'a b', '$HOME;\\'\"', '']" in client.ok("logs", "last")
    row = json.loads(client.ok("ps", "--json"))["runs"][0]
    assert (row["state"], row["reason"]) == ("succeeded", "exit-only")
    said = client.ok("stop", row["run"])
    assert said == f"{row['run']} had ended already (succeeded: exit-only): nothing was stopped\n"
    assert client.summary(row["run"])["state"] == "succeeded"
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o644
    log = next((client.home / ".launch" / "runs").glob("*/record/0002/log.txt"))
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.long
def test_a_script_that_fails_fails_the_run_and_its_last_words_are_shown(client):
    """Exit code 1, the traceback of the script, and the next command."""
    client.script("print('so far'); raise SystemExit('the reason')")
    done = client.run("--", "python", "train.py")
    assert done.returncode == 1
    assert "the reason" in done.stdout
    assert "exit-nonzero" in done.stderr
    assert "launch logs" in done.stderr


def test_exit_0_without_the_marker_is_no_success_of_a_job_that_uses_the_worker(aware):
    """A script that leaves early with 0 has not completed."""
    aware.script("import launcher_worker as w; w.log(1, loss=1.0)")
    done = aware.run("--job", "steps.toml")
    assert done.returncode == 1
    assert "no-completion-marker" in done.stderr


def test_a_worker_that_reports_its_end_before_the_last_step_has_succeeded(aware):
    """It stopped early, and nobody had asked it to."""
    aware.script("import launcher_worker as w; w.log(1, loss=1.0); w.done(7)")
    aware.ok("--job", "steps.toml")
    row = json.loads(aware.ok("ps", "--json"))["runs"][0]
    assert (row["state"], row["reason"]) == ("succeeded", "completed")


def test_a_command_that_is_not_there_is_named(client):
    """No traceback, exit code 1, and the word."""
    done = client.run("--", "no-such-program", "x")
    assert done.returncode == 1
    assert "no-such-program" in done.stderr
    assert "command-not-found" in done.stderr


def test_a_script_killed_by_a_signal_says_which(client):
    """SIGKILL is told as a signal, not as an exit code."""
    client.script("import os; os.kill(os.getpid(), 9)")
    done = client.run("--", "python", "train.py")
    assert done.returncode == 1
    assert "preempted" in done.stderr
    assert "signal 9, and the kernel killed no process for lack of memory" in done.stderr


def test_logged_lines_of_hugging_face_become_metrics_and_a_hidden_nan_is_one(client):
    """A loss of '0' beside a norm of 'nan' is the filter's work: the metric is nan, never 0.0."""
    client.script(
        "def write(step, values):\n"  # as the Trainer does: the bar is cleared, and drawn again after the line
        "    print(f'\\r        \\r{values}\\n 33%|###   | {step}/30 [00:01<00:02,  9.9it/s]', end='')\n"
        "write(10, {'loss': '2.271', 'grad_norm': '1.55', 'learning_rate': '0.0002', 'epoch': '0.31'})\n"
        "write(20, {'loss': '0', 'grad_norm': 'nan', 'learning_rate': '0.0001', 'epoch': '0.62'})\n"
        "write(30, {'loss': '2.1', 'grad_norm': '1.5', 'learning_rate': '0.0', 'epoch': '0.93'})\n"
        "print('\\nValidation accuracy: 0.75')\n"
    )
    client.ok("--", "python", "train.py")
    (stepless,) = [line for line in client.ok("metrics", "last").splitlines() if "0.75" in line]
    assert re.match(r"at \d\d:\d\d:\d\d ", stepless)
    lines = [json.loads(line) for line in client.ok("metrics", "last", "--json").splitlines()]
    losses = {line["step"]: line["value"] for line in lines if line["name"] == "loss"}
    assert losses == {10: 2.271, 20: "nan", 30: 2.1}
    assert set(lines[0]) == METRIC
    assert ",loss,nan" in client.ok("metrics", "last", "--csv")


@pytest.mark.long
def test_stop_lets_the_script_save_and_then_nothing_of_ours_is_left(aware):
    """`stop` ends a run with a checkpoint; `ps` of the system shows nothing of it."""
    run = aware.detached("--job", "steps.toml", "--set", "steps=100000")
    until(step_reached(aware, run, 7), "seven steps")
    assert "stopped: by-user" in aware.ok("stop", run)
    assert processes_of(run_folder(aware, run)) == []
    saved = sorted(
        run_folder(aware, run).glob("work/checkpoints/*/manifest.json"), key=lambda path: path.stat().st_mtime
    )
    assert json.loads(saved[-1].read_text())["step"] == ledger(aware, run)[-1][1]


@pytest.mark.long
def test_stop_now_does_not_wait_for_a_script_that_will_not_go(client):
    """A script that ignores SIGTERM, and its child in a session of its own, are ended at once."""
    client.script(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal,time; signal.signal(15, signal.SIG_IGN); "
        "time.sleep(600)'], start_new_session=True)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    run = client.detached("--", "python", "train.py")
    until(lambda: len(processes_of(run_folder(client, run))) >= 4, "keeper, agent, script and child")
    assert "stopped: by-user-now" in client.ok("stop", "--now", run)
    assert processes_of(run_folder(client, run)) == []


def test_children_that_a_script_leaves_behind_are_ended_with_it(client):
    """A double fork in a session of its own does not outlive a run that has succeeded."""
    client.script(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    client.ok("--", "python", "train.py")
    (run,) = (client.home / ".launch" / "runs").iterdir()
    until(lambda: not processes_of(run), "the end of all its processes; the keeper's may be the last")


def test_ctrl_c_detaches_and_says_how_to_come_back(aware):
    """The run goes on; the command leaves with 0 and names attach and stop."""
    process = aware.start("--job", "steps.toml", *HELD)
    run = until(lambda: next((path.name for path in aware.runs.glob("[0-9]*")), None), "the mirror")
    until(step_reached(aware, run, 3), "three steps")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0
    assert "launch attach" in err
    assert "launch stop" in err
    go_on(aware, run)
    assert "succeeded" in aware.seen("attach", run)
    assert [step for _, step in ledger(aware, run)] == list(range(1, 21))


def test_a_client_killed_in_mid_run_costs_nothing(aware):
    """SIGKILL of the client: training goes on, and a client without a mirror catches up byte for byte."""
    process = aware.start("--job", "steps.toml", *HELD)
    run = until(lambda: next((path.name for path in aware.runs.glob("[0-9]*")), None), "the mirror")
    until(step_reached(aware, run, 3), "three steps")
    process.kill()
    process.communicate()
    os.rename(aware.runs, aware.project / "lost")
    go_on(aware, run)
    assert "succeeded" in aware.seen("attach", run, "--host", "local")
    mirrored = list((aware.runs / run).glob("[0-9]*/*"))
    assert len(mirrored) > 4
    for path in mirrored:
        recorded = run_folder(aware, run) / "record" / path.relative_to(aware.runs / run)
        assert path.read_bytes() == recorded.read_bytes()
    plan = run_folder(aware, run) / "control" / "plan.json"
    assert (aware.runs / run / "plan.json").read_bytes() == plan.read_bytes()
    assert {attempt for attempt, _ in ledger(aware, run)} == {1}


def agent_pid(client, run, attempt):
    for path in run_folder(client, run).glob("record/[0-9]*/attempt.json"):
        record = json.loads(path.read_text())
        if record.get("attempt") == attempt:
            return record["agent"]["pid"]
    return None


def test_an_agent_killed_in_mid_run_is_brought_back_and_goes_on_from_the_checkpoint(aware):
    """The keeper ends the orphaned trainer; a second attempt begins where the first had saved."""
    run = aware.detached("--job", "steps.toml", *HELD)
    until(step_reached(aware, run, 7), "seven steps")
    before = processes_of(run_folder(aware, run))
    os.kill(agent_pid(aware, run, 1), signal.SIGKILL)
    assert "attempt 2" in aware.seen("attach", run)
    assert_nothing_skipped(trained(aware), 20, lost_at_most=5)
    assert {attempt for attempt, _ in ledger(aware, run)} == {1, 2}
    assert len(set(before) & set(processes_of(run_folder(aware, run)))) == 0
    second = json.loads((run_folder(aware, run) / "record" / "0003" / "attempt.json").read_text())
    assert second["previous"]["keeper"]["signal"] == 9
    assert second["previous"]["keeper"]["ended"], "the orphan's end is not on record"


def test_a_script_that_cannot_resume_is_not_started_twice_by_itself(client):
    """Its run fails and says why, instead of beginning again unasked."""
    client.script("import time; print('up', flush=True); time.sleep(600)")
    run = client.detached("--", "python", "train.py")
    until(lambda: agent_pid(client, run, 1), "the agent")
    until(lambda: (run_folder(client, run) / "record" / "0002" / "log.txt").read_text(), "the script")
    os.kill(agent_pid(client, run, 1), signal.SIGKILL)
    done = client.run("attach", run)
    assert done.returncode == 1
    assert "not-restartable" in done.stderr
    assert client.ok("logs", run).count("up") == 1


@pytest.mark.long
def test_keeper_and_agent_killed_leave_an_interrupted_run_that_attach_goes_on_with(aware):
    """Nobody holds the run: it is interrupted, its trainer is ended by proof, and it resumes."""
    run = aware.detached("--job", "steps.toml", *HELD)
    until(step_reached(aware, run, 7), "seven steps")
    agent = agent_pid(aware, run, 1)
    with open(f"/proc/{agent}/stat") as file:
        keeper = int(file.read().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    until(lambda: aware.summary(run)["state"] == "interrupted", "the run to be seen as interrupted")
    out = aware.seen("attach", run)
    assert "was interrupted" in out
    assert "succeeded" in out
    assert_nothing_skipped(trained(aware), 20, lost_at_most=5)


def test_an_interrupted_run_can_be_stopped(aware):
    """`stop` of a run that nobody holds ends what is left of it and says stopped."""
    run = aware.detached("--job", "steps.toml", "--set", "steps=100000")
    until(step_reached(aware, run, 3), "three steps")
    for pid in processes_of(run_folder(aware, run)):
        with open(f"/proc/{pid}/cmdline") as file:
            if "agent.pyz" in file.read():
                os.kill(pid, signal.SIGKILL)
    assert "stopped" in aware.ok("stop", run)
    assert processes_of(run_folder(aware, run)) == []


@pytest.mark.long
def test_sigterm_to_the_agent_without_a_wish_is_a_shutdown_and_the_run_comes_back(aware):
    """The script saves, the agent leaves with 75, the keeper brings it back, no step is lost."""
    run = aware.detached("--job", "steps.toml", *HELD)
    until(step_reached(aware, run, 7), "seven steps")
    os.kill(agent_pid(aware, run, 1), signal.SIGTERM)
    aware.ok("attach", run)
    assert_nothing_skipped(trained(aware), 20, lost_at_most=0)
    assert {attempt for attempt, _ in ledger(aware, run)} == {1, 2}


def test_json_is_one_object_a_line_with_metric_lines(aware):
    """Every line parses; metrics have the shape that `metrics --json` gives; the last line is the end."""
    lines = [json.loads(line) for line in aware.ok("--job", "steps.toml", "--json").splitlines()]
    assert all([*line][:2] == ["version", "kind"] and "rehearsed" in line for line in lines)
    assert {line["kind"] for line in lines} >= {"plan", "stage", "metric", "end"}
    assert "curve" in {line.get("name") for line in lines if line["kind"] == "stage"}
    metric = next(line for line in lines if line.get("name") == "loss")
    assert set(metric) == METRIC
    assert (lines[-1]["kind"], lines[-1]["state"]) == ("end", "succeeded")


@pytest.mark.parametrize(
    "profile",
    [
        "cpu",
        "titan_rtx",
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("p100", "l40s", "a100_40gb", "a100_80gb", "mps")
        ),
    ],
)
def test_a_dry_run_shows_the_plan_for_any_card_and_gives_the_same_bytes(client, profile):
    """From any machine; the gate's word is printed beside it, and its exit code is that of the launch."""
    first, second = (client.run("--dry-run", "--json", "--profile", profile) for _ in range(2))
    assert first.returncode == (0 if profile == "cpu" else 3)
    assert first.stdout == second.stdout
    shown = json.loads(first.stdout)
    assert shown["plan"]["profile"]["name"] == profile
    refused = [one["code"] for one in shown["findings"] if one["level"] == "refuse"]
    assert ("card-mismatch" in refused) == (profile != "cpu")
    assert not (client.home / ".launch" / "runs").exists()


def test_a_launch_for_a_card_that_is_not_there_is_refused_before_anything_is_sent(client):
    """Exit code 3, that no card is there, and what works without one."""
    done = client.run("--profile", "titan_rtx")
    assert done.returncode == 3
    assert "refused before anything was sent: local has no GPU that launcher sees" in done.stderr
    assert "--rehearse --profile titan_rtx" in done.stderr
    assert not list((client.home / ".launch" / "runs").glob("*"))


def test_a_launch_interrupted_before_it_began_leaves_nothing(client):
    """Ctrl-C while a large tree is being sent: exit code 130, no run on the host, nothing in the mirror."""
    with (client.project / "large").open("wb") as file:
        file.truncate(3 << 30)
    client.script("print(1)")
    process = client.start("--yes", "--", "python", "train.py")
    runs = client.home / ".launch" / "runs"
    until(lambda: runs.exists() and any(runs.iterdir()), "the run's folder")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 130, out + err
    until(lambda: not any(runs.iterdir()), "the half-made run to be removed")
    assert not list(client.runs.glob("[0-9]*"))


def test_several_processes_and_long_lines_reach_the_record_whole(client):
    """Plain python: 100 kB events from a forked child and its parent, none torn."""
    client.script(
        "import os\nimport launcher_worker as w\n"
        "child = os.fork() == 0\n"
        "for i in range(20): w.log(i, blob=('c' if child else 'p') * 100_000)\n"
        "os._exit(0) if child else os.wait()\nw.done(20)\n"
    )
    client.ok("--", "python", "train.py")
    check_blobs(client, {"c": 20, "p": 20})


def check_blobs(client, wanted):
    (run,) = (client.home / ".launch" / "runs").iterdir()
    events = [
        json.loads(line) for line in (run / "record" / "0002" / "events.jsonl").read_text().splitlines()
    ]
    blobs = [one["values"]["blob"] for one in events if one["kind"] == "metric"]
    assert {blob[0] for blob in blobs} == set(wanted)
    assert all(len(blob) == 100_000 and len(set(blob)) == 1 for blob in blobs)
    assert {letter: sum(blob[0] == letter for blob in blobs) for letter in wanted} == wanted
    assert not [one for one in events if one["kind"] == "evidence" and "not-an-event" in one["values"]]


RANKS = (
    "import os\nimport launcher_worker as w\n"
    "rank = int(os.environ['RANK'])\n"
    "for i in range(20): w.log(i, blob='ab'[rank] * 100_000)\n"
    "if rank == 0: w.done(20)\n"
)


@pytest.mark.long
@pytest.mark.training
@pytest.mark.parametrize(
    "command",
    [
        ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py"),
        ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "train.py"),
    ],
    ids=["torchrun", "accelerate"],
)
def test_two_ranks_under_a_launcher_reach_the_record_whole(client, command):
    """torchrun and accelerate launch: two ranks, 100 kB events, none torn, none lost."""
    client.script(RANKS)
    client.ok("--", *command)
    check_blobs(client, {"a": 20, "b": 20})


def test_a_run_of_another_host_in_a_shared_home_is_never_judged(aware):
    """A record with another host's id is told as written: neither interrupted nor ended nor resumed."""
    run = aware.detached("--job", "steps.toml", "--set", "steps=100000")
    until(step_reached(aware, run, 3), "three steps")
    alive = processes_of(run_folder(aware, run))
    prepare = run_folder(aware, run) / "control" / "prepared.json"
    record = json.loads(prepare.read_text())
    prepare.write_text(json.dumps({**record, "place_id": "another"}))
    done = aware.run("stop", run)
    assert done.returncode == 4
    assert "another host" in done.stderr
    assert processes_of(run_folder(aware, run)) == alive
    prepare.write_text(json.dumps(record))
    aware.ok("stop", "--now", run)


OWN = """
import os, signal
checkpoints = os.path.join("..", "checkpoints")
own = sorted(name for name in os.listdir(checkpoints) if not name.startswith("."))
print("sees", own, flush=True)
if not own:
    for step in (100, 200):
        os.mkdir(f"{checkpoints}/step-{step:04}")
        open(f"{checkpoints}/step-{step:04}/weights", "w").write(str(step))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_scripts_own_checkpoints_survive_a_restart(client):
    """A script that knows nothing of the worker goes on from what it has written itself."""
    client.script(OWN)
    (client.project / "job.toml").write_text(
        'name = "own"\ncommand = ["python", "train.py"]\nrestart = true\n'
    )
    client.ok("--job", "./job.toml")
    (run,) = (client.home / ".launch" / "runs").iterdir()
    assert "sees ['step-0100', 'step-0200']" in (run / "record" / "0003" / "log.txt").read_text()
    assert (run / "work" / "checkpoints" / "step-0200" / "weights").read_text() == "200"


MIXED = """
import os, signal
import launcher_worker as worker
resumed = worker.resume_from()
checkpoints = worker.knobs().checkpoints
print("from", resumed and os.path.basename(resumed), flush=True)
if resumed is None:
    worker.log(1, loss=1.0)
    worker.save(1, lambda folder: open(os.path.join(folder, "weights"), "w").write("sealed"))
    os.mkdir(f"{checkpoints}/step-2")
    open(f"{checkpoints}/step-2/weights", "w").write("half")
    os.kill(os.getpid(), signal.SIGKILL)
worker.done(2)
"""


TEARS = """
import os, signal
import launcher_worker as w
found = w.resume_from()
for step in range(int(found.rsplit("-", 1)[1]) + 1 if found else 1, 5):
    w.log(step, loss=1 / step)
    w.save(step, lambda folder: open(os.path.join(folder, "weights"), "w").write("x" * 100))
    if step == 3 and not os.path.exists("torn"):
        open("torn", "w").close()
        path = os.path.join(w.knobs().checkpoints, "step-3", "weights")
        os.chmod(path, 0o644)
        os.truncate(path, 10)
        os.kill(os.getpid(), signal.SIGKILL)
w.done(4)
"""


def test_a_damaged_checkpoint_is_named_where_an_earlier_one_is_taken(client):
    """The remedy spoke of the newest one; the user reads why the training goes on from another step."""
    client.script(TEARS)
    out = client.seen("--", "python", "train.py")
    assert "remedy: a new attempt; resuming from step 3" in out
    assert (
        "step-3 is damaged (weights has another size): the newest whole checkpoint before it is taken" in out
    )
    assert "attempt 2 running from step 2" in out
    assert out.index("is damaged") < out.index("running from step 2")


def test_an_unsealed_checkpoint_beside_sealed_ones_is_moved_aside_and_named(client):
    """No attempt loads it, nothing of it is lost, and the user reads where it is."""
    client.script(MIXED)
    out = client.seen("--", "python", "train.py")
    (run,) = (client.home / ".launch" / "runs").iterdir()
    assert "from step-1" in (run / "record" / "0003" / "log.txt").read_text()
    (aside,) = (run / "work" / "checkpoints").glob(".aside-*/step-2")
    assert (aside / "weights").read_text() == "half"
    assert f"moved to checkpoints/{aside.parent.name}/step-2" in out
