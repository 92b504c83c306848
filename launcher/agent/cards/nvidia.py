"""The cards of this host by nvidia-smi, and the processes that hold them.

CUDA is never initialized here: a context would hold a card, and would lock other processes out of a card in
exclusive mode.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from functools import partial
from typing import Any, Callable, Hashable, List, NamedTuple, Optional, TypedDict

from ..liveness import ownership
from ..system import process
from ..system.deadline import at_once, run
from . import nvml

SMI_TIMEOUT_S = 10
HOLDER_TIMEOUT_S = 2.0
MAX_CHARS = 200
MAX_XIDS = 8
KERNEL_LOG = "/dev/kmsg"
MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 # NVIDIA's default
MEANS = {
    "T": "stopped: it still holds the card; its owner can continue it or end it",
    "t": "stopped by a debugger: it still holds the card; its owner can continue it or end it",
    "D": "waits in the kernel for a driver or a disk: it cannot be ended before that answers",
    "Z": "dead: it holds nothing; its parent has to collect it",
    "": "not in this process table: in another pid namespace, hidden, or already gone",
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


class SmiTable(NamedTuple):
    """The output of nvidia-smi: for each row its cells by field, and the error if it failed."""

    rows: list[dict[str, str]]
    error: str | None = None


class HolderProcess(TypedDict):
    """The process table's entry of a pid. If the process is gone, only `means` is set."""

    uid: Optional[int]
    start: Optional[str]
    age_s: Optional[float]
    container: Optional[str]
    state: Optional[str]
    means: Optional[str]


class CardHolder(HolderProcess):
    """A process that has memory of a card: its user, its command, its owner.

    `run` and `receiver` are set if it belongs to a run of the launcher.
    """

    pid: int
    user: Optional[str]
    command: Optional[str]
    memory_mib: Optional[float]
    ownership: str
    run: Optional[str]
    receiver: Optional[str]


class CardReport(TypedDict):
    """A card, or a slice of one. Values that the driver does not report are None.

    `xids` are the card's errors since boot, latest last.
    """

    index: int
    uuid: str
    name: str
    capability: Optional[str]
    memory_mib: Optional[float]
    memory_used_mib: Optional[float]
    driver: Optional[str]
    compute_mode: Optional[str]
    mig: Optional[bool]
    ecc_errors: Optional[int]
    xids: List[int]
    holders: List[CardHolder]


class _Cards(TypedDict):
    gpus: List[CardReport]
    gpu_error: Optional[str]


class CardsReport(_Cards, total=False):
    """The cards of a host with their holders, the errors of the two queries, and whether the MPS daemon runs."""

    holders_error: Optional[str]
    nvidia_mps: bool


def read_cards(root: str) -> CardsReport:
    """Return the cards with their holders, the error if they could not be read, and whether MPS runs.

    A holder is reported with its run if that is below `root`. A query that hangs costs only its own answer:
    for example, the cards are then returned without holders, with the reason in `holders_error`.
    """
    if shutil.which("nvidia-smi") is None:
        return {"gpus": [], "gpu_error": None}
    silence = SmiTable([], "nvidia-smi did not answer in %d s" % SMI_TIMEOUT_S)
    questions: dict[str, Callable[[], Any]] = {
        "gpu": partial(_ask, "gpu", _FIELDS),
        "compute-apps": partial(_ask, "compute-apps", _HOLDER_FIELDS),
        "xids": _xids,
        "nvidia_mps": has_mps,
    }
    answers = at_once(
        questions, SMI_TIMEOUT_S + 1.0
    )  # by then nvidia-smi was ended, unless it cannot be ended
    cards, apps = answers.get("gpu", silence), answers.get("compute-apps", silence)
    xids = answers.get("xids", {})
    gpus = [gpu for gpu in (read_card(row, xids) for row in cards.rows) if gpu]
    held = _holders(root, apps.rows)
    for gpu in gpus:
        gpu["holders"] = [holder.copy() for uuid, holder in held if uuid == gpu["uuid"]]
    return {
        "gpus": _completed(gpus),
        "gpu_error": cards.error,
        "holders_error": apps.error if gpus else None,
        "nvidia_mps": bool(answers.get("nvidia_mps")),
    }


def listed() -> set[str]:
    """Return the UUIDs of the cards and slices that the driver lists now; empty if it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return set()
    rows = _ask("gpu", ("index", "uuid", "mig.mode.current")).rows
    is_sliced = any(row.get("mig.mode.current", "").lower() == "enabled" for row in rows)
    slices = [one for card in nvml.cards_of_driver().values() for one in card["slices"]] if is_sliced else []
    return {*(row["uuid"] for row in rows), *(one["uuid"] for one in slices)}


def _completed(gpus: list[CardReport]) -> list[CardReport]:
    """Return the cards, completed by the driver's library. A card in slices (MIG) is replaced by these.

    Each slice has its own memory. nvidia-smi does not report the holders of a slice, so each slice gets all
    holders of its card.
    """
    if not any(gpu["mig"] or not gpu["capability"] or not gpu["memory_mib"] for gpu in gpus):
        return gpus
    told = nvml.cards_of_driver()
    found: list[CardReport] = []
    for gpu in gpus:
        more: nvml.DriverCard = told.get(gpu["uuid"], {})
        known: CardReport = {
            **gpu,
            "capability": gpu["capability"] or more.get("capability"),
            "memory_mib": gpu["memory_mib"] or more.get("memory_mib"),
        }
        slices = more.get("slices", ()) if gpu["mig"] else ()
        parts: list[CardReport] = [{**known, "memory_used_mib": None, **one} for one in slices]
        found += parts or [known]
    return found


def _ask(what: str, fields: tuple[str, ...]) -> SmiTable:
    """Query fields from nvidia-smi, without the fields that an older version lacks."""
    deadline = time.monotonic() + SMI_TIMEOUT_S
    while True:
        words = ["nvidia-smi", "--query-%s=%s" % (what, ",".join(fields)), "--format=csv,noheader,nounits"]
        try:
            code, out, err = run(words, max(0.1, deadline - time.monotonic()))
        except OSError as error:
            return SmiTable([], "nvidia-smi: %s" % error.strerror)
        except subprocess.TimeoutExpired:
            return SmiTable([], "nvidia-smi did not answer in %d s" % SMI_TIMEOUT_S)
        unknown = _UNKNOWN_FIELD.search(out + err) if code != 0 else None
        if unknown is None or unknown[1] not in fields:
            return read_answer(fields, code, out, err)
        fields = tuple(field for field in fields if field != unknown[1])


def read_answer(fields: tuple[str, ...], code: int, out: str, err: str) -> SmiTable:
    """Parse the output of nvidia-smi.

    Between rows it may report that a card is lost, or that an infoROM is corrupt.
    """
    rows, words = [], []
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(fields) - 1)]
        if len(cells) > 1 and re.fullmatch(r"[0-9]{1,4}|(GPU|MIG)-[^ ]{1,80}", cells[0]):
            rows.append(dict(zip(fields, cells)))  # noqa: B905 # Python 3.8 has no `strict`
        elif line.strip():
            words.append(line.strip())
    if code != 0:
        return SmiTable(rows, "nvidia-smi failed (%d): %s" % (code, (" ".join(words) or err)[:MAX_CHARS]))
    words += ["GPU " + " ".join(row.values()) for row in rows if row.get("uuid", "").startswith("[")]
    lost = next((line for line in words if _LOST.search(line)), None)
    return SmiTable(rows, "nvidia-smi: %s" % lost[:MAX_CHARS] if lost else None)


def read_card(row: dict[str, str], xids: dict[tuple[int, int, int], list[int]]) -> CardReport | None:
    """Return the card of a row, None if the row describes none. A cell like [N/A] becomes None."""
    name = _text(row, "name")
    if not re.fullmatch(r"[0-9]{1,4}", row.get("index", "")) or name is None:
        return None
    mig = _text(row, "mig.mode.current")
    ecc = _number(row, "ecc.errors.uncorrected.volatile.total")
    return {
        "index": int(row["index"]),
        "uuid": _text(row, "uuid") or "",
        "name": name,
        "capability": _text(row, "compute_cap"),
        "memory_mib": _number(row, "memory.total"),
        "memory_used_mib": _number(row, "memory.used"),
        "driver": _text(row, "driver_version"),
        "compute_mode": _MODES.get(re.sub(r"[^a-z]", "", row.get("compute_mode", "").lower())),
        "mig": {"enabled": True, "disabled": False}.get((mig or "").lower()),
        "ecc_errors": None if ecc is None else int(ecc),
        "xids": xids.get(_pci_address(row.get("pci.bus_id", "")) or (-1, 0, 0), []),
        "holders": [],
    }


def _text(row: dict[str, str], field: str) -> str | None:
    cell = row.get(field, "")
    return None if cell in ("", "N/A", "ERR!") or re.fullmatch(r"\[.*\]", cell) else cell[:MAX_CHARS]


def _number(row: dict[str, str], field: str) -> float | None:
    cell = row.get(field, "")
    return float(cell) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", cell) else None


# the kernel's log


def _pci_address(bus_id: str) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a PCI address, e.g. of `00000000:3B:00.0`."""
    found = re.match(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\b", bus_id)
    return (int(found[1], 16), int(found[2], 16), int(found[3], 16)) if found else None


def _xids() -> dict[tuple[int, int, int], list[int]]:
    """Return the driver's errors since boot by PCI address, latest last.

    Returns nothing without access to the kernel log.
    """
    found: dict[tuple[int, int, int], list[int]] = {}
    for domain, bus, device, code in _XID.findall(_kernel_log()):
        codes = found.setdefault((int(domain, 16), int(bus, 16), int(device, 16)), [])
        codes.append(int(code))
        del codes[:-MAX_XIDS]
    return found


def _kernel_log() -> str:
    pieces = []
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # only root may read it, or it does not exist
        return ""
    try:
        while True:
            try:
                piece = os.read(log, 8192)  # one record
            except BrokenPipeError:
                continue  # the oldest records were just overwritten
            if not piece:
                break
            pieces.append(piece)
    except OSError:  # no more for now
        pass
    finally:
        os.close(log)
    return b"".join(pieces).decode("utf-8", "replace")


def has_mps() -> bool:
    """Whether NVIDIA's MPS daemon runs. With it, processes of one user can share an exclusive card."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_FOLDER
    if os.path.exists(os.path.join(folder, "control")):
        return True
    names = (_read("/proc/%s/comm" % name) for name in os.listdir("/proc") if name.isdigit())
    return any(name.startswith("nvidia-cuda-mps") for name in names)  # the kernel keeps 15 characters


# processes that hold cards


def _holders(root: str, rows: list[dict[str, str]]) -> list[tuple[str, CardHolder]]:
    """Return each holder with the UUID of its card.

    Reading the command line or the variables of a process that waits for a driver may block, and a user's
    name may come from a server. Both are read in threads, with a deadline.
    """
    rows = [row for row in rows if re.fullmatch(r"[1-9][0-9]{0,9}", row.get("pid", ""))]
    entries = {pid: _entry(pid) for pid in {int(row["pid"]) for row in rows}}
    present = [pid for pid, entry in entries.items() if entry["state"] not in (None, "Z")]
    stuck = [pid for pid in present if entries[pid]["state"] == "D"]
    quick = [pid for pid in present if pid not in stuck]
    questions: dict[Hashable, Callable[[], Any]] = {("owner", 0): partial(ownership.owners_of, root, quick)}
    questions.update({("owner", pid): partial(ownership.owners_of, root, [pid]) for pid in stuck})
    questions.update({("command", pid): partial(_command, pid) for pid in present})
    questions.update({("user", entry["uid"]): partial(_user, entry["uid"]) for entry in entries.values()})
    answers = at_once(questions, HOLDER_TIMEOUT_S)
    owners: dict[int, ownership.Owner] = {}
    for pid in (0, *stuck):
        owners.update(answers.get(("owner", pid), {}))
    holders: dict[tuple[str, int], CardHolder] = {}
    for row in rows:
        pid, memory = int(row["pid"]), _number(row, "used_memory")
        earlier = holders.get((row["gpu_uuid"], pid))
        if earlier is not None:  # each slice of a card has a row
            earlier["memory_mib"] = (earlier["memory_mib"] or 0) + (memory or 0)
            continue
        owner = owners.get(pid, ownership.Owner("stranger", None))
        holders[row["gpu_uuid"], pid] = {
            **entries[pid],
            "pid": pid,
            "user": answers.get(("user", entries[pid]["uid"])),
            "command": answers.get(("command", pid)) or printable(_text(row, "process_name") or "") or None,
            "memory_mib": memory,
            "ownership": owner.kind,
            "run": owner.run,
            "receiver": owner.receiver,
        }
    return [(uuid, holder) for (uuid, _), holder in holders.items()]


def _entry(pid: int) -> HolderProcess:
    """Return the process table's entry of a pid. Never blocks."""
    current = process.find(pid)
    uids = re.search(r"^Uid:\s+([0-9]+)", _read("/proc/%d/status" % pid), re.MULTILINE)
    container = _CONTAINER.search(_read("/proc/%d/cgroup" % pid))
    return {
        "uid": int(uids[1]) if uids else None,
        "start": current.start if current else None,
        "age_s": process.age_s(current.start) if current else None,
        "container": container[1][:12] if container else None,
        "state": current.letter if current else None,
        "means": MEANS.get(current.letter if current else ""),
    }


def _command(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(4096)
    except OSError:
        return ""
    return printable(words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))


def printable(text: str) -> str:
    """Return a text with a bounded length, without control characters."""
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_CHARS].strip()


def _user(uid: int | None) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name if uid is not None else None
    except KeyError:  # a uid without a name, as in a container
        return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
