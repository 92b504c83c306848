"""A program in an environment of its own, launched as a person would, and held against the ledger and its right end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from programs.ledger import Ledger, Reading, Verdict, judge, read, told
from testbed.client import REPOSITORY, Client

HERE = Path(__file__).resolve().parent
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "OMP_NUM_THREADS": "1",
}


class End(NamedTuple):
    """How a run ended, as `launch ps --json` tells it."""

    state: str
    reason: str
    has_doubt: bool = False


class Program(NamedTuple):
    """A training program of a package, and what a run of it should be told to be."""

    name: str
    packages: tuple[str, ...]
    """Pinned; the first ships the program. Without any it runs in the environment of the tests."""
    command: tuple[str, ...]
    files: Callable[[Path], None]
    """Makes its model and data in the project folder."""
    readings: Callable[[Ledger], Iterable[Reading]]
    """What launch may tell."""
    end: End
    fewest: int = 1
    """So many readings at least must be told."""
    variables: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """More words for launch."""
    before: tuple[tuple[str, ...], ...] = ()
    """Commands of its environment that make what it needs, run in the project folder."""
    shown: tuple[str, ...] = ()
    """The command for the table, where its first three words do not show it."""
    said: str = ""
    """What launch must say, beside the end."""


class Outcome(NamedTuple):
    """What launch told of a run, and the verdict."""

    program: Program
    end: End
    code: int
    step: int | None
    """The last one, by `launch ps`."""
    last_step: int | None
    """The last one of the ledger."""
    sources: set[str]
    verdict: Verdict
    seconds: float
    said: str

    @property
    def faults(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        faults = [f"wrong: {one.name} = {one.value} at step {one.step}" for one in self.verdict.wrong]
        if self.end != self.program.end:
            faults.append(f"ended {tuple(self.end)}, right is {tuple(self.program.end)}")
        if (self.code == 0) != (self.end.state == "succeeded" and not self.end.has_doubt):
            faults.append(f"exit status {self.code}")
        if self.step is not None and self.step != self.last_step:
            faults.append(f"the last step is {self.step}, right is {self.last_step}")
        if self.verdict.right < self.program.fewest:
            faults.append(f"{self.verdict.right} readings, at least {self.program.fewest} are right")
        if self.program.said not in self.said:
            faults.append(f"does not say: {self.program.said}")
        return faults


def launch(program: Program, folder: Path, environment: Path) -> Outcome:
    """Launch a program on this machine, and judge what is told."""
    client = Client(folder)
    program.files(client.project)
    for command in program.before:
        own = [str(environment / "bin" / command[0]), *command[1:]]
        subprocess.run(
            own, cwd=client.project, env={**os.environ, **OFFLINE}, check=True, capture_output=True
        )
    (client.project / "launch.toml").write_text(f'[hosts.local]\nenvironment = "{environment}"\n')
    witness = folder / "ledger.jsonl"
    variables = {**OFFLINE, "PYTHONPATH": str(HERE / "witness"), "LEDGER": str(witness)}
    words = [*program.words, *(word for pair in variables.items() for word in ("-e", "=".join(pair)))]
    words += [word for one in program.variables for word in ("-e", one)]
    began = time.monotonic()
    done = client.run(*words, "--", *program.command, timeout=900)
    seconds = time.monotonic() - began
    run = next(path.name for path in client.runs.iterdir() if path.is_dir())
    row = client.summary(run)
    end = End(str(row["state"]), str(row["reason"]), "doubt" in (row.get("evidence") or {}))
    lines = client.run("metrics", run, "--json", timeout=600).stdout.splitlines()
    shown = list(told(lines))
    (log,) = (client.home / ".launch" / "runs" / run / "record").glob("*/log.txt")
    ledger = read(witness, client.runs / run / "outputs", log.read_text(errors="replace"))
    allowed = list(program.readings(ledger))
    last_step = max((one.step for one in allowed if one.step is not None), default=None)
    verdict = judge(shown, allowed, ledger.log)
    said = done.stderr + done.stdout
    return Outcome(
        program, end, done.returncode, row["step"], last_step, sources(client, run), verdict, seconds, said
    )


def sources(client: Client, run: str) -> set[str]:
    """Return where the run's metrics are from: `hook` or `log`."""
    record = client.home / ".launch" / "runs" / run / "record"
    lines = [line for path in record.glob("*/events.jsonl") for line in path.read_text().splitlines()]
    return {event["source"] for event in map(json.loads, lines) if event["kind"] == "metric"}


def environment(packages: tuple[str, ...], folder: Path) -> Path:
    """Return an environment with a program's packages, made once by uv: torch's files are shared by hard links."""
    if not packages:
        return Path(sys.prefix)
    made = folder / "+".join(re.sub(r"[^\w.-]+", "-", package) for package in packages)
    ready = made / "ready"
    wanted = "\n".join(packages)
    if ready.exists() and ready.read_text() == wanted:
        return made
    uv = [str(Path(sys.executable).parent / "uv"), "--quiet"]
    shared = {"UV_CACHE_DIR": str(folder / "uv"), "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    if "TORCH_INDEX" in os.environ:
        shared["UV_EXTRA_INDEX_URL"] = os.environ["TORCH_INDEX"]
    variables = {**os.environ, **shared}
    subprocess.run([*uv, "venv", "--clear", "-p", sys.executable, str(made)], env=variables, check=True)
    has_torch = any(package.startswith("torch==") for package in packages)
    install = [*uv, "pip", "install", "-p", str(made / "bin" / "python"), *packages]
    install += [] if has_torch else [own_torch()]
    subprocess.run(install, env=variables, check=True)
    ready.write_text(wanted)
    return made


def own_torch() -> str:
    """Return the requirement for the torch of the environment that this runs in."""
    return f"torch=={version('torch')}"


def cache() -> Path:
    """Return the folder of the environments."""
    kept = Path(os.environ.get("LAUNCH_TESTBED_CACHE") or REPOSITORY / ".testbed") / "programs"
    kept.mkdir(parents=True, exist_ok=True)
    return kept
