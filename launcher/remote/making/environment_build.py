"""Environments for native runs: made once on this host, and filled by uv or pip in the steps of our Dockerfile.

<root>/envs/<host-id>/<name>/
  bin/python ...        scripts hold absolute paths, so an environment is made in its final place
  environment.json      its packages, written last: a folder without this file is incomplete
  tmp/                  temporary files while it is made, on the same disk

The host's id is in the path because a home may be shared between hosts, and an environment belongs to its host's Python.
To make or remove an environment, a process holds the lock of its name. The programs that fill it hold the lock too, in
case the agent is killed before they end.
"""

from __future__ import annotations

import os
import pkgutil
import re
import shutil
from typing import Any, Iterator

from ..record import strict_json
from ..record.files import paths_in, write_durably
from ..record.locks import Lock, is_locked
from ..system import attending, process
from . import environment_steps, torch_check
from .image_build import NAME as FILE_NAME
from .scratch_folder import scratch_folder, write_base64

NAME = re.compile(r"[0-9a-f]{12}")
MARKER = "environment.json"
_VARIABLE = re.compile(r"(https?|no)_proxy|UV_[A-Z_]{1,40}")
_NOT_INHERITED = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_PYTHON",
    "VIRTUAL_ENV",
    "UV_PROJECT_ENVIRONMENT",
)


class MakingError(Exception):
    """A request for an environment that is invalid."""


def folder_of(root: str) -> str:
    """Return the folder of this host's environments."""
    return os.path.join(root, "envs", process.host_id())


def path_of(root: str, name: Any) -> str:
    """Return an environment's folder. Raises MakingError for an invalid name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise MakingError("%r is not the name of an environment" % (name,))
    return os.path.join(folder_of(root), name)


def python_of(path: str) -> str:
    """Return the interpreter of an environment."""
    return os.path.join(path, "bin", "python")


def lock_of(name: str) -> str:
    """Return the name of the lock for making or removing an environment."""
    return "environment-" + name


def is_whole(path: str) -> bool:
    """Return whether an environment is complete, and its Python still exists."""
    return os.path.exists(os.path.join(path, MARKER)) and os.access(python_of(path), os.X_OK)


def make(path: str, args: dict[str, Any], payload: bytes, lock: Lock, wire: Any) -> dict[str, Any]:
    """Make an environment while the client listens to the output of the steps. It is complete once `seal` is called.

    `args`: {"maker": {"kind", "program", "interpreter", "uv"}, "index", "no_index"}; the payload is JSON, {"files": {name:
    base64}, "secrets": {name: base64}, "settings": {variable: value}}. Return {"step", "exit", "signal"} of the step that
    failed, else {"step": None, "packages", "by"}: the report of torch_check.py, and who filled it. Raises MakingError, attending.CommandError,
    OSError, and what the wire raises when the client has gone. The caller removes an incomplete environment.
    """
    contents = strict_json.decode(payload)
    files, secrets = contents.get("files") or {}, contents.get("secrets") or {}
    variables = {str(name): str(value) for name, value in (contents.get("settings") or {}).items()}
    are_names_valid = all(FILE_NAME.fullmatch(name) for name in (*files, *secrets))
    if not are_names_valid or not all(_VARIABLE.fullmatch(name) for name in variables):
        raise MakingError("invalid file name or variable in the request for an environment")
    remove(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with scratch_folder() as folder:
        for name, text in (*files.items(), *secrets.items()):
            write_base64(os.path.join(folder, name), text)
        variables = _variables(folder, variables)
        uv = environment_steps.uv_that_fills(folder, args)
        if uv is not None:
            variables.update(environment_steps.cache_variables(path))
        held = (lock.fileno(),)
        for step, words in environment_steps.steps(folder, path, args, uv):
            ended = attending.attend(attending.Program(words, folder, variables, held), wire)
            if ended["exit"] != 0:
                return dict(ended, step=step)
            if step == "venv":
                variables["TMPDIR"] = os.path.join(path, "tmp")
                os.mkdir(variables["TMPDIR"])
        check = (pkgutil.get_data(__package__, "torch_check.py") or b"").decode()
        capture = _OutputCapture(wire)
        words = [python_of(path), "-I", "-c", check]
        ended = attending.attend(attending.Program(words, folder, variables, held), capture)
        lines = capture.output.decode("utf-8", "replace").splitlines()
        reports = [line[len(torch_check.MARK) :] for line in lines if line.startswith(torch_check.MARK)]
        if ended["exit"] != 0 or not reports:
            return dict(ended, step="check")
        shutil.rmtree(variables["TMPDIR"])
        return {"step": None, "packages": strict_json.decode(reports[-1]), "by": "uv" if uv else "pip"}


def _variables(folder: str, given: dict[str, str]) -> dict[str, str]:
    """Return the variables of every step: this host's, without those that redirect pip or Python, and the given ones."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("PYTHON", "LAUNCH_"))
    }
    variables.update(
        PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_PROGRESS_BAR="off", PIP_USER="0"
    )
    variables.update(given, UV_NO_PROGRESS="1", NO_COLOR="1")
    # As pip: the best version of all indexes, and the certificates of the system (by their new name and the old one).
    variables.update(UV_INDEX_STRATEGY="unsafe-best-match", UV_SYSTEM_CERTS="1", UV_NATIVE_TLS="1")
    pip_conf, ca_bundle = (os.path.join(folder, name) for name in ("pip_conf", "ca_bundle"))
    if os.path.exists(pip_conf):
        variables["PIP_CONFIG_FILE"] = pip_conf
    if os.path.exists(ca_bundle):  # overrides paths of a container in pip_conf
        variables.update(PIP_CERT=ca_bundle, SSL_CERT_FILE=ca_bundle)
    return variables


class _OutputCapture:
    """A wire that captures a program's standard output; everything else goes to the client."""

    def __init__(self, wire: Any) -> None:
        self.output = b""
        self._wire = wire
        self.wait = wire.wait
        self.has_input = wire.has_input
        self.read_line = wire.read_line

    def write(self, message: dict[str, Any], payload: bytes = b"") -> None:
        if message.get("stream") == 1:
            self.output += payload
        else:
            self._wire.write(message, payload)


def seal(path: str, packages: dict[str, Any]) -> None:
    """Mark an environment as complete, after everything in it is on the disk."""
    os.sync()
    write_durably(os.path.join(path, MARKER), strict_json.encode({"version": 1, "packages": packages}) + "\n")


def remove(path: str) -> None:
    """Remove an environment if it exists. Its marker goes first, so that an interrupted removal leaves it incomplete."""
    if os.path.exists(os.path.join(path, MARKER)):
        os.unlink(os.path.join(path, MARKER))
    if os.path.isdir(path):
        shutil.rmtree(path)


def unnamed(root: str, plans: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the paths of this host's environments that no plan names and no process holds."""
    names = {str((plan.get("environment") or {}).get("name")) for plan in plans}
    for path in paths_in(folder_of(root)):
        if os.path.basename(path) not in names and not _is_held(root, path):
            yield path


def half_made(root: str) -> Iterator[str]:
    """Yield the paths of incomplete environments that no process holds."""
    for path in paths_in(folder_of(root)):
        if not os.path.exists(os.path.join(path, MARKER)) and not _is_held(root, path):
            yield path


def remove_half_made(root: str, path: str) -> bool:
    """Remove an incomplete environment unless a process holds it by now; return whether it is gone."""
    lock = Lock.take(_lock_file(root, path), 0.0)
    if lock is None:
        return False
    try:
        if not os.path.exists(os.path.join(path, MARKER)):
            remove(path)
    finally:
        lock.release()
    return not os.path.lexists(path)


def _is_held(root: str, path: str) -> bool:
    return is_locked(_lock_file(root, path))


def _lock_file(root: str, path: str) -> str:
    return os.path.join(root, "hosts", process.host_id(), "locks", lock_of(os.path.basename(path)))
