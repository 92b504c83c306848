"""Figures: `make bench`. Medians over several rounds, each beside its floor; nothing here passes or fails.

start    `launch --help` and `profile list` against importing typer and rich alone
launch   a job that only exits, here and on an SSH host on loopback, against `ssh HOST true`
ship     10,000 unchanged files against `rsync -a` that finds nothing to do; 500 small new ones at a round trip of 40 ms
         against `tar | ssh`
hosts    50 hosts probed at once
stream   from a metric written by the training to the same line in the client's mirror, and lines a second
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from testbed.client import LAUNCH, Client, until
from testbed.link import Link
from testbed.sshd import ADDRESS, MissingPartError, SshHost

ROUNDS = 9

LATENCY = """
import time, launcher_worker as worker
for step in range(1, 301):
    time.sleep(0.02)
    worker.log(step, loss=1.0, written=time.time())
worker.done(300)
"""

FLOOD = """
import launcher_worker as worker
for step in range(1, 200_001):
    worker.log(step, loss=1.0)
worker.done(200_000)
"""


def seconds(command: list[str], **more: object) -> float:
    """Return the wall time of a command, in seconds."""
    began = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, **more)  # type: ignore[call-overload]
    return time.perf_counter() - began


def median(command: list[str], **more: object) -> float:
    """Return the median wall time over the rounds, after one to warm up."""
    seconds(command, **more)
    return statistics.median(seconds(command, **more) for _ in range(ROUNDS))


def start() -> None:
    """Print how fast the command line starts."""
    floor = median([sys.executable, "-c", "import typer, rich.console"])
    print(f"start    import typer, rich.console   {floor * 1000:6.0f} ms")
    for words in (["--help"], ["profile", "list"]):
        took = median([*LAUNCH, *words])
        print(f"start    launch {' '.join(words):<22}{took * 1000:6.0f} ms   {took / floor:.2f} x")


def launches(client: Client, host: SshHost | None) -> None:
    """Print how long a job takes that only exits."""
    more = {"cwd": client.project, "env": client.env}
    took = median([*LAUNCH, "--", "true"], **more)
    print(f"launch   local, whole                 {took * 1000:6.0f} ms")
    if host is None:
        return
    floor = statistics.median(_timed(lambda: host.ssh("true")) for _ in range(ROUNDS))
    took = median([*LAUNCH, "--host", "A", "--", "true"], **more)
    print(f"launch   ssh HOST true                {floor * 1000:6.0f} ms")
    print(f"launch   over SSH, whole              {took * 1000:6.0f} ms   {took / floor:.2f} x")
    lines = [json.loads(line) for line in client.ok("--host", "A", "--json", "--", "true").splitlines()]
    for line in lines:
        if line.get("kind") == "stage":
            print(f"launch     {line['name']:<27}{line['seconds'] * 1000:6.0f} ms")


def _timed(call: object) -> float:
    began = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - began


def stage_s(client: Client, name: str, *words: str) -> float:
    """Return how long a stage of a launch took, in seconds."""
    lines = [json.loads(line) for line in client.ok("--json", *words, "--", "true", timeout=600).splitlines()]
    return float(next(line["seconds"] for line in lines if line.get("name") == name))


def ship_unchanged(client: Client, host: SshHost) -> None:
    """Print the ship stage of an unchanged tree beside a whole rsync of the same tree."""
    tree = client.project / "tree"
    for number in range(10_000):
        path = tree / f"d{number % 100}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" * (number % 400))
    rsync = ["rsync", "-a", "-e", host.ssh_command(), f"{tree}/", f"{host.user}@{ADDRESS}:.rsync-copy/"]
    floor = median(rsync)
    time.sleep(2.5)  # files younger than that are hashed each time, for they might change within one tick
    first = stage_s(client, "ship", "--host", "A")
    took = []
    for _ in range(ROUNDS):
        until(
            lambda: host.ssh("sh", "-c", "ls .launch/store/spare/*/stats.json", check=False), "the spare copy"
        )
        took.append(stage_s(client, "ship", "--host", "A"))
    shutil.rmtree(tree)
    middle = statistics.median(took)
    print(f"ship     rsync -a, nothing to do      {floor * 1000:6.0f} ms")
    print(f"ship     10,000 files, all new        {first * 1000:6.0f} ms")
    print(f"ship     10,000 files, unchanged      {middle * 1000:6.0f} ms   {middle / floor:.2f} x")


def ship_far(client: Client, host: SshHost) -> None:
    """Print the first ship of 500 small files over a slow link beside tar through ssh over the same one."""
    tree = client.project / "small"
    tree.mkdir()
    with Link(ADDRESS, host.port, delay_s=0.02) as link:
        far = host.table(
            "far", address=link.address, port=link.port, known_hosts=host.known_as(link.address, link.port)
        )
        (client.project / "launch.toml").write_text(host.table() + far)
        ours, theirs = [], []
        for number in range(5):
            for name in range(500):
                (tree / f"f{name}.py").write_text(f"# {number} {name}\n" * 50)
            ssh = host.ssh_command(link.address, link.port)
            command = f"tar -C {tree} -c . | {ssh} {host.user}@{link.address} 'mkdir -p .tar-{number} && tar -C .tar-{number} -x'"
            theirs.append(seconds(["sh", "-c", command]))
            ours.append(stage_s(client, "ship", "--host", "far"))
    shutil.rmtree(tree)
    (client.project / "launch.toml").write_text(host.table())
    floor, took = statistics.median(theirs), statistics.median(ours)
    print(f"ship     tar | ssh, 500 files, 40 ms  {floor * 1000:6.0f} ms")
    print(f"ship     500 new files, 40 ms         {took * 1000:6.0f} ms   {took / floor:.2f} x")


def many_hosts(client: Client, host: SshHost) -> None:
    """Print how long 50 hosts take that are probed at once."""
    (client.project / "launch.toml").write_text("".join(host.table(f"h{number}") for number in range(50)))
    took = seconds([*LAUNCH, "hosts"], cwd=client.project, env=client.env)
    (client.project / "launch.toml").write_text(host.table())
    print(f"hosts    50 at once                   {took * 1000:6.0f} ms")


def stream(client: Client, name: str) -> None:
    """Print the delay from written to seen, by the client's own clock (one machine), and the rate."""
    words = [] if name == "local" else ["--host", name]
    client.script(LATENCY)
    process = client.start(*words, "--json", "--", "python", "train.py")
    assert process.stdout is not None
    delays = []
    for line in process.stdout:
        now = time.time()
        event = json.loads(line)
        if event.get("name") == "written":
            delays.append(now - event["value"])
    process.wait()
    delays.sort()
    p50, p99 = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    print(
        f"stream   {name}: written to seen      p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms ({len(delays)} lines)"
    )
    client.script(FLOOD)
    lines = [
        json.loads(line)
        for line in client.ok(*words, "--json", "--", "python", "train.py", timeout=600).splitlines()
    ]
    times = [line["time"] for line in lines if line.get("kind") == "state" and "time" in line]
    count = sum(line.get("name") == "loss" for line in lines)
    print(
        f"stream   {name}: {count} lines at        {count / (times[-1] - times[0]):,.0f} lines/s, from worker to record"
    )


def main() -> None:
    """Print all figures."""
    folder = Path(tempfile.mkdtemp(prefix="launch-bench-"))
    folder.chmod(0o755)
    client = Client(folder / "client")
    host: SshHost | None = SshHost(folder / "sshd")
    try:
        try:
            host.up()
            (client.project / "launch.toml").write_text(host.table())
        except MissingPartError as error:
            print(f"no SSH host: {error}")
            host = None
        start()
        launches(client, host)
        if host is not None:
            ship_unchanged(client, host)
            ship_far(client, host)
            many_hosts(client, host)
        stream(client, "local")
        if host is not None:
            stream(client, "A")
    finally:
        if host is not None:
            host.down()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
