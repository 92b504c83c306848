"""Build the Engine API configuration of a run's container, from plan, location and engine facts. Pure."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from launcher.errors import RefusedError
from launcher.values.plan import Plan
from launcher.values.reported.engine_access import AgentCode, RunLocation

LABEL_RUN = "launcher.run"
LABEL_ROOT = "launcher.root"
LABEL_PLAN = "launcher.plan"
LABEL_ATTEMPT = "launcher.attempt"
LABEL_CHECK = "launcher.check"
"""The label of a container that checks an image or compiles the agent. Its value is the root. No image has it."""
CODE = "LAUNCH_CODE"
"""The variable with the folder of the agent's compiled code, as in agent/compiled_code.py."""
STOP_SLACK_S = 15
"""Seconds beyond the job's grace before the engine kills the container, so that the agent can record the end."""
SHM_SHARE = 0.5
MIN_SHM_BYTES = 1 << 30
LOG_SIZE = "1m"
HOOK = "hook"
CDI_UUID = "CDI device by UUID"
CDI_INDEX = "CDI device by index"
WAYS = (CDI_UUID, CDI_INDEX, HOOK)
"""How an engine hands on a card: by NVIDIA's runtime hook, or as a CDI device (engine 25 and newer).

The toolkit names CDI devices by UUID and index; its versions before 1.15 name them by index alone.
"""
DOWN = ("created", "exited", "dead")
"""The states of a container without a running process."""


class Container(NamedTuple):
    """A container of a run: its id, and its state and exit code as reported by the engine."""

    id: str
    status: str
    exit_code: int | None


class ContainerView(NamedTuple):
    """The host as seen in a container that runs one program: user, variables, mounts."""

    user: str = ""
    variables: tuple[str, ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()


class EngineFacts(NamedTuple):
    """The facts about an engine that containers depend on.

    `cdi_devices` are the names of its CDI devices; `None` if the engine has CDI and does not list them.
    """

    is_rootless: bool = False
    has_init: bool = True
    memory_bytes: int = 0
    runtimes: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] | None = ()
    is_podman: bool = False


def name_of(run: str) -> str:
    """Return the name of a run's container."""
    return f"launch-{run}"


def user_of(place: RunLocation | AgentCode, engine: EngineFacts) -> str:
    """Return the user of a container, such that its files belong to the user who launched it.

    A rootless engine maps 0 to that user.
    """
    return "0:0" if engine.is_rootless else f"{place.uid}:{place.gid}"


def container(
    plan: Plan,
    run: str,
    attempt: int,
    place: RunLocation,
    engine: EngineFacts,
    cards: Mapping[str, object] | None = None,
    code: str | None = None,
) -> Mapping[str, object]:
    """Return the configuration of a run's container.

    `cards` is the request for its cards, of `card_request`. `code` is the folder of the agent as the image compiled it. Every folder has the same path inside as
    outside, so that the record is valid in both. HOME is in the run's folder. Secrets are not passed here:
    the agent inside reads them from the run.
    """
    if plan.image is None:
        raise ValueError(f"the plan of run {run} has no image")
    variables = {
        "HOME": place.home,
        "USER": place.user,
        "LOGNAME": place.user,
        "XDG_CACHE_HOME": f"{place.home}/.cache",
        "LAUNCH_HOST_ID": place.host_id,
        **({CODE: code} if code is not None else {}),
    }
    host: dict[str, object] = {
        "Mounts": _mounts(place.written, place.read),
        "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 0},
        "Init": engine.has_init,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ShmSize": max(MIN_SHM_BYTES, int(engine.memory_bytes * SHM_SHARE)),
        "LogConfig": {"Type": "json-file", "Config": {"max-size": LOG_SIZE}},
    }
    if not engine.is_rootless:
        host["GroupAdd"] = [str(group) for group in place.groups if group != place.gid]
    if cards is not None:
        host["DeviceRequests"] = [cards]
    return {
        "Image": plan.image.name,
        "User": user_of(place, engine),
        "Entrypoint": ["python3", "-I", place.agent, "contain", place.path],
        "Cmd": [],
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {
            LABEL_RUN: run,
            LABEL_ROOT: place.root,
            LABEL_ATTEMPT: str(attempt),
            LABEL_PLAN: plan.digest,
        },
        "StopSignal": "SIGTERM",
        "StopTimeout": stop_timeout_s(plan.stop_grace_s),
        "HostConfig": host,
    }


def compiling(code: AgentCode, engine: EngineFacts) -> ContainerView:
    """Return the view of a container that compiles the agent; it mounts the agent and the folder for the result."""
    mounts = _mounts([code.folder], [posixpath.dirname(code.agent)])
    return ContainerView(user_of(code, engine), (f"{CODE}={code.folder}",), tuple(mounts))


def _mounts(written: Sequence[str], read: Sequence[str]) -> list[Mapping[str, object]]:
    return [
        {"Type": "bind", "Source": path, "Target": path, "ReadOnly": is_read_only}
        for paths, is_read_only in ((written, False), (read, True))
        for path in dict.fromkeys(paths)
    ]


def stop_timeout_s(grace_s: float) -> int:
    """Return the seconds from SIGTERM to SIGKILL by the engine, rounded up."""
    return math.ceil(grace_s) + STOP_SLACK_S


def card_request(way: str, gpus: Sequence[str], indices: Mapping[str, int]) -> Mapping[str, Any]:
    """Return the request for cards by UUID in one of the WAYS. `indices` are the driver's, by UUID."""
    if way == HOOK:
        return {"Driver": "nvidia", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}
    names = gpus if way == CDI_UUID else [indices.get(uuid, uuid) for uuid in gpus]
    return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={name}" for name in names]}


def listed_way(engine: EngineFacts, gpus: Sequence[str], indices: Mapping[str, int]) -> str | None:
    """Return the way in which an engine hands on cards, by its lists of runtimes and CDI devices.

    `None` if a trial must show it: an engine may have NVIDIA's hook without the runtime `nvidia`, or CDI devices that it
    does not list. A rootless engine gets CDI devices first: the hook there needs a setting of root's.
    """
    listed = [
        way
        for way in (CDI_UUID, CDI_INDEX)
        if {*card_request(way, gpus, indices)["DeviceIDs"]} <= {*(engine.cdi_devices or ())}
    ]
    if "nvidia" in engine.runtimes and not (engine.is_rootless and listed):
        return HOOK
    return listed[0] if listed else None


def ways_to_try(engine: EngineFacts) -> tuple[str, ...]:
    """Return the ways that an engine may accept although its lists do not show it, the preferred one first."""
    return WAYS if engine.cdi_devices is None else (HOOK,)


def cards_refused(host: str, engine: EngineFacts) -> RefusedError:
    """Return the refusal of cards in a container by an engine that hands on none."""
    native = f"run without a container   launch --host {host} --runtime native"
    if engine.is_podman:
        return RefusedError(
            f"{host}: launch hands on no card to a container of Podman\n  use Docker, or {native}"
        )
    return RefusedError(
        f"{host}: its container engine cannot hand on these NVIDIA cards: it has neither NVIDIA's hook nor CDI devices of them\n"
        "  install nvidia-container-toolkit there and restart the engine\n"
        f"  or {native}"
    )
