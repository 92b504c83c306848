"""Figures: `make bench` measures everything and writes the table FIGURES.md; nothing here passes or fails.

`bench.py NAME …` measures only these, and writes nothing:

start      `launch --help`, `profile list`, and a look at a run that has ended here, beside importing typer and rich, and one class of pydantic
launch     a job that only exits, here and on an SSH host on loopback, beside `ssh HOST true`, and its stages
held       commands through a connection that is held, beside `ssh HOST true`
unchanged  the ship of 10,000 unchanged files beside an `rsync -a` that finds nothing to do
bulk       the ship of a new file of 1 GB beside `tar | ssh`
far        the first ship of 500 small files at a round trip of 40 ms, beside `tar | ssh`
image      a job's image built cold, after another requirement, and when it is there, and its size, beside a plain Dockerfile
environment  an environment that uv fills from a folder, cold and with another package, beside `uv pip install` in turn
container  a warm job that only exits, in a container, beside `ssh HOST docker run --rm IMAGE true` of the same image
probe      one probe of a host with 4 simulated cards and 8 holders, without what its nvidia-smi takes itself
hosts      50 and 200 hosts probed at once by one client, beside as many `ssh HOST true` at once
hook       a Python that does nothing, with the start-up hook and without it in turn
guard      the share of a training's step time that is spent inside the guard, on a model of 100M parameters and more
idle       CPU time and memory of the keeper and the agent of a run that only sleeps
diagnose   `launch diagnose` of logs of 100 MB: its time, and its memory
points     a run of 10^6 points: until `attach` shows its bar, and `metrics --csv` beside a bare loop of json and csv
listing    `launch ps` of 10,000 runs that are mirrored here
history    commands on a host with 10,000 runs
printed    100,000 lines printed at once: the CPU time of a client that follows and shows them, beside one with -q
check      `launch check` of 1,000 scripts of 300 lines, of which 100 have a problem, cold, and `--fix` of them
reader     the agent's log reader: its CPU time for 100,000 lines of a common format, of plain text, of a bar with a loss
many       50 runs that talk at once, followed over one connection: how old what they wrote is when it is shown, and what that costs
local ssh  from a metric written by the training to the client that has it in its mirror and shows it, here and over SSH
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from check_figures import check
from figures import (
    REPOSITORY,
    ROUNDS,
    TABLE,
    Figure,
    at_most,
    beside,
    committed,
    in_turn,
    ms,
    page,
    seconds,
    spread_ms,
)
from reading_figures import diagnose, history, idle, listing, points, used
from testbed.cache import wheelhouse
from testbed.cards import Cards
from testbed.client import LAUNCH, Client, until
from testbed.engine import BASE, Engine, engine_in_a_machine
from testbed.link import Link
from testbed.many_runs import TALKS
from testbed.missing_part import MissingPartError
from testbed.sshd import ADDRESS, SshHost
from testbed.wheels import WheelServer

from launcher.agent.host import probe_host as remote_probe
from launcher.agent.logs.log_scanner import LogScanner

FLOODS = 3
FOLLOWED = 5
ENVIRONMENTS = 3
BULKS = 3
STAGES = 5
BULK_BYTES = 1_000_000_000
LINES = 200_000
MANY, MANY_S = 50, 30

LATENCY = """
import time, launcher_worker as worker
for step in range(1, 501):
    time.sleep(0.02)
    worker.log(step, loss=1.0, written=time.time())
worker.done(500)
"""

FLOOD = f"""
import launcher_worker as worker
for step in range(1, {LINES + 1}):
    worker.log(step, loss=1.0)
worker.done({LINES})
"""


PRINTS = """
print("\\n".join(f"[{n}] the quick brown fox jumps over the lazy dog" for n in range(100_000)))
"""

BARE = "import typer, rich.console"
MODEL = f"""{BARE}
from pydantic import BaseModel
class One(BaseModel):
    number: int
"""

Measurement = Callable[[Client, SshHost], Iterator[Figure]]


def stages(client: Client, *words: str) -> dict[str, dict[str, Any]]:
    """Return what each stage of a launch told that only exits, its `seconds` and `text` among it."""
    lines = map(json.loads, client.ok("--json", "--yes", *words, "--", "true", timeout=600).splitlines())
    return {line["name"]: line for line in lines if line.get("kind") == "stage"}


def ship_s(client: Client, host: str, expected: str) -> float:
    """Return how long a launch took to collect its files and ship them, in seconds; the text must be of what is measured."""
    by_name = stages(client, "--host", host)
    assert expected in by_name["ship"]["text"], by_name["ship"]["text"]
    return sum(float(by_name[name]["seconds"]) for name in ("files", "ship"))


def start(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure how fast the command line starts, and looks at a run that has ended here."""
    more = {"cwd": client.project, "env": client.env}
    client.ok("--host", "local", "--", "true")
    bars = {
        "--help": (BARE, 1.0),
        "profile list": (BARE, None),
        "ps": (MODEL, None),
        "logs last": (MODEL, None),
        "--dry-run --host local -- true": (MODEL, None),
    }
    for words, (floor, most) in bars.items():
        ours, theirs = in_turn(
            lambda words=words: seconds([*LAUNCH, *words.split()], **more),
            lambda floor=floor: seconds([sys.executable, "-c", floor]),
        )
        name = "`import typer, rich.console`" + (" and one pydantic class" if floor == MODEL else "")
        yield beside(f"`launch {words}`", ours, name, theirs, most)


def launch(client: Client, host: SshHost) -> Iterator[Figure]:
    """Measure a job that only exits."""
    more = {"cwd": client.project, "env": client.env}
    here, there, floor = in_turn(
        lambda: seconds([*LAUNCH, "--", "true"], **more),
        lambda: seconds([*LAUNCH, "--host", "A", "--", "true"], **more),
        lambda: seconds(["sh", "-c", f"{host.ssh_command()} {host.user}@{ADDRESS} true"]),
    )
    yield Figure("launch of `true` here", spread_ms(here))
    yield beside("launch of `true` over SSH", there, "`ssh HOST true`", floor)
    yield from _stages_of(client, "A")


def held(client: Client, host: SshHost) -> Iterator[Figure]:
    """Measure commands through a connection that is held, each in turn with a login."""
    table = client.project / "launch.toml"
    known = table.read_text()
    table.write_text(host.table(hold=600))
    more = {"cwd": client.project, "env": client.env}
    login = ["sh", "-c", f"{host.ssh_command()} {host.user}@{ADDRESS} true"]
    try:
        _hold(client, "A")
        for words in ("ps --host A", "logs", "--host A -- true"):
            ours, floor = in_turn(
                lambda words=words: seconds([*LAUNCH, *words.split()], **more), lambda: seconds(login)
            )
            yield beside(f"`launch {words}`, held", ours, "`ssh HOST true`", floor)
    finally:
        client.run("hosts", "--close")
        table.write_text(known)


def _hold(client: Client, host: str) -> None:
    """Have the connection to a host held, as after a person's first command."""
    seconds([*LAUNCH, "--host", host, "--", "true"], cwd=client.project, env=client.env)
    until(lambda: json.loads(client.ok("hosts", "--json"))["connections"], "a held connection", every=1)
    seconds([*LAUNCH, "ps", "--host", host], cwd=client.project, env=client.env)


def container(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure a job that only exits in a container of an image that is there, on an engine of its own."""
    with engine_in_a_machine("bench", 60) as engine:
        machine = engine.machine
        others = (client.project / "launch.toml").read_text()
        table = machine.table("D", runtime="docker", hold=0)
        build = f'[hosts.D.build]\nbase = "{BASE}"\n'
        (client.project / "launch.toml").write_text(f"{others}\n{table}\n{build}")
        image = stages(client, "--host", "D")["image"]["text"].split(",")[0]
        more = {"cwd": client.project, "env": client.env}
        ours, floor = in_turn(
            lambda: seconds([*LAUNCH, "--host", "D", "--", "true"], **more),
            lambda: seconds([*machine.ssh_words(), f"docker run --rm {image} true"], **more),
        )
        what = "launch of `true` in a container"
        yield beside(what, ours, "`ssh HOST docker run --rm IMAGE true`", floor, 1.7)
        yield from _stages_of(client, "D")


def _stages_of(client: Client, host: str) -> Iterator[Figure]:
    """Yield what each stage of a launch takes of a job that only exits."""
    found = [stages(client, "--host", host) for _ in range(STAGES)]
    for name in found[0]:
        yield Figure(f"… of it the stage {name}", spread_ms([each[name]["seconds"] for each in found]))


PLAIN = f"""
FROM {BASE}
COPY requirements.txt .
ENV PIP_BREAK_SYSTEM_PACKAGES=1
RUN --mount=type=secret,id=pip_conf PIP_CONFIG_FILE=/run/secrets/pip_conf python3 -m pip install -r requirements.txt
COPY train.py .
"""
NEEDED = ["torch==2.13.0", "transformers", "accelerate", "peft"]


def image(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure the image of the main job on an engine of its own, with an index on the same machine, beside a plain one."""
    with engine_in_a_machine("bench", 61) as engine:
        index = WheelServer(wheelhouse())
        index.up()
        try:
            yield from _images(client, engine, index)
        finally:
            index.down()


def _images(client: Client, engine: Engine, index: WheelServer) -> Iterator[Figure]:
    folder = engine.machine.homes / "ada" / "plain"
    folder.mkdir()
    conf = f"[global]\nindex-url = {index.index_url}\ntrusted-host = {index.address}\n"
    for path in (client.home / "pip.conf", folder / "pip.conf"):
        path.write_text(conf)
    others = (client.project / "launch.toml").read_text()
    build = f'base = "{BASE}"\npip_conf = "{client.home}/pip.conf"\ntorch_index = ""\n'
    table = f"{others}\n{engine.machine.table('I', runtime='docker')}\n[hosts.I.build]\n{build}"
    (client.project / "launch.toml").write_text(table)
    (folder / "Dockerfile").write_text(PLAIN)
    (folder / "train.py").write_text("")
    plain = "cd plain && DOCKER_BUILDKIT=1 docker build -q -t plain --secret id=pip_conf,src=pip.conf ."
    for what, needed in (
        ("cold", NEEDED),
        ("with another requirement", [*NEEDED, "jinja2"]),
        ("that is there", [*NEEDED, "jinja2"]),
    ):
        job = client.home / "job.toml"
        job.write_text(f'name = "bench"\ncommand = ["true"]\nrequirements = {json.dumps(needed)}\n')
        (folder / "requirements.txt").write_text("\n".join(needed))
        words = [*LAUNCH, "image", "build", "--host", "I", "--job", str(job)]
        took = seconds(words, cwd=client.project, env=client.env)
        floor = seconds([*engine.machine.ssh_words(), plain])
        yield beside(f"an image {what}", [took], "a plain Dockerfile's", [floor])
    ours, theirs = (_mb(engine, name) for name in ("launcher/cpu", "plain"))
    yield Figure("… its size", f"{ours:,.0f} MB", f"{theirs:,.0f} MB", f"{ours / theirs:.2f} x")


def environment(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure the environment of the main job, filled by uv from a local folder, beside `uv pip install` of the same wheels.

    Each has a cache of its own. Cold, both caches are empty; then an environment has one package more, in turn.
    """
    uv = _own_uv(client)
    caches = client.home / ".cache" / "uv", client.home / "plain-cache"
    ours, theirs = client.home / ".launch" / "envs", client.home / "plain"
    for path in (ours, theirs, *caches):
        path.mkdir(parents=True, exist_ok=True)
    took: dict[str, list[tuple[float, float]]] = {"cold": [], "with another package": []}
    for number in range(ENVIRONMENTS):
        for path in (ours, *caches):
            shutil.rmtree(path)
        for what, needed in (("cold", NEEDED), ("with another package", [*NEEDED, "h11"])):
            makers = [
                lambda needed=needed: _made_by_us(client, needed),
                lambda needed=needed: _made_by_uv(uv, theirs, caches[1], needed),
            ]
            pair = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                shutil.rmtree(theirs, ignore_errors=True)
                os.sync()
                pair[which] = makers[which]()
            took[what].append((pair[0], pair[1]))
    for (what, pairs), most in zip(took.items(), (1.2, None), strict=True):
        by_us, by_uv = zip(*pairs, strict=True)
        yield beside(f"an environment {what}", by_us, "`uv venv`, `uv pip install`", by_uv, most)


def _own_uv(client: Client) -> str:
    """Set up a uv and a folder of wheels for a client, and no index; return the uv. Raises MissingPartError."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise MissingPartError("uv is not installed: pip install uv")
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        del os.environ[name]  # pip would be set up on this host, and would fill it
    there = client.home / ".local" / "bin" / "uv"
    there.parent.mkdir(parents=True)
    shutil.copy(uv, there)
    (client.home / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {wheelhouse()}\n")
    others = (client.project / "launch.toml").read_text()
    # The Python of the tests has these packages.
    build = f'[hosts.local]\npython = "/usr/bin/python3"\n[hosts.local.build]\npip_conf = "{client.home}/pip.conf"\ntorch_index = ""\n'
    (client.project / "launch.toml").write_text(f"{others}\n{build}")
    return uv


def _made_by_us(client: Client, needed: list[str]) -> float:
    """Return how long the stage took in which a launch made an environment, in seconds."""
    words = [word for package in needed for word in ("--with", package)]
    stage = stages(client, "--runtime", "native", *words)["environment"]
    assert "by uv" in stage["text"], stage["text"]
    return float(stage["seconds"])


def _made_by_uv(uv: str, folder: Path, cache: Path, needed: list[str]) -> float:
    """Return how long uv took to make and fill an environment, in seconds."""
    variables = {**os.environ, "UV_CACHE_DIR": str(cache)}
    wheels = ["--no-index", "--find-links", str(wheelhouse()), "--python", str(folder / "bin" / "python")]
    took = seconds([uv, "venv", "--python", "/usr/bin/python3", str(folder)], env=variables)
    return took + seconds([uv, "pip", "install", *wheels, *needed], env=variables)


def _mb(engine: Engine, name: str) -> float:
    """Return the size of the latest image of a name, in MB."""
    latest = engine.docker("images", "--format", "{{.ID}}", name).split()[0]
    return int(engine.docker("inspect", "--format", "{{.Size}}", latest)) / 1e6


def unchanged(client: Client, host: SshHost) -> Iterator[Figure]:
    """Measure the ship stage of a tree that the host has, beside a whole rsync of the same tree."""
    tree = client.project / "tree"
    for number in range(10_000):
        path = tree / f"d{number % 100}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" * (number % 400))
    rsync = ["rsync", "-a", "-e", host.ssh_command(), f"{tree}/", f"{host.user}@{ADDRESS}:.rsync-copy/"]
    time.sleep(2.5)  # files younger than that are hashed each time, for they might change within one tick
    new_s = seconds(rsync)
    yield beside(
        "ship of 10,000 files, all new", [ship_s(client, "A", " files sent")], "`rsync -a` of them", [new_s]
    )

    def ship_again() -> float:
        until(
            lambda: host.ssh("sh", "-c", "ls .launch/store/spare/*/stats.json", check=False), "the spare copy"
        )
        return ship_s(client, "A", "none to send")

    ours, theirs = in_turn(ship_again, lambda: seconds(rsync))
    shutil.rmtree(tree)
    yield beside("ship of 10,000 files, unchanged", ours, "`rsync -a`, nothing to do", theirs, 1.0)


def bulk(client: Client, host: SshHost) -> Iterator[Figure]:
    """Measure the ship of one file of 1 GB that no compression makes smaller, beside tar through ssh; each time it is new."""
    tree = client.project / "bulk"
    tree.mkdir()
    path = tree / "data.bin"
    with path.open("wb") as file:
        for _ in range(BULK_BYTES // 10_000_000):
            file.write(os.urandom(10_000_000))
    ssh = f"{host.ssh_command()} {host.user}@{ADDRESS}"
    command = ["sh", "-c", f"tar -C {tree} -c . | {ssh} 'mkdir -p .tar-bulk && tar -C .tar-bulk -x'"]

    def ship() -> float:
        with path.open("r+b") as file:
            file.write(os.urandom(4096))
        time.sleep(2.5)  # as above
        took = ship_s(client, "A", "1 of ")
        host.ssh("sh", "-c", "chmod -R u+w .launch/runs .launch/store; rm -rf .launch/runs .launch/store")
        return took

    ours, theirs = in_turn(ship, lambda: seconds(command), rounds=BULKS)
    host.ssh("rm", "-rf", ".tar-bulk")
    shutil.rmtree(tree)
    yield beside("ship of a new file of 1 GB", ours, "`tar` through `ssh`", theirs, 1.1)


def far(client: Client, host: SshHost) -> Iterator[Figure]:
    """Measure the first ship of 500 small files over a slow link, beside tar through ssh over the same one."""
    tree = client.project / "small"
    tree.mkdir()
    table = client.project / "launch.toml"
    known = table.read_text()
    with Link(ADDRESS, host.port, delay_s=0.02) as link:
        known_hosts = host.known_as(link.address, link.port)
        table.write_text(host.table("far", address=link.address, port=link.port, known_hosts=known_hosts))
        ssh = f"{host.ssh_command(link.address, link.port)} {host.user}@{link.address}"
        ours, theirs = [], []
        for number in range(STAGES):
            for name in range(500):
                (tree / f"f{name}.py").write_text(f"# {number} {name}\n" * 50)
            theirs.append(
                seconds(
                    [
                        "sh",
                        "-c",
                        f"tar -C {tree} -c . | {ssh} 'mkdir -p .tar-{number} && tar -C .tar-{number} -x'",
                    ]
                )
            )
            ours.append(ship_s(client, "far", "500 of 500 files sent"))
    shutil.rmtree(tree)
    table.write_text(known)
    what = "first ship of 500 small files at 40 ms"
    yield beside(what, ours, "`tar` through `ssh`", theirs, 1.3)


def probe(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure what the agent's probe takes beside the slower of the two queries that it waits for."""
    cards = Cards(client.home / "cards")
    before = os.environ["PATH"]
    try:
        os.environ["PATH"] = f"{cards.folder}:{before}"
        cards.put(*["l40s"] * 4)
        for number in range(8):
            cards.hold(number // 2)
        query = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader,nounits"]

        def probe_s() -> float:
            began = time.perf_counter()
            told = remote_probe.probe(str(client.home / ".launch"), None, [])
            assert sum(len(gpu["holders"]) for gpu in told["gpus"]) == 8
            return time.perf_counter() - began

        whole, floor = in_turn(probe_s, lambda: seconds(query))
    finally:
        os.environ["PATH"] = before
        cards.close()
    own = [took - least for took, least in zip(whole, floor, strict=True)]
    what = "probe of 4 cards with 8 holders, our own part"
    yield at_most(what, own, 0.5, f"one `nvidia-smi`: {spread_ms(floor)}")


def hosts(client: Client, host: SshHost) -> Iterator[Figure]:
    """Measure hosts that are probed at once, beside as many `ssh HOST true` at once, and the most memory that it takes."""
    for count, most in ((50, 3.0), (200, 4.0)):
        table = "".join(host.table(f"h{number}") for number in range(count))
        (client.project / "launch.toml").write_text(table)
        ssh = f"{host.ssh_command()} {host.user}@{ADDRESS} true"
        ours, floor, memory = _probed_at_once(client, count, ssh)
        yield beside(f"{count} hosts probed at once", ours, f"{count} `ssh HOST true` at once", floor, most)
        yield Figure("… memory of the client", f"{memory / 1e6:,.0f} MB", "", "", "≤ 400 MB", memory <= 400e6)


def _probed_at_once(client: Client, count: int, ssh: str) -> tuple[list[float], list[float], int]:
    """Return the times of a client that probes its hosts, and of as many commands of ssh; and the client's memory."""
    memory: list[int] = []

    def probe_all() -> float:
        took = used(client, "hosts")
        memory.append(took.memory)
        return took.seconds

    at_once = ["sh", "-c", f"seq {count} | xargs -P {count} -I N {ssh}"]
    ours, floor = in_turn(probe_all, lambda: seconds(at_once), rounds=3 if count <= 50 else 2)
    return ours, floor, max(memory)


def hook(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure what the start-up hook costs a script without torch: with it and without it in turn."""
    worker = client.project / "worker"
    shutil.copytree(REPOSITORY / "launcher" / "worker", worker)
    plain = {
        **client.env,
        "PYTHONPATH": str(worker),
        "LAUNCH_SOCKET": str(client.project / "none"),
        "LAUNCH_HOOK": "observe",
    }
    hooked = {
        **plain,
        "PYTHONPATH": os.pathsep.join([str(worker / "launcher_worker" / "startup"), str(worker)]),
    }
    command = [sys.executable, "-c", "pass"]
    for name, written in (("", ""), (", from its source each time", "1")):
        more = {"PYTHONDONTWRITEBYTECODE": written}
        if written:
            shutil.rmtree(worker / "launcher_worker" / "startup" / "__pycache__")
        pairs = [
            (seconds(command, env={**plain, **more}), seconds(command, env={**hooked, **more}))
            for _ in range(10 * ROUNDS)
        ]
        cost_s = statistics.median(with_s - without_s for without_s, with_s in pairs)
        floor = f"Python without it: {ms(statistics.median(without_s for without_s, _ in pairs))}"
        what = f"the start-up hook in a script without torch{name}"
        yield Figure(what, f"{cost_s * 1000:.1f} ms", floor, "", "≤ 20 ms", cost_s <= 0.02)


def guard(_client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure the share of guard, start-up hook and observation in a step's CPU time, in processes of their own."""
    command = [sys.executable, str(Path(__file__).with_name("guard.py"))]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        found = json.loads(line)
        kind = found["what"].replace("-", " ")
        what = f"guard, hook and observation in a {kind} step of {found['parameters'] / 1e6:.0f}M parameters: CPU"
        share = found["share"]
        paired = f"{1000 * found['low_s']:.1f} to {1000 * found['high_s']:.1f} ms"
        step = f"the step: {ms(found['step_s'])}; paired: {paired}"
        yield Figure(what, f"{share:.2%}", step, "", "≤ 0.5 %", share <= 0.005)


def local(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure the stream of this machine."""
    return stream(client, "here")


def ssh(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure the stream over SSH."""
    return stream(client, "over SSH", "--host", "A")


def stream(client: Client, where: str, *words: str) -> Iterator[Figure]:
    """Measure the time from written to seen, by one clock (it is one machine), and how many lines a second are."""
    client.script(LATENCY)
    delays = []
    with client.start(*words, "--json", "--", "python", "train.py") as process:
        assert process.stdout is not None
        for line in process.stdout:
            now = time.time()
            event = json.loads(line)
            if event.get("name") == "written":
                delays.append(now - event["value"])
    delays.sort()
    for share in (50, 99):
        delay = delays[len(delays) * share // 100]
        yield at_most(f"metric written to seen {where}, p{share}", [delay], 0.1)
    client.script(FLOOD)
    rates = [_flood(client, *words) for _ in range(FLOODS)]
    rate = statistics.median(rates)
    yield Figure(
        f"metrics written to seen {where}",
        f"{rate:,.0f} lines/s ({min(rates):,.0f} to {max(rates):,.0f})",
        bar="≥ 100,000 lines/s",
        is_met=rate >= 100_000,
    )


def _flood(client: Client, *words: str) -> float:
    """Return the lines a second, from when the first was written to when the last was seen.

    They are counted in blocks: whoever measures has the same cores.
    """
    mark = b'"name":"loss"'
    count, first, last, rest = 0, 0.0, 0.0, b""
    with client.start(*words, "--json", "--", "python", "train.py") as process:
        assert process.stdout is not None
        while block := os.read(process.stdout.fileno(), 1 << 20):
            now = time.time()
            lines, _, rest = (rest + block).rpartition(b"\n")
            if mark in lines:
                first = first or json.loads(next(line for line in lines.splitlines() if mark in line))["time"]
                last = now
                count += lines.count(mark)
    assert count == LINES, f"{count} lines were seen"
    return count / (last - first)


def many(client: Client, host: SshHost) -> Iterator[Figure]:
    """Measure 50 runs that print ten lines and log a metric a second, launched and followed by threads over one line.

    The kernel counts the connections to sshd, from the first launch to the last end.
    """
    client.script(TALKS)
    program = Path(__file__).resolve().parents[1] / "testbed" / "many_runs.py"
    words = [sys.executable, str(program), "A", str(MANY), str(MANY_S)]
    env = {**client.env, "PYTHONPATH": str(REPOSITORY)}
    connections = 0
    said = client.home / "many.json"
    with said.open("w") as file, subprocess.Popen(words, cwd=client.project, env=env, stdout=file) as process:
        while process.poll() is None:
            connections = max(connections, host.streams())
            time.sleep(0.1)
    assert process.returncode == 0
    found = json.loads(said.read_text().splitlines()[-1])
    assert found["states"] == ["succeeded"] * MANY, found["states"]
    assert found["losses"] == 0
    for what in ("metric", "line"):
        ages = sorted(found[f"{what}s"])
        for share in (50, 99):
            age = ages[len(ages) * share // 100]
            bar, is_met = ("≤ 2,000 ms", age <= 2.0) if what == "metric" else ("", None)
            yield Figure(
                f"{MANY} runs at once: {what} written to seen, p{share}", ms(age), "", "", bar, is_met
            )
    used = found["cpu_s"] / found["seconds"]
    yield Figure("… CPU of the client", f"{used:.0%} of a core", f"{len(found['lines']):,} lines seen")
    yield Figure("… connections to its host", str(connections), "", "", "≤ 1", connections <= 1)


def printed(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure what it costs to show what a training prints, in a pipe and in a terminal; -q shows nothing of it."""
    client.script(PRINTS)
    run = client.detached("--", "python", "train.py")
    until(lambda: client.summary(run)["state"] == "succeeded", "its end", 120)
    for where, in_terminal in (("a pipe", False), ("a terminal", True)):
        shown, quiet = in_turn(
            lambda in_terminal=in_terminal: _followed_s(client, run, in_terminal=in_terminal),
            lambda: _followed_s(client, run, "-q", in_terminal=False),
            rounds=FOLLOWED,
        )
        yield beside(f"100,000 lines followed in {where}: CPU", shown, "with -q", quiet, 1.1)


def _followed_s(client: Client, run: str, *options: str, in_terminal: bool) -> float:
    """Return the CPU time of `attach` in a client that has nothing of a run yet."""
    return _cpu_s(client, [*LAUNCH, "attach", run, "--host", "local", *options], in_terminal=in_terminal)


def reader(_client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure the log reader alone, on pieces as large as a pipe gives."""
    drawn = "\r %3d%%|%s| %d/100000 [00:10<00:20,  9.%02dit/s, loss=2.%03d]"
    formats = {
        "`iter N: loss X, time Y`": (
            2.0,
            [f"iter {n}: loss {2 + n % 997 / 1000:.4f}, time {90 + n % 89:.2f}ms\n" for n in range(100_000)],
        ),
        "plain text": (1.0, [f"[{n}] the quick brown fox jumps over the lazy dog\n" for n in range(100_000)]),
        "a bar with a loss": (
            None,
            [drawn % (n // 1000, "#" * (n // 2500), n, n % 100, n % 997) for n in range(100_000)],
        ),
    }
    for what, (most_s, lines) in formats.items():
        took_s = statistics.median(_read_s("".join(lines).encode()) for _ in range(FLOODS))
        bar, is_met = (f"≤ {ms(most_s)}", took_s <= most_s) if most_s else ("", None)
        yield Figure(f"100,000 lines of {what} read: CPU", ms(took_s), bar=bar, is_met=is_met)


def _read_s(log: bytes) -> float:
    """Return the CPU time of the log reader for a log."""
    scanner = LogScanner()
    began = time.process_time()
    for start in range(0, len(log), 1 << 16):
        scanner.feed(log[start : start + (1 << 16)])
    scanner.finish()
    return time.process_time() - began


def _cpu_s(client: Client, words: list[str], *, in_terminal: bool) -> float:
    shutil.rmtree(client.runs, ignore_errors=True)
    ours, theirs = pty.openpty() if in_terminal else os.pipe()
    env = {**client.env, "TERM": "xterm"}
    errors = theirs if in_terminal else subprocess.DEVNULL
    process = subprocess.Popen(words, cwd=client.project, env=env, stdout=theirs, stderr=errors)
    os.close(theirs)
    with contextlib.suppress(OSError):  # how Linux says that the other end of a terminal is closed
        while os.read(ours, 1 << 20):
            pass
    os.close(ours)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return used.ru_utime + used.ru_stime


MEASUREMENTS: dict[str, Measurement] = {
    one.__name__: one
    for one in (
        start,
        launch,
        held,
        container,
        image,
        environment,
        unchanged,
        far,
        bulk,
        probe,
        hosts,
        hook,
        guard,
        idle,
        check,
        diagnose,
        points,
        listing,
        history,
        printed,
        reader,
        many,
        local,
        ssh,
    )
}


def measure(names: list[str], before: dict[str, float]) -> list[Figure]:
    """Measure by name, printing each figure as it is found. Raises MissingPartError where there is no sshd.

    Each has a client of its own; the SSH host and its user are there for all.
    """
    folder = Path(tempfile.mkdtemp(prefix="launch-bench-"))
    folder.chmod(0o755)
    host = SshHost(folder / "sshd")
    host.more = "MaxStartups 500"  # one machine stands for many hosts
    found = []
    try:
        host.up()
        for name in names:
            client = Client(folder / name)
            client.is_forked = False
            (client.project / "launch.toml").write_text(host.table())
            began = time.monotonic()
            for figure in MEASUREMENTS[name](client, host):
                found.append(figure._replace(load=os.getloadavg()[0]))
                print(
                    "{:<46} {:>28}   {:<60} {:>22}   {:<16} {:<6} {:<8} {:>4}".format(
                        *found[-1].cells(before)
                    ),
                    flush=True,
                )
            print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)
            shutil.rmtree(client.home.parent, ignore_errors=True)
    finally:
        host.down()
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> None:
    """Measure what is named; everything by default, which is written down then."""
    names = sys.argv[1:]
    strange = set(names) - set(MEASUREMENTS)
    if strange:
        sys.exit(f"no measurement {', '.join(sorted(strange))}; there are: {' '.join(MEASUREMENTS)}")
    before = committed()
    try:
        figures = measure(names or list(MEASUREMENTS), before)
    except MissingPartError as error:
        sys.exit(str(error))
    if not names:
        TABLE.write_text(page(figures, before))


if __name__ == "__main__":
    main()
