"""What builds leave on an engine without a name: steps of a build that was broken off, images whose name has moved on.

The classic builder commits an image for each step. They carry a label from the first step on, which says what was being
built and by which root. BuildKit leaves nothing of a build that fails. An image that somebody else built from ours inherits
its labels, so a finished image has that label empty, and is ours only if its last step is.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.base.runtime import Supply
from launcher.backends.machine.docker.container import LABEL_ROOT
from launcher.transport.client.desk import HostClient

if TYPE_CHECKING:
    from launcher.backends.machine.docker.engine import DockerEngine, ListedImage

LABEL_STEP = "launcher.step"
"""The label of a build's steps: the image's name and the root. It is empty once the image is finished."""
LABEL_NAME = "launcher.name"
"""The label of a finished image with the name that it was given."""
_STEP = re.compile(r"(\S+) (.+)")
_OUR_LAST_STEP = re.compile(r"\bLABEL launcher\.")
SETTLING_S = 15.0
"""How long the engine may take to end a build that was cancelled, in seconds."""
POLL_S = 0.1


class Remnant(NamedTuple):
    """An image without a name, the name that it had or was to get, and the root that built it."""

    image: ListedImage
    name: str
    root: str


def step_label(name: str, root: str) -> str:
    """Return what marks the steps of a root's build of an image."""
    return f"{name} {root}"


def lock_of(name: str) -> str:
    """Return the name of the lock under which an image is made."""
    return "image-" + re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-")


def remains(desk: HostClient, engine: DockerEngine, root: str | None = None) -> list[Supply]:
    """Return what builds of a root, or of all roots, have left; what this root is building just now counts as used."""
    own_root = desk.upkeep.root_label()
    users = Counter(container.image for container in engine.containers())
    found = []
    for image, name, its_root in _remnants(engine, root):
        count = users[image.id] + (its_root == own_root and _is_held(desk, lock_of(name)))
        title = f"{name} (without a name)"
        found.append(Supply("image", title, image.bytes, image.created, count, image.id, lock_of(name)))
    return found


def discard_remains(desk: HostClient, engine: DockerEngine, supply: Supply) -> bool:
    """Remove what a build has left, unless that image is being built; return whether it is gone. Raises EngineError."""
    if not desk.making.hold(supply.lock).held:
        return False
    try:
        return engine.remove_image(supply.id)
    finally:
        desk.making.let_go(supply.lock)


def clear_remains(desk: HostClient, engine: DockerEngine, name: str, root: str) -> None:
    """Remove what builds of a root have left. The build of `name`, whose lock is held here, has ended or was cancelled.

    Raises HostError.
    """
    deadline = time.monotonic() + SETTLING_S
    while time.monotonic() < deadline and _has_containers(engine, step_label(name, root)):
        time.sleep(POLL_S)
    others = []
    for remnant in _remnants(engine, root):
        if remnant.name == name:
            engine.remove_image(remnant.image.id)
        else:
            others.append(remnant)
    for image, other, _ in others:
        discard_remains(desk, engine, Supply("image", other, 0, 0.0, 0, image.id, lock_of(other)))


def _remnants(engine: DockerEngine, root: str | None) -> Iterator[Remnant]:
    """Yield the images without a name that are ours: of a broken build the last step, with which the others go."""
    for image in engine.images(LABEL_STEP):
        found = _STEP.fullmatch((image.labels or {}).get(LABEL_STEP, ""))
        if _is_nameless(image) and found and root in (None, found[2]):
            yield Remnant(image, found[1], found[2])
    for image in engine.images(LABEL_NAME):
        labels = image.labels or {}
        its_root = labels.get(LABEL_ROOT, "")
        if not _is_nameless(image) or labels.get(LABEL_STEP) or root not in (None, its_root):
            continue
        if _OUR_LAST_STEP.search(engine.last_step(image.id)):
            yield Remnant(image, labels[LABEL_NAME], its_root)


def _is_nameless(image: ListedImage) -> bool:
    return all(name == "<none>:<none>" for name in image.names or ())


def _has_containers(engine: DockerEngine, step: str) -> bool:
    return any((container.labels or {}).get(LABEL_STEP) == step for container in engine.containers())


def _is_held(desk: HostClient, lock: str) -> bool:
    """Return whether another client holds a lock."""
    is_free = desk.making.hold(lock).held
    if is_free:
        desk.making.let_go(lock)
    return not is_free
