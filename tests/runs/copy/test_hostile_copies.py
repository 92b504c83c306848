"""A run's copy may come with a cloned repository: whatever lies in a file's place there leads nowhere."""

import os
import re
import shutil
import stat

import pytest
from testbed.client import Client, kill_all_of
from testbed.tables import mostly_long

pytestmark = pytest.mark.slow(reason="many commands on the copy of one run")

TRAINING = """
import os, sys
import launcher_worker as worker
worker.resume_from()
for step in range(1, 4):
    worker.log(step, loss=1.0 / step)
    print("step", step)
    worker.save(step, lambda folder: open(os.path.join(folder, "a"), "wb").write(b"saved"))
with open(os.path.join(worker.knobs().artifacts, "weights"), "w") as file:
    file.write("trained")
open("notes.txt", "w").write("written beside the code")
worker.done(3)
sys.exit(3)
"""
PLACES = [
    "artifacts", "artifacts/weights", "outputs", "outputs/notes.txt", "checkpoints", "checkpoints/step-3",
    "checkpoints/step-3/manifest.json", "checkpoints/step-3/a", "0001", "0002", "0003", "0002/attempt.json",
    "0002/state.json", "0002/events.jsonl", "0002/log.txt", "plan.json", "request.json", "sent.json.gz",
    "not-sent.json", "loss.png", "tensorboard", ".pulled.jsonl", ".parts", ".mirror.lock", ".pull.lock",
    ".tensorboard.lock", ".shown.json", ".last-seen.json", ".kept-checkpoint.json", "../compared",
]  # fmt: skip
VERBS = [
    ["attach", "RUN"], ["pull", "RUN", "--all"], ["pull", "RUN", "--checkpoint", "last"], ["logs", "RUN"],
    ["logs", "RUN", "-n", "1"], ["metrics", "RUN"], ["plot", "RUN"], ["ls", "RUN"],
    ["cp", "--force", "RUN:artifacts/weights", "copied"], ["diagnose", "RUN"], ["explain", "RUN"],
    ["compare", "RUN", "OTHER"], ["ps"],
]  # fmt: skip
FILES_OF_A_RUN = (
    "weights",
    "notes.txt",
    "a",
    "manifest.json",
    "attempt.json",
    "state.json",
    "log.txt",
    "key",
)


def link_to_folder(path, victim):
    path.symlink_to(victim)


def link_to_file(path, victim):
    path.symlink_to(victim / "key")


def pipe(path, _):
    os.mkfifo(path)


def endless(path, _):
    path.symlink_to("/dev/zero")


KINDS = [link_to_folder, link_to_file, pipe, endless]


def contents(folder):
    """Return what is below a folder, and when it was changed."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return [
        (
            str(path),
            (about := path.lstat()).st_mode,
            about.st_mtime_ns,
            stat.S_ISREG(about.st_mode) and path.read_bytes(),
        )
        for path in paths
    ]


def replace(path, kind, victim):
    """Put an obstacle where a file or folder of a run was."""
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    kind(path, victim)


class Place:
    """A finished run, whose copy here is put back before each command."""

    def __init__(self, folder):
        """Let two runs end, the one with all that a copy can have."""
        self.client = Client(folder)
        self.client.script(TRAINING)
        words = ["--set", "keep_checkpoints=9", "--", "python", "train.py"]
        self.run, self.other = (self.client.detached(*words) for _ in range(2))
        for run in (self.run, self.other):
            self.client.run("attach", run)
        for words in (["pull", self.run, "--all"], ["plot", self.run], ["compare", self.run, self.other]):
            self.client.ok(*words)
        self.victim = folder / "victim"
        (self.victim / "step-3").mkdir(parents=True)
        for name in FILES_OF_A_RUN:
            (self.victim / name).write_text("mine")
            (self.victim / "step-3" / name).write_text("mine")
        self.saved, self.saved_entry = folder / "saved", folder / "saved-entry"
        self.save()

    @property
    def copy(self):
        """The folder of the run here."""
        return self.client.runs / self.run

    def save(self):
        """Keep the copy, and what the index has of the run, as they are now."""
        for source, saved in ((self.copy, self.saved), (self.client.index / self.run, self.saved_entry)):
            shutil.rmtree(saved, ignore_errors=True)
            shutil.copytree(source, saved)

    def put_back(self):
        """Make the copy, and what the index has of the run, as they were kept."""
        shutil.copytree(self.saved_entry, self.client.index / self.run, dirs_exist_ok=True)
        for path in (self.copy, self.client.runs / "compared"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        shutil.copytree(self.saved, self.copy)

    def check(self, *words):
        """Run a command: it ends soon, and changes nothing outside of the runs; an error is in words."""
        before = contents(self.victim)
        done = self.client.run(
            *(word.replace("RUN", self.run).replace("OTHER", self.other) for word in words), timeout=20
        )
        said = done.stdout + done.stderr
        assert contents(self.victim) == before, words
        assert "mine" not in said, said
        assert not re.search(r"\bNone\b|Errno", said), said
        if done.returncode not in (0, 3):
            assert "✗" in done.stderr or self.run[-6:] in done.stderr, said
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One run for all rows."""
    made = Place(tmp_path_factory.mktemp("hostile"))
    yield made
    made.client.end_commands()
    for run in (made.client.home / ".launch" / "runs").glob("*"):
        kill_all_of(run)


@mostly_long("name", PLACES, ci=(0, 6, 11, 15, 19, 23, 29))
def test_nothing_is_read_or_written_through_what_lies_in_a_run_s_copy(place, name):
    """An attach and two other verbs end at once, with one of the obstacles each; what they refuse, they say."""
    number = PLACES.index(name)
    others = (VERBS[1 + (number + turn) % (len(VERBS) - 1)] for turn in (0, 7))
    for turn, words in enumerate((VERBS[0], VERBS[0], *others)):
        place.put_back()
        replace(place.copy / name, KINDS[(number + turn) % len(KINDS)], place.victim)
        place.check(*words)


@pytest.mark.long
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_verb_reads_or_writes_through_what_lies_in_a_run_s_copy(place, kind, name):
    """Each of them, with each obstacle in each place."""
    for words in VERBS:
        place.put_back()
        replace(place.copy / name, kind, place.victim)
        place.check(*words)


def test_a_pull_puts_a_link_aside_and_says_so(place):
    """As it does with a file of the user's in the place of a folder."""
    place.put_back()
    replace(place.copy / "artifacts", link_to_folder, place.victim)
    said = place.check("pull", "RUN", "--all").stderr
    assert "artifacts.yours is the file that you had changed here" in said
    assert (place.copy / "artifacts" / "weights").read_text() == "trained"
    assert os.readlink(place.copy / "artifacts.yours") == str(place.victim)


def test_what_a_command_does_not_replace_is_named_with_the_way_to_remove_it(place):
    """And the same command goes on after that."""
    for name, words in (
        (".parts", ["pull", "RUN", "--all"]),
        ("0002", ["attach", "RUN"]),
        ("0002/log.txt", ["logs", "RUN"]),
    ):
        place.put_back()
        shutil.rmtree(place.copy / "artifacts")
        replace(place.copy / name, link_to_folder, place.victim)
        done = place.check(*words)
        assert done.returncode == 1
        mend = re.search(r"rm -r (\S+)$", done.stderr, re.MULTILINE)[1]
        assert mend == str(place.copy / name)
        os.unlink(mend)
        assert "rm -r" not in place.check(*words).stderr


def test_runs_as_a_link_counts_only_where_the_user_names_it(place):
    """A clone may bring one."""
    place.put_back()
    folder = place.client.runs.rename(place.client.runs.with_name("others"))
    place.client.runs.symlink_to(folder)
    try:
        for words in (["ps"], ["logs", place.run], ["pull", place.run], ["rm", "--here", place.run]):
            done = place.client.run(*words)
            assert done.returncode == 2
            assert "runs is a link, which is not followed" in done.stderr
            assert f"export LAUNCH_RUNS={folder}" in done.stderr
        place.client.variables["LAUNCH_RUNS"] = str(place.client.runs)
        assert "step 3" in place.client.ok("logs", place.run)
    finally:
        place.client.variables.pop("LAUNCH_RUNS", None)
        place.client.runs.unlink()
        folder.rename(place.client.runs)


def test_a_removal_removes_no_more_than_the_copy(place):
    """Also of a run whose whole folder is a link: that is named, and stays."""
    place.put_back()
    place.client.ok("rm", "--force", place.run)
    place.save()
    for name in PLACES[:-1]:
        place.put_back()
        replace(place.copy / name, link_to_folder, place.victim)
        done = place.check("rm", "--here", "--force", "RUN")
        assert os.path.lexists(place.copy) == (done.returncode != 0)
        assert "is foreign" not in done.stderr
    place.put_back()
    shutil.rmtree(place.copy)
    shutil.copytree(place.saved, place.victim / "run")
    place.copy.symlink_to(place.victim / "run")
    done = place.check("rm", "--here", "--force", "RUN")
    assert done.returncode == 1
    assert f"rm -r {place.copy}" in done.stderr
    assert (place.victim / "run" / "plan.json").is_file()
