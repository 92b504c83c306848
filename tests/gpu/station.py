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
from gpu.materials import ON_A_CARD, ON_A_CPU, WITHOUT_BF16, Shape, Sizes, save_llama, write_rows
from gpu.parts import NOT_ON_A_CPU
from testbed.client import REPOSITORY, Client, kill_all_of
from testbed.profiles import profiles

from launcher.planning.precision.memory import Training, needed_gb
from launcher.planning.precision.workload import read_workload
from launcher.values.plan import Plan

SCRIPTS = Path(__file__).with_name("scripts")
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
optim = "auto"
"""
JOBS = {
    "sft": JOB.format("sft") + "lora_rank = 16\n",
    "distill": JOB.format("distill") + "eval_steps = 100000\neval_limit = 1\n",
}


class Watch(NamedTuple):
    """When a training began, and at its end the most of the card that was in use, in GB; none on a CPU."""

    began: float
    peaks: list[float]

    @property
    def card_gb(self) -> float | None:
        """The peak."""
        return max(self.peaks, default=None)


class Trained(NamedTuple):
    """A training. `plan` has its split, also of one by hand, which has no `mfu`; `card_gb` is None on a CPU."""

    plan: Plan
    ledger: Ledger
    losses: dict[int, float]
    began: float
    card_gb: float | None
    mfu: float | None = None

    def tokens_per_s(self, warm_steps: int) -> float:
        """Return how many tokens it trained a second, after the first steps."""
        tokens = self.plan.split.global_batch * int(self.plan.settings["max_length"])
        return tokens / self.ledger.step_s(warm_steps)


class FailedTrainingError(Exception):
    """A training ended otherwise than it should."""


class Station:
    """A client with an empty home on this machine. At its end, what its runs have left is ended."""

    def __init__(self, folder: Path, *, is_rehearsed: bool) -> None:
        """Make the project with the programs in it."""
        self.folder = folder
        self.card = None if is_rehearsed else card.find_card()
        self.client = Client(folder)
        self._ledgers = 0
        if is_rehearsed:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        project = self.client.project
        for path in (*(REPOSITORY / "jobs").glob("*.py"), *SCRIPTS.glob("*.py")):
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
    def is_rehearsed(self) -> bool:
        """Whether no card is used."""
        return self.card is None

    @property
    def has_bf16(self) -> bool:
        """Whether the card computes bf16; a rehearsal is that of an A100, which does."""
        return self.card is None or self.card.has_bf16

    @property
    def sizes(self) -> Sizes:
        """How large everything is."""
        return ON_A_CPU if self.card is None else ON_A_CARD if self.card.has_bf16 else WITHOUT_BF16

    @property
    def on_card(self) -> tuple[str, ...]:
        """The words of a launch for this machine's card, or for the CPU in a rehearsal."""
        return ("--profile", "cpu") if self.is_rehearsed else ()

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
        known = {"this_card": (gpu["capability"], gib)} if probe["profile"] not in profiles() else {}
        for name, (capability, memory_gb) in {**known, "plain": ("7.5", 0.97 * gib)}.items():
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
        return save_llama(self.folder / name, shape, dtype)

    def rows(self, examples: int, tokens: int, *, is_text: bool = False) -> tuple[Path, Path]:
        """Write examples; return the file, and the one in the order in which they are drawn."""
        return write_rows(self.folder, examples, tokens, is_text=is_text)

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

    def planned(self, job: str, sets: Mapping[str, object]) -> Plan:
        """Return the plan of a launch for the card."""
        words = self.words(job, sets, self.new_ledger())
        answer = self.client.planned("--json", *words, *self.on_card)
        return Plan.model_validate(json.loads(answer)["plan"])

    def launched(self, job: str, sets: Mapping[str, object], place: tuple[str, ...] | None = None) -> Trained:
        """Launch a job, for the card or as `place` says, and wait for its end. Raises FailedTrainingError if it does not succeed."""
        ledger = self.new_ledger()
        words = self.words(job, {"attempts": 1, **sets}, ledger)
        with self._watched() as watch:
            done = self.client.run(
                "--json", *words, *(self.on_card if place is None else place), timeout=LONGEST_S
            )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        end = next((line for line in lines if line["kind"] == "end" and "state" in line), None)
        if end is None:
            raise FailedTrainingError(f"not launched: {done.stderr.strip()[-300:]}")
        if end["state"] != "succeeded":
            raise FailedTrainingError(how_ended(end))
        return self._trained(end["run"], ledger, watch)

    def stopped(self, job: str, sets: Mapping[str, object], steps: int) -> Trained:
        """Launch a job and stop it after so many steps; nothing is saved. Raises FailedTrainingError."""
        with self._watched() as watch:
            ledger, run = self.held(job, {"attempts": 1, **sets}, steps)
            self.client.ok("stop", "--now", "--yes", run)
        return self._trained(run, ledger, watch)

    def held(self, job: str, sets: Mapping[str, object], steps: int) -> tuple[Path, str]:
        """Launch a job that is held after so many steps, and wait for that; return its ledger and the run."""
        ledger = self.new_ledger()
        run = self.client.detached(*self.words(job, sets, ledger, steps), *self.on_card)
        deadline = time.monotonic() + LONGEST_S
        while len(read_ledger(ledger).steps) < steps:
            summary = self.client.summary(run)
            if summary["state"] not in LIVE or time.monotonic() > deadline:
                count = len(read_ledger(ledger).steps)
                raise FailedTrainingError(f"{how_ended(summary)}, after {count} of {steps} steps")
            time.sleep(1.0)
        return ledger, run

    def bare(self, script: str, plan: Plan, rows: Path, *, is_plain: bool = False) -> Trained:
        """Run a script by hand with the settings of a plan, under the same witness. Raises FailedTrainingError.

        `is_plain`: without its precision and optimizer.
        """
        settings = settings_by_hand(plan, rows, is_plain=is_plain)
        ledger = self.new_ledger()
        curve, path = ledger.with_suffix(".losses"), ledger.with_suffix(".json")
        path.write_text(json.dumps({**settings, "on_cpu": self.is_rehearsed, "losses": str(curve)}))
        with self._watched() as watch:
            done = subprocess.run(
                [sys.executable, "witness.py", script, str(path)], cwd=self.client.project,
                env={**self.client.env, "WITNESS": str(ledger)}, capture_output=True, text=True, check=False,
                timeout=LONGEST_S,
            )  # fmt: skip
        if done.returncode:
            raise FailedTrainingError(f"{script}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        by_step = {int(step): float(loss) for step, loss in json.loads(curve.read_text()).items()}
        return Trained(plan, read_ledger(ledger), by_step, watch.began, watch.card_gb)

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Return what `launch metrics` has of a run."""
        return [json.loads(line) for line in self.client.ok("metrics", run, "--json").splitlines()]

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Watch]:
        peaks: list[float] = []
        with contextlib.nullcontext() if self.is_rehearsed else card.watched(peaks):
            yield Watch(time.time(), peaks)

    def _trained(self, run: str, ledger: Path, watch: Watch) -> Trained:
        metrics = self.metrics(run)
        mfu = [metric["value"] for metric in metrics if metric["name"] == "mfu"]
        return Trained(
            plan=Plan.model_validate_json((self.client.runs / run / "plan.json").read_text()),
            ledger=read_ledger(ledger),
            losses=losses(metrics),
            began=watch.began,
            card_gb=watch.card_gb,
            mfu=statistics.median(mfu) if mfu else None,
        )


def settings_by_hand(plan: Plan, rows: Path, *, is_plain: bool) -> dict[str, object]:
    """Return a bare script's settings: those of a plan, without its precision and optimizer if it is plain."""
    assert plan.model is not None
    precision = plan.ladder[0]
    return {
        "model": plan.model.value,
        "teacher": plan.teacher.value if plan.teacher else None,
        "rows": str(rows),
        "method": plan.method,
        "steps": plan.steps,
        "micro": plan.split.micro_batch,
        "accumulation": plan.split.accumulation,
        "learning_rate": plan.settings["learning_rate"],
        "lora_rank": plan.settings.get("lora_rank"),
        "precision": None if is_plain else precision.model_dump(mode="json"),
        "is_fused": precision.fuses_adamw,
    }


def how_ended(record: Mapping[str, Any]) -> str:
    """Return the state of a run and why it has it, from its row of `launch ps` or the last line of a launch."""
    evidence = record["evidence"] or {}
    words = [record["state"], evidence.get("class") or record["reason"], evidence.get("line")]
    return ": ".join(str(word) for word in words if word)[:300]


def estimated_gb(plan: Plan) -> float | None:
    """Return the peak that a plan expects, in GB; None if it does not know the model."""
    model = plan.model_facts
    if model is None:
        return None
    workload = read_workload(plan.settings, plan.teacher_facts, model, has_teacher=plan.teacher is not None)
    return needed_gb(Training(model, plan.method, workload), plan.ladder[0], plan.split.micro_batch)
