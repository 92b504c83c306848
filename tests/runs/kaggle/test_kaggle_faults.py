"""What goes wrong at Kaggle while a run is there: each time a true state, a reason, an exit code, and a command that works."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import until

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each test starts clients and a session"),
]
SESSION_HOURS = 0.004
SHORT_HOURS = 0.002
A_WEEK_LATER = """
import time
real = time.time
time.time = lambda: real() + 7 * 86_400
from launcher.cli import main
main()
"""
LEAVES_8_MB = """
import os
import launcher_worker as worker
os.makedirs(worker.knobs().artifacts, exist_ok=True)
with open(os.path.join(worker.knobs().artifacts, "large"), "wb") as file:
    file.write(os.urandom(8_000_000))
"""
GONE = "its kernel is gone from kaggle.com"


def of_kernel(account, run, segment=1):
    """The files that a session has left of its run, by the service's own folder, with their digests."""
    top = account.session(run, segment).folder / "working" / "launch" / "runs" / run
    return sums_below(top)


def sums_below(top):
    """The digests of the files below a folder, by path."""
    return {
        path.relative_to(top).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in top.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def newest_state(account, run):
    """The state in the last folder of a run's record in the spool that has one."""
    *_, path = sorted((account.run_dir(run) / "record").glob("*/state.json"))
    return json.loads(path.read_text())["state"]


def assert_spooled(account, run, segment=1):
    """The spool has what the kernel has left, byte for byte."""
    there = of_kernel(account, run, segment)
    here = sums_below(account.run_dir(run))
    sent = {path: digest for path, digest in there.items() if path.startswith(("record/", "work/"))}
    assert len(sent) > 5
    assert {path: here.get(path) for path in sent} == sent


@pytest.mark.long
@pytest.mark.parametrize("is_clean", [pytest.param(True, id="ended"), pytest.param(False, id="broken")])
def test_streams_that_are_cut_again_and_again_bring_every_byte(kaggle_account, is_clean):
    """Before its outputs come, the record is the kernel's already; afterwards the spool is."""
    account = kaggle_account
    account.host(keep_kernels=True)
    account.service.cut_streams_after_s, account.service.is_cut_clean = 0.5, is_clean
    account.job(step_s=0.2, steps=20)
    said = account.client.seen(*account.words())
    (run,) = account.runs()
    assert "succeeded" in said
    assert len([line for line in account.service.calls("log") if line["accepted"]]) > 3
    assert_spooled(account, run)
    feed = account.read(run, "control/feed-1.json")
    grown = [
        path
        for name in ("log.txt", "events.jsonl")
        for path in account.session(run).folder.rglob(f"record/*/{name}")
    ]
    assert feed["appended"] == sum(path.stat().st_size for path in grown)
    assert feed["seq"] > 3


@pytest.mark.long
def test_a_kernel_deleted_on_the_web_stops_the_run(kaggle_account):
    """It is how a person stops one there. What came home before stays, and a new run goes on from it."""
    account = kaggle_account
    account.hurry()
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5, 9)
    process = account.client.start(*account.words())
    until(lambda: 9 in account.waits(), "the second session", 120)
    (run,) = account.runs()
    account.delete(f"alice/launch-{run}-2")
    out, err = process.communicate(timeout=180)
    assert process.returncode in (1, 5), (
        out + err
    )  # 1 if it has printed nothing: then the follower goes on at once
    assert GONE in err + out
    done = account.client.run("attach", run)
    assert (done.returncode, account.row(run)["state"], account.row(run)["reason"]) == (
        1,
        "stopped",
        "by-user",
    )
    account.assert_pushed_once(run, 2)
    account.go_on()
    assert "succeeded" in account.client.seen("resume", run)
    (child,) = {*account.runs()} - {run}
    assert account.judge(12, account.client.runs / child / "artifacts" / "model", most=4) == 4
    account.client.ok("rm", "--force", run)
    assert account.kernels() == []


def test_a_kernel_deleted_before_it_has_printed_anything_is_seen_by_its_follower(kaggle_account):
    """Nothing of it is on record but the push."""
    account = kaggle_account
    account.hurry()
    account.service.habits.queued_s = 60.0
    process = account.client.start(*account.words())
    until(account.pushes, "the push")
    (run,) = account.runs()
    until(lambda: account.read(run, "control/service.json")["status"] == "queued", "that it is seen")
    account.delete(f"alice/launch-{run}-1")
    out, err = process.communicate(timeout=180)
    assert (process.returncode, GONE in out + err) == (5, True), out + err


REFUSALS = {
    "new": ("GetKernelSessionStatus", "GetKernel", "ListKernels", "GetKernelSessionStatus"),
    "listed": ("GetKernelSessionStatus", "GetKernel"),
    "ended": ("ListKernelSessionOutput", "GetKernel"),
}
"""What answers 403: to an accepted push that shows nowhere yet, to one that is listed, and as its outputs are fetched."""


@pytest.mark.long
@pytest.mark.parametrize("when", ["new", "listed", "ended"])
def test_a_403_is_not_the_end_of_a_kernel(kaggle_account, when):
    """Its session goes on, or has ended and left its outputs: the run is not called stopped, and all of it comes home."""
    account = kaggle_account
    account.host(keep_kernels=True)
    for method in REFUSALS[when]:
        if method == "ListKernels":  # it is not in the list either
            values = {"kind": "answer", "values": {"kernels": []}}
        else:
            values = {"kind": "status", "status": 403, "message": "Permission 'kernels.get' was denied"}
        account.service.fail(method, **values, times=3)
    process = account.client.start(*account.words())
    out, err = process.communicate(timeout=120)
    (run,) = account.runs()
    assert (process.returncode, GONE in out + err) == (0, False), out + err
    assert account.row(run)["state"] == "succeeded"
    account.assert_pushed_once(run, 1)
    assert_spooled(account, run)


@pytest.mark.long
def test_a_source_that_somebody_has_deleted_is_made_good_from_here(kaggle_account):
    """The next session would mount its outputs; they came home, and travel with the script instead."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    account.client.ok("ps")
    account.client.ok("pull", run)
    account.delete(f"alice/launch-{run}-1")
    assert "succeeded" in account.client.seen("attach", run)
    account.assert_pushed_once(run, 2)
    assert account.judge(12, account.client.runs / run / "artifacts" / "model") == 0


@pytest.mark.long
def test_outputs_that_are_gone_are_named(kaggle_account):
    """The run has succeeded by what it printed, and says that its files are gone."""
    account = kaggle_account
    account.hurry()
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    assert account.row(run)["state"] == "succeeded"
    account.delete(f"alice/launch-{run}-1")
    done = account.client.run("attach", run)
    assert "its outputs are gone" in done.stderr + done.stdout
    assert done.returncode == 0
    assert account.row(run)["state"] == "succeeded"


@pytest.mark.long
def test_a_session_that_is_called_running_for_ever_is_deleted(kaggle_account):
    """After its limit and some slack: nobody pays for it any longer, and the run goes on from what is here."""
    account = kaggle_account
    account.hurry()
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    account.service.habits.never_ends, account.service.cut_streams_after_s = True, 0.5
    process = account.client.start(*account.words())
    until(account.waits, "the pause")
    account.service.habits.never_ends = False
    out, err = process.communicate(timeout=120)
    (run,) = account.runs()
    assert process.returncode == 0, out + err
    account.assert_pushed_once(run, 3)  # the second one waits at the same step
    calls = [line for line in account.service.calls() if line["method"] in ("SaveKernel", "DeleteKernel")]
    assert [line["method"] for line in calls][:3] == ["SaveKernel", "DeleteKernel", "SaveKernel"]
    assert calls[1]["body"]["kernelSlug"] == f"launch-{run}-1"
    account.judge(12, account.client.runs / run / "artifacts" / "model", most=5)
    assert account.kernels() == []


@pytest.mark.long
def test_links_that_expire_are_asked_for_again(kaggle_account):
    """In the middle of a pull of several files."""
    account = kaggle_account
    account.service.habits.link_life_s = 0.3
    account.service.fail("link", "half", times=2)
    account.service.fail("link", "status", status=400)
    assert "succeeded" in account.client.seen(*account.words())
    (run,) = account.runs()
    account.judge(12, account.client.runs / run / "artifacts" / "model")


LOUD = """
print("x" * 1000, flush=True)
if step == 0:
    for _ in range(100):
        sys.stdout.write(("y" * 999 + "\\n") * 1000)
    sys.stdout.flush()
"""


@pytest.mark.long
def test_a_log_of_100_mb_comes_home_whole(kaggle_account):
    """The live view is bounded; what the session has left is not."""
    account = kaggle_account
    account.host(keep_kernels=True)
    account.job(hook=LOUD)
    assert "succeeded" in account.client.seen("--quiet", *account.words(), timeout=300)
    (run,) = account.runs()
    log = next(account.session(run).folder.rglob("record/*/log.txt"))
    logs = [*(account.run_dir(run) / "record").glob("*/log.txt")]
    assert sum(path.stat().st_size for path in logs) > 100_000_000
    assert_spooled(account, run)
    assert account.printed(run) < 20_000_000
    assert log.stat().st_size > 100_000_000


KILLED = """
if step == 4:
    os.kill(os.getppid(), 9)
"""


@pytest.mark.long
def test_a_session_that_failed_without_outputs_leaves_an_interrupted_run(kaggle_account):
    """What it printed is here; the next one begins anew from the last checkpoint that came home."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5, 9)
    process = account.client.start(*account.words())
    until(lambda: 9 in account.waits(), "the second session", 120)
    (run,) = account.runs()
    until(lambda: newest_state(account, run) == "running", "what it has printed of that")
    account.fail_session(run, 2)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 5, out + err
    assert "its session ended in an error" in err + out
    account.go_on()
    assert "succeeded" in account.client.seen("attach", run)
    account.assert_pushed_once(run, 3)
    account.judge(12, account.client.runs / run / "artifacts" / "model", most=4)


DEAF = """
import signal
def train(step):
    if step == 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
"""
IGNORES = DEAF


@pytest.mark.long
def test_a_run_whose_sessions_leave_no_checkpoint_ends(kaggle_account):
    """Two in a row: another one would end as they did."""
    account = kaggle_account
    account.host(session_hours=SHORT_HOURS)
    account.job(hook=DEAF)
    done = account.client.run(*account.words())
    (run,) = account.runs()
    attempts = 1
    while done.returncode == 5:
        done = account.client.run("attach", run)
        attempts += 1
    assert done.returncode == 1, done.stderr
    assert "no-progress" in done.stdout + done.stderr
    row = account.row(run)
    assert (row["state"], row["reason"]) == ("failed", "no-progress")
    account.assert_pushed_once(run, 2)
    assert account.kernels() == []


@pytest.mark.long
def test_a_service_that_is_away_for_a_while_costs_nothing(kaggle_account):
    """The follower says that the link is lost, and goes on by itself, as over SSH."""
    account = kaggle_account
    account.pause_at(5)
    account.service.cut_streams_after_s = 0.5
    process = account.client.start(*account.words())
    until(account.waits, "the pause")
    for method in ("GetKernelSessionStatus", "log", "ListKernels", "GetKernel"):
        account.service.fail(method, "status", status=503, times=4)
    until(lambda: [line for line in account.service.calls("log") if line.get("fault")], "the fault", 60)
    account.go_on()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    (run,) = account.runs()
    account.assert_pushed_once(run, 1)
    assert account.judge(12, account.client.runs / run / "artifacts" / "model") == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", [{"status": 429, "headers": {"Retry-After": "1"}}, {"status": 200}], ids=str
)
def test_a_follower_outlives_a_refusal_for_now_and_a_page_of_html(kaggle_account, fault):
    """Neither says anything of the run, whose next session would not be pushed by one who has given up."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    process = account.client.start(*account.words())
    until(account.waits, "the training's pause")
    account.service.fail("GetKernelSessionStatus", "status", times=2, **fault)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, "succeeded" in err) == (0, True), out + err
    (run,) = account.runs()
    account.assert_pushed_once(run, 2)


@pytest.mark.long
def test_a_kernel_that_does_not_show_at_once_is_not_gone(kaggle_account):
    """The service has taken it, and says for a moment that it has none: the run is not given up while its session runs."""
    account = kaggle_account
    account.service.habits.queued_s = 3.0
    for method in ("GetKernelSessionStatus", "GetKernel"):
        account.service.fail(method, "status", status=404, message="not found")
    assert "succeeded" in account.client.seen(*account.words())
    assert account.kernels() == []


@pytest.mark.long
def test_a_run_that_was_removed_does_not_come_back(kaggle_account):
    """Its kernel could not be deleted with it: gc does so, and no list takes it for another client's run."""
    account = kaggle_account
    account.host(keep_kernels=True)
    run = account.detached()
    account.client.seen("attach", run)
    account.service.fail("DeleteKernel", "status", status=503)
    assert "launch gc --host k" in account.client.run("rm", "--force", run).stderr
    assert account.kernels() == [f"alice/launch-{run}-1"]
    account.client.ok("ps", "--host", "k")
    assert not account.run_dir(run).exists()
    account.client.ok("gc", "--host", "k")
    assert account.kernels() == []


@pytest.mark.long
def test_a_clock_that_jumps_ends_no_session(kaggle_account):
    """A session is deleted that goes on long after its limit, which is judged by the service's clock."""
    account = kaggle_account
    account.pause_at(5)
    run = account.detached()
    until(account.waits, "the training's pause")
    assert account.row(run)["state"] == "running"
    client = account.client
    usual = (client.is_forked, client.program)
    client.is_forked, client.program = False, [sys.executable, "-c", A_WEEK_LATER]
    assert account.row(run)["state"] == "running"
    assert account.kernels() == [f"alice/launch-{run}-1"]
    client.is_forked, client.program = usual
    account.go_on()
    assert "succeeded" in client.seen("attach", run)


@pytest.mark.long
def test_a_full_disk_under_the_spool_is_named_and_costs_nothing(kaggle_account, small_disk):
    """The kernel stays until its outputs have found room."""
    account = kaggle_account
    account.client.variables["XDG_DATA_HOME"] = str(small_disk)
    account.client.script(LEAVES_8_MB)
    said = account.client.seen("--host", "k", "--", "python", "train.py")
    (run,) = account.runs()
    assert f"not pulled: {small_disk}/launch/spool" in said
    assert "No space left on device" in said
    assert account.kernels() == [f"alice/launch-{run}-1"]
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    account.client.ok("pull", run)
    assert (account.client.runs / run / "artifacts" / "large").stat().st_size == 8_000_000
    assert account.kernels() == []


@pytest.mark.long
def test_a_run_whose_record_is_broken_hides_no_other_and_can_be_removed(kaggle_account):
    """What is on record of its session cannot be read; nothing else depends on that, and the words say what to do."""
    account = kaggle_account
    account.host(keep_kernels=True)
    broken, whole = account.detached(), account.detached()
    for run in (broken, whole):
        account.client.seen("attach", run)
    (account.run_dir(broken) / "control" / "service.json").write_text("{}")
    account.client.ok("ps", "--host", "k")
    account.client.ok("gc", "--host", "k")
    assert account.kernels() == [f"alice/launch-{broken}-1"]
    refused = account.client.run("rm", "--force", broken)
    told = refused.stderr.split("   rm ")[1].strip()
    Path(told).unlink()
    account.client.ok("rm", "--force", broken)
    assert not account.run_dir(broken).exists()


@pytest.mark.long
def test_a_run_that_was_moved_away_leaves_no_kernel_for_good(kaggle_account):
    """Its last session's outputs are what a next one here would have gone on from; there is none any more."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    account.go_on()
    account.client.ok("recover", run, "--host", "local")
    (moved,) = {*account.runs()} - {run}
    assert "succeeded" in account.client.seen("attach", moved)
    assert account.judge(12, account.client.runs / moved / "artifacts" / "model") == 0
    account.client.ok("gc", "--host", "k")
    assert account.kernels() == []
