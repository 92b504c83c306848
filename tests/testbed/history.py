"""A root with a long history: one recorded run, copied many times under new ids and at new times."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.agent.record.files import read_json
from launcher.agent.record.rundir import Run
from launcher.agent.record.strict_json import encode

GAP_S = 60.0


def repeat(template: Path, count: int, *, interrupted_every: int = 0) -> list[str]:
    """Copy an ended run `count` times below its root, each older than the one before; return the ids, newest first.

    Control and record are real copies, with ids, times and tokens of their own. Of every `interrupted_every` runs, one was
    interrupted: its last state is `running`, and nobody holds its lock.
    """
    ids = list(_ids(template.name, count))
    began = time.time()
    originals = [path for path in sorted(template.rglob("*")) if not path.is_symlink()]
    folders = [path.relative_to(template) for path in originals if path.is_dir()]
    contents = {path.relative_to(template): path.read_bytes() for path in originals if path.is_file()}
    last = Path("record", f"{Run(str(template)).numbers()[-1]:04d}", "state.json")
    for number, run in enumerate(ids, 1):
        top = template.with_name(run)
        top.mkdir(mode=0o700)
        for folder in folders:
            (top / folder).mkdir(mode=0o700)
        is_interrupted = interrupted_every and number % interrupted_every == 0
        for path, content in contents.items():
            data = content.replace(template.name.encode(), run.encode())
            if path.name == "token":
                data = data[:-32] + b"%032x" % number
            elif path.name == "prepared.json":
                data = encode(
                    {**read_json(str(template / path)), "run": run, "time": began - number * GAP_S}
                ).encode()
            elif path == last and is_interrupted:
                data = b'{"version":1,"state":"running","reason":null,"attempt":1,"time":%d}' % began
            (top / path).write_bytes(data)
        os.utime(top, (began - number * GAP_S,) * 2)
    return ids


def _ids(template: str, count: int) -> Iterator[str]:
    day, _, rest = template.partition("-")
    name = rest.rpartition("-")[0]
    return (f"{day}-{name}-{_letters(number)}" for number in range(count))


def _letters(number: int) -> str:
    """Return six letters of an id, none of which is like those of the number after it."""
    mixed, letters = number * 1_000_003 % 36**6, ""
    for _ in range(6):
        mixed, digit = divmod(mixed, 36)
        letters += "0123456789abcdefghijklmnopqrstuvwxyz"[digit]
    return letters


def repeat_mirror(template: Path, index: Path, count: int) -> list[str]:
    """Copy the mirror of an ended run `count` times beside it, and its entry in an index; return the ids.

    Each was launched a minute before the one before.
    """
    ids = list(_ids(template.name, count))
    contents = {
        path.relative_to(template): path.read_bytes() for path in template.rglob("*") if path.is_file()
    }
    record = read_json(str(index / template.name / "run.json"))
    for number, run in enumerate(ids, 1):
        for path, content in contents.items():
            (template.with_name(run) / path).parent.mkdir(parents=True, exist_ok=True)
            (template.with_name(run) / path).write_bytes(
                content.replace(template.name.encode(), run.encode())
            )
        launched = record["launched"] - number * GAP_S
        (index / run).mkdir()
        (index / run / "run.json").write_text(
            encode({**record, "run": run, "launched": launched, "order": count - number + 1})
        )
        for folder in (index / run, template.with_name(run)):
            os.utime(folder, (launched,) * 2)
    return ids
