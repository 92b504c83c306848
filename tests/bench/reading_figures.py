"""Figures of reading and following: large logs, many points, many runs, an agent that has nothing to do."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from figures import Figure, at_most, beside, in_turn, spread_ms
from testbed.client import LAUNCH, Client, processes_of, until
from testbed.history import repeat, repeat_mirror
from testbed.sshd import SshHost

LOG_BYTES = 100_000_000
POINTS = 1_000_000
RUNS = 10_000
IDLE_S = 40.0
TRIES = 5
LAST_WORDS = """
Traceback (most recent call last):
  File "/home/ada/train.py", line 12, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB.
"""
BARE = """
import csv, json, sys
writer = csv.writer(sys.stdout, lineterminator="\\n")
for line in open(sys.argv[1], "rb"):
    event = json.loads(line)
    if event["kind"] == "metric":
        for name, value in event["values"].items():
            writer.writerow([event["attempt"], event["rank"], event["step"], event["time"], name, value])
"""
POINTS_SCRIPT = f"""
import os, sys, time, launcher_worker as worker
for step in range(1, {POINTS + 1}):
    worker.log(step, loss=2.0 - step / 1e6)
while not os.path.exists(sys.argv[1]):
    step += 1
    worker.log(step, loss=1.0)
    time.sleep(0.1)
worker.done(step)
"""


class Used(NamedTuple):
    """What a command took: seconds of wall time, and the most memory of its process in bytes."""

    seconds: float
    memory: int


def used(client: Client, *words: str) -> Used:
    """Run `launch …` to its end; what it prints is thrown away."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [*LAUNCH, *words],
        cwd=client.project,
        env=client.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return Used(time.perf_counter() - began, usage.ru_maxrss * 1024)


def diagnose(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure `launch diagnose` of logs of 100 MB: its time, and its memory."""
    drawn = "\r%3d%%|%s| %d/900000 [00:%02d<00:20,  9.%02dit/s, loss=2.%03d]"
    kinds = {
        "lines with a loss": lambda n: (
            f"step {n}/900000 loss {2 + n % 9973 / 9973:.4f} lr 2.0e-04 tok/s {3000 + n % 211}\n"
        ),
        "a bar": lambda n: (
            drawn % (n % 100, "#" * (n % 40), n, n % 60, n % 100, n % 997) + "\n" * (n % 50 == 0)
        ),
        "plain text": lambda n: f"{n * 2654435761 % 2**64:x} the quick fox {n * 40503 % 99991:x} jumps\n",
    }
    path = client.project / "crash.log"
    for kind, line in kinds.items():
        size = number = 0
        with path.open("w") as file:
            while size < LOG_BYTES:
                size += file.write("".join(map(line, range(number, number + 10_000))))
                number += 10_000
            file.write(LAST_WORDS)
        took = [used(client, "diagnose", str(path)) for _ in range(TRIES)]
        yield at_most(f"`launch diagnose` of 100 MB of {kind}", [one.seconds for one in took], 2.0)
        most = max(one.memory for one in took)
        yield Figure("… its memory", f"{most / 1e6:,.0f} MB", "", "", "≤ 150 MB", most <= 150e6)
    path.unlink()


def points(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure a run of 10^6 points: until `attach` of a new client shows its bar, and `metrics --csv` beside a bare loop."""
    client.script(POINTS_SCRIPT)
    end = client.home / "end"
    run = client.detached("--", "python", "train.py", str(end))
    record = client.home / ".launch" / "runs" / run / "record"
    until(lambda: [*record.glob("*/events.jsonl")], "the first event")
    (events,) = record.glob("*/events.jsonl")
    until(lambda: b'"step":%d,' % POINTS in _end_of(events), "the points", 300, every=0.2)
    until(
        lambda: client.summary(run, "--host", "local")["step"] > POINTS, "a heartbeat beyond them", every=0.5
    )
    shutil.rmtree(client.runs)
    took = []
    for _ in range(TRIES):
        took.append(_until_bar(client, run))
        shutil.rmtree(client.runs, ignore_errors=True)
    yield at_most("`launch attach` of 10^6 events, until its bar is shown", took, 0.5)
    end.touch()
    until(lambda: client.summary(run, "--host", "local")["state"] == "succeeded", "its end", 60)
    client.ok("metrics", run, "--host", "local", "--csv", timeout=300)
    (mirrored,) = client.runs.glob(f"{run}/*/events.jsonl")
    bare = [sys.executable, "-c", BARE, str(mirrored)]
    ours, floor = in_turn(
        lambda: used(client, "metrics", run, "--csv").seconds,
        lambda: _printed_s(bare),
        rounds=TRIES,
    )
    yield beside("`launch metrics --csv` of 10^6 points", ours, "`json.loads` and `csv.writer`", floor, 1.2)


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        return file.read()


def _printed_s(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _until_bar(client: Client, run: str) -> float:
    """Return the seconds from the start of an `attach` in a terminal until its bar shows a step beyond the history's."""
    ours, theirs = pty.openpty()
    env = {**client.env, "TERM": "xterm-256color", "LINES": "40"}
    began = time.perf_counter()
    words = [*LAUNCH, "attach", run, "--host", "local"]
    with subprocess.Popen(
        words, cwd=client.project, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        seen = b""
        while not any(int(step) > POINTS for step in re.findall(rb"(\d+)  loss", seen)):
            seen = seen[-100:] + os.read(ours, 1 << 16)
        took = time.perf_counter() - began
        process.kill()
        os.close(ours)
    return took


def listing(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure `launch ps` of 10,000 runs that are mirrored here, all of which have ended."""
    client.script("import launcher_worker as worker\nworker.log(1, loss=2.0)\nworker.done(1)\n")
    client.ok("--", "python", "train.py")
    repeat_mirror(next(client.runs.glob("*-train-*")), client.index, RUNS - 1)
    used(client, "ps")
    took = [used(client, "ps").seconds for _ in range(TRIES)]
    yield at_most(f"`launch ps` of {RUNS:,} runs", took, 0.3)


def history(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure commands on a host with 10,000 runs, one of 2,000 interrupted and one of them alive."""
    client.script('print(\'{"step": 1, "loss": 2.0}\')\n')
    launch = ("-q", "--set", "inject=false", "--", "python", "train.py")
    short = [used(client, *launch).seconds for _ in range(TRIES)]
    yield Figure("launch to its end, in a new root", spread_ms(short))
    ended = json.loads(client.ok("ps", "--json"))["runs"][0]["run"]
    live = client.detached("--", "sleep", "3600")
    client.ok(*launch)  # the last run has ended
    ids = repeat(client.home / ".launch" / "runs" / ended, RUNS, interrupted_every=2000)
    used(client, "ps", "--host", "local")  # reads the record of each run
    for what, words, most_s in (
        ("ps", ("ps",), 2.0),
        ("attach RUN", ("attach", ids[77]), 1.0),
        ("attach last", ("attach", "last"), 1.0),
    ):
        took = [used(client, *words, "--host", "local").seconds for _ in range(TRIES)]
        yield at_most(f"`launch {what} --host`, {RUNS:,} runs there", took, most_s)
    took = [used(client, "gc", "--host", "local").seconds]
    yield at_most(f"`launch gc --host`, {RUNS:,} runs there", took, 30.0)
    client.ok("stop", "--now", live)
    long = [used(client, *launch).seconds for _ in range(TRIES)]
    yield Figure(f"launch to its end, {RUNS:,} runs there", spread_ms(long))


def idle(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure the keeper and the agent of a run that only sleeps, while they sample the host."""
    run = client.detached("--", "sleep", "3600")
    folder = client.home / ".launch" / "runs" / run
    agents = [
        pid for pid in processes_of(folder) if b"agent.pyz" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(agents) == 2, agents
    time.sleep(5.0)  # what a start leaves to be done
    before = sum(map(_cpu_s, agents))
    time.sleep(IDLE_S)
    share = (sum(map(_cpu_s, agents)) - before) / IDLE_S
    memory = sum(map(_memory, agents))
    client.ok("stop", "--now", run)
    yield Figure(
        "keeper and agent of an idle run: CPU", f"{share:.3%}", "", "", "≤ 0.1 % of a core", share <= 0.001
    )
    yield Figure("… their memory", f"{memory / 1e6:.1f} MB", "", "", "≤ 30 MB", memory <= 30e6)


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, which the kernel counts in ns, and of its children that have ended."""
    own = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own / 1e9 + sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    """Return the memory of a process, with its part of what it shares, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
