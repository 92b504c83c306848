"""A batch has one code: that of its first item, whatever is edited meanwhile."""

import csv
import json
import signal
import subprocess
from pathlib import Path

import pytest
from testbed.client import until
from testbed.two_hosts import STEPS, TRAIN, two_hosts

from launcher.copy.local_copy import LocalCopy
from launcher.upload import upload_record

pytestmark = pytest.mark.slow(reason="each test runs several items")


def edit(made, old, new):
    """Change the items' program, as a person does meanwhile."""
    path = made.client.project / "item.py"
    path.write_text(path.read_text().replace(old, new))


def git(made, *words):
    """Run git in the project; return what it printed."""
    names = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    words = ["git", *names, "-C", made.client.project, *words]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def commit(made):
    """Commit all files of the project; return the commit."""
    git(made, "add", "-A")
    git(made, "commit", "-qm", "x")
    return git(made, "rev-parse", "HEAD")


def results(made):
    """The lines of results.csv."""
    with (made.client.runs / "batches" / "sweep" / "results.csv").open(newline="") as table:
        return [*csv.DictReader(table)]


def written(made):
    """What each item's own program wrote as its result."""
    return sorted(path.read_text() for path in made.client.runs.glob("[0-9]*/outputs/out/result"))


def test_an_edit_meanwhile_changes_no_item(made):
    """Neither in this process nor in the next, on no host; it is said which file has changed, and all have one digest.

    The commit is that of the frozen code too, whatever is committed meanwhile.
    """
    git(made, "init", "-q")
    file = made.write(made.items(3), host=["local", "A"], max_parallel=1)
    first = commit(made)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    edit(made, ".write(item)", ".write('edited ' + item)")
    (made.client.project / "new.txt").write_text("made meanwhile")
    commit(made)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    made.go_on()
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr
    assert written(made) == ["i1", "i2", "i3"]
    assert "changed since sweep began: item.py; " in done.stderr
    assert len({row["code"] for row in results(made)}) == 1
    assert results(made)[0]["code"]
    plans = [json.loads(path.read_text()) for path in made.client.runs.glob("[0-9]*/plan.json")]
    assert [plan["commit"] for plan in plans] == [{"id": first, "dirty": False}] * 3


@pytest.mark.long
def test_a_file_that_is_gone_meanwhile_travels_all_the_same(made):
    """Also the script itself."""
    file = made.write(made.items(2), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    (made.client.project / "item.py").unlink()
    made.go_on()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert written(made) == ["i1", "i2"]


@pytest.mark.long
def test_new_code_is_taken_when_it_is_asked_for(made):
    """What failed is run with the mended script then, and the table shows that its code is another."""
    items = made.items(2)
    items[1]["command"] = [*items[1]["command"], "fail"]
    file = made.write(items, host="local")
    assert made.client.run("batch", file).returncode == 1
    edit(made, 'sys.exit("it fails")', "pass")
    again = made.client.run("batch", "resume", "--failed")
    assert again.returncode == 1, "it has the code of then"
    assert "changed since sweep began: item.py" in again.stderr
    done = made.client.run("batch", "resume", "--failed", "--new-code")
    assert done.returncode == 0, done.stderr
    first, second = results(made)
    assert first["code"] != second["code"]
    sent = upload_record.read(LocalCopy(first["run"], made.client.runs))
    assert all(Path(path).is_file() for path in sent.sources.values()), "it may go on elsewhere"


@pytest.mark.long
def test_a_run_goes_on_elsewhere_with_its_code_after_its_batch_is_removed(client, ssh_host):
    """Its host is silent, the script was edited meanwhile: what is sent is what the batch had, as kept beside the run."""
    with two_hosts(client, ssh_host) as two:
        script = client.project / "train.py"
        script.write_text(TRAIN.format(ledger=str(two.path), pause=0.2, later=60, steps=STEPS))
        (client.project / "night.toml").write_text('host = "A"\njob = "job.toml"\n')
        process = client.start("batch", "night.toml")
        until(lambda: len(two.ledger()) >= 4, "four steps")
        (run,) = two.runs_on("A")
        client.ok("batch", "stop", "night")
        process.communicate(timeout=180)
        client.ok("pull", run, "--checkpoint", "last")
        script.write_text("raise SystemExit('edited meanwhile')\n")
        assert "1 of them did not succeed, and keep their code" in client.ok("batch", "rm", "night")
        assert not (client.runs / "batches" / "night").exists()
        with ssh_host.away():
            seen = client.run("recover", run, "--host", "local", "--abandon")
            assert seen.returncode == 0, seen.stderr
            ((child, _),) = two.runs_on("local").items()
            client.ok("attach", child)
        client.ok("rm", "--here", "--force", run)
        sent = upload_record.read(LocalCopy(child, client.runs))
        assert all(Path(path).is_file() for path in sent.sources.values()), "the child keeps them too"
        two.judge()


@pytest.mark.long
def test_a_large_file_that_changes_is_refused_by_name(made):
    """It is not copied; an item that would get another one is not begun."""
    path = made.client.project / "large.bin"
    path.write_bytes(b"a" * 10_000_001)
    file = made.write(made.items(2), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    path.write_bytes(b"b" * 10_000_001)
    made.go_on()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1, out + err
    assert [row["state"] for row in made.rows().values()] == ["succeeded", "refused"]
    assert "large.bin" in err
    assert "launch batch resume sweep --failed --new-code" in err
    assert not [*made.client.runs.glob("batches/sweep/code/*/code/large.bin")]


@pytest.mark.long
def test_output_redirected_into_the_folder_is_no_change(made):
    """It grows while the batch is worked."""
    file = made.write(made.items(3), host="local", max_parallel=1)
    with (made.client.project / "said.txt").open("w") as said:
        done = subprocess.run(
            [*made.client.program, "batch", file],
            cwd=made.client.project,
            env=made.client.env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            timeout=120,
            check=False,
        )
    words = (made.client.project / "said.txt").read_text()
    assert done.returncode == 0, words
    assert "changed since" not in words
    assert len({row["code"] for row in results(made)}) == 1
