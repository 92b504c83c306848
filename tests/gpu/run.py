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

from gpu import report
from gpu.environment import FOLDER, REPOSITORY, UnfitError, find_card, python_with, requirements, variables
from gpu.ledger import read_lines
from gpu.parts import PARTS, chosen

HERE = Path(__file__).resolve().parent
PART_S = 465.0
GRACE_S = 12.0
"""From SIGTERM, at which a part ends what it has started, to SIGKILL: a part takes eight minutes at most."""
TOTAL_S = 29 * 60.0
LEAST_S = 20.0
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
            return subprocess.run([python, __file__], check=False).returncode
        if not is_rehearsed:
            _check_torch(python)
        path = FOLDER / "REHEARSAL.json" if is_rehearsed else HERE / "GPU.json"
        report.read(path, is_rehearsed=is_rehearsed)
    except KeyError as error:
        print(f"make gpu: there is no part {error}; there are: {' '.join(PARTS)}", file=sys.stderr)
        return 2
    except (UnfitError, ValueError) as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    return run_all(names, path, is_rehearsed=is_rehearsed)


def _check_torch(python: str) -> None:
    """Raise UnfitError if torch does not see the card that nvidia-smi reports."""
    code = "import torch; torch.zeros(1, device='cuda')"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnfitError(f"torch cannot use the card: {done.stderr.strip().splitlines()[-1]}")


def run_all(names: list[str], path: Path, *, is_rehearsed: bool) -> int:
    """Run parts one after the other; each one's result is written before the next begins."""
    began, failed = time.monotonic(), []
    for name in names:
        limit_s = min(PART_S, TOTAL_S - GRACE_S - (time.monotonic() - began))
        if limit_s < LEAST_S:
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
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = [line["row"] for line in lines if "row" in line]
    wrong = [row for row in found if row.get("ok") is False]
    why = ended.why or (f"{len(wrong)} of {len(found)} rows are not as expected" if wrong else None)
    print(f"{name}: {why or 'done'}, {ended.seconds:.0f} s   {log}", flush=True)
    return {
        "state": "done" if why is None else "failed",
        "why": why,
        "seconds": round(ended.seconds, 1),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": _commit(),
        "machine": next((line["machine"] for line in lines if "machine" in line), {}),
        "rows": found,
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
            env=variables(),
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
            why = None if code == 0 else f"exit code {code}, {_reason(log)}"
        except subprocess.TimeoutExpired:
            why = f"it took more than {limit_s:.0f} s"
        finally:
            _end(process, folder)
    return Ended(why, time.monotonic() - began)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End a part: its own process group, then the runs that it left, which name its folder and have a session of their own."""
    from testbed.client import processes_of  # not before the environment has pytest

    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    for pid in processes_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reason(log: Path) -> str:
    """Return the last error in a log, else its last line; both may be missing."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or ["it said nothing"])[-1][:300]


def _commit() -> str:
    words = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
