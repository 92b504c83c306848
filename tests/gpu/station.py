"""What a part works with: a client on this machine, and trainings by `launch` and by hand under the same witness."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from gpu import card
from gpu.ledger import Ledger, losses, read_ledger
from gpu.materials import ON_A_CARD, ON_A_CPU, Shape, save_llama, write_rows
from gpu.parts import NOT_ON_A_CPU
from testbed.client import REPOSITORY, Client, kill_all_of

from launcher.planning.memory import Training, needed_gb
from launcher.planning.workload import read_workload
from launcher.values.plan import Plan

SCRIPTS = Path(__file__).with_name("scripts")
PROGRAMS = ("sft.py", "distill.py", "shared.py", "demo.py")
LONGEST_S = 400.0
LIVE = ("preparing", "starting", "running", "resuming", "stopping", "waiting")
JOB = """
name = "{0}"
command = ["python", "witness.py", "{0}.py"]
inject = false
pull_limit = 0
[settings]
max_length = 1024
learning_rate = 1e-3
logging_steps = 1
"""
JOBS = {
    "sft": JOB.format("sft") + "lora_rank = 16\n",
    "distill": JOB.format("distill") + "eval_steps = 100000\neval_limit = 1\n",
}


class Trained(NamedTuple):
    """A training. `plan`, `mfu` and `run` are None of one by hand; `card_gb` is None on a CPU."""

    ledger: Ledger
    losses: dict[int, float]
    began: float
    card_gb: float | None
    plan: Plan | None = None
    mfu: float | None = None
    run: str | None = None

    @property
    def planned(self) -> Plan:
        """The plan of a run."""
        assert self.plan is not None
        return self.plan


class FailedTrainingError(Exception):
    """A training ended otherwise than it should."""


class Station:
    """A client with an empty home on this machine. At its end, what its runs have left is ended."""

    def __init__(self, folder: Path, *, is_rehearsed: bool) -> None:
        """Make the project with the programs in it."""
        self.folder = folder
        self.is_rehearsed = is_rehearsed
        self.sizes = ON_A_CPU if is_rehearsed else ON_A_CARD
        self.client = Client(folder)
        self._ledgers = 0
        if is_rehearsed:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        project = self.client.project
        for path in (*(REPOSITORY / "jobs" / name for name in PROGRAMS), *SCRIPTS.glob("*.py")):
            shutil.copy(path, project)
        for name, text in JOBS.items():
            (project / f"{name}.toml").write_text(text)
        (project / "launch.toml").write_text(f"[hosts.local]\nenvironment = {json.dumps(sys.executable)}\n")
        if not is_rehearsed:
            self._write_profiles()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.client.home.glob(".launch/runs/*"):
            kill_all_of(run)

    @property
    def on_card(self) -> tuple[str, ...]:
        """The words of a launch for this machine's card, or for the CPU in a rehearsal."""
        return ("--profile", "cpu") if self.is_rehearsed else ()

    @property
    def capability(self) -> tuple[int, int]:
        """The card's compute capability; in a rehearsal that of an A100."""
        return (8, 0) if self.is_rehearsed else card.capability()

    def on_a_card_only(self, value: float | None) -> float | str | None:
        """Return a figure that only a card has, or what stands for it in a rehearsal."""
        return NOT_ON_A_CPU if self.is_rehearsed else value

    def _write_profiles(self) -> None:
        """Write a profile `plain` of the card as if it were older, for fp32 without tf32; and one of the card if we have none.

        `plain` has a little less memory, so that `auto` takes the card's own.
        """
        probe = json.loads(self.client.ok("probe", "--json"))
        gpu = probe["gpus"][0]
        gib = gpu["memory_mib"] / 1024
        known = {"this_card": (gpu["capability"], gib)} if probe["profile"] is None else {}
        for name, (capability, memory_gb) in {**known, "plain": ("7.5", 0.95 * gib)}.items():
            values = {
                "name": name, "title": gpu["name"], "kind": "cuda", "capability": capability,
                "memory_gb": round(memory_gb, 1), "probe_names": [gpu["name"]],
            }  # fmt: skip
            path = self.client.project / "profiles" / f"{name}.toml"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))

    # models and data

    def model(self, name: str, shape: Shape, dtype: str = "float32") -> Path:
        """Make a model; return its folder."""
        return save_llama(self.folder / name, shape, "cpu" if self.is_rehearsed else "cuda", dtype)

    def rows(self, steps: int, tokens: int, *, is_text: bool = False) -> tuple[Path, Path]:
        """Write the examples of so many steps; return the file, and the one in the order in which they are drawn."""
        return write_rows(self.folder, steps * self.sizes.examples, tokens, is_text=is_text)

    # trainings

    def new_ledger(self) -> Path:
        """Return the path of a new ledger."""
        self._ledgers += 1
        return self.folder / f"ledger-{self._ledgers}.jsonl"

    def words(
        self, job: str, sets: Mapping[str, object], ledger: Path, held_after: int = 0
    ) -> tuple[str, ...]:
        """Return the words of a launch of one of the jobs, which is held after so many steps."""
        variables = {"WITNESS": ledger, "WITNESS_WAITS": held_after}
        return (
            *("--job", f"./{job}.toml"),
            *(word for key, value in variables.items() for word in ("-e", f"{key}={value}")),
            *(word for key, value in sets.items() for word in ("--set", f"{key}={json.dumps(value)}")),
        )

    def launched(self, job: str, sets: Mapping[str, object], place: tuple[str, ...] | None = None) -> Trained:
        """Launch a job, for the card or as `place` says, and wait for its end. Raises FailedTrainingError if it does not succeed."""
        ledger, peaks, began = self.new_ledger(), list[float](), time.time()
        words = self.on_card if place is None else place
        with self._watched(peaks):
            every = self.words(job, {"attempts": 1, **sets}, ledger)
            done = self.client.run("--json", *every, *words, timeout=LONGEST_S)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        end = next((line for line in lines if line["kind"] == "end" and "state" in line), None)
        if end is None or end["state"] != "succeeded":
            why = done.stderr.strip()[-300:] if end is None else f"{end['state']}: {end['reason']}"
            raise FailedTrainingError(f"{job} {' '.join(words)}: {why}")
        return self._trained(end["run"], ledger, began, peaks)

    def stopped(self, job: str, sets: Mapping[str, object], steps: int) -> Trained:
        """Launch a job and stop it after so many steps; nothing is saved. Raises FailedTrainingError."""
        peaks, began = list[float](), time.time()
        with self._watched(peaks):
            ledger, run = self.held(job, {"attempts": 1, **sets}, steps)
            self.client.ok("stop", "--now", "--yes", run)
        return self._trained(run, ledger, began, peaks)

    def held(self, job: str, sets: Mapping[str, object], steps: int) -> tuple[Path, str]:
        """Launch a job that is held after so many steps, and wait for that; return its ledger and the run."""
        ledger = self.new_ledger()
        run = self.client.detached(*self.words(job, sets, ledger, steps), *self.on_card)
        deadline = time.monotonic() + LONGEST_S
        while len(read_ledger(ledger).steps) < steps:
            state = self.client.summary(run)["state"]
            if state not in LIVE or time.monotonic() > deadline:
                raise FailedTrainingError(
                    f"{job}: {state} after {len(read_ledger(ledger).steps)} of {steps} steps"
                )
            time.sleep(1.0)
        return ledger, run

    def bare(self, script: str, settings: Mapping[str, object]) -> Trained:
        """Run a script by hand, under the same witness. Raises FailedTrainingError."""
        ledger, peaks, began = self.new_ledger(), list[float](), time.time()
        curve, path = ledger.with_suffix(".losses"), ledger.with_suffix(".json")
        path.write_text(json.dumps({**settings, "on_cpu": self.is_rehearsed, "losses": str(curve)}))
        with self._watched(peaks):
            done = subprocess.run(
                [sys.executable, "witness.py", script, str(path)], cwd=self.client.project,
                env={**self.client.env, "WITNESS": str(ledger)}, capture_output=True, text=True, check=False,
                timeout=LONGEST_S,
            )  # fmt: skip
        if done.returncode:
            raise FailedTrainingError(f"{script}: {done.stderr.strip()[-300:]}")
        found = {int(step): float(loss) for step, loss in json.loads(curve.read_text()).items()}
        return Trained(read_ledger(ledger), found, began, peaks[0] if peaks else None)

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Return what `launch metrics` has of a run."""
        return [json.loads(line) for line in self.client.ok("metrics", run, "--json").splitlines()]

    @contextlib.contextmanager
    def _watched(self, peaks: list[float]) -> Iterator[None]:
        with contextlib.nullcontext() if self.is_rehearsed else card.watched(peaks):
            yield

    def _trained(self, run: str, ledger: Path, began: float, peaks: list[float]) -> Trained:
        metrics = self.metrics(run)
        mfu = [one["value"] for one in metrics if one["name"] == "mfu"]
        return Trained(
            ledger=read_ledger(ledger),
            losses=losses(metrics),
            began=began,
            card_gb=peaks[0] if peaks else None,
            plan=Plan.model_validate_json((self.client.runs / run / "plan.json").read_text()),
            mfu=statistics.median(mfu) if mfu else None,
            run=run,
        )


def estimated_gb(plan: Plan) -> float | None:
    """Return the peak that a plan expects, in GB; None if it does not know the model."""
    model = plan.model_facts
    if model is None:
        return None
    workload = read_workload(plan.settings, plan.teacher_facts, model, has_teacher=plan.teacher is not None)
    return needed_gb(Training(model, plan.method, workload), plan.ladder[0], plan.split.micro_batch)
