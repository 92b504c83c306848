"""An image built on this host by the engine's own program, with BuildKit, which keeps secrets out of every layer.

The client sends the build's context and its secrets; both lie in a folder of our own, in memory where the host has
/dev/shm, and are gone when the build has ended; what a killed agent left, the next build removes. What the program
prints goes to the client as it comes, and the build ends with the client.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any, Iterator

from ..record import strict_json
from ..record.rundir import Lock, is_locked
from ..system import attending

PREFIX = "launch-build-"
MEMORY = "/dev/shm"  # noqa: S108 - the folders in it are ours alone
ASK_S = 10.0
YOUNG_S = 60.0
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}")
TAG = re.compile(r"[a-z0-9][a-z0-9._/-]{0,120}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}")


class BuildError(Exception):
    """A build that cannot be begun."""


def has_buildkit(way: dict[str, Any]) -> bool:
    """Whether the engine's program builds with BuildKit: a docker before 23 by itself, a later one by its plugin buildx."""
    program = way.get("program")
    if not program:
        return False
    if _asked([str(program), "buildx", "version"]) is not None:
        return True
    version = _asked([str(program), "--version"]) or ""
    found = re.search(r"version (\d+)\.", version)
    return found is not None and 18 < int(found[1]) < 23


def build(args: dict[str, Any], payload: bytes, wire: Any) -> dict[str, Any]:
    """Build an image while the client listens; return {"exit", "signal"}, one of them None.

    `args`: {"engine", "tag", "labels", "network", "arguments"}; the payload is JSON, {"files": {name: base64}, "secrets": {id:
    base64}}. Raises BuildError, attending.CommandError, and what the wire raises when the client has gone.
    """
    told = strict_json.decode(payload)
    files, secrets = told.get("files") or {}, told.get("secrets") or {}
    tag, network = str(args.get("tag")), str(args.get("network"))
    arguments = {name: str(value) for name, value in (args.get("arguments") or {}).items()}
    way = args.get("engine") or {}
    is_named = all(NAME.fullmatch(name) for name in (*files, *secrets, *arguments))
    if not TAG.fullmatch(tag) or not is_named or network not in ("default", "host", "none"):
        raise BuildError("this is no build: %r" % tag)
    with scratch() as folder:
        context = os.path.join(folder, "context")
        os.mkdir(context)
        for name, text in files.items():
            write(os.path.join(context, name), text)
        words = [str(way.get("program")), "build", "--tag", tag, "--network", network, "--progress", "plain"]
        for name, value in (args.get("labels") or {}).items():
            words += ["--label", "%s=%s" % (name, value)]
        for name, text in secrets.items():
            path = os.path.join(folder, "secret-" + name)
            write(path, text)
            words += ["--secret", "id=%s,src=%s" % (name, path)]
        for name in arguments:
            words += [
                "--build-arg",
                name,
            ]  # its value comes by the environment, and stays out of every command line
        settings = {"DOCKER_BUILDKIT": "1", **arguments}
        if way.get("socket"):
            settings["DOCKER_HOST"] = "unix://%s" % way["socket"]
        if way.get("sudo"):
            if any("@" in value for value in arguments.values()):
                raise BuildError(
                    "a proxy with a password cannot go through sudo: every user would see it in `ps`"
                )
            words = ["sudo", "-n", "env", *("%s=%s" % pair for pair in settings.items()), *words]
        words.append(context)
        return attending.attend(
            lambda token: _start(words, folder, {**settings, attending.MARK: token}), wire
        )


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """Give a folder that only this user may read, in memory where it can be; it is gone afterwards."""
    folder, lock = _folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _start(words: list[str], folder: str, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        cwd=folder,
        env=dict(os.environ, **settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _folder() -> tuple[str, Lock]:
    """Make a folder for one build, held by its lock; remove those whose builder was killed.

    An agent that is killed by SIGKILL leaves its folder, secrets included, until the next build or the host's reboot.
    """
    for path in dead_folders():
        shutil.rmtree(path, ignore_errors=True)
    place, prefix = _place()
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    lock = Lock.take(os.path.join(folder, "lock"))
    if lock is None:
        raise BuildError("%s was taken by another" % folder)
    return folder, lock


def _place() -> tuple[str, str]:
    """Return where builds have their folders, in memory if they can, and how these are called."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir()
    return place, "%s%d-" % (PREFIX, os.getuid())


def dead_folders() -> list[str]:
    """Return the folders of builds whose builder was killed."""
    place, prefix = _place()
    found = [os.path.join(place, name) for name in os.listdir(place) if name.startswith(prefix)]
    return [path for path in found if _is_dead(path)]


def _is_dead(path: str) -> bool:
    """Whether nobody holds a build's folder; a young one may be about to be locked."""
    try:
        status, lock = os.lstat(path), os.path.join(path, "lock")
    except FileNotFoundError:  # another build's sweep was here first
        return False
    is_young = time.time() - status.st_mtime < YOUNG_S
    if status.st_uid != os.getuid() or is_young or not os.path.exists(lock):
        return False
    return not is_locked(lock)


def write(path: str, text: str) -> None:
    """Write what came in base64 into a new file that only this user may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(base64.b64decode(text))


def _asked(words: list[str]) -> str | None:
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
