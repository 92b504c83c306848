"""The probe: this host's identity, disk space, cards, engines and interpreters.

Each question has its own thread and deadline, so that a mount or a program that hangs costs only its own
answer; the probe names the ones that did not answer. It changes nothing, except that it creates the root, and
writes and removes a small file in it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional, TypedDict

from ..cards import nvidia, other_vendors
from ..liveness import liveness
from ..liveness.slurm import slurm_programs
from ..record import precision_evidence, strict_json
from ..record.files import paths_in, read_json, read_text
from ..record.rundir import evidence_folder
from ..record.strict_json import JsonObject
from ..system import mounts, process
from ..system.deadline import at_once, run
from . import evidence_import, model_config, slurm_facts

if TYPE_CHECKING:
    from ..record.run_records import RecalledEvidence

PROBE_S = 20.0
QUOTA_TIMEOUT_S = 1.0
ENGINE_TIMEOUT_S = 1.0
PYTHON_TIMEOUT_S = 2.0
MAX_PYTHONS = 32
MAX_CHARS = 200
_ASK_VERSIONS = """
import json, platform, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({"version": platform.python_version(), "packages": {name: version(name) for name in sys.argv[1:]}}))
"""
_SHARED_KINDS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "virtiofs", "lustre", "gpfs", "beegfs", "ceph", "panfs"),
    *("wekafs", "pvfs2", "glusterfs", "gfs2", "ocfs2"),
    *("fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.sshfs", "fuse.juicefs", "fuse.s3fs", "fuse.rclone"),
    "fuse.gcsfuse",
}  # fmt: skip
_PYTHON_NAMES = ["python3", *("python3.%d" % minor for minor in range(8, 15)), "python"]
_PYTHON_FOLDERS = [
    *("/usr/local/bin", "/usr/bin", "/opt/*/bin", "/opt/*/envs/*/bin", "~/.local/bin", "~/.pyenv/versions/*/bin"),
    *("~/*conda*/bin", "~/*conda*/envs/*/bin", "~/*forge*/bin", "~/*forge*/envs/*/bin", "~/.conda/envs/*/bin"),
    "~/.local/share/uv/python/*/bin",
]  # fmt: skip
_UV_FOLDERS = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin")
_LOGIND = ("usr/lib", "usr/local/lib", "run", "etc")  # later folders override earlier ones
_SETTING = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class FileSystemReport(TypedDict, total=False):
    """The file system of the root, or its `error`; see values/facts.py."""

    kind: Optional[str]
    is_shared: bool
    locks_cross: Optional[bool]
    is_read_only: bool
    is_noexec: bool
    free_gb: float
    free_inodes: Optional[int]
    quota_free_gb: Optional[float]
    error: Optional[str]


class EngineReport(TypedDict):
    """A container engine: its program, its socket, and its version or the reason why it does not answer."""

    name: str
    program: Optional[str]
    socket: Optional[str]
    version: Optional[str]
    error: Optional[str]


class InterpreterReport(TypedDict, total=False):
    """A Python with the versions of the requested packages, or its `error`."""

    path: str
    version: str
    packages: dict[str, Optional[str]]
    has_ensurepip: bool
    error: str


class UvReport(TypedDict):
    """The uv of this host."""

    path: str
    version: str


def probe(
    root: str,
    env: str | None,
    packages: list[str] | None,
    engine: str | None = None,
    model: Any = None,
    model_keys: list[str] | None = None,
    slurm: bool = False,
) -> JsonObject:
    """Return the host's facts.

    `env` is the environment or interpreter to use, and `packages` are the job's requirements, None without a
    job. `engine` is the container engine to use, by name or by its socket's path. `model` is the job's, as in
    a plan; the `model_keys` of its config are returned. With `slurm` the facts are the cluster's instead of
    this host's cards and engines. Other interpreters and uv are looked up if there is no job, if the
    chosen interpreter cannot be used, or if an environment must be made.
    """
    path = interpreter_path(env)
    questions: dict[str, Callable[[], Any]] = {
        "file_system": partial(_file_system, root),
        "interpreter": partial(_interpreter, path, packages or []),
        "model_values": partial(model_config.read, root, model, model_keys or []),
    }
    if slurm:
        questions["slurm"] = partial(slurm_facts.read_cluster_facts, root, user())
    else:
        questions.update(cards=partial(nvidia.read_cards, root), engines=partial(_engines, engine))
        questions["other_gpus"] = other_vendors.list_gpus
    if packages is not None:
        questions["precision_evidence"] = partial(_recall, root, model, slurm)
    makers: dict[str, Callable[[], Any]] = {"pythons": pythons, "uv": _uv}
    if packages is None:
        questions.update(makers)
    silence = "did not answer in %d s" % PROBE_S
    answers = at_once(questions, PROBE_S)
    cards = answers.get("cards", {"gpus": [], "gpu_error": None if slurm else "nvidia-smi " + silence})
    interpreter = answers.get("interpreter", {"path": path, "error": silence})
    may_need_another = env is None and bool(packages)  # the client compares the versions
    if packages is not None and ("error" in interpreter or may_need_another):
        answers.update(at_once(makers, PYTHON_TIMEOUT_S * 2))
    file_system = answers.get("file_system", {"error": silence})
    return {
        "host_id": process.host_id(),
        "boot_id": process.boot_id(),
        "hostname": platform.node(),
        "user": user(),
        "platform": sys.platform,
        "machine": platform.machine(),
        "macos": platform.mac_ver()[0] or None,
        "apple_chip": _apple_chip(),
        "has_cpu_bf16": _has_cpu_bf16(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gb": _memory_gb(),
        "root": root,
        "file_system": file_system,
        "free_gb": file_system.get("free_gb"),
        "python": platform.python_version(),
        **cards,
        "other_gpus": answers.get("other_gpus", []),
        "engines": answers.get("engines", []),
        "interpreter": interpreter,
        "pythons": answers.get("pythons"),
        "uv": answers.get("uv"),
        "ends_with_logout": _ends_with_logout(),
        "model_values": answers.get("model_values"),
        "precision_evidence": answers.get("precision_evidence", []),
        "slurm": answers.get("slurm", {"error": "Slurm " + silence}) if slurm else None,
        "has_slurm": slurm_programs.is_login_node(),
    }


def _recall(root: str, model: Any, slurm: bool) -> list[RecalledEvidence]:
    """Return the precision evidence of earlier runs with a model: on this host, or anywhere in its cluster."""
    place_id = liveness.probe_of("slurm").place_id() if slurm else process.host_id()
    if not place_id:
        return []
    evidence_import.take_in_all(root, place_id)
    return precision_evidence.recall(evidence_folder(root, place_id), model, of_any_driver=slurm)


def _apple_chip() -> str | None:
    """Return Apple's name of this machine's processor, e.g. `Apple M1 Pro`; None on other systems."""
    if sys.platform != "darwin":
        return None
    try:
        return run(["sysctl", "-n", "machdep.cpu.brand_string"], 2.0)[1].strip()[:60] or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def _has_cpu_bf16() -> bool:
    """Whether the processor has bf16 instructions: AVX512-BF16, AMX-BF16, or Arm's BF16. Linux only."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = re.search(r"^(?:flags|Features)\s*:(.*)", file.read(1 << 16), re.MULTILINE)
    except OSError:
        return False
    return flags is not None and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags[1].split())


def user() -> str:
    """Return this user's name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without a name, as in many containers
        return str(os.getuid())


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


# logout


def _ends_with_logout(at: str = "/") -> bool:
    """Whether logind ends this user's processes when this session ends. `at` is the root of the file system."""
    own = read_text(os.path.join(at, "proc/self/cgroup")) or ""
    if not re.search(
        r"/session-[^/]+\.scope$", own, re.MULTILINE
    ):  # no logind, or not in one of its sessions
        return False
    files: dict[str, str] = {}
    for place in _LOGIND:
        for path in paths_in(os.path.join(at, place, "systemd/logind.conf.d")):
            files[os.path.basename(path)] = path
    mains = [os.path.join(at, place, "systemd/logind.conf") for place in _LOGIND]
    paths = [*mains, *(files[name] for name in sorted(files) if name.endswith(".conf"))]
    text = "\n".join(read_text(path) or "" for path in paths)
    settings = dict(_SETTING.findall(text))  # of two lines the later one counts
    only, but = settings.get("KillOnlyUsers", "").split(), settings.get("KillExcludeUsers", "root").split()
    is_on = settings.get("KillUserProcesses", "").lower() in ("yes", "true", "on", "1", "y", "t")
    return is_on and user() not in but and (not only or user() in only)


# disk space


def _file_system(root: str) -> FileSystemReport:
    """Create the root if it is missing.

    Return its file system's kind and space, and the error of a test write.
    """
    try:
        os.makedirs(root, exist_ok=True)
        found = os.statvfs(root)
        device, kind = mounts.mount_of(os.path.realpath(root))
    except OSError as error:
        return {"error": error.strerror}
    return {
        "kind": kind,
        "is_shared": kind in _SHARED_KINDS,
        "locks_cross": mounts.locks_cross(root),
        "is_read_only": bool(found.f_flag & os.ST_RDONLY),
        "is_noexec": bool(found.f_flag & getattr(os, "ST_NOEXEC", 0)),  # macOS does not report it
        "free_gb": round(found.f_bavail * found.f_frsize / 1e9, 1),
        "free_inodes": found.f_favail if found.f_files else None,  # btrfs and similar ones count no inodes
        "quota_free_gb": _quota_free_gb(device),
        "error": _write_error(root),
    }


def _quota_free_gb(device: str) -> float | None:
    """Return the space that the user's quota leaves on a device, in GB; None without a quota, or if unknown."""
    if shutil.which("quota") is None:
        return None
    try:
        _, out, _ = run(["quota", "-w"], QUOTA_TIMEOUT_S)  # its exit code says whether a quota is exceeded
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in out.splitlines():
        found = re.match(r"(\S+) +([0-9]{1,18})\*? +([0-9]{1,18}) +([0-9]{1,18})\b", line.strip())
        if found and found[1] == device:
            used, soft, hard = (int(found[group]) for group in (2, 3, 4))
            limit = hard or soft
            return round(max(0, limit - used) * 1024 / 1e9, 1) if limit else None
    return None


def _write_error(root: str) -> str | None:
    """Write a small file, sync it and read it back. Return the error, None without one."""
    path = os.path.join(root, ".probe-%d-%s" % (os.getpid(), os.urandom(4).hex()))
    data = os.urandom(4096)
    try:
        try:
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with open(path, "rb") as file:
                back = file.read()
        finally:
            if os.path.lexists(path):
                os.unlink(path)
    except OSError as error:
        return error.strerror or str(error)
    return None if back == data else "a test file was read back with other contents"


# engines


def _engines(named: str | None) -> list[EngineReport]:
    """Return the container engines: their program, their socket, and whether this user may use it.

    `named` is docker, podman, or the path of a socket to look at first.
    """
    own = os.environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % os.getuid()
    sockets = {
        "docker": [own + "/docker.sock", "/var/run/docker.sock"],
        "podman": [own + "/podman/podman.sock", "/run/podman/podman.sock"],
    }
    for chosen in (_context_host(), os.environ.get("DOCKER_HOST")):
        if isinstance(chosen, str) and chosen.startswith("unix://"):
            sockets["docker"].insert(0, os.path.normpath(chosen[len("unix://") :]))
    if named is not None and os.path.isabs(named):
        sockets["podman" if "podman" in os.path.basename(named) else "docker"].insert(0, named)
    found: list[EngineReport] = []
    for usual, paths in sockets.items():
        path = next((candidate for candidate in paths if _may_exist(candidate)), None)
        name, version, error = _ping(path) if path else (None, None, "it has no socket")
        name = name or usual
        program = shutil.which(name)
        if program or path:
            found.append(
                {"name": name, "program": program, "socket": path, "version": version, "error": error}
            )
    return found


def _may_exist(path: str) -> bool:
    """Whether there is a file, or a folder above it is closed to this user, as that of root's Podman is."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _context_host() -> Any:
    """Return the engine's address in the user's docker context, None if no context is chosen.

    Source: docker's store of contexts, in folders named by the SHA-256 of the context's name.
    """
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    name = os.environ.get("DOCKER_CONTEXT") or read_json(os.path.join(folder, "config.json")).get(
        "currentContext"
    )
    if not isinstance(name, str):
        return None
    digest = hashlib.sha256(name.encode()).hexdigest()
    found: Any = read_json(os.path.join(folder, "contexts", "meta", digest, "meta.json"))
    for key in ("Endpoints", "docker", "Host"):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _ping(path: str) -> tuple[str | None, str | None, str | None]:
    """Ping the engine at a socket. Return its name and version, or the reason why it cannot be used.

    The name matters because Debian's `podman-docker` gives Podman the usual socket of Docker.
    """
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(ENGINE_TIMEOUT_S)
            link.connect(path)
            link.sendall(b"GET /_ping HTTP/1.0\r\nHost: launch\r\n\r\n")
            answer = link.recv(4096).decode("latin-1")
    except socket.timeout:
        return None, None, "its socket does not answer"
    except OSError as error:
        return None, None, error.strerror or str(error)
    if not re.match(r"HTTP/1\.[01] 200\b", answer):
        return None, None, "its socket answers %r" % answer[:40]
    found = re.search(r"^Server: ([A-Za-z]+)/([0-9][^\s/]{0,40})", answer, re.MULTILINE)
    if found is None:
        return None, None, None
    return ("podman" if found[1] == "Libpod" else "docker"), found[2], None


# interpreters


def interpreter_path(env: str | None) -> str:
    """Return the interpreter of `env`: a path, a program's name or an environment's folder.

    Without `env` it is the agent's own.
    """
    if env is None:
        return sys.executable
    path = os.path.expanduser(env)
    if os.sep not in path:
        return shutil.which(path) or path
    return os.path.join(path, "bin", "python") if os.path.isdir(path) else path


def _interpreter(path: str, packages: list[str]) -> InterpreterReport:
    if path == sys.executable and not packages:
        return _facts(path, platform.python_version(), {})  # the agent runs on it
    try:
        code, out, err = run([path, "-c", _ASK_VERSIONS, *packages], PROBE_S - 1)
        if code == 0:
            reported = strict_json.decode(out.splitlines()[-1])  # its start-up may print something first
            return _facts(path, reported["version"], reported["packages"])
        error = err[-MAX_CHARS:] or "exit %d" % code
    except OSError as failure:
        error = failure.strerror or str(failure)
    except subprocess.TimeoutExpired:
        error = "did not answer in %d s" % (PROBE_S - 1)
    except (ValueError, LookupError, TypeError):
        error = "its answer is not JSON: does its start-up print something?"
    return {"path": path, "error": error}


def _facts(path: str, version: str, packages: dict[str, str | None]) -> InterpreterReport:
    has_ensurepip = _has_ensurepip(path, version)
    return {"path": path, "version": version, "packages": packages, "has_ensurepip": has_ensurepip}


def _has_ensurepip(path: str, version: str) -> bool:
    """Whether an interpreter's standard library has ensurepip, which is a separate package on Debian.

    This looks for the file, because starting the interpreter takes ten times as long. A virtual environment
    uses the ensurepip of the Python that made it.
    """
    folders = [os.path.dirname(os.path.realpath(path))]
    settings = read_text(os.path.join(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg")) or ""
    home = re.search(r"^home *= *(.+)$", settings, re.MULTILINE)
    if home:
        folders.append(os.path.realpath(home[1].strip()))
    name = "python" + ".".join(version.split(".")[:2])
    return any(
        os.path.isfile(os.path.join(os.path.dirname(folder), lib, name, "ensurepip", "__init__.py"))
        for folder in folders
        for lib in ("lib", "lib64")
    )


def _uv() -> UvReport | None:
    """Return the path and the version of uv; None if it is missing or does not run."""
    path = shutil.which(
        "uv", path=os.pathsep.join([*os.get_exec_path(), *map(os.path.expanduser, _UV_FOLDERS)])
    )
    if path is None:
        return None
    try:
        code, out, _ = run([path, "--version"], PYTHON_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"uv ([0-9]\S{0,30})", out)
    return {"path": path, "version": found[1]} if code == 0 and found else None


def pythons() -> list[InterpreterReport]:
    """Return the interpreters on PATH and in the usual folders, each once, with its version.

    Shims are left out: they take 80 ms each, and the interpreters behind them are found in their own folders.
    """
    usual = (folder for place in _PYTHON_FOLDERS for folder in sorted(glob.glob(os.path.expanduser(place))))
    folders = [folder for folder in (*os.get_exec_path(), *usual) if os.path.basename(folder) != "shims"]
    paths: dict[str, str] = {}
    for path in (os.path.join(folder, name) for folder in folders for name in _PYTHON_NAMES):
        if len(paths) < MAX_PYTHONS and os.path.isfile(path) and os.access(path, os.X_OK):
            paths.setdefault(os.path.realpath(path), path)
    questions = {path: partial(_version_of, path) for path in paths.values()}
    versions = at_once(questions, PYTHON_TIMEOUT_S + 1)
    return [
        {"path": path, "version": versions[path], "has_ensurepip": _has_ensurepip(path, versions[path])}
        for path in questions
        if versions.get(path)
    ]


def _version_of(path: str) -> str | None:
    """Return the version that an interpreter prints with -V, which takes 2 ms; None if it is not a Python."""
    try:
        _, out, err = run([path, "-V"], PYTHON_TIMEOUT_S)  # Python 2 prints it on standard error
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"Python ([0-9]\S{0,30})", out or err)
    return found[1] if found else None
