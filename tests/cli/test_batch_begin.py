"""What `launch batch` says before it begins anything: its help, its dry run, and what it asks."""

import json
import sys

import pytest
from testbed.tables import mostly_long

SWEEP = 'profile = "cpu"\ncommand = ["python3", "train.py", "--lr", "{lr}"]\n[matrix]\nlr = [1, 2]\n'


@pytest.fixture
def sweep(client):
    """A client with a sweep of two items, whose script ends at once."""
    client.script("print('done')\n", "train.py")
    (client.project / "sweep.toml").write_text(SWEEP)
    return client


def test_the_help_has_the_options_that_begin_a_batch(client):
    """And the file; no verb has to be known for that."""
    said = client.ok("batch", "--help")
    assert "[FILE.toml]" in said.splitlines()[0]
    for word in ("--grid KEY=V1,V2", "--max-parallel N", "--dry-run", "FILE.toml", "resume"):
        assert word in said
    assert said.count("--help") == 1


def test_a_dry_run_says_that_a_plain_script_has_its_own_precision(sweep):
    """Each note of the gate stands there once, however many items have it."""
    path = sweep.project / "sweep.toml"
    path.write_text(f'precision = "fp32"\n{SWEEP}')
    said = sweep.ok("batch", "sweep.toml", "--dry-run")
    assert said.count("its own    passes") == 2
    assert "fp32" not in said.partition("note:")[0]
    assert said.count("note: --precision fp32: your script decides its own precision") == 1
    rows = [json.loads(line) for line in sweep.ok("batch", "sweep.toml", "--dry-run", "--json").splitlines()]
    assert [row["precision"] for row in rows] == [None, None]


def test_a_dry_run_says_the_precision_that_a_script_takes(sweep):
    """It asks the worker for it."""
    sweep.script("import launcher_worker\nlauncher_worker.model_arguments()\n", "train.py")
    said = sweep.ok("batch", "sweep.toml", "--dry-run")
    assert said.count("fp32") == 2
    assert "its own" not in said


def test_a_dry_run_needs_a_host_that_answers_where_launch_does(sweep):
    """The same exit code and the same words: 4 where the plan hangs on the host, 0 and a note where it does not."""
    (sweep.project / "launch.toml").write_text('[hosts.gone]\naddress = "127.0.0.1"\nport = 1\n')
    for lines, code in (('host = "gone"\n', 4), ('host = "gone"\nprofile = "cpu"\n', 0)):
        words = ["--host", "gone", *(["--profile", "cpu"] if code == 0 else []), "--dry-run"]
        alone = sweep.run(*words, "--", "python3", "train.py")
        (sweep.project / "away.toml").write_text(f"{lines}{SWEEP.partition(chr(10))[2]}")
        done = sweep.run("batch", "away.toml", "--dry-run")
        assert (done.returncode, alone.returncode) == (code, code), done.stdout + done.stderr
        said = done.stderr + done.stdout
        assert "gone: 127.0.0.1:1 refuses the connection; is sshd running?" in said
        assert said.count("try   ssh -p 1 127.0.0.1 true") == 1
        assert ("not all was checked; nothing was sent" in said) == (code == 0)
    (sweep.project / "either.toml").write_text(f'host = ["gone", "local"]\n{SWEEP.partition(chr(10))[2]}')
    assert sweep.run("batch", "either.toml", "--dry-run").returncode == 0


def test_progress_in_a_pipe_is_no_line_for_each_item(sweep):
    """Sixty plans are a few lines."""
    values = ", ".join(map(str, range(60)))
    (sweep.project / "sweep.toml").write_text(SWEEP.replace("lr = [1, 2]", f"lr = [{values}]"))
    done = sweep.run("batch", "sweep.toml", "--dry-run")
    assert "60 items; the checks pass" in done.stdout
    lines = [line for line in done.stderr.splitlines() if "plans: " in line]
    assert lines[0].strip() == "plans: 1 of 60"
    assert len(lines) < 20


def test_much_is_not_sent_unasked(sweep):
    """Without a terminal it is refused, before there is a batch; a dry run says so; --yes agrees."""
    with (sweep.project / "big").open("wb") as file:
        file.truncate(230_000_000)
    done = sweep.run("batch", "sweep.toml")
    assert done.returncode == 3
    assert "230.0 MB, would be sent to local for the first time" in done.stderr
    assert "launch batch --yes" in done.stderr
    assert not (sweep.runs / "batches" / "sweep").exists()
    done = sweep.run("batch", "sweep.toml", "--dry-run")
    assert done.returncode == 3
    assert done.stdout.count("would refuse: ") == 1
    done = sweep.run("batch", "sweep.toml", "--dry-run", "--json")
    found = [one["code"] for line in done.stdout.splitlines() for one in json.loads(line)["findings"]]
    assert (done.returncode, found.count("large-cargo")) == (3, 2)
    assert "the checks pass" in sweep.ok("batch", "sweep.toml", "--dry-run", "--yes")


def test_a_value_that_reaches_no_script_is_said_before_anything_begins(sweep):
    """In the dry run, and of a grid."""
    words = ["--grid", "seed=1,2", "--host", "local", "--profile", "cpu", "--dry-run"]
    done = sweep.run("batch", *words, "--", "python3", "train.py")
    assert done.returncode == 0
    assert "note: --grid seed: the command has no {seed}" in done.stderr


def test_a_file_and_a_grid_are_one_too_many(sweep):
    """Each is named."""
    done = sweep.run("batch", "sweep.toml", "--grid", "seed=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "sweep.toml and --grid: give one of them" in done.stderr


WHILE_LOADING = """
import signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "launcher.cli.commands.batch.batch_work":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from launcher.cli import main
main()
"""
AS_IT_IS_MADE = """
import signal
from launcher.batch import batch_queue
make = batch_queue.make_queue
def interrupted(*words):
    signal.raise_signal(signal.SIGINT)
    made = make(*words)
    signal.raise_signal(signal.SIGINT)
    return made
batch_queue.make_queue = interrupted
from launcher.cli import main
main()
"""


@pytest.mark.parametrize("program", [WHILE_LOADING, AS_IT_IS_MADE])
@mostly_long("more", [[], ["--detach"]], ci=(0,))
def test_ctrl_c_leaves_no_batch_of_which_nothing_is_said(sweep, program, more):
    """Before there is one it leaves none; after that it is named, with what removes it."""
    sweep.is_forked, sweep.program = False, [sys.executable, "-c", program]
    done = sweep.run("batch", "sweep.toml", *more)
    assert (done.returncode, done.stdout) == (130, "")
    is_there = (sweep.runs / "batches" / "sweep").exists()
    assert is_there == (program == AS_IT_IS_MADE)
    assert ("sweep: 2 items: 2 queued" in done.stderr) == is_there
    assert ("launch batch stop sweep && launch batch rm sweep" in done.stderr) == is_there


@pytest.mark.parametrize("words", [["--grid", "seeds=2"], ["sweep.toml"]])
def test_nothing_after_the_dashes_is_no_demo(sweep, words):
    """It is refused with an example."""
    done = sweep.run("batch", *words, "--dry-run", "--")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a command must follow --" in done.stderr


def test_the_help_of_detach_speaks_of_the_batch(client):
    """And not of a run to attach to."""
    for words in (["--help"], ["resume", "--help"]):
        said = " ".join(client.ok("batch", *words).split())
        assert "Run the batch in a background process" in said
        assert "how to attach" not in said


def test_a_folder_without_batches_is_named(client):
    """They are in the folder where they were made, which may be another one."""
    where = f"{client.runs / 'batches'}: they are in the folder where they were made"
    assert f"no batches in {where}" in client.ok("batch", "list")
    done = client.run("batch", "resume")
    assert (done.returncode, f"no batch in {where}" in done.stderr) == (2, True)
