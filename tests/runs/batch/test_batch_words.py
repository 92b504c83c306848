"""What a batch says: why an item waits, what to type next, which batch is meant, and what stays of it."""

import csv
import json
import os
import signal
import sys

import pytest
from testbed.client import until
from testbed.pty_run import in_terminal, without_style

pytestmark = pytest.mark.slow(reason="each test runs several items")


def failing(item):
    """Let an item fail before its first step."""
    return {**item, "command": [*item["command"], "fail"]}


def results(made, name="sweep"):
    """The lines of results.csv."""
    with (made.client.runs / "batches" / name / "results.csv").open(newline="") as table:
        return {row["item"]: row for row in csv.DictReader(table)}


@pytest.mark.long
def test_an_item_of_a_batch_that_nobody_works_waits_for_that(made):
    """After Ctrl-C, and after a kill: not for runs to end. Totals and rows use the words of ps."""
    file = made.write(made.items(3), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    until(lambda: made.rows()["i1"]["step"], "its first step")
    until(lambda: made.rows()["i2"]["why"] == "waits for one of 1 run to end (max_parallel)", "its reason")
    process.kill()
    process.communicate()
    assert made.rows()["i2"]["why"] == "no process runs the batch"
    said = made.client.ok("batch", "status")
    assert "3 items: 1 running, 2 queued" in said
    (row,) = map(json.loads, made.client.ok("batch", "list", "--json").splitlines())
    assert (row["name"], row["items"], row["worker"]) == ("sweep", {"running": 1, "queued": 2}, None)
    made.go_on()
    assert made.client.run("batch", "resume").returncode == 0
    made.judge(["i1", "i2", "i3"])


@pytest.mark.long
def test_ctrl_c_leaves_a_batch_that_another_process_works(made):
    """With 0, as the docs say; that process goes on."""
    file = made.write(made.items(2), host="local", max_parallel=1)
    made.hold()
    first = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    second = made.client.start("batch", "resume")
    second.stderr.readline()
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=180)
    assert second.returncode == 0, out + err
    assert f"process {first.pid} on" in err
    made.go_on()
    first.communicate(timeout=180)
    assert first.returncode == 0
    made.judge(["i1", "i2"])


INTERRUPTED = """
import os, signal
from launcher.cli.commands.batch import batch_work
work = batch_work.work
def interrupted(*words, **more):
    signal.raise_signal(signal.SIGINT)
    return work(*words, **more)
batch_work.work = interrupted
from launcher.cli import main
main()
"""


@pytest.mark.long
def test_ctrl_c_before_anything_is_begun_says_what_it_leaves(made):
    """The batch is there: how to go on with it, or remove it."""
    file = made.write(made.items(2), host="local")
    program, made.client.program = made.client.program, [sys.executable, "-c", INTERRUPTED]
    process = made.client.start("batch", file)
    _, err = process.communicate(timeout=180)
    made.client.program = program
    assert process.returncode == 130, err
    assert "sweep: 2 items: 2 queued" in err
    assert "launch batch resume sweep" in err
    assert "launch batch stop sweep && launch batch rm sweep" in err
    assert made.noted("begin").total() == 0


@pytest.mark.long
def test_after_a_failure_the_next_commands_are_named_and_other_limits_hold(made):
    """Its log by the run's id, its last line, how to run it again, and how with another limit, which is on record then."""
    items = [failing(item) if item["name"] != "i3" else item for item in made.items(3)]
    file = made.write(items, host="local", max_parallel=1)
    done = made.client.run("batch", file, "--fail-fast")
    assert done.returncode == 1
    rows, first = made.rows(), results(made)["i1"]
    run, why = (
        rows["i1"]["run"].rpartition("-")[2],
        "its log shows no error, and this is its last line: it fails",
    )
    assert f"launch logs {run}" in done.stderr
    assert made.client.run("logs", run).returncode == 0
    assert "launch batch resume sweep --failed" in done.stderr
    assert "launch batch resume sweep --failed --max-failures N" in done.stderr
    assert why in done.stdout
    assert rows["i1"]["why"].endswith(why)
    assert first["reason"].endswith(why)
    for words in (["batch", "status"], ["ps"]):
        assert why in made.client.ok(*words)
    assert rows["i2"]["why"] == "not begun: i1 failed, and max_failures is 1"
    assert [row["state"] for row in rows.values()] == ["failed", "dropped", "dropped"]
    done = made.client.run("batch", "resume", "--failed", "--max-failures", "5")
    assert done.returncode == 1
    assert "failed, try 2" in done.stdout
    assert (first["tries"], results(made)["i1"]["tries"]) == ("1", "2")
    assert [row["state"] for row in made.rows().values()] == ["failed", "failed", "succeeded"]
    made.client.run("batch", "resume", "--failed")
    assert made.noted("begin") == {"i1": 3, "i2": 2, "i3": 1}, "it is on record"


@pytest.mark.long
def test_a_refusal_is_told_whole_with_how_the_file_is_mended(made):
    """The host has no such card, and there is a mend."""
    file = made.write(made.items(1), host="local", profile="l40s")
    done = made.client.run("batch", file)
    assert done.returncode == 3
    alone = made.client.run("--host", "local", "--profile", "l40s", "--", "python3", "item.py").stderr
    mend = next(line for line in alone.splitlines() if "--rehearse" in line)
    assert mend.strip() in done.stderr
    assert "launch batch rm sweep" in done.stderr
    again = made.client.run("batch", file)
    assert again.returncode == 2
    assert "its file as it was when it began" in again.stderr


@pytest.mark.long
def test_failed_is_queued_again_by_the_process_that_works_the_batch(made):
    """Nothing is dropped for it."""
    items = made.items(3)
    items[0] = failing(items[0])
    file = made.write(items, host="local", max_parallel=1)
    made.hold()
    first = made.client.start("batch", file)
    until(lambda: made.noted("begin") == {"i1": 1, "i2": 1}, "the second item")
    second = made.client.start("batch", "resume", "sweep", "--failed")
    until(lambda: made.noted("begin")["i1"] == 1 and made.rows()["i1"]["state"] == "queued", "its place")
    made.go_on()
    for process in (first, second):
        out, err = process.communicate(timeout=180)
        assert process.returncode == 1, out + err
    assert made.noted("begin") == {"i1": 2, "i2": 1, "i3": 1}


def test_the_latest_batch_is_the_one_made_last_and_is_named_before_it_is_removed(made):
    """Whoever looked at the others meanwhile. Its table and curves stay, and the runs. Its name alone is no verb."""
    made.client.run("batch", made.write(made.items(1), "old", host="local", profile="l40s"))
    made.client.ok("batch", made.write(made.items(1), "new", host="local"))
    made.client.run("batch", "resume", "old")
    made.client.ok("ps")
    for verb in ("stop", "rm"):
        done = made.client.run("batch", verb)
        assert done.returncode == 2
        assert f"launch batch {verb} new" in done.stderr
    for word, said in (("stauts", "did you mean 'status'"), ("new", "launch batch status new")):
        done = made.client.run("batch", word)
        assert (done.returncode, said in done.stderr) == (2, True)
    table = (made.client.runs / "batches" / "new" / "results.csv").read_bytes()
    said = made.client.ok("batch", "rm", "--yes")
    assert "new is removed" in said
    assert "its run stays" in said
    (kept,) = (made.client.runs / "batches").glob("new-*-results.csv")
    assert kept.read_bytes() == table
    assert kept.name in said
    assert len([*(made.client.runs / "batches").glob("new-*-curves.png")]) == 1
    assert json.loads(made.client.ok("batch", "list", "--json"))["name"] == "old"


@pytest.mark.long
def test_the_settings_are_in_the_table_and_the_best_line_and_its_step_is_named(made):
    """A misspelt metric is told with the nearest."""
    keys = {"host": "local", "best": "loss:min"}
    path = made.client.project / "grid.toml"
    command = ["python3", "item.py", "i{n}", "2", "0.05"]
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**keys, "command": command}.items()]
    path.write_text("\n".join([*lines, 'profile = "cpu"', "[matrix]", "n = [1, 22]", ""]))
    done = made.client.run("batch", "grid.toml")
    assert done.returncode == 0, done.stderr
    assert "n=22" in done.stdout
    assert "(n=1), run" in done.stderr
    assert "at its best step, 2" in done.stderr
    last = json.loads(made.client.ok("batch", "grid.toml", "--name", "again", "--json").splitlines()[-1])
    assert (last["kind"], last["items"]) == ("batchend", {"succeeded": 2})
    assert (last["best"]["item"], last["best"]["step"]) == ("item-1", 2)
    assert last["table"].endswith("batches/again/results.csv")
    done = made.client.run("batch", "grid.toml", "--name", "typo", "--best", "los:min")
    assert "no run has reported los: did you mean 'loss'" in done.stderr


@pytest.mark.long
def test_columns_without_room_are_named(made):
    """With the command that has all."""
    made.client.run("batch", made.write(made.items(1), host="local"))
    shown = without_style(in_terminal(made.client, "batch", "status", columns=40))
    assert "not shown: " in shown
    assert "launch batch status sweep --json" in " ".join(shown.split())


@pytest.mark.long
def test_limits_are_not_changed_under_a_process_that_works_the_batch(made):
    """It would not hear of them."""
    file = made.write(made.items(1), host="local")
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the item")
    done = made.client.run("batch", "resume", "--max-parallel", "3")
    assert done.returncode == 2
    assert f"process {process.pid} on " in done.stderr
    assert " runs it, and keeps the limits with which it began" in done.stderr
    assert (
        f"Ctrl-C in that command, or   kill {process.pid}   if it is in the background; running items continue"
        in done.stderr
    )
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == 143
    made.go_on()
    assert made.client.run("batch", "resume", "--max-parallel", "3").returncode == 0
    assert made.noted("begin") == made.noted("end") == {"i1": 1}


@pytest.mark.long
@pytest.mark.parametrize(("artifacts", "left"), [("none", "2 runs"), ("best", "1 run")])
def test_the_end_says_what_did_not_come_home(made, artifacts, left):
    """As `artifacts` says, with what brings it; of a best that no run has reported too."""
    file = made.write(made.items(2), host="local", best="loss:min")
    said = made.client.run("batch", file, "--artifacts", artifacts).stderr
    assert f"files    artifacts = {artifacts}: files of {left} were not downloaded   launch pull " in said
    assert made.client.run("batch", "resume").stderr.count(f"files of {left} were not downloaded") == 1
    run = said.partition("launch pull ")[2].split()[0]
    made.client.ok("pull", run)
    assert [*made.client.runs.glob(f"*-{run}/outputs/out/result")]


@pytest.mark.long
def test_hosts_that_are_silent_are_asked_again_aloud(made):
    """What is waited for is said in a pipe, before it gives up."""
    file = made.write(made.items(2), host="gone")
    done = made.client.run("batch", file)
    assert done.returncode == 4
    said = [line for line in done.stderr.splitlines() if line.startswith("  · ")]
    assert [line.rpartition("   ")[2] for line in said[:2]] == [
        "gone is asked again in 5 s",
        "gone is asked again in 10 s",
    ]
    assert said[2:] == ["  · asked 3 times, without success: gone"]


@pytest.mark.long
def test_a_follower_says_what_the_batch_came_to(made):
    """As the process does that runs it, which it names: hours, the best run, the table, the curves."""
    file = made.write(made.items(2), host="local", max_parallel=2, best="loss:max")
    made.hold()
    first = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 2, "both items")
    second = made.client.start("batch", "resume")
    assert f"process {first.pid} on " in second.stderr.readline()
    made.go_on()
    ends = []
    for process in (first, second):
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        ends.append(err[err.index("sweep: 2 items: ") :])
    assert ends[0] == ends[1]
    assert "of runs\n  best     i1" in ends[0]
    assert ends[0].count("runs/batches/sweep/") == 2
    made.judge(["i1", "i2"])
