"""Verbs that build an image or an environment, and the named locks that let one client at a time do so."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, NamedTuple, Optional, TypedDict

from ..making import environment_build, environment_seal, environment_steps, image_build, image_code
from ..record.engine_record import EngineRecord
from ..record.files import read_json, write_durably
from ..record.locks import Lock
from ..serving.requests import RequestError, VerbReply
from ..serving.session import ClientSession, UnsealedEnvironment, Verb
from ..system import client_program, process

LOCK_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
IMAGE_ID = re.compile(r"sha256:([0-9a-f]{64})")
MAX_PACKAGES = 64 * 1024


# locks


class LockRequest(NamedTuple):
    """The name of a lock, and whether to release it instead of taking it."""

    name: str
    release: bool = False


def hold(session: ClientSession, request: LockRequest, _payload: bytes) -> VerbReply:
    """Take or release a named lock of this host. Return whether it is held.

    The lock is released when the connection closes.
    """
    if not LOCK_NAME.fullmatch(request.name):
        raise RequestError("bad-lock", "name: %r cannot be the name of a lock" % request.name)
    if request.release:
        session.drop_unsealed(request.name)
        held = session.locks.pop(request.name, None)
        if held is not None:
            held.release()
        return VerbReply({"held": False})
    folder = os.path.join(session.root, "hosts", process.host_id(), "locks")
    os.makedirs(folder, exist_ok=True)
    lock = session.locks.get(request.name) or Lock.take(os.path.join(folder, request.name), 0.0)
    if lock is not None:
        session.locks[request.name] = lock
    return VerbReply({"held": lock is not None, "root": session.label})


# images


class Builder(NamedTuple):
    """The engine's address."""

    engine: Optional[EngineRecord] = None


def builder(_session: ClientSession, request: Builder, _payload: bytes) -> VerbReply:
    """Return whether the engine's program builds with BuildKit."""
    return VerbReply({"buildkit": image_build.has_buildkit(request.engine or {})})


def build(session: ClientSession, request: image_build.BuildRequest, payload: bytes) -> VerbReply:
    """Build an image while the client stays connected."""
    try:
        return VerbReply(image_build.build(request, payload, session.connection))
    except (image_build.BuildError, ValueError) as error:
        raise RequestError("bad-build", str(error)) from None
    except client_program.CommandError as error:
        raise RequestError(error.code, str(error)) from None


class PackagesRequest(NamedTuple):
    """The id of an image."""

    image: str


def packages(session: ClientSession, request: PackagesRequest, payload: bytes) -> VerbReply:
    """Return the package report of an image (see torch_check.py), or None. A payload replaces the report.

    `code` is the folder for the agent's compiled code (see compiled_code.py), or None if the folder cannot be
    made.
    """
    image = IMAGE_ID.fullmatch(request.image)
    if image is None or len(payload) > MAX_PACKAGES:
        raise RequestError("bad-image", "image: %r is not the id of an image" % request.image)
    path = os.path.join(session.root, "hosts", process.host_id(), "packages", image[1] + ".json")
    if payload:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_durably(path, payload)
    return VerbReply({"packages": read_json(path) or None, "code": _code_of(image[1])})


class CompiledCode(TypedDict):
    """The folder where an image's Python compiles the agent, the user that compiles, and whether that is done."""

    agent: str
    folder: str
    uid: int
    gid: int
    there: bool


def _code_of(image: str) -> Optional[CompiledCode]:
    agent = os.path.abspath(sys.argv[0])
    folder = image_code.folder_of(agent, image)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        is_there = image_code.is_compiled(agent, folder)
    except OSError:
        return None
    return {"agent": agent, "folder": folder, "uid": os.getuid(), "gid": os.getgid(), "there": is_there}


# environments


class EnvironmentRequest(NamedTuple):
    """The name of an environment."""

    name: str


def environment(session: ClientSession, request: EnvironmentRequest, _payload: bytes) -> VerbReply:
    """Return whether an environment is complete. The client asks after it has created a run that names it."""
    path = path_of(session, request.name)
    with session.store.shared():  # an earlier `gc` has already removed it; a later one sees the run
        is_there = environment_build.is_whole(path)
    if is_there and not environment_seal.is_settled(path):
        _settle(session, path)
    return VerbReply({"there": is_there})


def _settle(session: ClientSession, path: str) -> None:
    """Write an environment to the disk if that was interrupted, unless another process is doing so."""
    lock = Lock.take(environment_build.lock_file(session.root, path), 0.0)
    if lock is not None:
        environment_seal.start_settling(path, lock)
        lock.release()


class MakeEnvironment(NamedTuple):
    """The name, maker and package index of an environment; see environment_build.py.

    `unimported` is the torch version that the check need not import, or "" for any version.
    """

    name: str
    maker: Optional[environment_steps.MakerRecord] = None
    index_: Optional[str] = None
    no_index: bool = False
    unimported: Optional[str] = None


def make_environment(session: ClientSession, request: MakeEnvironment, payload: bytes) -> VerbReply:
    """Make an environment while the client holds its lock and stays connected.

    The environment is valid once it is sealed. Before that, the release of its lock removes it.
    """
    path, lock_name = path_of(session, request.name), environment_build.lock_of(request.name)
    if lock_name not in session.locks:
        raise RequestError("not-held", "%s is not held on this connection" % lock_name)
    session.unsealed[lock_name] = UnsealedEnvironment(path, {})
    lock = session.locks[lock_name]
    options = environment_steps.EnvironmentOptions(request.maker or {}, request.index_, request.no_index)
    try:
        values = environment_build.make(path, options, request.unimported, payload, lock, session.connection)
    except (environment_build.EnvironmentBuildError, ValueError) as error:
        raise RequestError("bad-environment", str(error)) from None
    except client_program.CommandError as error:
        raise RequestError(error.code, str(error)) from None
    session.unsealed[lock_name] = UnsealedEnvironment(path, values.get("packages") or {})
    return VerbReply(values)


def seal_environment(session: ClientSession, request: EnvironmentRequest, _payload: bytes) -> VerbReply:
    """Seal an environment that was made on this connection. It is then valid."""
    lock_name = environment_build.lock_of(request.name)
    unsealed = session.unsealed.get(lock_name)
    if unsealed is None or not unsealed.packages:
        raise RequestError("not-made", "%s was not made on this connection" % lock_name)
    environment_seal.seal(*unsealed)
    del session.unsealed[lock_name]
    environment_seal.start_settling(unsealed.path, session.locks[lock_name])
    return VerbReply({})


def path_of(session: ClientSession, name: Any) -> str:
    """Return the path of an environment. Raises RequestError."""
    try:
        return environment_build.path_of(session.root, name)
    except environment_build.EnvironmentBuildError as error:
        raise RequestError("bad-environment", str(error)) from None


VERBS = {
    "hold": Verb(LockRequest, hold),
    "builder": Verb(Builder, builder),
    "build": Verb(image_build.BuildRequest, build),
    "packages": Verb(PackagesRequest, packages),
    "environment": Verb(EnvironmentRequest, environment),
    "make_environment": Verb(MakeEnvironment, make_environment),
    "seal_environment": Verb(EnvironmentRequest, seal_environment),
}
