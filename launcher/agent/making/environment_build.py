"""Environments for native runs, made once on this host.

    <root>/envs/<host-id>/<name>/
      bin/python ...        scripts hold absolute paths, so an environment is made in its final place
      environment.json      its packages, written last: without it the folder is incomplete; see environment_seal.py
      tmp/                  temporary files while it is made, on the same disk

uv or pip fills an environment in the same steps as the launcher's Dockerfile. The host's id is in the path
because hosts may share a home, and an environment belongs to its host's Python. To make or remove an
environment, a process holds the lock of its name. The programs that fill it hold the lock too, in case the
agent is killed before they end.
"""

from __future__ import annotations

import os
import pkgutil
import re
import shutil
from typing import Any, Collection, Iterator, List, Optional, Tuple, TypedDict

from ..record import strict_json
from ..record.files import paths_in
from ..record.locks import Lock, is_locked
from ..record.packages_report import PackagesReport
from ..record.strict_json import JsonObject
from ..system import client_program, process
from . import environment_steps, torch_check
from .environment_seal import is_sealed, unseal
from .image_build import NAME as FILE_NAME
from .installed_torch import installed_torch
from .scratch_folder import scratch_folder, write_base64

NAME = re.compile(r"[0-9a-f]{12}")
_VARIABLE = re.compile(r"(https?|no)_proxy|UV_[A-Z_]{1,40}")
_NOT_INHERITED = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_PYTHON",
    "VIRTUAL_ENV",
    "UV_PROJECT_ENVIRONMENT",
)


class EnvironmentBuildError(Exception):
    """An invalid request for an environment."""


def folder_of(root: str) -> str:
    """Return the folder of this host's environments."""
    return os.path.join(root, "envs", process.host_id())


def path_of(root: str, name: Any) -> str:
    """Return an environment's folder. Raises EnvironmentBuildError for an invalid name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise EnvironmentBuildError("%r is not the name of an environment" % (name,))
    return os.path.join(folder_of(root), name)


def python_of(path: str) -> str:
    """Return the interpreter of an environment."""
    return os.path.join(path, "bin", "python")


def lock_of(name: str) -> str:
    """Return the name of the lock for making or removing an environment."""
    return "environment-" + name


def lock_file(root: str, path: str) -> str:
    """Return the path of an environment's lock."""
    return os.path.join(root, "hosts", process.host_id(), "locks", lock_of(os.path.basename(path)))


def is_whole(path: str) -> bool:
    """Return whether an environment is complete, and its Python still exists."""
    return is_sealed(path) and os.access(python_of(path), os.X_OK)


class EnvironmentResult(TypedDict, total=False):
    """The outcome of making an environment.

    After a failure it has the `step` that failed, and its exit status or signal. Otherwise it has the
    packages, and `uv` or `pip`, the program that filled it.
    """

    step: Optional[str]
    exit: Optional[int]
    signal: Optional[int]
    packages: PackagesReport
    by: str


def make(
    path: str,
    options: environment_steps.EnvironmentOptions,
    unimported: Optional[str],
    payload: bytes,
    lock: Lock,
    wire: Any,
) -> EnvironmentResult:
    """Make an environment while the client listens to the output of the steps. It is complete once it is sealed.

    The check imports torch, unless the installed version is `unimported`; "" stands for any version. The
    payload is JSON, {"files": {name: base64}, "secrets": {name: base64}, "settings": {variable: value}}.
    Raises EnvironmentBuildError, client_program.CommandError, OSError, and the wire's exceptions when the
    client is gone. The caller removes an incomplete environment.
    """
    contents = strict_json.decode(payload)
    files, secrets = contents.get("files") or {}, contents.get("secrets") or {}
    variables = {str(name): str(value) for name, value in (contents.get("settings") or {}).items()}
    are_names_valid = all(FILE_NAME.fullmatch(name) for name in (*files, *secrets))
    if not are_names_valid or not all(_VARIABLE.fullmatch(name) for name in variables):
        raise EnvironmentBuildError("invalid file name or variable in the request for an environment")
    remove(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with scratch_folder() as folder, client_program.guarded() as run:
        for name, text in (*files.items(), *secrets.items()):
            write_base64(os.path.join(folder, name), text)
        making = _EnvironmentBuild(folder, path, _variables(folder, variables), lock, run, wire)
        return making.make(options, unimported)


class _EnvironmentBuild:
    """An unfinished environment, and the steps that make it."""

    def __init__(
        self,
        folder: str,
        path: str,
        variables: dict[str, str],
        lock: Lock,
        run: client_program.Attend,
        wire: Any,
    ) -> None:
        self._folder = folder
        self._path = path
        self._variables = variables
        self._lock = lock
        self._attend = run
        self._wire = wire

    def make(
        self, options: environment_steps.EnvironmentOptions, unimported: Optional[str]
    ) -> EnvironmentResult:
        """Run the steps and the checks. Return the outcome."""
        uv = environment_steps.uv_that_fills(self._folder, options.maker)
        if uv is not None:
            self._variables.update(environment_steps.cache_variables(self._path))
        for step, words in environment_steps.steps(self._folder, self._path, options, uv):
            ended = self._run(words, self._wire)
            if ended["exit"] != 0:
                return {"exit": ended["exit"], "signal": ended["signal"], "step": step}
            if step == "venv":
                self._variables["TMPDIR"] = os.path.join(self._path, "tmp")
                os.mkdir(self._variables["TMPDIR"])
        packages = installed_torch(self._path)
        if packages is None or not _is_known(packages, unimported):
            ended, packages = self._import_torch()
            if packages is None:
                return {"exit": ended["exit"], "signal": ended["signal"], "step": "check"}
        packages["conflicts"] = self._conflicts(uv)
        shutil.rmtree(self._variables["TMPDIR"])
        return {"step": None, "packages": packages, "by": "uv" if uv else "pip"}

    def _run(self, words: List[str], wire: Any) -> client_program.ProgramEnd:
        program = client_program.AttendedProgram(words, self._folder, self._variables, (self._lock.fileno(),))
        return self._attend(program, wire)

    def _import_torch(self) -> Tuple[client_program.ProgramEnd, Optional[PackagesReport]]:
        """Run torch_check.py. Return how it ended, and its report; None if it printed none."""
        text = (pkgutil.get_data(__package__, "torch_check.py") or b"").decode()
        capture = _OutputCapture(self._wire, (1,))
        ended = self._run([python_of(self._path), "-I", "-c", text, torch_check.WITHOUT_CONFLICTS], capture)
        lines = capture.text.splitlines()
        reports = [line[len(torch_check.MARK) :] for line in lines if line.startswith(torch_check.MARK)]
        return ended, strict_json.decode(reports[-1]) if ended["exit"] == 0 and reports else None

    def _conflicts(self, uv: Optional[str]) -> Optional[List[str]]:
        """Return the packages that conflict; None if the check itself failed."""
        capture = _OutputCapture(self._wire, (1, 2))
        ended = self._run(environment_steps.check(self._path, uv), capture)
        if ended["exit"] == 0:
            return []
        return environment_steps.conflicts(capture.text) or None


def _is_known(packages: PackagesReport, unimported: Optional[str]) -> bool:
    """Whether the check may skip the import of torch: its version is `unimported`, or `unimported` is ""."""
    return unimported in ("", packages["torch"])


def _variables(folder: str, given: dict[str, str]) -> dict[str, str]:
    """Return the variables of every step.

    They are this host's variables, except those that redirect pip or Python, and the given ones.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("PYTHON", "LAUNCH_"))
    }
    variables.update(
        PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_PROGRESS_BAR="off", PIP_USER="0"
    )
    variables.update(given, UV_NO_PROGRESS="1", NO_COLOR="1")
    # uv must act as pip does: take the best version from all indexes, and trust the system's certificates.
    # That option has a new and an old name.
    variables.update(UV_INDEX_STRATEGY="unsafe-best-match", UV_SYSTEM_CERTS="1", UV_NATIVE_TLS="1")
    pip_conf, ca_bundle = (os.path.join(folder, name) for name in ("pip_conf", "ca_bundle"))
    if os.path.exists(pip_conf):
        variables["PIP_CONFIG_FILE"] = pip_conf
    if os.path.exists(ca_bundle):  # overrides paths of a container in pip_conf
        variables.update(PIP_CERT=ca_bundle, SSL_CERT_FILE=ca_bundle)
    return variables


class _OutputCapture:
    """A wire that captures some of a program's streams and sends everything else to the client."""

    def __init__(self, wire: Any, streams: Tuple[int, ...]) -> None:
        self._output = b""
        self._wire = wire
        self._streams = streams
        self.wait = wire.wait
        self.has_input = wire.has_input
        self.read_line = wire.read_line

    @property
    def text(self) -> str:
        """The captured output."""
        return self._output.decode("utf-8", "replace")

    def write(self, message: JsonObject, payload: bytes = b"") -> None:
        if message.get("stream") in self._streams:
            self._output += payload
        else:
            self._wire.write(message, payload)


def remove(path: str) -> None:
    """Remove an environment if it exists.

    Its marker is removed first: an interrupted removal leaves it incomplete.
    """
    unseal(path)
    if os.path.isdir(path):
        shutil.rmtree(path)


def unnamed(root: str, names: Collection[str]) -> Iterator[str]:
    """Yield the paths of this host's environments that have other names than these, and that no process holds."""
    for path in paths_in(folder_of(root)):
        if os.path.basename(path) not in names and not _is_held(root, path):
            yield path


def half_made(root: str) -> Iterator[str]:
    """Yield the paths of incomplete environments that no process holds."""
    for path in paths_in(folder_of(root)):
        if not is_sealed(path) and not _is_held(root, path):
            yield path


def remove_half_made(root: str, path: str) -> bool:
    """Remove an incomplete environment unless a process holds it by now. Return whether it is removed."""
    lock = Lock.take(lock_file(root, path), 0.0)
    if lock is None:
        return False
    try:
        if not is_sealed(path):
            remove(path)
    finally:
        lock.release()
    return not os.path.lexists(path)


def _is_held(root: str, path: str) -> bool:
    return is_locked(lock_file(root, path))
