"""Leftovers of builds: images without a name.

They are the steps of interrupted builds, and images whose name moved to a newer image. The classic builder
commits an image for each step. From the first step on, each step's image has a label with the name of the
image and the root that builds it. BuildKit leaves nothing of a failed build. If another user builds an image
from one of launcher's, the new image inherits launcher's labels. Therefore a finished image has an empty step
label, and is launcher's only if launcher made its last step.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.base.runtime import SharedResource
from launcher.backends.machine.docker.container import LABEL_ROOT
from launcher.transport.client.host_client import HostClient

if TYPE_CHECKING:
    from launcher.backends.machine.docker.engine import DockerEngine, ListedImage

LABEL_STEP = "launcher.step"
"""The label of a build's steps: the image's name and the root. It is empty on a finished image."""
LABEL_NAME = "launcher.name"
"""The label of a finished image with its name."""
_STEP = re.compile(r"(\S+) (.+)")
_OUR_LAST_STEP = re.compile(r"\bLABEL launcher\.")
SETTLING_S = 15.0
"""Seconds that the engine may take to end a cancelled build."""
POLL_S = 0.1


class LeftoverImage(NamedTuple):
    """An image without a name, its former or intended name, and the root that built it."""

    image: ListedImage
    name: str
    root: str


def step_label(name: str, root: str) -> str:
    """Return the label value for the steps of a root's build of an image."""
    return f"{name} {root}"


def lock_of(name: str) -> str:
    """Return the name of the lock held while an image is made."""
    return "image-" + re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-")


def remains(client: HostClient, engine: DockerEngine, root: str | None = None) -> list[SharedResource]:
    """Return the leftovers of builds of one root, or of all.

    Leftovers of an image that this root is building count as used.
    """
    own_root = client.upkeep.root_label()
    users = Counter(container.image for container in engine.containers())
    found = []
    for image, name, its_root in _remnants(engine, root):
        count = users[image.id] + (its_root == own_root and _is_held(client, lock_of(name)))
        title = f"{name} (without a name)"
        found.append(
            SharedResource("image", title, image.bytes, image.created, count, image.id, lock_of(name))
        )
    return found


def discard_remains(client: HostClient, engine: DockerEngine, supply: SharedResource) -> bool:
    """Remove a build's leftover, unless its image is being built. Return whether it is gone.

    Raises EngineError.
    """
    if not client.making.hold(supply.lock).held:
        return False
    try:
        return engine.remove_image(supply.id)
    finally:
        client.making.let_go(supply.lock)


def clear_remains(client: HostClient, engine: DockerEngine, name: str, root: str) -> None:
    """Remove the leftovers of a root's builds.

    The build of `name` must have ended or been cancelled, and this client must hold its lock. Raises HostError.
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
        discard_remains(client, engine, SharedResource("image", other, 0, 0.0, 0, image.id, lock_of(other)))


def _remnants(engine: DockerEngine, root: str | None) -> Iterator[LeftoverImage]:
    """Yield launcher's images without a name.

    For an interrupted build, that is only the last step: its removal removes all steps.
    """
    for image in engine.images(LABEL_STEP):
        found = _STEP.fullmatch((image.labels or {}).get(LABEL_STEP, ""))
        if _is_nameless(image) and found and root in (None, found[2]):
            yield LeftoverImage(image, found[1], found[2])
    for image in engine.images(LABEL_NAME):
        labels = image.labels or {}
        its_root = labels.get(LABEL_ROOT, "")
        if not _is_nameless(image) or labels.get(LABEL_STEP) or root not in (None, its_root):
            continue
        if _OUR_LAST_STEP.search(engine.last_step(image.id)):
            yield LeftoverImage(image, labels[LABEL_NAME], its_root)


def _is_nameless(image: ListedImage) -> bool:
    return all(name == "<none>:<none>" for name in image.names or ())


def _has_containers(engine: DockerEngine, step: str) -> bool:
    return any((container.labels or {}).get(LABEL_STEP) == step for container in engine.containers())


def _is_held(client: HostClient, lock: str) -> bool:
    """Return whether another client holds a lock."""
    is_free = client.making.hold(lock).held
    if is_free:
        client.making.let_go(lock)
    return not is_free
