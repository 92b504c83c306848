"""What a run wrote comes home: all of it by default, verified, resumed, and never over the user's own work."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from contextlib import nullcontext

import pytest
from testbed.client import until
from testbed.ended_run import RUN, EndedRun

from launcher.copy.local_copy import LocalCopy
from launcher.errors import ConnectionLostError, LastCopyError, RunError, UsageError
from launcher.runs import cleaning
from launcher.runs.pull import copying
from launcher.runs.pull.pulling import Choice, pull
from launcher.transport.connecting import connect
from launcher.values.host import Host

pytestmark = pytest.mark.slow(reason="many of these tests start several clients and a run")

LIMIT = 2_000_000_000


class Quiet:
    """A stage that shows nothing."""

    text = None

    def progress(self, step):
        """Show nothing."""

    def moved(self, moved):
        """Show nothing."""


@pytest.fixture
def ended(tmp_path):
    """A run on this machine as a host."""
    return EndedRun(tmp_path / "root")


@pytest.fixture
def local_copy(tmp_path):
    """The mirror of that run on a client."""
    made = LocalCopy(RUN, tmp_path / "runs")
    made.bind_seen(Host(name="local"), "", None)
    return made


@pytest.fixture
def desk(tmp_path):
    """The desk of that host."""
    with connect(Host(name="local", root=str(tmp_path / "root"))) as made:
        yield made


def sums(folder):
    """SHA-256 by path of the files below a folder, by sha256sum; ours that are hidden are left out."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    )
    if not names:
        return {}
    said = subprocess.run(
        ["sha256sum", *names], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    return {line[66:]: line[:64] for line in said.splitlines()}


def test_all_that_a_run_wrote_comes_to_its_place(ended, local_copy, desk):
    """Artifacts, outputs with their paths below the working folder, files of its home; checkpoints stay, and are named."""
    ended.fill(
        {
            "code/out/w.pt": 100_000,
            "code/log.csv": 10,
            "artifacts/a/b": 20,
            "home/.config/x": 3,
            "results/w.pt": 30,
            "code/empty": 0,
        }
    )
    ended.fill({"checkpoints/step-4/w": 7, "code/out/checkpoint-2/w": 8})
    pulled = pull(desk, local_copy, Choice(LIMIT), Quiet())
    there = sums(ended.work)
    assert sums(local_copy.artifacts) == {"a/b": there["artifacts/a/b"]}
    assert sums(local_copy.outputs) == {
        "out/w.pt": there["code/out/w.pt"],
        "log.csv": there["code/log.csv"],
        "HOME/.config/x": there["home/.config/x"],
        "WORK/results/w.pt": there["results/w.pt"],
        "empty": there["code/empty"],
    }
    assert {file.path for file in pulled.checkpoints} == {"checkpoints/step-4/w", "code/out/checkpoint-2/w"}
    assert pull(desk, local_copy, Choice(LIMIT), Quiet()).fetched == []
    pull(desk, local_copy, Choice(LIMIT, ("out/checkpoint-2", "checkpoints/step-4")), Quiet())
    assert sums(local_copy.checkpoints) == {"step-4/w": there["checkpoints/step-4/w"]}
    assert sums(local_copy.outputs / "out")["checkpoint-2/w"] == there["code/out/checkpoint-2/w"]


def test_the_smallest_come_first_up_to_the_limit(ended, local_copy, desk):
    """The others are listed, come when they are named, and all come on request."""
    ended.fill({"code/a": 100, "code/b": 300, "code/c": 700, "code/d": 10_000})
    pulled = pull(desk, local_copy, Choice(1000), Quiet())
    assert [file.path for file in pulled.over_limit] == ["code/c", "code/d"]
    assert set(sums(local_copy.outputs)) == {"a", "b"}
    pull(desk, local_copy, Choice(1000, ("d",)), Quiet())
    assert set(sums(local_copy.outputs)) == {"a", "b", "d"}
    pull(desk, local_copy, Choice(1000, everything=True), Quiet())
    assert set(sums(local_copy.outputs)) == {"a", "b", "c", "d"}


def test_a_newer_version_replaces_the_older_and_the_users_own_work_is_kept(ended, local_copy, desk):
    """What was changed here has another name afterwards, and that is said."""
    ended.fill({"code/mine": 100, "code/theirs": 100})
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    (local_copy.outputs / "mine").write_text("edited")
    ended.fill({"code/mine": 200, "code/theirs": 200})
    pulled = pull(desk, local_copy, Choice(LIMIT), Quiet())
    assert [path.name for path in pulled.yours] == ["mine.yours"]
    assert (local_copy.outputs / "mine.yours").read_text() == "edited"
    there = sums(ended.work / "code")
    assert {name: digest for name, digest in sums(local_copy.outputs).items() if name != "mine.yours"} == {
        name: there[name] for name in ("mine", "theirs")
    }


@pytest.mark.parametrize("blocks", ["a file for a folder", "a folder for a file", "a link"])
def test_what_the_user_put_in_the_way_is_moved_not_lost(ended, local_copy, desk, tmp_path, blocks):
    """A file where a folder must be, a folder where a file must be, a link that leads elsewhere."""
    ended.fill({"code/out/w": 100})
    local_copy.outputs.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    if blocks == "a file for a folder":
        (local_copy.outputs / "out").write_text("mine")
        kept = local_copy.outputs / "out.yours"
    else:
        (local_copy.outputs / "out").mkdir()
        kept = local_copy.outputs / "out" / "w.yours"
        if blocks == "a link":
            (local_copy.outputs / "out" / "w").symlink_to(mine)
        else:
            (local_copy.outputs / "out" / "w").mkdir()
            (local_copy.outputs / "out" / "w" / "x").write_text("mine")
            kept /= "x"
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    assert kept.read_text() == mine.read_text() == "mine"
    assert sums(local_copy.outputs)["out/w"] == sums(ended.work)["code/out/w"]


class Counting:
    """The runs of a desk, which count what is sent and may break off."""

    def __init__(self, runs, breaks_after=None):
        self._runs, self._left = runs, breaks_after
        self.requested = []
        self.taken = 0

    def __getattr__(self, name):
        return getattr(self._runs, name)

    def send(self, run, files, take):
        """Pass on, counting."""
        self.requested += files
        counting = self

        class Stream:
            def __init__(self, stream):
                self._stream = stream

            def read(self, size):
                piece = self._stream.read(size)
                counting.taken += len(piece)
                if counting._left is not None and counting.taken > counting._left:
                    raise ConnectionLostError("local", "broken")
                return piece

        self._runs.send(run, files, lambda stream: take(Stream(stream)))


def test_a_broken_pull_goes_on_from_the_bytes_that_it_has(ended, local_copy, tmp_path):
    """Each byte of a file is sent once, however often the link breaks, and the whole is verified."""
    ended.fill({"code/w": 5_000_000, "code/small": 10})
    host = Host(name="local", root=str(tmp_path / "root"))
    taken, tries = 0, 0
    while tries < 8:
        tries += 1
        with connect(host) as desk:
            desk.runs = counting = Counting(desk.runs, 1_500_000)
            with contextlib.suppress(ConnectionLostError):
                pull(desk, local_copy, Choice(LIMIT), Quiet())
        taken += counting.taken
        if (local_copy.outputs / "w").exists():
            break
    assert tries == 4
    assert taken < 5_000_010 + 4 * (1 << 18)
    assert sums(local_copy.outputs) == {name: sums(ended.work / "code")[name] for name in ("w", "small")}
    assert not (local_copy.folder / ".parts").exists()


def test_a_small_file_does_not_cost_what_has_come_of_a_large_one(ended, local_copy, desk, tmp_path):
    """A look at the log, by pull or cp, while a large pull is broken off."""
    ended.fill({"code/w": 500_000, "code/log.txt": 10, "code/more.txt": 11})
    digest = hashlib.sha256((ended.work / "code/w").read_bytes()).hexdigest()
    (local_copy.folder / ".parts").mkdir()
    part = local_copy.folder / ".parts" / digest
    part.write_bytes((ended.work / "code/w").read_bytes()[:250_000])
    pull(desk, local_copy, Choice(LIMIT, ("log.txt",)), Quiet())
    copying.copy(
        desk, local_copy, "more.txt", str(tmp_path / "copy"), lambda _: False, lambda: nullcontext(Quiet())
    )
    assert part.stat().st_size == 250_000
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    assert sums(local_copy.outputs)["w"] == digest
    assert not part.parent.exists()


def test_a_part_whose_bytes_are_wrong_is_fetched_again(ended, local_copy, desk):
    """A disk that spoilt the first half costs the transfer, never the result."""
    ended.fill({"code/w": 500_000})
    digest = hashlib.sha256((ended.work / "code/w").read_bytes()).hexdigest()
    (local_copy.folder / ".parts").mkdir()
    (local_copy.folder / ".parts" / digest).write_bytes(b"x" * 250_000)
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    assert sums(local_copy.outputs) == {"w": digest}


def test_a_file_that_changes_while_it_is_sent_is_sent_again(ended, local_copy, desk):
    """What is here in the end is a version that the host had, whole."""
    ended.fill({"code/w": 500_000})
    real, changes = desk.runs.send, []

    def send(run, files, take):
        if not changes:
            changes.append(ended.write("code/w", os.urandom(400_000)))
        real(run, files, take)

    desk.runs.send = send
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    assert sums(local_copy.outputs) == {"w": sums(ended.work)["code/w"]}


def test_what_does_not_fit_is_refused_before_a_byte_is_sent(ended, desk, small_disk):
    """With how much is missing; a smaller file can be named."""
    local_copy = LocalCopy(RUN, small_disk)
    local_copy.bind_seen(Host(name="local"), "", None)
    ended.fill({"code/large": 6_000_000, "code/small": 10})
    desk.runs = counting = Counting(desk.runs)
    with pytest.raises(RunError, match=r"6.0 MB are needed.* are missing"):
        pull(desk, local_copy, Choice(LIMIT), Quiet())
    assert counting.requested == []
    pull(desk, local_copy, Choice(LIMIT, ("small",)), Quiet())
    assert set(sums(local_copy.outputs)) == {"small"}


def test_files_with_the_same_contents_are_sent_once(ended, local_copy, desk):
    """And are both here."""
    ended.write("code/a", b"x" * 1000)
    ended.write("artifacts/b", b"x" * 1000)
    desk.runs = counting = Counting(desk.runs)
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    assert (len(counting.requested), counting.taken) == (1, 1000)
    assert (local_copy.outputs / "a").read_bytes() == (local_copy.artifacts / "b").read_bytes() == b"x" * 1000


# removal


def test_a_removal_loses_nothing_that_is_not_here_in_the_same_version(ended, local_copy, desk):
    """Not pulled, pulled in an older version, changed here: each is named. Once all is here the host is freed."""
    ended.fill({"code/w": 100, "artifacts/a": 10})
    with pytest.raises(LastCopyError, match=r"2 files \(110 bytes\) exist only on local") as caught:
        cleaning.free(desk, local_copy, "nothing", Quiet())
    assert not caught.value.only_checkpoints
    assert "launch pull k3f9w2 --all" in str(caught.value)
    assert "launch rm --force k3f9w2" in str(caught.value)
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    ended.fill({"code/w": 100})
    with pytest.raises(LastCopyError, match=r"(?s)1 file .*\n  w   100 bytes\n"):
        cleaning.free(desk, local_copy, "nothing", Quiet())
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    (local_copy.artifacts / "a").write_text("changed")
    with pytest.raises(LastCopyError, match="artifacts/a"):
        cleaning.free(desk, local_copy, "nothing", Quiet())
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    before = sums(local_copy.folder)
    assert cleaning.free(desk, local_copy, "nothing", Quiet()).bytes > 110
    assert not os.path.exists(ended.run.path)
    assert {name: before[name] for name in before if "/" in name}.items() <= sums(local_copy.folder).items()


def test_only_checkpoints_may_be_lost_by_a_word(ended, local_copy, desk):
    """The error says that nothing else would be; with that word the host is freed."""
    ended.fill({"checkpoints/step-4/w": 100})
    with pytest.raises(LastCopyError) as caught:
        cleaning.free(desk, local_copy, "nothing", Quiet())
    assert caught.value.only_checkpoints
    ended.fill({"code/w": 10})
    with pytest.raises(LastCopyError):
        cleaning.free(desk, local_copy, "checkpoints", Quiet())
    (ended.work / "code" / "w").unlink()
    cleaning.free(desk, local_copy, "checkpoints", Quiet())
    assert not os.path.exists(ended.run.path)


def test_what_cannot_be_compared_is_not_removed(ended, local_copy, desk):
    """A link in the place of the artifacts: the removal says so, and --force goes on without touching what it leads to."""
    outside = local_copy.folder / "outside"
    outside.mkdir()
    (outside / "x").write_text("x")
    (ended.work / "artifacts").symlink_to(outside)
    with pytest.raises(LastCopyError, match="cannot compare all of its files"):
        cleaning.free(desk, local_copy, "nothing", Quiet())
    cleaning.free(desk, local_copy, "all", Quiet())
    assert (outside / "x").read_text() == "x"


def test_the_copy_here_is_not_removed_while_it_is_the_last(ended, local_copy, desk):
    """Unless --force."""
    ended.fill({"code/w": 100})
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    with pytest.raises(LastCopyError, match="the last copies of"):
        cleaning.check_here(local_copy, force=False)
    cleaning.check_here(local_copy, force=True)


def test_what_a_pull_brings_while_the_run_is_removed_stays_here(ended, local_copy, desk):
    """`rm --here` found nothing here, and waited for a pull in another terminal: the host is freed, the files stay."""
    ended.fill({"code/w": 100})
    cleaning.check_here(local_copy, force=False)
    pull(desk, local_copy, Choice(LIMIT), Quiet())
    cleaning.free(desk, local_copy, "nothing", Quiet())
    with pytest.raises(LastCopyError, match="the last copies of 1 file"):
        cleaning.remove_here(local_copy, force=False)
    assert set(sums(local_copy.outputs)) == {"w"}
    cleaning.remove_here(local_copy, force=True)
    assert not local_copy.folder.exists()


# copying


def test_cp_does_as_cp_does(ended, local_copy, desk, tmp_path):
    """A file to a name or into a folder, a folder with what is in it; nothing is replaced unasked."""
    ended.fill({"code/out/w": 100, "code/out/deep/x": 10, "artifacts/out/y": 5})
    here = tmp_path / "here"
    here.mkdir()

    def copy(path, place, may_replace=False):
        return copying.copy(
            desk, local_copy, path, str(place), lambda _existing: may_replace, lambda: nullcontext(Quiet())
        )

    there = sums(ended.work)
    copy("out/w", here)
    copy("out/w", here / "name")
    copy("out", here)
    copy("artifacts/out/", here / "fresh")
    assert sums(here) == {
        "w": there["code/out/w"],
        "name": there["code/out/w"],
        "out/w": there["code/out/w"],
        "out/deep/x": there["code/out/deep/x"],
        "fresh/y": there["artifacts/out/y"],
    }
    (here / "w").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        copy("out/w", here)
    assert (here / "w").read_text() == "mine"
    copy("out/w", here, may_replace=True)
    assert sums(here)["w"] == there["code/out/w"]
    for path, place in (("out", here / "name"), ("out/w", here / "none" / "x")):
        with pytest.raises(UsageError):
            copy(path, place)
    for path in ("nothing", "../x", "out/wx"):
        with pytest.raises(RunError, match="wrote no"):
            copy(path, here)


OBEYED = ["a\x1b]0;x\x07b", "c\x9b31m", "e\u202efdp.exe", "g\nh", "i\x7f", "j\u2066k\u2069"]
FINE = ["日本\u3000語", "é", "\u00a0", "👩\u200d💻", "می\u200cخواهم"]  # noqa: RUF001


def test_a_file_whose_name_a_terminal_would_obey_stays_there_and_is_named(ended, local_copy, desk, tmp_path):
    """No such name is made on this disk, by whatever verb; others have their own. The run is not removed with its last copy."""
    ended.fill({f"code/out/{name}": 5 for name in (*OBEYED, *FINE)} | {"code/d\x1bir/w": 5})
    pulled = pull(desk, local_copy, Choice(LIMIT, everything=True), Quiet())
    here = tmp_path / "here"
    here.mkdir()
    copying.copy(desk, local_copy, "out", str(here), lambda _existing: True, lambda: nullcontext(Quiet()))
    assert {path.name for path in (here / "out").iterdir()} == {*FINE}
    assert {path.name for path in (local_copy.outputs / "out").iterdir()} == {*FINE}
    assert pulled.left_out.keys() == {*(f"code/out/{name}" for name in OBEYED), "code/d\x1bir/w"}
    assert all("control characters" in why for why in pulled.left_out.values())
    with pytest.raises(LastCopyError):
        cleaning.free(desk, local_copy, "nothing", Quiet())


# by command


def test_a_plain_script_brings_its_files_home_and_ls_lists_them(client):
    """Also from a run that fails; no worker is imported. The paths are those that the script used."""
    client.script(
        "import os, sys\n"
        "os.makedirs('out')\n"
        "open('out/model.pt', 'wb').write(bytes(range(256)) * 100)\n"
        "open(os.path.join(os.environ['LAUNCH_ARTIFACTS'], 'adapter'), 'w').write('a')\n"
        "sys.exit(3)\n"
    )
    done = client.run("--", "python", "train.py")
    assert done.returncode == 1
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    assert f"  files    runs/{run}/outputs/out/model.pt (25.6 kB)\n" in done.stderr
    assert f"           runs/{run}/artifacts/adapter (1 byte)\n" in done.stderr
    assert (client.runs / run / "outputs/out/model.pt").read_bytes() == bytes(range(256)) * 100
    rows = json.loads(client.ok("ls", "--json"))["files"]
    assert [(row["path"], row["size"], row["here"]) for row in rows] == [
        ("artifacts/adapter", 1, "yes"),
        ("out/model.pt", 25600, "yes"),
    ]
    shutil.rmtree(client.runs / run / "outputs")
    said = client.ok("ls", run)
    assert "25.6 kB not here" in said
    assert [line for line in said.splitlines() if line != line.rstrip()] == []
    client.ok("cp", f"{run}:out", "copy")
    assert (client.project / "copy/model.pt").stat().st_size == 25600


def test_a_job_names_its_outputs_and_a_limit(client):
    """By `outputs` and `pull_limit` in its file, and by --output; other files stay there, and are not lost."""
    client.script(
        "for name in ('a.pt', 'b.log', 'c.tmp'): open(name, 'w').write('x' * 10)\nopen('d.pt', 'w').write('x' * 99)\n"
    )
    client.script(
        'name = "x"\ncommand = ["python", "train.py"]\noutputs = ["*.pt"]\npull_limit = "50B"\n', "x.toml"
    )
    said = client.seen("--job", "x.toml", "--output", "*.log")
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    assert sorted(os.listdir(client.runs / run / "outputs")) == ["a.pt", "b.log"]
    client.ok("cp", f"{run}:c.tmp", ".")
    assert (client.project / "c.tmp").stat().st_size == 10
    assert (
        f"over the limit of 50 bytes, still on local: d.pt (99 bytes)   launch pull {run[-6:]} --all" in said
    )
    refused = client.run("rm", run)
    assert refused.returncode == 1
    assert "2 files (109 bytes) exist only on local" in refused.stderr
    assert all(name in refused.stderr for name in ("c.tmp", "d.pt"))
    client.ok("pull", run, "--all")
    assert sorted(os.listdir(client.runs / run / "outputs")) == ["a.pt", "b.log", "c.tmp", "d.pt"]
    client.ok("rm", run)


def test_files_come_while_the_run_goes_on(client):
    """`pull --follow` brings what is finished, and ends with the run."""
    gate = client.home / "gate"
    client.script(
        f"import os, time\nopen('early', 'w').write('x')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\nopen('late', 'w').write('y')\n"
    )
    run = client.detached("--", "python", "train.py")
    process = client.start("pull", "--follow", run)
    until(lambda: (client.runs / run / "outputs" / "early").exists(), "the finished file")
    assert process.poll() is None
    gate.touch()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert sorted(os.listdir(client.runs / run / "outputs")) == ["early", "late"]


@pytest.mark.long
def test_ctrl_c_while_files_come_home_leaves_what_came_and_says_how_to_go_on(client):
    """The run has ended; the command can be typed."""
    client.script("import os\nopen('w', 'wb').write(os.urandom(1 << 20) * 150)\n")
    process = client.start("--", "python", "train.py")
    until(lambda: list(client.runs.glob("*/.parts/*")), "the transfer", every=0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert "Traceback" not in err
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    assert (
        f"detached; the run has succeeded, and not all of its files are here.   launch pull {run[-6:]}" in err
    )
    client.ok("pull", run)
    assert sums(client.runs / run / "outputs") == {
        "w": sums(client.home / ".launch/runs" / run / "work/code")["w"]
    }
