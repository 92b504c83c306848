"""Whether a segment's machine fits its run: its cards, its torch, its packages.

Missing parts are installed if possible.
"""

from __future__ import annotations

import os
import pkgutil
import re
import select
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..cards.allowed_cards import MAX_CHARS, AssignedCards, UnfitError
from ..making import torch_check
from ..record import strict_json
from ..system import deadline, process
from . import requirements_check
from .segment_config import SegmentConfig, TorchWheel

NO_KERNEL_IMAGE = "no-kernel-image"
MISSING = "missing-dependency"
IMPORT_S = 300.0
LOOK_S = 0.5
_ARCHITECTURE = re.compile(r"(sm|compute)_([0-9]+)([0-9])([a-z]?)")

Say = Callable[[str], None]


# torch


def check_torch(came: AssignedCards, orders: SegmentConfig, due_s: float, say: Say) -> Optional[str]:
    """Return the version of the torch that trains, None without one.

    A torch without code for the card is replaced. An installation ends at `due_s`, by the monotonic clock.
    Raises UnfitError.
    """
    found = _import_torch()
    if _is_fit(found, came):
        return _version(found)
    wheel = _wheel_here(orders, came)
    if wheel is None and found["torch"] is None:
        return None  # the job may need no torch
    lacks = "torch %s has code for %s" % (found["torch"], " ".join(found["architectures"]) or "no card")
    if wheel is None:
        raise _no_kernel(came, lacks, "use another card, or another version of torch")
    if not orders.internet:
        raise _no_kernel(
            came, lacks, "allow the job internet, so that %s can be installed" % wheel.requirement
        )
    say("%s, not for the card's %s: installing %s" % (lacks, came.capability, wheel.requirement))
    return _replace_torch(wheel, came, due_s, say)


def _wheel_here(orders: SegmentConfig, came: AssignedCards) -> Optional[TorchWheel]:
    """Return the torch for the card and this Python, else one for the card; None without one."""
    fitting = [one for one in orders.torch if one.capability == came.capability]
    here = "%d.%d" % sys.version_info[:2]
    return next((one for one in fitting if one.python == here), fitting[0] if fitting else None)


def _replace_torch(wheel: TorchWheel, came: AssignedCards, due_s: float, say: Say) -> Optional[str]:
    code, last = _pip(["--index-url", wheel.url, wheel.requirement], due_s, say)
    if code != 0:
        mend = (
            "pip could not install %s, which has that code: does the account have internet in its sessions?"
        )
        raise _no_kernel(came, last, mend % wheel.requirement)
    found = _import_torch()
    if not _is_fit(found, came):
        words = found["error"] or "torch %s has code for %s" % (found["torch"], found["architectures"])
        raise _no_kernel(came, words, "%s was installed" % wheel.requirement)
    return _version(found)


def _no_kernel(came: AssignedCards, line: str, mend: str) -> UnfitError:
    why = "this torch has no code for %s, capability %s" % (came.allowed.title, came.capability)
    return UnfitError(NO_KERNEL_IMAGE, line, why, mend)


def _is_fit(found: Dict[str, Any], came: AssignedCards) -> bool:
    """Whether torch has code for the card.

    True if the card's capability is unknown: without code, the training will fail.
    """
    if found["torch"] is None:
        return False
    return came.capability is None or has_code_for(found["architectures"], came.capability)


def _version(found: Dict[str, Any]) -> Optional[str]:
    return None if found["torch"] is None else str(found["torch"])


def has_code_for(architectures: Sequence[str], capability: str) -> bool:
    """Whether code for these architectures runs on a card.

    `sm_75` runs on cards of capability 7.5 to 7.9, `compute_75` on 7.5 and all later ones, `sm_90a` only on
    9.0.
    """
    major, _, minor = capability.partition(".")
    card = (int(major), int(minor or 0))
    for kind, high, low, special in _ARCHITECTURE.findall(" ".join(architectures)):
        code = (int(high), int(low))
        if code == card or (not special and code < card and (kind == "compute" or code[0] == card[0])):
            return True
    return False


def _import_torch() -> Dict[str, Any]:
    """Return the report of torch_check.py; its `torch` is None if torch is missing or cannot be imported."""
    text = (pkgutil.get_data(torch_check.__package__ or "", "torch_check.py") or b"").decode()
    report = _ask(text, [torch_check.WITHOUT_CONFLICTS], torch_check.MARK)
    return report if isinstance(report, dict) else {"torch": None, "architectures": [], "error": None}


# requirements


def check_requirements(orders: SegmentConfig, torch: Optional[str], due_s: float, say: Say) -> None:
    """Install the missing requirements, and keep the torch that fits the card. Raises UnfitError."""
    lacking = _lacking(orders.requirements)
    if not lacking:
        return
    words = ", ".join(lacking)
    why = "the session's image lacks %s" % words
    if not orders.internet:
        mend = "allow the job internet, or bring the packages as an input"
        raise UnfitError(MISSING, words, why, mend)
    say("installing %s" % words)
    kept = ["torch==%s" % torch] if torch is not None else []
    code, last = _pip([*lacking, *kept], due_s, say)
    if code != 0:
        raise UnfitError(
            MISSING,
            last,
            why,
            "pip could not install them: name versions that exist, or let the account have internet in its sessions",
        )


def _lacking(requirements: Sequence[str]) -> List[str]:
    if not requirements:
        return []
    text = (pkgutil.get_data(requirements_check.__package__ or "", "requirements_check.py") or b"").decode()
    lacking = _ask(text, list(requirements), requirements_check.MARK)
    return lacking if isinstance(lacking, list) else list(requirements)


# programs


def _ask(text: str, words: List[str], mark: str) -> Any:
    """Run a program with the run's interpreter; return its report behind a mark, None without one."""
    try:
        _, out, _ = deadline.run([sys.executable, "-c", text, *words], IMPORT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    reports = [line[len(mark) :] for line in out.splitlines() if line.startswith(mark)]
    try:
        return strict_json.decode(reports[-1]) if reports else None
    except ValueError:
        return None


def _pip(words: List[str], due_s: float, say: Say) -> Tuple[Optional[int], str]:
    """Run `pip install` and print its output; return its exit status (None if killed) and last error."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCH_")}
    variables.update(
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
        PIP_PROGRESS_BAR="off",
        PIP_BREAK_SYSTEM_PACKAGES="1",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "pip", "install", *words],
        cwd="/",
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as pip:
        last = _print_lines(pip, due_s, say)
        if pip.poll() is None and time.monotonic() >= due_s:
            process.end(lambda: _family(pip.pid), "child", 0.0)
            return None, "pip was ended: the session has no more time"
    return pip.returncode, last


def _family(pid: int) -> List[process.Process]:
    found = process.find(pid)
    return [*([found] if found is not None and found.letter != "Z" else []), *process.descendants(pid)]


def _print_lines(pip: subprocess.Popen[bytes], due_s: float, say: Say) -> str:
    """Print the lines of pip until it ends or time is up; return its last error line, else its last line."""
    assert pip.stdout is not None  # noqa: S101 - asked for with PIPE
    rest, last, error = b"", "", ""
    while time.monotonic() < due_s:
        if not select.select([pip.stdout], [], [], LOOK_S)[0]:
            continue
        piece = os.read(pip.stdout.fileno(), 1 << 16)
        *lines, rest = (rest + (piece or b"\n")).split(b"\n")
        for line in lines:
            last = line.decode("utf-8", "replace").strip() or last
            error = last if last.startswith("ERROR:") else error
            say("pip: %s" % last[:MAX_CHARS])
        if not piece:
            break
    return error or last
