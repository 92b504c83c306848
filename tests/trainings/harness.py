"""Runs cases of the corpus under the guard: each in a process of its own, with the real worker and a real socket.

    OMP_NUM_THREADS=1 python tests/trainings/harness.py [NAME ...] [--precision MODE]   # healthy/gan, broken/, ...

It prints a line a training. A case is a file in healthy/ or broken/: `train()` makes `STEPS` steps, and raises
if what it claims does not hold, for example that the loss has fallen. The libraries that cases import are loaded once.
Then a process is forked for each training, so that no case sees what another has patched.

    STEPS        optimizer steps of the plan; 30 if the case does not say
    PRECISIONS   those that apply; all of them if the case does not say
    BASE         "half" loads the model in the precision's half dtype, as a plan for an adapter does
    GUARD        the job's `guard`, if it has one
    ENDS_AS      (broken) the true class
    HARM_AT      (broken) the step that did the harm
    NOTICED_WITHIN  (broken) the steps after it within which the guard must notice; five if the case does not say
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
for folder in (HERE.parents[1] / "launcher" / "worker", HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

HALVES = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}
LIMIT_S = 120
NOTICED_WITHIN = 5  # steps after the harm


class Outcome(NamedTuple):
    """How a training ended: `ran`, a class of failure that the guard gave, or `failed` by itself."""

    case: str
    precision: str
    verdict: str
    step: int | None  # where the guard ended it
    why: str
    skipped: int  # steps that a scaler skipped before
    warnings: list[str]
    seconds: float

    @property
    def title(self) -> str:
        """The case and its precision, in a word."""
        return f"{self.case} {self.precision}"


def names(kind: str) -> list[str]:
    """Return the names of all cases of a kind, as `healthy/gan`."""
    return sorted(f"{kind}/{path.stem}" for path in (HERE / kind).glob("*.py"))


def load(name: str) -> ModuleType:
    """Import a case by its name."""
    path = HERE / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    return case


def precisions(case: ModuleType) -> Sequence[str]:
    """Return the precisions that apply to a case."""
    return getattr(case, "PRECISIONS", tuple(HALVES))


def mistake(case: ModuleType, outcome: Outcome) -> str:
    """Return what is wrong about an outcome; empty if the guard judged the case truly and in time."""
    expected = getattr(case, "ENDS_AS", "ran")
    if outcome.verdict != expected:
        return f"{outcome.title}: {outcome.verdict}, not {expected}: {outcome.why}"
    # While a scaler settles it skips steps, and a step that is not made does no harm yet.
    late = getattr(case, "NOTICED_WITHIN", NOTICED_WITHIN)
    late += outcome.skipped if expected != "ran" and case.HARM_AT == 1 else 0
    if expected != "ran" and not case.HARM_AT <= (outcome.step or 0) <= case.HARM_AT + late:
        return f"{outcome.title}: noticed at step {outcome.step}, harmed at {case.HARM_AT}: {outcome.why}"
    return ""


def attempt(case: ModuleType, mode: str, folder: Path) -> dict[str, Any]:
    """Return the values of an attempt at a precision, as the agent writes them."""
    half = HALVES[mode]
    precision = {
        "mode": mode,
        "device": "cuda" if half else "cpu",
        "capability": {"fp16": "7.5", "bf16": "8.0"}.get(mode),
        "base_dtype": (half if getattr(case, "BASE", "") == "half" else None) or "float32",
        "trainable_dtype": "float32",
        "autocast_dtype": half,
        "scaler": mode == "fp16",
        "tf32": False,
        "adam_eps": 1e-8,
        "why": "a case of the corpus",
    }
    return {
        "run": "corpus",
        "attempt": 1,
        "seed": 0,
        "method": "full",
        "model": None,
        "data": {},
        "settings": {},
        "steps": getattr(case, "STEPS", 30),
        "save_every_steps": None,
        "loader_workers": 0,
        "rehearsed": half is not None,
        "precision": precision,
        "split": {"global_batch": 8, "ranks": 1, "micro_batch": 8, "accumulation": 1},
        "folders": {part: str(folder / part) for part in ("artifacts", "checkpoints", "cache")},
        **({"guard": case.GUARD} if hasattr(case, "GUARD") else {}),
    }


def run(name: str, case: ModuleType, mode: str) -> Outcome:
    """Train a case at a precision in a new process, and return how it ended."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lt") as place:
        folder = Path(place)
        (folder / "attempt.json").write_text(json.dumps(attempt(case, mode, folder)))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "s"))
            listener.listen()
            child = os.fork()
            if child == 0:
                listener.close()
                _train(case, folder)
            events, status = _listen(listener, child, begun + LIMIT_S)
        output = (folder / "output").read_text(errors="replace")
    return _outcome(name, mode, events, status, output, time.monotonic() - begun)


def _train(case: ModuleType, folder: Path) -> None:
    """Be the training: this process ends here."""
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update({"LAUNCH_ATTEMPT": str(folder), "LAUNCH_SOCKET": str(folder / "s")})
    os.chdir(folder)
    status = 1
    try:
        import launcher_worker as worker

        _seed()
        worker.begin(0, getattr(case, "STEPS", 30))
        case.train()
        worker.done(getattr(case, "STEPS", 30))
        worker.channel.process_channel.close()
        status = 0
    except BaseException:  # noqa: BLE001 - the parent reads it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _seed() -> None:
    import random

    import torch

    random.seed(0)
    torch.manual_seed(0)


def _listen(listener: socket.socket, child: int, until: float) -> tuple[list[dict[str, Any]], int]:
    """Return what a training sent, and its status. One that takes too long is ended."""
    received = bytearray()
    listener.settimeout(0.05)
    connection: socket.socket | None = None
    status: int | None = None
    while status is None:
        try:
            if connection is None:
                connection, _ = listener.accept()
                connection.settimeout(0.05)
            received += connection.recv(1 << 16)
        except TimeoutError:
            pass
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
    if connection is not None:
        with connection:
            connection.settimeout(5)
            while piece := connection.recv(1 << 16):
                received += piece
    return [json.loads(line) for line in received.splitlines()], status


def _outcome(
    name: str, mode: str, events: list[dict[str, Any]], status: int, output: str, seconds: float
) -> Outcome:
    trip = next((event for event in events if event["kind"] == "trip"), None)
    values = [event["values"] for event in events if event["kind"] == "evidence"]
    warnings = [one["warning"]["why"] for one in values if "warning" in one]
    verdict, step, why, skipped = "ran", None, "", 0
    if trip is not None:
        verdict, step, why = trip["values"]["class"], trip["step"], trip["values"]["why"]
        skipped = trip["values"]["skipped"]
    elif status or not any(event["kind"] == "done" for event in events):
        verdict, why = "failed", f"status {status}\n{output[-1500:]}"
    return Outcome(name, mode, verdict, step, why, skipped, warnings, round(seconds, 2))


def outcomes(cases: Sequence[str], modes: Sequence[str] = ()) -> Iterator[tuple[ModuleType, Outcome]]:
    """Run cases at each precision that applies to them, or at those of `modes` that do."""
    loaded = {name: load(name) for name in cases}
    importlib.import_module("torch._dynamo")  # the guard's hooks need it, and it takes seconds
    gc.freeze()  # else the collections of each training copy the memory of all that was imported
    for name, case in loaded.items():
        for mode in precisions(case):
            if not modes or mode in modes:
                yield case, run(name, case, mode)


def _is_meant(name: str, word: str, everything: Sequence[str]) -> bool:
    """Return whether a word names a case, or is the beginning of its name and of no case the whole."""
    return name == word or (word not in everything and name.startswith(word))


def main() -> int:
    """Run what the command line names, print an outcome a line; 1 if the guard was wrong about one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=["healthy", "broken"])
    parser.add_argument("--precision", action="append", default=[], choices=HALVES)
    parser.add_argument("--json", action="store_true", help="a line of JSON a training")
    given = parser.parse_args()
    everything = names("healthy") + names("broken")
    chosen = [name for name in everything if any(_is_meant(name, word, everything) for word in given.names)]
    mistakes = 0
    for case, outcome in outcomes(chosen, given.precision):
        wrong = mistake(case, outcome)
        mistakes += bool(wrong)
        line = f"{'WRONG' if wrong else 'right'}  {outcome.title}: {outcome.verdict} {outcome.why or ''}"
        print(json.dumps([outcome, wrong]) if given.json else line.rstrip(), flush=True)
    return int(mistakes > 0)


if __name__ == "__main__":
    sys.exit(main())
