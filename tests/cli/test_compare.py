"""compare: tables that fit any terminal, its refusals, and the diff of what was sent. Witnesses: diff, patch, a listening port."""

import json
import socket
import subprocess
import time

import pytest
from rich.cells import cell_len
from testbed.pty_run import in_terminal, without_style
from testbed.tables import mostly_long

from launcher.batch.batch_queue import NewItem, make_queue
from launcher.batch.input.batch_definition import Rules
from launcher.batch.queued_item import ItemState
from launcher.copy.local_copy import LocalCopy
from launcher.values.host import Host

pytestmark = pytest.mark.slow(reason="each launches several runs")

PLAN = {
    "version": 1, "job": "grid", "host": "lab", "steps": 40,
    "profile": {"name": "l40s", "title": "L40S 48 GB"},
}  # fmt: skip


@pytest.fixture
def grid(client):
    """Makes so many runs that have ended, each with settings of its own; returns the last parts of their ids."""

    def make(count, host=None):
        made = []
        for number in range(count):
            local_copy = LocalCopy(f"261122-grid-{'abcdefghij'[number % 10]}{number:05}", client.runs)
            local_copy.bind_seen(host or Host(name="lab"), "", time.time())
            settings = {
                "lr": [1e-3, 1e-4][number % 2],
                "warmup": number * 10,
                "an_uncommonly_long_name": number,
            }
            (local_copy.folder / "plan.json").write_text(
                json.dumps({**PLAN, "settings": settings, "seed": number})
            )
            folder = local_copy.folder / "0001"
            folder.mkdir()
            (folder / "attempt.json").write_text(json.dumps({"kind": "attempt", "attempt": 1, "time": 100.0}))
            ended = (
                {"state": "failed", "reason": "nan-divergence"} if number % 4 == 3 else {"state": "succeeded"}
            )
            (folder / "state.json").write_text(json.dumps({**ended, "attempt": 1, "time": 1062.0}))
            event = {"version": 1, "kind": "metric", "attempt": 1}
            lines = [
                {**event, "step": step, "time": 100.0 + step, "values": {"loss": 1000 + number + abs(step - 30), "accuracy": step / 80}}
                for step in range(1, 41)
            ]  # fmt: skip
            (folder / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            made.append(local_copy.short)
        return made

    return make


def table(text):
    """The rows of a table with a column for each run, by their names."""
    rows = (line.split("  ") for line in text.splitlines())
    return {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}


@mostly_long("count", [2, 3, 4, 5, 6], ci=(4,))
def test_up_to_six_runs_stand_beside_each_other_in_80_columns(client, grid, count):
    """Each row that differs, and each outcome; long names and values go on below themselves."""
    runs = grid(count)
    lines = without_style(in_terminal(client, "compare", *runs, columns=80)).splitlines()
    assert lines[0].split() == runs
    shown = lines[: next(number for number, line in enumerate(lines) if line.startswith("accuracy"))]
    assert max(map(cell_len, shown)) <= 80
    rows = table("\n".join(shown))
    assert rows["warmup"] == [str(10 * number) for number in range(count)]
    assert rows["loss"] == [f"1,{10 + number:03}" for number in range(count)]
    assert rows["best loss"][0].startswith("1,000")
    assert "host" not in rows
    assert "card" not in rows


@mostly_long("columns", [60, 80, 120, 250], ci=(0,))
def test_fifty_runs_have_a_line_each(client, grid, columns):
    """State and loss are always there; what is left out is named."""
    runs = grid(50)
    lines = without_style(in_terminal(client, "compare", *runs, columns=columns)).splitlines()
    head = lines[0].split()
    assert (head[0], head[1]) == ("RUN", "lr")
    assert {"state", "loss"} <= {*head}
    assert [line.split()[0] for line in lines[1:51]] == runs
    assert [line for line in lines[1:51] if "1,0" not in line] == []
    assert max(map(cell_len, lines[:51])) <= columns
    assert any(line.startswith("  · not shown: ") for line in lines) == (columns < 100)


def test_a_pipe_gets_every_value(client, grid):
    """Of seven runs a line each, with all columns and whole words."""
    runs = grid(7)
    lines = client.ok("compare", *runs).splitlines()
    assert lines[0].split("  ")[0] == "RUN"
    assert "an_uncommonly_long_name" in lines[0]
    assert "failed: nan-divergence" in lines[4]
    assert lines[4].split()[-3:] == ["@30", "0.5", "0.5"] or "1,003 @30" in lines[4]
    assert lines[-1] == f"runs/compared/{runs[0]}-and-6-more-{lines[-1][-12:-4]}.png"


def test_json_has_the_values_as_they_are(client, grid):
    """Of each run, and of each difference one for each run; by the test's own arithmetic."""
    runs = grid(2)
    found = json.loads(client.ok("compare", *runs, "--json"))
    assert [run["run"].rpartition("-")[2] for run in found["runs"]] == runs
    assert {one["key"]: (one["group"], one["values"]) for one in found["plan"]} == {
        "seed": ("plan", [0, 1]),
        "settings.lr": ("settings", [1e-3, 1e-4]),
        "settings.warmup": ("settings", [0, 10]),
        "settings.an_uncommonly_long_name": ("settings", [0, 1]),
    }
    first = found["runs"][0]
    assert (first["state"], first["seconds"], first["card"], first["step"], first["steps"]) == (
        "succeeded", 962.0, "L40S 48 GB", 40, 40,
    )  # fmt: skip
    metrics = {one.pop("name"): one for one in first["metrics"]}
    assert metrics["loss"] == {
        "final": 1010.0,
        "final_step": 40,
        "best": 1000.0,
        "best_step": 30,
        "goal": "min",
    }
    assert metrics["accuracy"] == {
        "final": 0.5,
        "final_step": 40,
        "best": 0.5,
        "best_step": 40,
        "goal": "max",
    }
    assert (client.project / found["picture"]).read_bytes().startswith(b"\x89PNG")


def test_no_host_is_asked(client, grid):
    """Not even that of a run that goes on: a port in the host's place hears nothing."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.settimeout(0.0)
        runs = grid(2, Host(name="lab", address="127.0.0.1", port=port.getsockname()[1]))
        state = next(client.runs.glob(f"*{runs[1]}")) / "0001" / "state.json"
        state.write_text(json.dumps({"state": "running", "attempt": 1, "time": 110.0}))
        done = client.run("compare", *runs)
        assert done.returncode == 0, done.stderr
        assert table(done.stdout)["state"] == ["succeeded", "running"]
        assert f"had not ended at the last contact: {runs[1]}   launch attach {runs[1]}" in done.stderr
        with pytest.raises(BlockingIOError):
            port.accept()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a00000",), "with which other run?"),
        (("a00000", "zzzz"), "no run 'zzzz' here"),
        (("a00000", "b00001", "a00"), "a00000 and a00 are one run, 261122-grid-a00000"),
        (("a00000", "grid"), "'grid' is the name of 3 runs"),
        (("a00000", "b00001", "c00002", "--diff"), "--diff compares two runs"),
        (("a00000", "b00001", "-o", "curves.pdf"), "-o curves.png"),
        ((), "which run?"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_to_type(client, grid, words, said):
    """Before anything is drawn."""
    grid(3)
    done = client.run("compare", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "launch " in done.stderr or "-o" in done.stderr
    assert not (client.runs / "compared").exists()


def test_a_file_of_yours_is_not_drawn_over(client, grid):
    """One that was drawn here is; a folder that is missing is made."""
    runs = grid(2)
    client.script("mine", "mine.png")
    done = client.run("compare", *runs, "-o", "mine.png")
    assert (done.returncode, done.stdout) == (1, "")
    assert "mine.png exists and was not drawn by launch compare" in done.stderr
    assert (client.project / "mine.png").read_text() == "mine"
    for _ in range(2):
        assert client.ok("compare", *runs, "-o", "new/curves.png").endswith("\nnew/curves.png\n")


def test_a_place_where_no_picture_can_be_is_named_at_once(client, grid):
    """A file where its folder should be; the message says how to choose another."""
    runs = grid(2)
    client.script("", "taken")
    done = client.run("compare", *runs, "-o", "taken/curves.png")
    assert (done.returncode, done.stdout) == (1, "")
    assert "taken/curves.png: Not a directory" in done.stderr
    client.script("", "runs/compared")
    done = client.run("compare", *runs)
    assert (done.returncode, done.stdout) == (1, "")
    assert "another place   launch compare RUN RUN -o FILE.png" in done.stderr


# --diff


@pytest.fixture
def two_versions(client):
    """A run of one version of the code, then one of another; returns what the files of both were."""
    before = {
        "train.py": "print('loss: 2.0')\nprint(1)\n" + "".join(f"# {line}\n" for line in range(30)) + "# end",
        "lib/gone.py": "x = 1\n",
        "lib/same.py": "x = 2\n",
        "tabs.txt": "a\tb\r\nc\n",
    }
    after = {
        "train.py": before["train.py"].replace("print(1)", "print(2)").replace("# end", "# End"),
        "lib/new.py": "y = 1\n\x0c\ny = 2\n",
        "lib/same.py": "x = 2\n",
        "tabs.txt": "a\tB\r\nc\n",
    }
    (client.project / "lib").mkdir()
    for name, files in (("first", before), ("second", after)):
        for path in before.keys() - files.keys():
            (client.project / path).unlink(missing_ok=True)
        for path, text in files.items():
            (client.project / path).write_bytes(text.encode())
        (client.project / "picture.bin").write_bytes(b"\0" + name.encode())
        client.ok("--name", name, "--", "python", "train.py")
    return before, after


def diff_in(text):
    """The part of an output that is a diff."""
    lines = text.splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if line.startswith("--- "))
    return "".join(line for line in lines[start:] if not line.startswith(("runs/compared", "picture.bin")))


def test_the_diff_makes_the_second_version_of_the_first(client, two_versions, tmp_path):
    """By `patch`: of files changed, added and removed, with tabs and without a last newline. What is here no more comes from the host."""
    before, after = two_versions
    found = json.loads(client.ok("compare", "first", "second", "--diff", "--json"))
    files = {one["path"]: one for one in found["files"]}
    assert {*files} == {"train.py", "lib/gone.py", "lib/new.py", "tabs.txt", "picture.bin"}
    assert (files["picture.bin"]["diff"], files["picture.bin"]["why"]) == (None, "not text")
    diff = "".join(one["diff"] or "" for one in found["files"])
    folder = tmp_path / "patched"
    (folder / "lib").mkdir(parents=True)
    for path, text in before.items():
        (folder / path).write_bytes(text.encode())
    command = ["patch", "-p1", "--binary"]
    done = subprocess.run(command, cwd=folder, input=diff.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    paths = (path for path in folder.rglob("*") if path.is_file())
    assert {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in paths} == after
    said = client.ok("compare", "first", "second", "--diff")
    assert "picture.bin: no diff: not text" in said
    # A client that is no fork is read as text, without carriage returns.
    assert diff_in(said).replace("\r\n", "\n") == diff.replace("\x0c", " ").replace("\r\n", "\n")


def away(client, name):
    """Make the host of a run one that does not answer."""
    path = next(client.index.glob(f"*-{name}-*/run.json"))
    record = json.loads(path.read_text())
    record["host"] |= {"name": "lost", "address": "127.0.0.1", "port": 1}
    path.write_text(json.dumps(record))


@pytest.mark.long
def test_a_host_that_is_lost_is_named_and_the_rest_is_shown(client, two_versions):
    """What is here of both runs has its diff; the command fails as one that did not reach a host.

    Versions of the code that both lie in folders of this machine need no host.
    """
    client.script("z = 1\n", "lib/later.py")
    client.ok("--name", "third", "--", "python", "train.py")
    away(client, "first")
    done = client.run("compare", "first", "second", "--diff")
    assert done.returncode == 4
    assert "lost" in done.stderr
    assert table(done.stdout)["state"] == ["succeeded", "succeeded"]
    assert "+++ " in done.stdout
    assert "lib/new.py" in diff_in(done.stdout)
    assert "train.py: no diff: the files sent for" in done.stdout
    assert json.loads(client.run("compare", "first", "second", "--diff", "--json").stdout)["files"]
    assert client.ok("compare", "first", "second")
    away(client, "second")
    away(client, "third")
    said = client.ok("compare", "second", "third", "--diff")
    short = said.split()[1]
    assert diff_in(said) == f"--- /dev/null\n+++ {short}/lib/later.py\n@@ -0,0 +1 @@\n+z = 1\n"


@pytest.mark.long
def test_the_code_of_another_client_s_run_comes_from_its_host(client, two_versions):
    """Without a record here, the host says what was sent. Of a run that was removed it has the code no more, or need not have it."""
    kept = {path: path.read_bytes() for path in client.index.glob("*/sent.json.gz")}
    for path in kept:
        path.unlink()
    done = client.run("compare", "first", "second")
    assert "the code is not on record here" in done.stderr
    assert "code" not in table(done.stdout)
    said = client.ok("compare", "first", "second", "--diff")
    assert "-print(1)" in said
    assert "+print(2)" in said
    assert "gone.py" in said
    for path, data in kept.items():
        path.write_bytes(data)
    client.ok("rm", "--force", "first")
    done = client.run("compare", "first", "second", "--diff")
    assert done.returncode == 1
    assert "was removed from local, with the code that was sent for it" in done.stderr


def test_every_run_that_is_missing_is_named(client, grid):
    """Not only the first."""
    done = client.run("compare", *grid(1), "zzzzz", "yyyyy")
    assert done.returncode == 2
    assert "zzzzz" in done.stderr
    assert "yyyyy" in done.stderr


def test_a_batch_stands_for_its_runs(client, grid, monkeypatch):
    """Those that have begun."""
    grid(2)
    runs = sorted(path.name for path in client.runs.glob("[0-9]*"))
    monkeypatch.chdir(client.project)
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    entries = [NewItem(f"i{number}", "{}", ("lab",), {}) for number in range(3)]
    with make_queue("sweep", Rules(), entries) as queue:
        for item, run in zip(queue.items(), runs, strict=False):
            queue.step(item, ItemState.RESERVED, run=run, host="lab")
    found = json.loads(client.ok("compare", "sweep", "--json"))
    assert [run["run"] for run in found["runs"]] == runs


def test_columns_without_room_are_in_a_command_that_can_be_pasted(client, grid):
    """All of the runs are named in it."""
    runs = grid(8)
    shown = " ".join(without_style(in_terminal(client, "compare", *runs, columns=60)).split())
    assert f"launch compare {' '.join(runs)} --json" in shown
