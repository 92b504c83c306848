"""Environments for native runs: made once on this host, by venv or uv, and filled by pip in the steps of our Dockerfile.

<root>/envs/<host-id>/<name>/
  bin/python ...        it holds absolute paths, so it is made where it stays
  environment.json      what is in it, written last: a folder without it is half-made
  tmp/                  pip's own while it is made, on the disk that needs the room anyway

The host's id is in the path because a home may be shared: an environment is of its host's Python. Whoever makes or removes one
holds the lock of its name, and so does each program that fills it, should the agent be killed before it.
"""

from __future__ import annotations

import os
import pkgutil
import re
import shutil
import subprocess
from functools import partial
from typing import Any, Iterator

from ..record import strict_json
from ..record.rundir import Lock, is_locked, paths_in, write_durably
from ..system import attending, process
from . import image_build, torch_check

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
    """An environment that cannot be begun."""


def folder_of(root: str) -> str:
    """Return where the environments of this host lie."""
    return os.path.join(root, "envs", process.host_id())


def path_of(root: str, name: Any) -> str:
    """Return an environment's folder. Raises MakingError for what is no name of one."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise MakingError("%r is no environment" % (name,))
    return os.path.join(folder_of(root), name)


def python_of(path: str) -> str:
    """Return the interpreter of an environment."""
    return os.path.join(path, "bin", "python")


def lock_of(name: str) -> str:
    """Return the name of the lock that is held while an environment is made or removed."""
    return "environment-" + name


def is_whole(path: str) -> bool:
    """Whether an environment was made to its end, and its Python is still there."""
    return os.path.exists(os.path.join(path, MARKER)) and os.access(python_of(path), os.X_OK)


def make(path: str, args: dict[str, Any], payload: bytes, lock: Lock, wire: Any) -> dict[str, Any]:
    """Make an environment while the client listens to what its steps print; `seal` makes it count.

    `args`: {"maker": {"kind", "program", "interpreter"}, "index", "no_index"}; the payload is JSON, {"files": {name: base64}, "secrets": {name:
    base64}, "settings": {variable: value}}. Return {"step", "exit", "signal"} of the step that failed, else {"step": None,
    "packages"}: what its Python says of itself. Raises MakingError, attending.CommandError, and what the wire raises
    when the client has gone. Whatever is left half-made is the caller's to remove.
    """
    told = strict_json.decode(payload)
    files, secrets = told.get("files") or {}, told.get("secrets") or {}
    settings = {str(name): str(value) for name, value in (told.get("settings") or {}).items()}
    is_named = all(image_build.NAME.fullmatch(name) for name in (*files, *secrets))
    if not is_named or not all(_VARIABLE.fullmatch(name) for name in settings):
        raise MakingError("this is no environment to make")
    remove(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with image_build.scratch() as folder:
        for name, text in (*files.items(), *secrets.items()):
            image_build.write(os.path.join(folder, name), text)
        settings = _settings(folder, settings)
        for step, words in _steps(folder, path, args):
            ended = attending.attend(partial(_start, words, folder, settings, lock), wire)
            if ended["exit"] != 0:
                return dict(ended, step=step)
            if step == "venv":
                settings["TMPDIR"] = os.path.join(path, "tmp")
                os.mkdir(settings["TMPDIR"])
        check = (pkgutil.get_data(__package__, "torch_check.py") or b"").decode()
        listening = _Aside(wire)
        words = [python_of(path), "-I", "-c", check]
        ended = attending.attend(partial(_start, words, folder, settings, lock), listening)
        lines = listening.said.decode("utf-8", "replace").splitlines()
        said = [line[len(torch_check.MARK) :] for line in lines if line.startswith(torch_check.MARK)]
        if ended["exit"] != 0 or not said:
            return dict(ended, step="check")
        shutil.rmtree(settings["TMPDIR"])
        return {"step": None, "packages": strict_json.decode(said[-1])}


def _steps(folder: str, path: str, args: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the steps by name: the empty environment, torch and its kin from the index of its build, and the rest."""
    maker = args.get("maker") or {}
    program, interpreter = str(maker.get("program")), str(maker.get("interpreter"))
    if maker.get("kind") == "uv":
        more = ["--no-index"] if args.get("no_index") is True else []
        yield "venv", [program, "venv", "--seed", *more, "--python", interpreter, path]
    else:
        yield "venv", [program, "-I", "-m", "venv", path]
    pip = [python_of(path), "-I", "-m", "pip", "install"]
    torch, others = (os.path.join(folder, name) for name in ("torch.txt", "requirements.txt"))
    index = args.get("index")
    yield "torch", [*pip, *(["--index-url", str(index)] if index else []), "-r", torch]
    if os.path.getsize(others):
        yield "requirements", [*pip, "-r", torch, "-r", others]


def _settings(folder: str, given: dict[str, str]) -> dict[str, str]:
    """Return the environment of every step: this host's own, less what would lead it astray."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("PYTHON", "LAUNCH_"))
    }
    found.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_PROGRESS_BAR="off", PIP_USER="0")
    found.update(given, UV_NO_PROGRESS="1", NO_COLOR="1")
    pip_conf, ca_bundle = (os.path.join(folder, name) for name in ("pip_conf", "ca_bundle"))
    if os.path.exists(pip_conf):
        found["PIP_CONFIG_FILE"] = pip_conf
    if os.path.exists(ca_bundle):  # a variable counts more than what its pip_conf says of a container's paths
        found.update(PIP_CERT=ca_bundle, SSL_CERT_FILE=ca_bundle)
    return found


def _start(
    words: list[str], folder: str, settings: dict[str, str], lock: Lock, token: str
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words,
            cwd=folder,
            env={**settings, attending.MARK: token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
    except OSError as error:
        raise attending.CommandError("no-maker", "%s: %s" % (words[0], error.strerror)) from None


class _Aside:
    """A wire that keeps to itself what a program prints to its standard output; all else goes to the client."""

    def __init__(self, wire: Any) -> None:
        self.said = b""
        self._wire = wire
        self.wait = wire.wait
        self.has_input = wire.has_input
        self.read_line = wire.read_line

    def write(self, message: dict[str, Any], payload: bytes = b"") -> None:
        if message.get("stream") == 1:
            self.said += payload
        else:
            self._wire.write(message, payload)


def seal(path: str, packages: dict[str, Any]) -> None:
    """Make an environment count: everything in it is on the disk before the marker says so."""
    os.sync()
    write_durably(os.path.join(path, MARKER), strict_json.encode({"version": 1, "packages": packages}) + "\n")


def remove(path: str) -> None:
    """Remove an environment, if it is there. It counts no more from the first moment on, whatever becomes of the rest."""
    if os.path.exists(os.path.join(path, MARKER)):
        os.unlink(os.path.join(path, MARKER))
    if os.path.isdir(path):
        shutil.rmtree(path)


def unnamed(root: str, plans: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the paths of this host's environments that none of the plans names, and that nobody is at."""
    named = {str((plan.get("environment") or {}).get("name")) for plan in plans}
    for path in paths_in(folder_of(root)):
        if os.path.basename(path) not in named and not _is_held(root, path):
            yield path


def half_made(root: str) -> Iterator[str]:
    """Yield the paths of what was broken off while it was made or removed: nobody holds its lock."""
    for path in paths_in(folder_of(root)):
        if not os.path.exists(os.path.join(path, MARKER)) and not _is_held(root, path):
            yield path


def remove_half_made(root: str, path: str) -> bool:
    """Remove such a one, unless somebody is at it by now; return whether it is gone."""
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
