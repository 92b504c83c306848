"""Tables of what tests record of themselves when they are run at their full counts: `make links`, `make kills`, `make faults`, `make moves`, `make segments`, `make late`, `make rents`, `make batches`, `make orders`, `make slurm`, `make large`; and of the long tests: `make long`."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
WRITTEN = "Written by `make {name}` on {date} ({system}, Python {python}); every row passed its test, or there would be no table.\n"


class Table(NamedTuple):
    """A table: the command's and the file's name, the tests, the environment that asks for full counts, head and columns."""

    name: str
    title: str
    tests: tuple[str, ...]
    environment: dict[str, str]
    note: str
    columns: dict[str, str]
    """What a test records -> how it is told; of any test, `test` is its name and `seconds` its time."""
    marks: str = "not gpu"
    """The tests of these files, by their marks."""
    file: str = ""
    """The file's name, if it is not the command's in capitals."""


TABLES = {
    "links": Table(
        "links",
        "Bad links",
        ("tests/runs/recover/test_bad_links.py", "tests/transport/test_behind.py"),
        {"LAUNCH_CUTS": "20"},
        "*Identical* is by `sha256sum` on the host, over plain ssh, against the mirror, or for an upload against the tree.\n"
        "The relay of `tests/testbed/link.py` stands for the link: a lost segment is a stall of 200 ms.\n",
        {
            "done": "what was done",
            "end": "how it ended",
            "identical": "identical",
            "reconnects": "reconnects",
        },
    ),
    "kills": Table(
        "kills",
        "Kills",
        ("tests/runs/recover/test_kills.py",),
        {"LAUNCH_KILLS": "100"},
        "One run a row, its trainer and its agent killed by SIGKILL at random from outside. Samples and steps are counted in a\n"
        "ledger that the trainer writes outside of the run, and the model is a digest of all samples in order: one that was\n"
        "skipped, or trained on twice, gives another. A checkpoint is saved every 5 steps.\n",
        {"done": "killed", "samples": "samples in the model", "starts": "starts", "again": "done once more"},
    ),
    "faults": Table(
        "faults",
        "Faults",
        ("tests/runs/recover/test_faults.py", "tests/runs/recover/test_power_cut.py"),
        {"LAUNCH_FAULTS": "all", "LAUNCH_POWER_CUTS": "25"},
        "The rows of `launch drill`, each at up to four moments, and faults that need root, on a machine of its own with sshd and\n"
        "Docker Engine. The job has 40 steps and saves a checkpoint every 5. Its ledger is linked out of the drill's reach by a\n"
        "plain ssh and judged by the test; processes are counted by `ps`, containers by the docker CLI. Every row ended as stated,\n"
        "with no sample skipped and the model of an unhurt training. *Silent* is the time without a step. A clock jumps for\n"
        "the Python processes of the machine alone: the times of files do not. At a *power cut* the block device of the runs is turned\n"
        "back to what it held at that moment, with a launch or a training under way; its class says why a run was not trained.\n",
        {
            "where": "runtime",
            "fault": "fault",
            "class": "class",
            "remedy": "remedy",
            "again": "steps again",
            "silent": "silent",
            "left": "left",
            "took": "whole row",
        },
    ),
    "moves": Table(
        "moves",
        "Killed moves",
        ("tests/runs/move/test_moving.py::test_a_client_killed_in_a_move_leaves_one_run_that_goes_on",),
        {"LAUNCH_MOVES": "20"},
        "A run moves from an SSH host to this machine, and the client that moves it is killed after a stage. Then the same command is\n"
        "typed again. At most one of the two runs trained at any time, and one finished with the weights of an unbroken run, bit for\n"
        "bit, by a ledger outside of the runs. *Begun* counts the moves in which the new run was there when the client died.\n",
        {
            "stage": "killed",
            "kills": "moves",
            "begun": "begun",
            "finished": "finished once",
            "again": "steps trained again",
        },
    ),
    "segments": Table(
        "segments",
        "Killed followers of runs in sessions",
        ("tests/runs/kaggle/test_kaggle_segments.py",),
        {"LAUNCH_SEGMENT_KILLS": "10"},
        "A run of three sessions at the stand-in for Kaggle's service, launched and followed by a client that is killed by SIGKILL ten\n"
        "times, each after a random while, and typed again. *At work* are the kills of a client that had not ended by itself. Pushes\n"
        "are counted by the stand-in's ledger, steps by one that the training writes outside of the run, and the model is a digest\n"
        "of all samples in order. A checkpoint is saved every 3 steps, and at a session's end.\n",
        {"seed": "seed", "killed": "killed", "pushed": "pushed", "again": "steps trained again"},
    ),
    "late": Table(
        "late",
        "Kernels that show late",
        ("tests/runs/kaggle/test_kaggle_late.py",),
        {"LAUNCH_LATE_KILLS": "20"},
        "A push at the stand-in for Kaggle's service is accepted, and every call about its kernel is denied for 20 seconds. The client\n"
        "that pushed it is killed by SIGKILL within them, and another command typed. *Left* are the accepted kernels that were neither\n"
        "followed to their end nor deleted, by the stand-in's own kernels and ledger.\n",
        {
            "denied": "denied with",
            "answer": "push",
            "killed": "killed",
            "then": "then typed",
            "left": "left",
        },
    ),
    "batches": Table(
        "batches",
        "Killed workers of batches",
        ("tests/runs/batch/test_batches_everywhere.py",),
        {"LAUNCH_BATCH_KILLS": "20"},
        "The process that runs a batch is killed by SIGKILL after a random while, twenty times, and `launch batch resume` typed each time.\n"
        "Its items may go to this machine, two roots over SSH, an engine's containers, and a host that is down; a part of them goes to the\n"
        "engine and to the stand-ins for Kaggle and Lambda Cloud alone. Before each start the services lose an answer of some calls, and\n"
        "answer others with 429 and 503; the SSH connections are cut twice. *Once* are the items that began once and ended once by a\n"
        "ledger outside of their runs; containers are counted by the docker CLI, pushes and rents by the stand-ins. The last item may\n"
        "only run on the host that is down, and is still queued.\n",
        {"done": "batch", "kills": "kills", "hosts": "runs", "once": "once"},
    ),
    "rents": Table(
        "rents",
        "Killed clients that rent",
        (
            "tests/runs/rental/test_renting_kills.py",
            "tests/runs/rental/test_renting_at_once.py",
            "tests/rental/test_rental_kills.py",
        ),
        {"LAUNCH_RENTS": "20", "LAUNCH_WHOLE_RENTS": "20"},
        "A client is killed by SIGKILL at a point of a rent at the stand-in for Lambda Cloud, and two reconciles at once come after it.\n"
        "Then nothing of ours lives, by the stand-in's own account of starts, ends and cents. The rows of `launch`, `reconcile` and\n"
        "keepers are end to end: each instance is a machine with an sshd of its own, and what a run has finished\n"
        "is home, by the sha256sum of the dead machine's disk. Those of *a renter* and *a reconciler* are of\n"
        "`launcher/rental/lease/renter.py` in a process of its own, without a machine. A request is killed, in turn, before it is accepted,\n"
        "which it then is not; before its answer is sent; and up to 0.3 s after that. *Killed* are those that had not ended by themselves. *Doubled* are runs that had two\n"
        "instances at the same time: none had them after the first two reconciles. *Bill* is by the stand-in, *ledger* what the\n"
        "ledger says that it cost at most, *second* the part of that for second instances; each instance's cost is in it.\n",
        {
            "where": "who",
            "point": "killed at",
            "killed": "killed",
            "started": "started",
            "ended": "ended",
            "touched": "strangers touched",
            "doubled": "doubled",
            "billed": "bill",
            "known": "ledger",
            "extra": "second",
        },
    ),
    "orders": Table(
        "orders",
        "Orders",
        ("tests/runs/copy/test_last_copy.py",),
        {"LAUNCH_ORDERS": "20"},
        "Ten random steps an order over one run that has ended: pulls, copies, removals, resumptions, garbage collections, files that the\n"
        "run writes or the user changes. Of the steps that are commands a third is killed at a random moment: the client, its agent, or both.\n"
        "After each step `find` and `sha256sum` on both sides look for the latest version of each file.\n",
        {"orders": "orders", "steps": "steps", "killed": "killed", "lost": "last copies lost"},
    ),
    "slurm": Table(
        "slurm",
        "Faults on a Slurm cluster",
        ("tests/runs/slurm/test_slurm_faults.py",),
        {"LAUNCH_SLURM": "all"},
        "A real controller, two login nodes and two compute nodes, each a machine of its own, whose home is shared plainly, by FUSE with\n"
        "locks of each machine, and by FUSE with locks that reach all. The trainer saves every 5 steps and writes a ledger outside of its\n"
        "run. After each row `squeue` is empty, no step of an earlier trainer comes after the first one of the next, and *steps again* are\n"
        "at most those of one interval. A job that waits out the two minutes that Slurm lets it wait is let go at once.\n",
        {
            "where": "home",
            "fault": "what was done",
            "end": "how it ended",
            "starts": "starts",
            "again": "steps again",
        },
    ),
    "slurm-ends": Table(
        "slurm",
        "What Slurm reports of runs",
        ("tests/runs/slurm/test_slurm_truth.py",),
        {"LAUNCH_SLURM_ACCOUNTS": "1"},
        "A real controller with accounting. *By `sacct`*: the names of runs, and the state and the exit status of their jobs, which a test\n"
        "compares with those of the controller. What scripts did is in a ledger outside of the runs.\n",
        {"what": "test", "said": "by `sacct`"},
        file="SLURM_ENDS",
    ),
    "large": Table(
        "large",
        "Large trees",
        ("tests/runs/upload/test_large_trees.py",),
        {"LAUNCH_LARGE": "1"},
        "Three launches of a command that only exits, on an SSH host on loopback whose user is not root. *Memory* is the most that a\n"
        "process had (VmHWM), *disk* is the host's whole root by `du` after one and after three runs.\n"
        "The file system is not one that shares blocks.\n",
        {
            "done": "what was sent",
            "first": "first launch",
            "again": "third launch",
            "agent": "memory of the agent",
            "client": "of the client",
            "disk": "disk after 1 / 3 runs",
        },
    ),
}
PARTS = {
    "rentals": ("rental/*.py", "runs/rental/*.py", "cli/test_lambda_words.py"),
    "kaggle": ("runs/kaggle/*.py", "backends/*.py", "seeds/test_seed_004_at_kaggle.py"),
    "slurm": ("runs/slurm/*.py", "agent/slurm/*.py"),
    "batches": ("runs/batch/*.py",),
    "trainings": ("jobs/*.py", "worker/*.py", "seeds/*.py", "programs/*.py", "trainings/*.py", "gpu/*.py"),
    "machines": ("runs/places/*.py", "runs/recover/*.py", "testbed/*.py", "transport/*.py"),
    "copies": ("runs/copy/*.py", "runs/upload/*.py", "runs/move/*.py"),
    "rest": ("*/test_*.py", "*/*/test_*.py"),
}  # fmt: skip
"""The long tests in parts of at most an hour: their files, of which a later part has those that no earlier one has."""


def part(name: str) -> Table:
    """Return the table of a part of the long tests: how long each takes."""
    taken: set[Path] = set()
    for one, patterns in PARTS.items():
        files = {
            path for pattern in patterns for path in TESTS.glob(pattern) if path.name.startswith("test_")
        }
        if one == name:
            break
        taken |= files
    tests = sorted(path.relative_to(TESTS.parent).as_posix() for path in files - taken)
    return Table(
        f"long PART={name}",
        f"Long tests: {name}",
        tuple(tests),
        {},
        "The tests that CI leaves out because of their time; CONTRIBUTING says what stands for them there.\n",
        {"test": "test", "seconds": "seconds"},
        marks="long",
        file=f"LONG_{name.upper()}",
    )


def rows(table: Table, report: Path) -> Iterator[str]:
    """Yield a line of the table for each test that recorded what it did, file by file."""
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest has just written it
    for case in sorted(cases, key=lambda case: case.get("classname", "")):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if "test" in table.columns:
            name = f"`{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}`"
            said |= {"test": name, "seconds": f"{float(case.get('time', 0)):.0f}"}
        if said:
            yield f"| {' | '.join(str(said[key]) for key in table.columns)} |\n"


def main() -> int:
    """Run the tests of a table, or of parts of the long ones; return pytest's exit code, that of the first part that failed."""
    name, *parts = sys.argv[1:]
    if unknown := set(parts) - PARTS.keys():
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are: {' '.join(PARTS)}")
    tables = [part(one) for one in parts or PARTS] if name == "long" else [TABLES[name]]
    codes = [run(table) for table in tables]
    return next((code for code in codes if code), 0)


def run(table: Table) -> int:
    """Run a table's tests and write it; return pytest's exit code, and write none where that is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", *table.tests, "-q", "-n", "4", "-m", table.marks),
            "--timeout=3600",  # full counts take many times as long as a test does in CI
            *(f"--junitxml={report}", "-o", "junit_family=xunit1"),  # the one that holds what tests record
        ]
        environment = {**os.environ, **table.environment, "LAUNCH_TESTBED": "required"}
        code = subprocess.run(command, cwd=HERE.parents[1], env=environment, check=False).returncode
        if code == 0:
            written = WRITTEN.format(
                name=table.name,
                date=dt.datetime.now(dt.UTC).date(),
                system=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
                python=platform.python_version(),
            )
            head = f"| {' | '.join(table.columns.values())} |\n|{' --- |' * len(table.columns)}\n"
            path = HERE / f"{table.file or table.name.upper()}.md"
            path.write_text(f"# {table.title}\n\n{written}{table.note}\n{head}{''.join(rows(table, report))}")
            print(f"written: {path}")
        return code


if __name__ == "__main__":
    sys.exit(main())
