"""The job of `launch drill`: a small training of the standard library, and its witness.

    launch --job drill                                    # unhurt
    launch --job drill --set settings.fault=hang    # one fault

The model is a digest over the samples in the order in which they were trained on: a training that skips a sample, or
takes one twice, ends with another model. The witness is the ledger, a file outside the run. Every step is written
there before it is trained.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import launcher_worker as worker

FULL_BYTES = 1 << 20
"""The size of the folder that fills up."""
WEIGHT_BYTES = 200_000


class Witness:
    """The ledger: a line of JSON for each thing that happens, whatever becomes of the run."""

    def __init__(self, folder: Path) -> None:
        """Open it, and read what earlier starts wrote."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "ledger.jsonl"
        self.is_hurt = path.exists() and '"hurt"' in path.read_text(encoding="utf-8")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, **said: Any) -> None:
        """Append a line; one write, so that a kill never mixes two."""
        line = json.dumps({**said, "time": time.time(), "pid": os.getpid()})
        os.write(self._file, f"{line}\n".encode())


class Training:
    """The training: its step and its model."""

    def __init__(self, found: "str | None") -> None:
        """Begin, or go on from a checkpoint. From a torn one the model is lost, and ends as another."""
        self.step, self.model = 0, ""
        if found:
            told = json.loads(Path(found, "trainer.json").read_text(encoding="utf-8"))
            whole = Path(found, "weights.bin").stat().st_size == WEIGHT_BYTES
            self.step, self.model = told["step"], told["model"] if whole else "torn"

    def train(self, samples: "list[int]") -> None:
        """Train on the samples of a step."""
        for sample in samples:
            self.model = hashlib.sha256(f"{self.model}{sample}".encode()).hexdigest()
        self.step += 1

    def write(self, folder: str) -> None:
        """Write a checkpoint: what is needed to go on, and a file of some size, as weights are."""
        Path(folder, "weights.bin").write_bytes(b"." * WEIGHT_BYTES)
        told = json.dumps({"step": self.step, "model": self.model})
        Path(folder, "trainer.json").write_text(told, encoding="utf-8")


def main() -> None:
    """Train to the last step, and hurt itself once if it is told to."""
    plan = worker.knobs()
    witness = Witness(Path(plan.cache, plan.settings["ledger"]))
    fault, at = plan.settings["fault"], plan.settings["at"]
    if fault == "folder-full" and not witness.is_hurt and "LAUNCH_DRILL_FOLDER" not in os.environ:
        enter_small_folder(plan.artifacts)
    training = Training(worker.resume_from())
    witness.note(begin=training.step)
    worker.begin(training.step, plan.steps)
    size, steps = plan.split.global_batch, plan.steps
    while training.step < steps:
        step = training.step + 1
        samples = list(range(training.step * size, step * size))
        witness.note(step=step, samples=samples)
        if step == at and not witness.is_hurt:
            hurt(fault, witness)
        training.train(samples)
        time.sleep(plan.settings["step_s"])
        worker.log(step, loss=1.0 / step)
        if worker.due(step):
            worker.save(step, training.write)
        if worker.stopping():
            witness.note(stopped=step)
            sys.exit(0)
    Path(plan.artifacts).mkdir(exist_ok=True)
    Path(plan.artifacts, "model").write_text(training.model, encoding="utf-8")
    witness.note(end=training.step, model=training.model)
    worker.done(training.step)


def hurt(fault: str, witness: Witness) -> None:
    """Hurt itself; what else goes wrong comes from outside."""
    if fault in ("hang", "folder-full"):
        witness.note(hurt=fault)
    if fault == "hang":
        time.sleep(3600)
    elif fault == "folder-full":
        Path(os.environ["LAUNCH_DRILL_FOLDER"], "output.bin").write_bytes(b"." * (2 * FULL_BYTES))


def enter_small_folder(artifacts: str) -> None:
    """Start again, in a namespace of this user's own in which a folder has room for FULL_BYTES."""
    folder = os.path.join(artifacts, "small")
    os.makedirs(folder, exist_ok=True)
    mount = f'mount -t tmpfs -o size={FULL_BYTES} none "$0" && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, folder]
    os.environ["LAUNCH_DRILL_FOLDER"] = folder
    sys.exit(subprocess.call([*words, sys.executable, *sys.argv]))


if __name__ == "__main__":
    main()
