"""Everything that only a card can show: `make gpu`. Results go to GPU.json and GPU.md beside this file.

Read from the environment:

PART       one part or several, separated by commas; they add to the same files
REHEARSE   1: the same parts on the CPU, tiny, into .gpu/REHEARSAL.json and .md
WHEELS     a folder of wheels, for what this Python lacks; no network is used

Each part is a process of its own and has eight minutes; all together have half an hour. One that fails, or has no time left, costs
no other: its rows so far stay.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))  # where this Python has no launcher

from gpu import report
from gpu.card import find_card
from gpu.environment import FOLDER, REPOSITORY, UnfitError, python_with, requirements, run_ok, variables
from gpu.ledger import read_lines
from gpu.parts import PARTS, chosen

HERE = Path(__file__).resolve().parent
PART_S = 465.0
GRACE_S = 12.0
"""From SIGTERM, at which a part ends what it has started, to SIGKILL: a part takes eight minutes at most."""
LEFT_S = 3.0
"""How long what a part has left is looked for and killed."""
TOTAL_S = 28 * 60.0
"""All parts; the rest of the half hour is for an environment from wheels."""
MIN_S = 20.0
"""A part that has less time than this is not begun."""

_ERROR = re.compile(r"[\w.]+(Error|Failed|Expired|Interrupt|Exception)\b")


class Ended(NamedTuple):
    """How a part's process ended. `why` is None if it ended well."""

    why: str | None
    seconds: float


def main() -> int:
    """Run the chosen parts; return 0 if all went well, 1 if one did not, 2 if nothing can be run here."""
    is_rehearsed = os.environ.get("REHEARSE", "") not in ("", "0")
    try:
        names = chosen(os.environ.get("PART"))
        if not is_rehearsed:
            find_card()
        python = python_with(requirements(), os.environ.get("WHEELS") or None)
        if Path(python) != Path(sys.executable):
            os.execv(python, [python, __file__])  # noqa: S606 - no shell is wanted
        if not is_rehearsed:
            run_ok([python, "-c", "import torch; torch.zeros(1, device='cuda')"], "torch cannot use the card")
        path = FOLDER / "REHEARSAL.json" if is_rehearsed else HERE / "GPU.json"
        report.read(path, is_rehearsed=is_rehearsed)
    except KeyError as error:
        print(f"make gpu: there is no part {error}; there are: {' '.join(PARTS)}", file=sys.stderr)
        return 2
    except (UnfitError, ValueError) as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, lambda *_: sys.exit(1))
    return run_all(names, path, is_rehearsed=is_rehearsed)


def run_all(names: list[str], path: Path, *, is_rehearsed: bool) -> int:
    """Run parts one after the other; each one's result is written before the next begins."""
    began, failed = time.monotonic(), []
    for name in names:
        limit_s = min(PART_S, TOTAL_S - GRACE_S - (time.monotonic() - began))
        if limit_s < MIN_S:
            print(f"{name}: no time was left", file=sys.stderr)
            failed.append(name)
            continue
        result = run_part(name, limit_s, is_rehearsed=is_rehearsed)
        report.write(report.merged(report.read(path, is_rehearsed=is_rehearsed), name, result), path)
        if result["state"] != "done":
            failed.append(name)
    print(f"{path.with_suffix('.md')}: {time.monotonic() - began:.0f} s")
    if failed:
        print(f"not done: make gpu PART={','.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_part(name: str, limit_s: float, *, is_rehearsed: bool) -> report.Result:
    """Run a part in a process of its own; return its result, which holds the rows that it reached."""
    log = FOLDER / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"launch-gpu-{name}-"))
    print(f"{name} …", flush=True)
    mode = ["rehearse"] if is_rehearsed else []
    try:
        ended = in_time(
            [sys.executable, str(HERE / "part.py"), name, str(folder), *mode], folder, log, limit_s
        )
        lines = read_lines(folder / "rows.jsonl")
    except SystemExit:
        print(f"{name}: stopped; what it had before stays", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [line["row"] for line in lines if "row" in line]
    wrong = [row for row in rows if row.get("ok") is False]
    why = ended.why or (f"{len(wrong)} of {len(rows)} rows are not as expected" if wrong else None)
    print(f"{name}: {why or 'done'}, {ended.seconds:.0f} s   {log}", flush=True)
    return {
        "state": "done" if why is None else "failed",
        "why": why,
        "seconds": round(ended.seconds, 1),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": _commit(),
        "machine": next((line["machine"] for line in lines if "machine" in line), {}),
        "rows": rows,
    }


def in_time(words: list[str], folder: Path, log: Path, limit_s: float) -> Ended:
    """Run a command that works in `folder` to its end, or to its limit; nothing that it started there outlives it."""
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables(folder),
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
            why = None if code == 0 else _why(code, log)
        except subprocess.TimeoutExpired:
            why = f"it took more than {limit_s:.0f} s"
        finally:
            _end(process, folder)
    return Ended(why, time.monotonic() - began)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End a part: its own process group, then what it left, which names its folder."""
    from testbed.client import processes_of  # not before the environment has pytest

    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    deadline = time.monotonic() + LEFT_S
    while (pids := processes_of(folder)) and time.monotonic() < deadline:  # some start others meanwhile
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _why(code: int, log: Path) -> str:
    """Return why a part failed: the signal that ended it, or its exit code and the last error in its log, else the last line."""
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return f"exit code {code}, {(errors or lines or ['it said nothing'])[-1][:300]}"


def _commit() -> str:
    words = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
