"""Packs launcher/agent into one file to send, named by its content, and builds the command that starts it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shlex
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from launcher import agent
from launcher.agent.store.worker_folder import CONTENT

MAGIC = b"LAUNCH-AGENT 1 "
PYTHONS = (
    "python3",
    "python3.14",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
    "python3.9",
    "python3.8",
    "python",
)

_MAIN = """import sys
from launch_agent import compiled_code
compiled_code.use(sys.argv[0])
from launch_agent.main import main
sys.exit(main(sys.argv[1:]))
"""

# The boot program. It runs on the host, on any Python >= 3.8. It refuses a root whose owner, mode or parents
# let another user change the code that runs there. The rules are those of OpenSSH's safe_path, with Debian's
# exception for a user's own group, and one for sticky folders such as /tmp, where other users cannot rename
# this user's entries. An agent file that others could have opened for writing is replaced: only this user has
# ever written to the new inode. A full or read-only disk must not keep a client from stopping and removing
# runs: the agent then runs from memory. If the host lacks the complete agent file, the program reads it from
# standard input. Finally it executes the agent's `serve`. The magic line, which starts each answer, begins on a
# new line, after any output of the login. The program reads with os.read, so that it consumes no bytes of the
# requests behind the file. The root's id is the target of a symbolic link, which is created atomically.
_BOOT = """
import errno, grp, hashlib, os, pwd, stat, sys
root, digest = os.path.abspath(os.path.expanduser(sys.argv[1])), sys.argv[2]
folder = os.path.join(root, "agent", digest[:16])
path = os.path.join(folder, "agent.pyz")
uid, home = os.getuid(), os.path.expanduser("~")
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
def fail(place, why): os.write(1, ("\\nLAUNCH-AGENT 1 error %s: %s\\n" % (place, why)).encode()); sys.exit(3)
def whole(data): return hashlib.sha256(data).hexdigest() == digest
def is_own(gid):
    try: group, name = grp.getgrgid(gid), pwd.getpwuid(uid).pw_name
    except KeyError: return False
    return group.gr_name == name and set(group.gr_mem) <= {name}
def check_owner(place, s):
    if s.st_uid not in (0, uid): fail(place, "it belongs to another user (uid %d), who could change what runs here; choose another root" % s.st_uid)
def check_parents(place):
    while place not in ("/", home, os.path.realpath(home)):
        place = os.path.dirname(place)
        if not os.path.lexists(place): continue
        s = os.stat(place)
        check_owner(place, s)
        if s.st_mode & 0o022 and not s.st_mode & stat.S_ISVTX and (s.st_mode & 0o002 or not is_own(s.st_gid)):
            fail(place, "other users can write to it, and so replace the root below it; chmod go-w it, or choose another root")
def close(place):
    s = os.stat(place)
    check_owner(place, s)
    if s.st_uid == uid and s.st_mode & 0o022: os.chmod(place, stat.S_IMODE(s.st_mode) & 0o700)
def check_entries(folder):
    for place in (os.path.join(folder, name) for name in os.listdir(folder)):
        try: check_owner(place, os.lstat(place))
        except FileNotFoundError: pass
umask = os.umask(0o077)
try:
    check_parents(root)
    check_parents(os.path.realpath(root))
    os.makedirs(root, exist_ok=True)
    owner = os.stat(root).st_uid
    if owner != uid: fail(root, "it belongs to another user (uid %d), who could change what runs here" % owner)
    if os.stat(root).st_mode & 0o077: os.chmod(root, 0o700)
    if os.stat(root).st_mode & 0o077: fail(root, "other users can read it, and its file system keeps no modes")
    check_entries(root)
    try:
        os.makedirs(folder, exist_ok=True)
        for place in (os.path.dirname(folder), folder): close(place)
        check_entries(folder)
    except OSError as e:
        if e.errno not in REFUSED: raise
    mark = os.path.join(root, "root-id")
    try: os.symlink(os.urandom(16).hex(), mark)
    except FileExistsError: pass
    have, need = (("\\nLAUNCH-AGENT 1 %s\\n" % word).encode() for word in ("have " + os.readlink(mark), "need"))
except OSError as e: fail(e.filename or folder, e.strerror)
try:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as f:
        s = os.fstat(f.fileno())
        is_here = stat.S_ISREG(s.st_mode) and s.st_uid == uid and not s.st_mode & 0o022 and whole(f.read())
except OSError: is_here = False
os.write(1, have if is_here else need)
if not is_here:
    import zlib
    def read(size):
        data = b""
        while len(data) < size:
            piece = os.read(0, size - len(data))
            if not piece: sys.exit(3)
            data += piece
        return data
    data = zlib.decompress(read(int(read(8), 16)))
    if not whole(data): sys.exit(3)
    part = "%s.%s" % (path, os.urandom(8).hex())
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(data); f.flush(); os.fsync(f.fileno())
        os.replace(part, path)
    except OSError as e:
        try: os.unlink(part)
        except OSError: pass
        if e.errno not in (*REFUSED, errno.ENOENT) or not hasattr(os, "memfd_create"): fail(folder, e.strerror)
        memory = os.memfd_create("agent.pyz", 0)
        with open(memory, "wb", closefd=False) as f: f.write(data)
        path = "/proc/%d/fd/%d" % (os.getpid(), memory)
    os.write(1, have)
os.umask(umask)
if sys.argv[3:]: os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
os.execv(sys.executable, [sys.executable, "-I", path, "serve", root])
"""
# One line, because csh allows no line break between quotes.
_BOOT_LINE = f'import binascii; exec(binascii.a2b_base64("{base64.b64encode(_BOOT.encode()).decode()}"))'


class AgentFile(NamedTuple):
    """The zipapp's bytes and their SHA-256 in hex."""

    data: bytes
    digest: str

    @property
    def to_send(self) -> bytes:
        """The input of the boot program on a host without the file: the compressed size in hex, then the compressed file."""
        packed = zlib.compress(self.data)
        return b"%08x%s" % (len(packed), packed)


@cache
def agent_file() -> AgentFile:
    """Pack the agent, once per process. The same sources always give the same bytes.

    Every command packs it, so it is compressed only when it is sent.
    """
    folder = Path(agent.__file__).parent
    members = _members(folder, "launch_agent")
    members["__main__.py"] = _MAIN.encode()
    worker = _worker_members(folder)
    members |= worker
    members[CONTENT] = _content_of(worker)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name), members[name])
    data = buffer.getvalue()
    return AgentFile(data, hashlib.sha256(data).hexdigest())


def agent_stamp() -> str:
    """Return a text that changes with the agent's sources: their sizes and times.

    Packing the sources takes twenty times as long.
    """
    folder = Path(agent.__file__).parent
    sources = (entry for place in (folder, _worker_folder(folder)) for entry in _sources(str(place)))
    return repr(sorted((entry.path, (state := entry.stat()).st_mtime_ns, state.st_size) for entry in sources))


def _sources(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the Python files below a folder. `os.scandir` takes a third of the time of `Path.rglob`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield entry


def _worker_members(folder: Path) -> dict[str, bytes]:
    """Return the files of the worker's package, by name."""
    return _members(_worker_folder(folder), "launcher_worker")


def _members(folder: Path, package: str) -> dict[str, bytes]:
    """Return the Python files of a folder, by their names in a package."""
    paths = sorted(entry.path for entry in _sources(str(folder)))
    start = len(str(folder))
    return {f"{package}{path[start:]}": _read(path) for path in paths}


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def torch_check() -> str:
    """Return the program that reports a Python's torch; see agent/making/torch_check.py."""
    return (Path(agent.__file__).parent / "making" / "torch_check.py").read_text(encoding="utf-8")


def boot_command(python: str, root: str) -> list[str]:
    """Return the command that starts the agent with a known interpreter."""
    return [python, "-I", "-c", _BOOT_LINE, root, agent_file().digest]


def shell_command(python: str | None, root: str) -> str:
    """Return one line for a login shell that starts the agent with the first Python >= 3.8, or the named one.

    If none is found, its last output line lists the Pythons that are too old, with their versions, and those
    that do not start, with their errors. The line contains only plain words, so that every login shell reads
    it alike, csh and fish too; the host's `sh` interprets the rest. Standard error is reserved for errors of
    the login and the boot line: the agent itself is `mute`.
    """
    boot = f'exec "$p" -I -c {shlex.quote(_BOOT_LINE)} "$0" {agent_file().digest} mute'
    names = " ".join(shlex.quote(name) for name in ([python] if python else PYTHONS))
    # -E ignores the login's PYTHONHOME, as the agent does. Python 2 has -E but not -I.
    check = 'e=$("$p" -E -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>&1)'
    version = 'v=$("$p" -V 2>&1 </dev/null) && v="${v#Python }${e:+ ($e)}"'
    seen = f'if {version} || command -v "$p" >/dev/null; then f="$f, $p $v"; fi'
    # Unquoted, so that the errors are printed in one line.
    tell = 'set -f; echo; echo "LAUNCH-AGENT 1 no-python" ${f#, }'
    script = f"f=; for p in {names}; do if {check}; then {boot}; fi; {seen}; done; {tell}"
    return f"exec sh -c {shell_word(script)} {shell_word(root)}"


def shell_word(text: str) -> str:
    """Quote a line as one word for any shell. csh expands `!` in quotes, fish interprets the backslash."""
    return "'" + re.sub(r"(['!\\])", r"'\\\1'", text) + "'"


def _content_of(members: dict[str, bytes]) -> bytes:
    """Return the name of the worker's folder, derived from its content, and its files, as JSON."""
    digest = hashlib.sha256()
    for name, data in members.items():
        digest.update(b"%s %d\n" % (name.encode(), len(data)))
        digest.update(data)
    sizes = {name: len(data) for name, data in members.items()}
    return json.dumps({"folder": f"worker-{digest.hexdigest()[:16]}", "sizes": sizes}).encode()


def _worker_folder(folder: Path) -> Path:
    """Return the folder of the worker's package: beside the agent in a checkout, at the top in a wheel."""
    for path in (folder.parent / "worker" / "launcher_worker", folder.parent.parent / "launcher_worker"):
        if (path / "__init__.py").is_file():
            return path
    raise FileNotFoundError("the package launcher_worker is missing: reinstall launcher")
