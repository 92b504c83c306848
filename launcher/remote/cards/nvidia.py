"""The cards of this host, as their driver's own tool tells, and who holds them.

CUDA is never begun here: a context would hold a card, and keep the next one out of an exclusive one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from functools import partial
from typing import Any, Callable, Hashable, NamedTuple

from ..fate import ownership
from ..system import process
from ..system.deadline import at_once, run

SMI_TIMEOUT_S = 10
HOLDER_TIMEOUT_S = 2.0
MOST_CHARS = 200
MOST_XIDS = 8
KERNEL_LOG = "/dev/kmsg"
MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 # NVIDIA's own default
MEANS = {
    "T": "stopped: it goes on holding the card; its owner can let it go on, or end it",
    "t": "stopped by a debugger: it goes on holding the card; its owner can let it go on, or end it",
    "D": "waits in the kernel for a driver or a disk: nobody can end it before that answers",
    "Z": "dead: it holds nothing; its parent has to collect it",
    "": "not in the process table that is seen here: of another pid namespace, hidden, or gone by now",
}
_FIELDS = (
    *("index", "uuid", "name", "compute_cap", "memory.total", "driver_version", "memory.used", "compute_mode"),
    *("mig.mode.current", "ecc.errors.uncorrected.volatile.total", "pci.bus_id"),
)  # fmt: skip
_HOLDER_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
_MODES = {
    "default": "default",
    "exclusiveprocess": "exclusive-process",
    "eprocess": "exclusive-process",
    "prohibited": "prohibited",
}
_UNKNOWN_FIELD = re.compile(r'Field "([^"]{1,80})" is not a valid field to query')
_LOST = re.compile(r"lost|unable to determine the device handle|unknown error", re.IGNORECASE)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]+):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})[^)]*\): ([0-9]{1,4})\b")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


class Answer(NamedTuple):
    """What nvidia-smi printed: a cell by its field in every row, and what else it said if it failed."""

    rows: list[dict[str, str]]
    error: str | None = None


def look(root: str) -> dict[str, Any]:
    """Return the cards with their holders, whose runs lie below `root`; why they could not be read; NVIDIA's MPS daemon.

    A program that hangs costs its own answer: cards without holders are told, with the reason in `holders_error`.
    """
    if shutil.which("nvidia-smi") is None:
        return {"gpus": [], "gpu_error": None}
    silence = Answer([], "nvidia-smi did not answer in %d s" % SMI_TIMEOUT_S)
    questions: dict[str, Callable[[], Any]] = {
        "gpu": partial(_ask, "gpu", _FIELDS),
        "compute-apps": partial(_ask, "compute-apps", _HOLDER_FIELDS),
        "xids": _xids,
        "nvidia_mps": has_mps,
    }
    told = at_once(
        questions, SMI_TIMEOUT_S + 1.0
    )  # it has ended its own question by then, unless that cannot be
    cards, apps = told.get("gpu", silence), told.get("compute-apps", silence)
    xids = told.get("xids", {})
    gpus = [gpu for gpu in (read_card(row, xids) for row in cards.rows) if gpu]
    held = _holders(root, apps.rows)
    for gpu in gpus:
        gpu["holders"] = [dict(holder) for uuid, holder in held if uuid == gpu["uuid"]]
    return {
        "gpus": gpus,
        "gpu_error": cards.error,
        "holders_error": apps.error if gpus else None,
        "nvidia_mps": bool(told.get("nvidia_mps")),
    }


def _ask(what: str, fields: tuple[str, ...]) -> Answer:
    """Ask nvidia-smi for fields; those that an older one does not know are left out."""
    deadline = time.monotonic() + SMI_TIMEOUT_S
    while True:
        words = ["nvidia-smi", "--query-%s=%s" % (what, ",".join(fields)), "--format=csv,noheader,nounits"]
        try:
            code, out, err = run(words, max(0.1, deadline - time.monotonic()))
        except OSError as error:
            return Answer([], "nvidia-smi: %s" % error.strerror)
        except subprocess.TimeoutExpired:
            return Answer([], "nvidia-smi did not answer in %d s" % SMI_TIMEOUT_S)
        unknown = _UNKNOWN_FIELD.search(out + err) if code != 0 else None
        if unknown is None or unknown[1] not in fields:
            return read_answer(fields, code, out, err)
        fields = tuple(field for field in fields if field != unknown[1])


def read_answer(fields: tuple[str, ...], code: int, out: str, err: str) -> Answer:
    """Read what nvidia-smi printed. Beside rows it may say that one card is lost, or that its infoROM is not right."""
    rows, words = [], []
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(fields) - 1)]
        if len(cells) > 1 and re.fullmatch(r"[0-9]{1,4}|(GPU|MIG)-[^ ]{1,80}", cells[0]):
            rows.append(dict(zip(fields, cells)))  # noqa: B905 # Python 3.8 has no `strict`
        elif line.strip():
            words.append(line.strip())
    if code != 0:
        return Answer(rows, "nvidia-smi failed (%d): %s" % (code, (" ".join(words) or err)[:MOST_CHARS]))
    words += ["GPU " + " ".join(row.values()) for row in rows if row.get("uuid", "").startswith("[")]
    lost = next((line for line in words if _LOST.search(line)), None)
    return Answer(rows, "nvidia-smi: %s" % lost[:MOST_CHARS] if lost else None)


def read_card(row: dict[str, str], xids: dict[tuple[int, int, int], list[int]]) -> dict[str, Any] | None:
    """Return a card of its row; None where the row is none. What is [N/A] or the like is not told (None)."""
    if not re.fullmatch(r"[0-9]{1,4}", row.get("index", "")) or _text(row, "name") is None:
        return None
    mig = _text(row, "mig.mode.current")
    ecc = _number(row, "ecc.errors.uncorrected.volatile.total")
    return {
        "index": int(row["index"]),
        "uuid": _text(row, "uuid") or "",
        "name": _text(row, "name"),
        "capability": _text(row, "compute_cap"),
        "memory_mib": _number(row, "memory.total"),
        "memory_used_mib": _number(row, "memory.used"),
        "driver": _text(row, "driver_version"),
        "compute_mode": _MODES.get(re.sub(r"[^a-z]", "", row.get("compute_mode", "").lower())),
        "mig": {"enabled": True, "disabled": False}.get((mig or "").lower()),
        "ecc_errors": None if ecc is None else int(ecc),
        "xids": xids.get(_place(row.get("pci.bus_id", "")) or (-1, 0, 0), []),
        "holders": [],
    }


def _text(row: dict[str, str], field: str) -> str | None:
    cell = row.get(field, "")
    return None if cell in ("", "N/A", "ERR!") or re.fullmatch(r"\[.*\]", cell) else cell[:MOST_CHARS]


def _number(row: dict[str, str], field: str) -> float | None:
    cell = row.get(field, "")
    return float(cell) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", cell) else None


# what the kernel says


def _place(bus_id: str) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a card's place, e.g. of `00000000:3B:00.0`."""
    found = re.match(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\b", bus_id)
    return (int(found[1], 16), int(found[2], 16), int(found[3], 16)) if found else None


def _xids() -> dict[tuple[int, int, int], list[int]]:
    """Return the driver's errors since boot by the card's place, the latest last; none where we may not read the log."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for domain, bus, device, code in _XID.findall(_kernel_log()):
        codes = found.setdefault((int(domain, 16), int(bus, 16), int(device, 16)), [])
        codes.append(int(code))
        del codes[:-MOST_XIDS]
    return found


def _kernel_log() -> str:
    pieces = []
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # for root alone, or not there
        return ""
    try:
        while True:
            try:
                piece = os.read(log, 8192)  # one record of the kernel's
            except BrokenPipeError:
                continue  # the oldest were overwritten while we read
            if not piece:
                break
            pieces.append(piece)
    except OSError:  # no more for now
        pass
    finally:
        os.close(log)
    return b"".join(pieces).decode("utf-8", "replace")


def has_mps() -> bool:
    """Whether NVIDIA's MPS daemon runs, through which processes of one user share an exclusive card."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_FOLDER
    if os.path.exists(os.path.join(folder, "control")):
        return True
    names = (_read("/proc/%s/comm" % name) for name in os.listdir("/proc") if name.isdigit())
    return any(name.startswith("nvidia-cuda-mps") for name in names)  # the kernel keeps 15 characters


# who holds them


def _holders(root: str, rows: list[dict[str, str]]) -> list[tuple[str, dict[str, Any]]]:
    """Return each holder with the UUID of its card.

    What may wait for the memory of a process that waits for a driver (its command line, its environment) is asked in
    threads, with a deadline; so are users' names, which a server may keep.
    """
    rows = [row for row in rows if re.fullmatch(r"[1-9][0-9]{0,9}", row.get("pid", ""))]
    seen = {pid: _seen(pid) for pid in {int(row["pid"]) for row in rows}}
    present = [pid for pid, told in seen.items() if told["state"] not in (None, "Z")]
    stuck = [pid for pid in present if seen[pid]["state"] == "D"]
    quick = [pid for pid in present if pid not in stuck]
    questions: dict[Hashable, Callable[[], Any]] = {("owned", 0): partial(ownership.judge, root, quick)}
    questions.update({("owned", pid): partial(ownership.judge, root, [pid]) for pid in stuck})
    questions.update({("command", pid): partial(_command, pid) for pid in present})
    questions.update({("user", told["uid"]): partial(_user, told["uid"]) for told in seen.values()})
    told_in_time = at_once(questions, HOLDER_TIMEOUT_S)
    owned: dict[int, ownership.Owned] = {}
    for pid in (0, *stuck):
        owned.update(told_in_time.get(("owned", pid), {}))
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        pid, memory = int(row["pid"]), _number(row, "used_memory")
        before = found.get((row["gpu_uuid"], pid))
        if before is not None:  # once for each of several slices of a card
            before["memory_mib"] = (before["memory_mib"] or 0) + (memory or 0)
            continue
        owner = owned.get(pid, ownership.Owned("stranger", None))
        found[row["gpu_uuid"], pid] = dict(
            seen[pid],
            pid=pid,
            user=told_in_time.get(("user", seen[pid]["uid"])),
            command=told_in_time.get(("command", pid)) or printable(_text(row, "process_name") or "") or None,
            memory_mib=memory,
            ownership=owner.kind,
            run=owner.run,
        )
    return [(uuid, holder) for (uuid, _), holder in found.items()]


def _seen(pid: int) -> dict[str, Any]:
    """Return what the process table says of a pid; nothing of this waits for anybody."""
    one = process.find(pid)
    uids = re.search(r"^Uid:\s+([0-9]+)", _read("/proc/%d/status" % pid), re.MULTILINE)
    container = _CONTAINER.search(_read("/proc/%d/cgroup" % pid))
    return {
        "uid": int(uids[1]) if uids else None,
        "start": one.start if one else None,
        "age_s": _age_s(one.start) if one else None,
        "container": container[1][:12] if container else None,
        "state": one.letter if one else None,
        "means": MEANS.get(one.letter if one else ""),
    }


def _age_s(start: str) -> float | None:
    """Return the age of a process that began so many ticks after the boot, in seconds, by the clock of the boot."""
    try:
        began_s = int(start) / os.sysconf("SC_CLK_TCK")
        return round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s), 1)
    except (AttributeError, ValueError, OSError):  # not Linux
        return None


def _command(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(4096)
    except OSError:
        return ""
    return printable(words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))


def printable(text: str) -> str:
    """Return a text of bounded length, without control characters and the like."""
    return "".join(char if char.isprintable() else " " for char in text)[:MOST_CHARS].strip()


def _user(uid: int | None) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name if uid is not None else None
    except KeyError:  # a uid without a name, as of a container
        return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
