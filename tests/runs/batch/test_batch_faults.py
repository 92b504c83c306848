"""What goes wrong while a batch is worked, beside kills: links, disks, a damaged queue, a stopped worker. Nothing is begun twice."""

import csv
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.batches import names
from testbed.client import until

from launcher.batch.batch_worker import FAILURES

pytestmark = pytest.mark.slow(reason="each test starts several runs")
SECRET = "kept-from-all-who-read-92731"
A_WEEK_AGO = """
import time
real = time.time
time.time = lambda: real() - 7 * 86_400
from launcher.cli import main
main()
"""
HASTY = """
from launcher.batch import batch_stop
batch_stop.ANSWERS_S = 1.0
from launcher.cli import main
main()
"""
"""A client that waits less for another process."""


def queue_of(made, name="sweep"):
    return made.client.runs / "batches" / name / "queue.sqlite"


def cut_off(made, host):
    """Launch an item, and kill its worker before it has put on record that the run is there."""
    file = made.write(made.items(1, steps=4), host=host)
    made.dying(2, "before")
    made.client.start("batch", file).communicate(timeout=180)
    made.living()


@pytest.mark.long
@pytest.mark.parametrize("host", ["A", "local"])
def test_a_queue_that_was_cut_off_is_mended_and_begins_nothing_twice(made, host):
    """All transitions were in its log, which is gone: the file itself says that nothing was begun."""
    cut_off(made, host)
    Path(f"{queue_of(made)}-wal").unlink()
    Path(f"{queue_of(made)}-shm").unlink()
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "had lost the launches of i1" in done.stderr
    made.judge(names(1))


@pytest.mark.long
def test_a_damaged_queue_is_said_to_be_and_an_older_copy_begins_nothing_twice(made):
    """Nothing is begun as long as it is damaged."""
    file = made.write(made.items(2, steps=4), host="local")
    made.dying(1, "before")
    made.client.start("batch", file).communicate(timeout=180)
    shutil.copy(queue_of(made), made.folder / "copy")
    made.dying(2, "before")
    made.client.start("batch", "resume").communicate(timeout=180)
    made.living()
    for log in queue_of(made).parent.glob("queue.sqlite-*"):
        log.unlink()
    queue_of(made).write_bytes(queue_of(made).read_bytes()[:5000])
    done = made.client.run("batch", "resume")
    assert done.returncode == 1
    assert "queue.sqlite: is damaged" in done.stderr
    shutil.copy(made.folder / "copy", queue_of(made))
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "had lost the launches of i1" in done.stderr
    made.judge(names(2))


@pytest.mark.long
def test_a_link_that_is_cut_again_and_again_changes_nothing(made, ssh_host):
    """While items are launched, and while they are followed."""
    process = made.client.start("batch", made.write(made.items(3, steps=10, pause=0.1), host=["A", "B"]))
    for number in range(1, 4):
        until(lambda number=number: made.noted("begin").total() >= number, f"item {number}")
        ssh_host.cut()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    made.judge(names(3))


def on_a_disk(made, disk):
    """Run a batch of two on a disk of its own; return the worker once the first item has begun, and waits."""
    made.client.variables["LAUNCH_RUNS"] = str(disk / "runs")
    file = made.write(made.items(2), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    return process


def goes_on(made, disk):
    """Once it can be written the batch goes on, and each item has begun and ended once."""
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    assert made.noted("begin") == made.noted("end") == {"i1": 1, "i2": 1}
    results = [path.read_text() for path in (disk / "runs").glob("[0-9]*/outputs/out/result")]
    assert sorted(results) == names(2)


@pytest.mark.long
def test_a_full_disk_of_the_client_is_told_and_begins_nothing_twice(made, small_disk):
    """Mended, the batch goes on."""
    process = on_a_disk(made, small_disk)
    fill = ["dd", "if=/dev/zero", f"of={small_disk / 'fill'}"]
    subprocess.run(fill, capture_output=True, check=False)
    made.go_on()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "no space left" in err
    assert "Traceback" not in err
    assert made.noted("begin") == {"i1": 1}
    (small_disk / "fill").unlink()
    goes_on(made, small_disk)


@pytest.mark.long
def test_a_folder_that_is_read_only_is_told_and_begins_nothing_twice(made, small_disk):
    """As after an error of the disk: what runs goes on, and nothing is begun."""

    def mount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", small_disk], check=True)

    process = on_a_disk(made, small_disk)
    process.kill()
    process.communicate()
    mount("ro")
    assert "1 queued" in made.client.ok("batch", "status")
    for verb in ("resume", "stop"):
        done = made.client.run("batch", verb, "sweep")
        assert done.returncode == 1
        assert str(small_disk) in done.stderr
    made.go_on()
    until(lambda: made.noted("end") == {"i1": 1}, "the end of what runs")
    mount("rw")
    goes_on(made, small_disk)


@pytest.mark.long
def test_a_stopped_worker_keeps_its_batch_and_goes_on(made):
    """A second one follows; `batch stop` does not wait for ever, and says which process it is."""
    file = made.write(made.items(2), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    until(lambda: made.rows()["i1"]["state"] == "running", "the transition")
    process.send_signal(signal.SIGSTOP)
    second = made.client.start("batch", "resume")
    assert f"process {process.pid} on " in second.stderr.readline()
    made.client.is_forked, made.client.program = False, [sys.executable, "-c", HASTY]
    done = made.client.run("batch", "stop", "--yes")
    assert done.returncode == 2
    assert f"process {process.pid} on " in done.stderr
    assert "kill -CONT" in done.stderr
    assert made.noted("begin") == {"i1": 1}
    process.send_signal(signal.SIGCONT)
    made.go_on()
    process.communicate(timeout=180)
    second.communicate(timeout=180)
    made.living()
    assert [row["state"] for row in made.rows().values()] == ["succeeded", "dropped"]
    assert made.noted("begin") == made.noted("end") == {"i1": 1}


@pytest.mark.long
def test_a_clock_that_jumps_back_changes_nothing(made):
    """Between two commands, by a week."""
    file = made.write(made.items(3, steps=8, pause=0.1), host=["A", "local"])
    made.dying(4, "before")
    made.client.start("batch", file).communicate(timeout=180)
    made.client.is_forked, made.client.program = False, [sys.executable, "-c", A_WEEK_AGO]
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    made.judge(names(3))


def test_a_host_on_which_five_runs_in_a_row_fail_early_is_rested(made):
    """That is said; other hosts go on, and `batch resume` tries it again."""
    (made.client.project / "broken").touch()
    made.client.script(
        "import os, sys\nif os.path.exists('broken') and 'local' in sys.argv: sys.exit('no')\nprint({'step': 1, 'loss': 1.0})\n",
        "may_fail.py",
    )
    runs = [
        {"name": f"i{number}", "command": ["python3", "may_fail.py", host], "host": host}
        for number, host in enumerate(["local"] * (FAILURES + 2) + ["A"], start=1)
    ]
    done = made.client.run("batch", made.write(runs, max_parallel=2))
    assert done.returncode == 5, done.stderr + done.stdout
    said = f"local: {FAILURES} runs in a row failed before their first step"
    assert done.stderr.count(said) == 1
    assert "launch batch resume sweep" in done.stderr
    rows = made.rows()
    assert "local is excluded" in rows[f"i{FAILURES + 2}"]["why"]
    states = [row["state"] for row in rows.values()]
    with (queue_of(made).parent / "results.csv").open(newline="") as table:
        assert [row["state"] for row in csv.DictReader(table)] == states
    failed = states.count("failed")
    assert states == ["failed"] * failed + ["queued"] * (FAILURES + 2 - failed) + ["succeeded"]
    assert FAILURES <= failed <= FAILURES + 1  # one more was on its way
    (made.client.project / "broken").unlink()
    done = made.client.run("batch", "resume", "--new-code")
    assert done.returncode == 1, done.stderr
    assert [row["state"] for row in made.rows().values()][failed:] == ["succeeded"] * (FAILURES + 3 - failed)


@pytest.mark.long
def test_secrets_and_odd_values_of_items(made):
    """A secret is in nothing that is kept; what is odd is in the table, begins no formula, and has no control characters."""
    made.client.variables["MY_TOKEN"] = SECRET
    made.client.script(
        "import os\nprint(os.environ['MY_TOKEN'])\nprint({'step': 1, 'loss': 1.0})\n", "tell.py"
    )
    odd = ['=cmd|" /C calc"!A1', 'a,"b"\nc', "-1e-4", "{step}", "é\u202e", "'quoted'"]
    path = made.client.project / "sweep.toml"
    written = ", ".join('"' + "".join(f"\\u{ord(one):04x}" for one in value) + '"' for value in odd)
    path.write_text(
        'host = "local"\nprofile = "cpu"\nsecrets = ["MY_TOKEN"]\ncommand = ["python3", "tell.py", "{odd}"]\n'
        f"[matrix]\nodd = [{written}]\n"
    )
    done = made.client.run("batch", "sweep.toml", "--max-parallel", "3")
    assert done.returncode == 0, done.stderr + done.stdout
    kept = [one for one in made.client.runs.rglob("*") if one.is_file()]
    assert len(kept) > 20
    assert not [one for one in kept if SECRET.encode() in one.read_bytes()]
    assert SECRET not in done.stdout + done.stderr
    with (queue_of(made).parent / "results.csv").open(newline="") as table:
        cells = [row["odd"] for row in csv.DictReader(table)]
    assert cells == [f"'{odd[0]}", 'a,"b" c', "-1e-4", "{step}", "é ", "'quoted'"]


@pytest.mark.long
def test_a_batch_whose_runs_go_on_is_not_removed(made):
    """Neither while a process runs it, nor after that one has left it."""
    file = made.write(made.items(1), host="local")
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the item")
    until(lambda: made.rows()["i1"]["state"] == "running", "the transition")
    done = made.client.run("batch", "rm", "--yes")
    assert (done.returncode, f"process {process.pid} on " in done.stderr) == (2, True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    done = made.client.run("batch", "rm", "--yes")
    assert (done.returncode, "1 of its items have not ended" in done.stderr) == (2, True)
    made.go_on()
    made.client.ok("batch", "resume")
    made.judge(names(1))
    assert "its run stays" in made.client.ok("batch", "rm", "--yes")
    assert not queue_of(made).parent.exists()


@pytest.mark.long
def test_stop_ends_what_it_reaches_and_names_the_rest(made, ssh_host):
    """The host that is away delays no other, and is stopped once it is back."""
    items = made.items(3)
    for item, host in zip(items, ["A", "A", "local"], strict=True):
        item["host"] = host
    made.hold()
    process = made.client.start("batch", made.write(items, max_parallel=3))
    until(lambda: made.noted("begin").total() == 3, "the items")
    until(lambda: {row["state"] for row in made.rows().values()} == {"running"}, "their transitions")
    process.kill()
    process.communicate()
    with ssh_host.away():
        done = made.client.run("batch", "stop", "--yes")
        assert done.returncode == 4, done.stderr + done.stdout
        assert "2 runs could not be stopped" in done.stderr
        assert made.rows()["i3"]["state"] == "stopped"
    done = made.client.run("batch", "stop", "--yes")
    assert done.returncode == 0, done.stderr + done.stdout
    assert {row["state"] for row in made.rows().values()} <= {"stopped", "dropped"}
    assert {*made.runs_on("A").values(), *made.runs_on("local").values()} == {"stopped"}


@pytest.mark.long
def test_a_copy_of_a_batch_begins_nothing_and_a_batch_may_be_renamed(made):
    """As of a folder that was copied to be safe: the copy is the latest, and names the batch that it is of."""
    made.write(made.items(2), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", "sweep.toml")
    until(lambda: made.noted("begin").total() == 1, "the first item")
    process.kill()
    process.communicate()
    batches = made.client.runs / "batches"
    shutil.copytree(batches / "sweep", batches / "copy", copy_function=shutil.copy)
    made.go_on()
    done = made.client.run("batch", "resume")
    assert done.returncode == 2
    assert "copy is a copy of the batch sweep" in done.stderr
    assert "launch batch resume sweep" in done.stderr
    shutil.rmtree(batches / "copy")
    (batches / "sweep").rename(batches / "other")
    done = made.client.run("batch", "resume", "other")
    assert done.returncode == 0, done.stderr
    assert made.noted("begin") == made.noted("end") == {"i1": 1, "i2": 1}


@pytest.mark.long
def test_a_host_whose_table_is_gone_keeps_only_what_needs_it(made):
    """What runs there is followed to its end, what is queued for it waits, and says why; once the table is back it is begun."""
    items = [*made.items(2, host="A"), *made.items(3, host="B")[2:]]
    made.hold()
    process = made.client.start("batch", made.write(items))
    until(lambda: made.noted("begin") == {"i1": 1, "i3": 1}, "an item on each host")
    until(lambda: all(made.rows()[name]["state"] == "running" for name in ("i1", "i3")), "their transitions")
    process.kill()
    process.communicate()
    path = made.client.project / "launch.toml"
    known = path.read_text()
    path.write_text(known.replace("[hosts.A]", "[hosts.renamed]"))
    made.go_on()
    done = made.client.run("batch", "resume")
    assert done.returncode == 5, done.stderr
    rows = made.rows()
    assert {name: row["state"] for name, row in rows.items()} == {
        "i1": "succeeded",
        "i2": "queued",
        "i3": "succeeded",
    }
    assert "unknown host 'A'" in rows["i2"]["why"]
    path.write_text(known)
    assert made.client.run("batch", "resume").returncode == 0
    assert made.noted("begin") == made.noted("end") == {"i1": 1, "i2": 1, "i3": 1}


@pytest.mark.long
def test_stop_ends_a_run_whose_copy_here_was_removed(made):
    """Its host has it all the same."""
    made.hold()
    process = made.client.start("batch", made.write(made.items(1), host="local"))
    until(lambda: made.noted("begin").total() == 1, "the item")
    until(lambda: made.rows()["i1"]["state"] == "running", "the transition")
    process.kill()
    process.communicate()
    shutil.rmtree(made.client.runs / made.rows()["i1"]["run"])
    done = made.client.run("batch", "stop", "--yes")
    assert done.returncode == 0, done.stderr + done.stdout
    assert [*made.runs_on("local").values()] == ["stopped"]


@pytest.mark.long
def test_files_that_change_meanwhile_change_nothing_of_what_was_begun(made):
    """Neither the batch's own, nor the table of a host that leads elsewhere now: the run is looked for where it was launched."""
    cut_off(made, "A")
    path = made.client.project / "launch.toml"
    path.write_text(path.read_text().replace(f'"{made.roots["A"]}"', f'"{made.roots["B"]}"'))
    (made.client.project / "sweep.toml").write_text("nothing = 1\n")
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    made.judge(names(1))
    assert len(made.runs_on("A")) == 1


def left_in_its_first_steps(made, host):
    """Begin a batch of one item at a host, and kill its worker once its run has made a step; return the run."""
    file = made.write(made.items(1), host=host)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the item")
    until(lambda: made.rows()["i1"]["step"], "its first step")
    process.kill()
    process.communicate()
    return made.rows()["i1"]["run"]


@pytest.mark.long
@pytest.mark.parametrize("host", ["A", "local"])
def test_a_run_whose_copy_here_was_removed_is_followed_again(made, host):
    """Its worker is dead; the queue knows its host, which has the run."""
    shutil.rmtree(made.client.runs / left_in_its_first_steps(made, host))
    made.go_on()
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    made.judge(names(1))


@pytest.mark.long
def test_a_run_that_is_nowhere_any_more_needs_a_person(made):
    """It was removed here and there: what ends its item is named, and begins it anew."""
    run = left_in_its_first_steps(made, "local")
    made.client.ok("stop", run)
    made.client.ok("rm", "--here", "--force", run)
    done = made.client.run("batch", "resume")
    assert done.returncode == 5, done.stderr
    assert f"{run} is neither here nor on local" in done.stdout
    made.client.ok("batch", "stop", "sweep")
    made.go_on()
    again = made.client.run("batch", "resume", "--failed")
    assert again.returncode == 0, again.stderr
    assert made.noted("begin") == {"i1": 2}


@pytest.mark.long
def test_the_table_keeps_what_it_had_of_a_run_that_was_removed(made):
    """Another `resume` writes it anew; it is said that the run is not compared."""
    file = made.write(made.items(2), host="local", best="loss:max")
    assert made.client.run("batch", file).returncode == 0
    table = made.client.runs / "batches" / "sweep" / "results.csv"
    before = table.read_text()
    made.client.ok("rm", "--here", "--force", made.rows()["i1"]["run"])
    done = made.client.run("batch", "resume")
    assert done.returncode == 0
    assert "the record of i1 is not here: it is not compared" in done.stderr
    assert table.read_text() == before
    made.client.ok("rm", "--here", "--force", made.rows()["i2"]["run"])
    assert made.client.run("batch", "resume").returncode == 0
    assert table.read_text() == before
