"""What is fed with generated cases: each takes a seed and a folder, and raises nothing but a LaunchError."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import file_streams, toml_files
from launcher.errors import LaunchError
from launcher.hosts.channel import Reply
from launcher.planning.assembly import plan as make_plan
from launcher.remote.fate import run_state
from launcher.remote.record import strict_json
from launcher.remote.record.rundir import Run
from launcher.remote.serving.summary import line_of
from launcher.runs import job_check, loading, script_check
from launcher.runs.control import remembered
from launcher.runs.launching import understand
from launcher.runs.mirror import Mirror, parse_event
from launcher.runs.request import Request
from launcher.values.record import RunState, Summary

RUN = "0101-x-abcd"


def toml(seed: int, folder: Path) -> None:
    """Read a generated file as the project's settings, as a job, as a profile, and as a script's own packages."""
    os.chdir(folder)
    text = toml_files.text(seed)
    for name in ("launch.toml", "job.toml", "pyproject.toml", "profiles/x.toml"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            text
            if name == ("launch.toml", "job.toml", "pyproject.toml", "profiles/x.toml")[seed % 4]
            else _PLAIN[name]
        )
    # A profile costs the reading of all of ours: one case in four, and every second one of a generated profile.
    profile = ("x", None)[seed // 4 % 2] if seed % 4 == 3 else ("cpu", None, None)[seed // 4 % 3]
    request = Request(job="job.toml", profile=profile)
    with contextlib.suppress(LaunchError):
        resolved = understand(request)
        loaded = loading.load(resolved.task)
        list(job_check.findings(resolved.task))
        list(script_check.findings(resolved.job, loaded.cargo))
        for profile in resolved.profiles:
            make_plan(profile, resolved.host, resolved.job, "auto", "native", None)


_PLAIN = {
    "launch.toml": "",
    "job.toml": 'name = "x"\ncommand = ["python", "train.py"]\n',
    "pyproject.toml": "[project]\nname = 'x'\n",
    "profiles/x.toml": "",
}


def _anything(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if depth < 5 and kind < 0.2:
        return [_anything(draw, depth + 1) for _ in range(draw.randrange(4))]
    if depth < 5 and kind < 0.45:
        return {draw.choice(_NAMES): _anything(draw, depth + 1) for _ in range(draw.randrange(5))}
    return draw.choice(_SCALARS)


_NAMES = (
    *("run", "state", "reason", "attempt", "step", "loss", "time", "evidence", "values", "kind", "version", "rank", "parts"),
    *("path", "offset", "size", "last", "is_full", "job", "steps", "profile", "parent", "checkpoint", "trouble", "what", "card"),
    *("", "\ud800", "x" * 3000, "__class__", "diagnosis", "class", "line", "mend", "remedy", "plan", "secrets", "runtime"),
)  # fmt: skip
_SCALARS = (
    *(None, True, False, 0, -1, 1, 7, 10**400, -(2**63) - 1, 1.5, 1e308, float("inf"), float("nan"), "", "nan", "\ud800", "\0"),
    *("running", "failed", "succeeded", "interrupted", "metric", "state", "../../x", "/etc/passwd", "\x1b]0;x\x07", "x" * 5000),
    *("0001/log.txt", "0001/events.jsonl", "plan.json", "0001/state.json", RUN, [[[[]]]], {}),
)  # fmt: skip


def event(seed: int, _folder: Path) -> None:
    """Read a generated line of events.jsonl: an object, torn, or bytes of any kind."""
    draw = random.Random(seed)
    line = json.dumps({"version": 1, "kind": "metric", **_table(draw)}).encode()
    if draw.random() < 0.3:
        at = draw.randrange(len(line))
        line = line[:at] + bytes([draw.randrange(256)]) + line[at + draw.randrange(3) :]
    if draw.random() < 0.02:
        line = draw.choice([b"[", b'{"values":', b"9", b'"']) * draw.choice([50, 5000, 100_000])
    parse_event(line)


def _table(draw: random.Random) -> dict[str, Any]:
    return {draw.choice(_NAMES): _anything(draw) for _ in range(draw.randrange(9))}


def record(seed: int, folder: Path) -> None:
    """Read a mirror whose files hold generated records."""
    draw = random.Random(seed)
    mirror = Mirror(RUN, folder)
    place = mirror.folder / "0001"
    place.mkdir(parents=True, exist_ok=True)
    for path in (
        mirror.folder / "plan.json",
        mirror.folder / "client.json",
        place / "attempt.json",
        place / "state.json",
    ):
        content = json.dumps(_anything(draw) if draw.random() < 0.2 else _table(draw))
        if draw.random() < 0.1:
            content = content[: draw.randrange(len(content) + 1)]
        if draw.random() < 0.01:
            content = "[" * draw.choice([60, 2000, 100_000])
        path.write_text(content)
    with contextlib.suppress(LaunchError):
        remembered(mirror)
    with contextlib.suppress(LaunchError):
        mirror.whole_plan()
    with contextlib.suppress(LaunchError):
        mirror.host()


def answer(seed: int, folder: Path) -> None:
    """Take a generated answer to `read`, and generated summaries."""
    draw = random.Random(seed)
    payload = draw.randbytes(draw.choice([0, 3, 40]))
    values = {"state": _table(draw), **_table(draw)}
    if draw.random() < 0.5:
        values["parts"] = [
            {
                "path": draw.choice(_SCALARS),
                "offset": draw.choice([0, 1, -1, "0"]),
                "size": draw.choice([0, 3, 40, 1 << 70]),
            }
            for _ in range(draw.randrange(3))
        ]
    mirror = Mirror(RUN, folder)
    with contextlib.suppress(LaunchError):
        mirror.apply(Reply(values, payload))
    for kind in (RunState, Summary):
        with contextlib.suppress(ValueError):
            kind.lenient(values)


def job_record(seed: int, folder: Path) -> None:
    """Have the agent list a run whose folders hold what a job wrote there, and read its line as a client does."""
    draw = random.Random(seed)
    run = Run(str(folder / "runs" / RUN))
    run.make()
    first = run.new_folder()
    first.release()
    for path, sample in (
        (run.plan, {"job": "x", "steps": 3, "profile": {"title": "x"}, "secrets": []}),
        (
            run.prepared_record,
            {"kind": "prepare", "place_id": "x", "runtime": {"kind": "native", "gpus": []}, "time": 1.0},
        ),
        (first.attempt, {"kind": "train", "place_id": "x", "runtime": {"kind": "native", "gpus": ["GPU-1"]}}),
        (
            first.state,
            {
                "state": draw.choice(["running", "failed"]),
                "step": 3,
                "evidence": {},
                "remedy": {},
                "time": 1.0,
            },
        ),
        (first.heartbeat, {"monotonic_s": 1.0, "step": 3, "loss": 1.0, "grace_s": 3.0}),
    ):
        table: dict[str, Any] = {**sample}
        for name in draw.sample([*sample, *_NAMES], draw.choice([0, 0, 1, 2])):
            table[name] = _anything(draw)
        content = json.dumps(table)
        if draw.random() < 0.05:
            content = draw.choice(
                [content[: draw.randrange(len(content))], "[" * 5000, "null", "\0" * 9, "9" * 5000]
            )
        Path(path).write_text(content)
    line = line_of(run, run_state.state_of(run))
    with contextlib.suppress(ValueError):
        Summary.lenient(json.loads(strict_json.encode(line)))
    run.cards()
    first.nodes()


SUBJECTS: dict[str, Callable[[int, Path], None]] = {
    "TOML files": toml,
    "events": event,
    "records": record,
    "job's records": job_record,
    "host answers": answer,
    **file_streams.SUBJECTS,
}
