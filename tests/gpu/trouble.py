"""The parts `oom` and `kill`: what goes wrong in a training, made on purpose, and what launcher does about it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu import card
from gpu.ledger import distance, losses, read_ledger, read_lines
from gpu.parts import NOT_ON_A_CPU, Row
from gpu.station import Station
from testbed.client import processes_of, until

NEEDED = 1.4
"""What a step of the hungry training needs with its planned micro-batch, as a share of the card; half of that fits."""
HUNGRY = """
name = "hungry"
command = ["python", "hungry.py"]
steps = 6
inject = false
[batch]
global = 8
[settings]
bytes_an_example = 0
room = 0
is_rehearsed = false
"""
SAME_LOSS = 0.02
"""The farthest that losses may be from those of a training that was left alone, as a share of the first one."""


# out of memory


def oom(station: Station) -> Iterator[Row]:
    """Let a training ask for more than the card has."""
    micro = planned_micro_batch(station)
    total = station.card.memory_mib * card.MIB if station.card else 0
    run = hungry(station, int(NEEDED * total) // micro, room=micro // 2)
    remedies = [event["values"] for event in events(station, run) if event["kind"] == "remedy"]
    lines = station.client.ok("logs", run).splitlines()
    error = next((line[:200] for line in lines if "CUDA out of memory" in line), "no such line")
    raised = f"{NOT_ON_A_CPU}: the script raises an error with torch's words"
    yield {
        "what": "the error",
        "found": ", ".join(remedy["class"] for remedy in remedies) or "no remedy",
        "witness": raised if station.is_rehearsed else error,
        "ok": [remedy["class"] for remedy in remedies] == ["cuda-oom"],
    }
    yield {
        "what": "the remedy",
        "found": remedies[0]["text"] if remedies else "none",
        "witness": f"the plan's micro-batch is {micro}",
        "ok": bool(remedies) and remedies[0]["changes"].get("micro_batch") == micro // 2,
    }
    state = station.client.summary(run)
    yield {
        "what": "the end",
        "found": f"{state['state']}, attempt {state['attempt']}",
        "witness": NOT_ON_A_CPU
        if station.is_rehearsed
        else f"{gb(card.used_bytes())} of the card in use after it",
        "ok": (state["state"], state["attempt"]) == ("succeeded", 2),
    }


def planned_micro_batch(station: Station) -> int:
    """Return the micro-batch that the plan of the hungry training has; write its job."""
    (station.client.project / "hungry.toml").write_text(HUNGRY)
    answer = station.client.planned("--json", "--job", "./hungry.toml", *station.on_card)
    return int(json.loads(answer)["plan"]["split"]["micro_batch"])


def hungry(station: Station, bytes_an_example: int, room: int) -> str:
    """Launch the hungry training and wait for its end, whatever it is; return the run."""
    sets = {"bytes_an_example": bytes_an_example, "room": room, "is_rehearsed": station.is_rehearsed}
    words = [word for key, value in sets.items() for word in ("--set", f"settings.{key}={json.dumps(value)}")]
    done = station.client.run("--json", "--job", "./hungry.toml", *words, *station.on_card, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    run = next((line["run"] for line in lines if line.get("run")), None)
    assert run is not None, done.stderr
    return str(run)


# kill and resume


def kill(station: Station) -> Iterator[Row]:
    """Kill one training, stop and resume another, and compare both with one that is left alone."""
    sizes = station.sizes
    steps, every = sizes.steps, sizes.steps // 3
    rows, _ = station.rows(steps * sizes.examples, sizes.tokens)
    sets: dict[str, object] = {
        "model": f"host:{station.model('small', sizes.small)}", "data.train": f"host:{rows}", "method": "lora",
        "steps": steps, "save_every_steps": every, "batch.global": sizes.examples, "batch.micro": sizes.micro,
        "settings.max_length": sizes.tokens,
    }  # fmt: skip
    whole = station.launched("sft", sets)
    yield {
        "what": "left alone",
        "found": f"succeeded, loss {whole.losses[steps]:.4f} at step {steps}",
        "witness": f"{len(whole.ledger.steps)} steps",
        "ok": len(whole.ledger.steps) == steps,
    }
    yield from _killed(station, sets, every, whole.losses)
    yield from _resumed(station, sets, every, whole.losses)


def _killed(
    station: Station, sets: Mapping[str, object], every: int, whole: dict[int, float]
) -> Iterator[Row]:
    path, run = station.held("sft", sets, every + 1)
    last = read_ledger(path).steps[-1]
    os.kill(last["pid"], signal.SIGKILL)
    go_on(path)
    until_ended(station, run)
    ledger, state = read_ledger(path), station.client.summary(run)
    begins = [event["values"]["step"] for event in events(station, run) if event["kind"] == "begin"]
    first = next((line for line in ledger.steps if line["pid"] != last["pid"]), None)
    again = (
        "no step followed"
        if first is None
        else f"the next step was {first['time'] - last['time']:.1f} s later"
    )
    yield {
        "what": f"killed after step {every + 1}, saved at {every}",
        "found": f"{state['state']}, attempt {state['attempt']}, from step {begins[-1] if begins else '-'}",
        "witness": f"{len(ledger.steps)} steps; {again}",
        "ok": state["state"] == "succeeded" and begins == [0, every] and len(ledger.steps) == len(whole) + 1,
    }
    yield _same("… its losses", losses(station.metrics(run)), whole)


def _resumed(
    station: Station, sets: Mapping[str, object], every: int, whole: dict[int, float]
) -> Iterator[Row]:
    path, run = station.held("sft", sets, every + 1)
    stopping = station.client.start("stop", "--yes", run)
    until(
        lambda: any(event["values"].get("state") == "stopping" for event in events(station, run)),
        "the wish to stop",
    )
    go_on(path)
    stopping.communicate(timeout=60)
    before, stopped = len(read_ledger(path).steps), station.client.summary(run)
    resumed = station.client.seen("resume", run, "--detach").split()[-1]
    until_ended(station, resumed)
    after, state = len(read_ledger(path).steps), station.client.summary(resumed)
    yield {
        "what": f"stopped after step {before}, and resumed",
        "found": f"{stopped['state']}, then {state['state']}",
        "witness": f"{after} steps of both",
        "ok": (stopped["state"], state["state"], after) == ("stopped", "succeeded", len(whole))
        and before < after,
    }
    yield _same("… its losses", losses(station.metrics(resumed)), whole)


def _same(what: str, found: dict[int, float], whole: dict[int, float]) -> Row:
    gap = distance(found, whole)
    missing = whole.keys() - found.keys()
    return {
        "what": what,
        "found": "no loss in common" if gap is None else f"farthest from the one left alone: {gap:.3%}",
        "witness": f"{len(missing)} steps without a loss" if missing else "every step has one",
        "ok": gap is not None and gap < SAME_LOSS and not missing,
    }


def go_on(ledger: Path) -> None:
    """Let go of a training that its witness holds."""
    ledger.with_name(f"{ledger.name}.go").touch()


# of all of them


def run_folder(station: Station, run: str) -> Path:
    """Return the folder of a run on its host, which is this machine."""
    return station.client.home / ".launch" / "runs" / run


def events(station: Station, run: str) -> list[dict[str, Any]]:
    """Return what the agent recorded of a run."""
    files = sorted(run_folder(station, run).glob("record/[0-9]*/events.jsonl"))
    return [event for path in files for event in read_lines(path)]


def until_ended(station: Station, run: str) -> None:
    """Wait until a run has no process."""
    until(lambda: not processes_of(run_folder(station, run)), f"the end of {run}", 240, every=0.5)


def gb(size: float) -> str:
    """Write a size."""
    return f"{size / 1e9:.1f} GB"
