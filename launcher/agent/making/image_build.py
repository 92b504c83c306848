"""Build an image on this host with the engine's own program and BuildKit, which keeps secrets out of every layer.

The client sends the build's context and its secrets, which are kept in a scratch folder. It receives the
program's output while the build runs. The build ends if the client goes away.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any, Dict, NamedTuple, Optional

from ..record import strict_json
from ..record.engine_record import EngineRecord
from ..system import client_program, deadline
from .scratch_folder import scratch_folder, write_base64

ASK_S = 10.0
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}")
TAG = re.compile(r"[a-z0-9][a-z0-9._/-]{0,120}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}")


class BuildError(Exception):
    """An invalid build request."""


def has_buildkit(engine: EngineRecord) -> bool:
    """Return whether the engine's program has BuildKit: built in before docker 23, the plugin buildx since.

    Podman never has it, whatever its command `podman buildx` prints.
    """
    program = engine.get("program")
    if not program or engine.get("name") == "podman":
        return False
    if _output_of([str(program), "buildx", "version"]) is not None:
        return True
    output = _output_of([str(program), "--version"]) or ""
    version = re.search(r"version (\d+)\.", output)
    return version is not None and 18 < int(version[1]) < 23


class BuildRequest(NamedTuple):
    """The engine, the image's tag, labels and build arguments, and the network for its steps."""

    tag: str = ""
    network: str = ""
    engine: Optional[EngineRecord] = None
    labels: Optional[Dict[str, str]] = None
    arguments: Optional[Dict[str, str]] = None


def build(request: BuildRequest, payload: bytes, wire: Any) -> client_program.ProgramEnd:
    """Build an image while the client listens. Return how the build ended.

    The payload is JSON, {"files": {name: base64}, "secrets": {id: base64}}. Raises BuildError,
    client_program.CommandError, OSError, and the wire's exceptions when the client is gone.
    """
    contents = strict_json.decode(payload)
    files, secrets = contents.get("files") or {}, contents.get("secrets") or {}
    tag, network = request.tag, request.network
    arguments = {name: str(value) for name, value in (request.arguments or {}).items()}
    engine: EngineRecord = request.engine or {}
    are_names_valid = all(NAME.fullmatch(name) for name in (*files, *secrets, *arguments))
    if not TAG.fullmatch(tag) or not are_names_valid or network not in ("default", "host", "none"):
        raise BuildError("invalid tag, network or file name in the build of %r" % tag)
    with scratch_folder() as folder:
        context = os.path.join(folder, "context")
        os.mkdir(context)
        for name, text in files.items():
            write_base64(os.path.join(context, name), text)
        words = [
            str(engine.get("program")),
            "build",
            "--tag",
            tag,
            "--network",
            network,
            "--progress",
            "plain",
        ]
        for name, value in (request.labels or {}).items():
            words += ["--label", "%s=%s" % (name, value)]
        for name, text in secrets.items():
            path = os.path.join(folder, "secret-" + name)
            write_base64(path, text)
            words += ["--secret", "id=%s,src=%s" % (name, path)]
        for name in arguments:
            words += ["--build-arg", name]  # the value is passed as a variable, which `ps` does not show
        variables = {"DOCKER_BUILDKIT": "1", **arguments}
        if engine.get("socket"):
            variables["DOCKER_HOST"] = "unix://%s" % engine["socket"]
        if engine.get("sudo"):
            if any("@" in value for value in arguments.values()):
                raise BuildError(
                    "a proxy with a password cannot be passed through sudo: every user would see it in `ps`"
                )
            words = ["sudo", "-n", "env", *("%s=%s" % pair for pair in variables.items()), *words]
        words.append(context)
        return client_program.attend(
            client_program.AttendedProgram(words, folder, dict(os.environ, **variables)), wire
        )


def _output_of(words: list[str]) -> str | None:
    """Return the output of a program, None if it fails."""
    try:
        code, output, _ = deadline.run(words, ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return output if code == 0 else None
