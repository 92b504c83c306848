"""A cache of the agent's modules as compiled by this host's Python, beside the agent's file.

    agent/<digest16>/agent.pyz
    agent/<digest16>/code-cpython-311-1f0c2a9b     a record for each module that was loaded once

Without a cache, Python compiles a module in a zip file at each start, which takes longer than running it. Whole records are
appended to the cache, each with a checksum. If a crash or a full disk left a partial record, the file is removed and started
again. Like the agent's file, the cache is read only if no other user can write to it. A replaced agent file gets a new cache.

A container cannot write there, and its image may have another Python. So each image compiles all modules once, in a container
in which nothing else runs (the verb `compile`), into a folder that only containers of this image read:

    agent/<digest16>/images/<image's id>/code-cpython-312-77a01be2
"""

from __future__ import annotations

import marshal
import os
import stat
import struct
import sys
import zlib
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING
from zipimport import zipimporter

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # loading it takes longer than the rest of this module

PREFIX = "code-"
FOLDER = "LAUNCH_CODE"
"""The variable that gives an agent in a container the folder of its image's compiled code."""
_RECORD = struct.Struct(
    "<III?"
)  # the checksum of the rest, the sizes of the name and of the code, whether it is a package
_PACKAGE = __name__.rpartition(".")[0] + "."


def use(agent: str) -> None:
    """Load the agent's modules from the cache from now on; compile and record those that it lacks."""
    sys.meta_path.insert(0, _Finder(agent))


def main(_arguments: list[str]) -> int:
    """Compile all of the agent's modules ahead of their first use; return 0."""
    import zipfile  # no other verb needs it

    agent = sys.argv[0]
    finder = _Finder(agent)
    with zipfile.ZipFile(agent) as archive:
        paths = [path[: -len(".py")] for path in archive.namelist() if path.endswith(".py")]
    for path in paths:
        folder, _, name = path.rpartition("/")
        spec = finder.find_spec((folder if name == "__init__" else path).replace("/", "."))
        if spec is not None:
            finder.compile(spec)
    return 0


def path_of(agent: str) -> str:
    """Return the path of the cache for this build of Python and this agent file. Raises OSError if the latter is gone."""
    status = os.stat(agent)
    made_by = "%s %d %d %d" % (sys.version, status.st_ino, status.st_size, status.st_mtime_ns)
    name = "%s%s-%08x" % (PREFIX, sys.implementation.cache_tag, zlib.crc32(made_by.encode()))
    return os.path.join(os.environ.get(FOLDER) or os.path.dirname(os.path.abspath(agent)), name)


class _Finder(Loader):
    """Finds and loads the agent's modules."""

    def __init__(self, agent: str) -> None:
        self._archive, self._zip, self._path = agent, zipimporter(agent), path_of(agent)
        self._known, self._size = self._read()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of the agent; None for any other module."""
        if not name.startswith(_PACKAGE):
            return None
        known = self._known.get(name)
        is_package = known[0] if known is not None else self._is_package(name)
        if is_package is None:
            return None
        place = os.path.join(self._archive, *name.split("."))
        origin = os.path.join(place, "__init__.py") if is_package else place + ".py"
        spec = ModuleSpec(name, self, origin=origin, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [place]
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code."""
        assert module.__spec__ is not None  # noqa: S101 - it was loaded by its spec
        exec(self.compile(module.__spec__), module.__dict__)  # noqa: S102 - what an import does

    def compile(self, spec: ModuleSpec) -> CodeType:
        """Return a module's code from the cache; if the cache lacks it, compile and record it."""
        known = self._known.get(spec.name)
        if known is not None:
            recorded: CodeType = marshal.loads(known[1])  # noqa: S302 - we wrote it, and no other user could
            return recorded
        path = str(spec.origin)
        code = compile(self.get_data(path), path, "exec", dont_inherit=True)
        self._add(spec.name, spec.submodule_search_locations is not None, marshal.dumps(code))
        return code

    def get_data(self, path: str) -> bytes:
        """Return a file of the archive, for `pkgutil`."""
        return self._zip.get_data(path)

    def _is_package(self, name: str) -> bool | None:
        """Whether a module of the archive is a package; None if there is no such module."""
        place = os.path.join(self._archive, *name.split("."))
        for path, is_package in ((place + ".py", False), (os.path.join(place, "__init__.py"), True)):
            try:
                self.get_data(path)
            except OSError:
                continue
            return is_package
        return None

    def _read(self) -> tuple[dict[str, tuple[bool, memoryview]], int]:
        """Return the recorded modules and the size of the cache; none if other users can write to it.

        A size of -1 means that nothing may be recorded.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return {}, 0
        with open(descriptor, "rb") as file:
            if not _is_ours(descriptor):
                return {}, -1
            data = memoryview(file.read())
        known, end = _records(data)
        if end == len(data):
            return known, end
        try:
            os.unlink(self._path)
        except OSError:
            return known, -1
        return known, 0

    def _add(self, name: str, is_package: bool, code: bytes) -> None:
        """Record a module, unless another process has added to the file or the disk refuses."""
        if self._size < 0:
            return
        rest = struct.pack("<II?", len(name), len(code), is_package) + name.encode() + code
        record = struct.pack("<I", zlib.crc32(rest)) + rest
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError:
            self._size = -1
            return
        try:
            written = -1
            if _is_ours(descriptor) and os.fstat(descriptor).st_size == self._size:
                written = os.write(descriptor, record)
            if written == len(record):
                self._size += written
                return
            if written > 0 and os.fstat(descriptor).st_size == self._size + written:  # the disk is full
                os.ftruncate(descriptor, self._size)
            self._size = -1
        except OSError:
            self._size = -1
        finally:
            os.close(descriptor)


def _is_ours(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _records(data: memoryview) -> tuple[dict[str, tuple[bool, memoryview]], int]:
    """Return the complete records by module, and the position at which the last one ends."""
    known: dict[str, tuple[bool, memoryview]] = {}
    start = 0
    while len(data) - start >= _RECORD.size:
        checksum, of_name, of_code, is_package = _RECORD.unpack_from(data, start)
        head = start + _RECORD.size
        end = head + of_name + of_code
        if end > len(data) or zlib.crc32(data[start + 4 : end]) != checksum:
            break
        known[str(data[head : head + of_name], "utf-8")] = (is_package, data[head + of_name : end])
        start = end
    return known, start
