"""Images on a host's engine: find, pull or build one. One launch makes an image for all launches that need it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from launcher.backends.base.making import OutputLines, alone, encoded
from launcher.backends.base.runtime import Say, SharedResource
from launcher.backends.machine.docker.build_leftovers import (
    LABEL_NAME,
    LABEL_STEP,
    clear_remains,
    lock_of,
    step_label,
)
from launcher.backends.machine.docker.container import LABEL_CHECK, LABEL_ROOT, compiling
from launcher.base import untrusted_json
from launcher.base.text import printable
from launcher.errors import EngineError, HostError, RefusedError
from launcher.planning.software.build_failure import build_failure, indexes
from launcher.planning.software.recipe import buildkit, classic
from launcher.planning.software.wheel_choice import unfit, verifiable_torch
from launcher.transport.agent_file import torch_check
from launcher.transport.client.host_client import HostClient
from launcher.values.plan import Plan
from launcher.values.software.image import BuildOptions, Image
from launcher.values.software.packages import InstalledPackages

if TYPE_CHECKING:
    from launcher.backends.machine.docker.engine import DockerEngine, ListedImage

LABEL_IMAGE = "launcher.image"
"""The label that the Dockerfile sets, with the digest of the file's content."""
ANSWER = "launch-check "
_TORCH_INDEX = re.compile(r"(?m)^ARG TORCH_INDEX=(\S+)")
_OURS = re.compile(r"launcher/[a-z0-9._-]+:([0-9a-f]{12})")
KEPT_LINES = 400
_STEP = re.compile(r"#\d+ \[\s*(?:\S+ )?(\d+/\d+)\] (.*)|Step (\d+/\d+) : ((?:FROM|COPY|RUN) .*)")
"""Step lines of BuildKit and of the classic builder; the latter's settings lines are not shown."""
_DOWNLOAD = re.compile(r"(?:#\d+ [\d.]+ +)?Downloading (?:\S*/)?(\S+ \([\d.]+ \w+\))")
"""pip's download line in a step of either builder: the file and its size."""


class Provided(NamedTuple):
    """The source of an image, in words, and the folder of the agent as the image compiled it, if any."""

    words: str
    code: str | None


def provide_image(
    client: HostClient, engine: DockerEngine, plan: Plan, build: BuildOptions, say: Say
) -> Provided:
    """Provide the plan's image on the engine, checked, with the agent compiled.

    One launch at a time makes an image; the others wait. The agent holds the lock, and releases it when its
    client disconnects. Raises EngineError.
    """
    image = plan.image
    if image is None:
        raise ValueError("the plan has no image")
    if (image_id := engine.image_id(image.name)) is not None:
        code = _check(client, engine, plan, build, image_id, say)
        return Provided(f"{image.name}, already there", code)
    with alone(client, lock_of(image.name), image.name, say) as held:
        if (image_id := engine.image_id(image.name)) is not None:
            code = _check(client, engine, plan, build, image_id, say)
            return Provided(f"{image.name}, made by another launch", code)
        began = time.monotonic()
        if image.dockerfile is None:
            _pull(engine, image, say)
            made = f"pulled in {time.monotonic() - began:.0f} s"
        else:
            builder = _build(client, engine, image, build, held.root, say)
            made = f"built in {time.monotonic() - began:.0f} s ({builder})"
        image_id = engine.image_id(image.name)
        if image_id is None:
            raise EngineError(engine.host, f"{engine.host}: {image.name} was {made}, and is gone")
        code = _check(client, engine, plan, build, image_id, say)
        return Provided(f"{image.name}, {made}", code)


def _check(
    client: HostClient, engine: DockerEngine, plan: Plan, build: BuildOptions, image_id: str, say: Say
) -> str | None:
    """Check an image's packages and have it compile the agent. Return the folder of the compiled agent.

    Raises RefusedError, EngineError.
    """
    known = client.making.known_of(image_id)
    _check_packages(client, engine, plan, build, image_id, known.packages, say)
    if known.code is None:
        return None
    if not known.code.there:
        say(f"{plan.image.name if plan.image else image_id}: compiling the agent")
        words = ["python3", "-I", known.code.agent, "compile"]
        labels = {LABEL_CHECK: client.upkeep.root_label()}
        with contextlib.suppress(EngineError):  # if this fails, each start compiles the agent
            engine.ask(image_id, words, labels, compiling(known.code, engine.facts()))
    return known.code.folder


def _check_packages(
    client: HostClient,
    engine: DockerEngine,
    plan: Plan,
    build: BuildOptions,
    image_id: str,
    packages: InstalledPackages | None,
    say: Say,
) -> None:
    """Check that an image's packages run on the card and fit together.

    The packages are read once per image and recorded. If an image that launcher built fails, it is removed.
    Raises RefusedError, EngineError.
    """
    image = plan.image
    assert image is not None  # noqa: S101 - the caller has made or found it
    if packages is None:
        say(f"{image.name}: checking its packages")
        packages = _packages_in(engine, image, client.upkeep.root_label())
        if packages is None:  # no Python, nothing to check; the start reports what is missing
            return
        client.making.record_packages(image_id, packages.model_dump_json().encode())
    chosen = verifiable_torch(image.torch, build)
    problems = unfit(packages, None if plan.rehearsed else plan.profile, chosen, image.requirements)
    if not problems:
        return
    if image.dockerfile is not None:
        with contextlib.suppress(EngineError):  # a failed removal must not hide the refusal
            engine.remove_image(image.name)
    lines = "\n".join(f"  {printable(problem)}" for problem in problems)
    mend = (
        "  another torch in the job's requirements"
        if image.dockerfile is not None
        else "  another image = … in the job"
    )
    raise RefusedError(f"{engine.host}: {image.name} is not for a {plan.profile.title}:\n{lines}\n{mend}")


def _packages_in(engine: DockerEngine, image: Image, root: str) -> InstalledPackages | None:
    """Return the packages of an image's Python, `None` if it has no Python. Raises EngineError."""
    try:
        output = engine.ask(image.name, ["python3", "-c", torch_check()], {LABEL_CHECK: root})
    except EngineError as error:
        if image.dockerfile is None and "python3" in str(error):
            return None
        raise
    answers = [line.partition(ANSWER)[2] for line in output.splitlines() if line.startswith(ANSWER)]
    if not answers:
        words = printable(" ".join(output.split()))[-500:] or "it said nothing"
        raise EngineError(engine.host, f"{engine.host}: {image.name} did not report its packages: {words}")
    try:
        return InstalledPackages.model_validate(untrusted_json.decode(answers[-1]))
    except (ValidationError, ValueError) as error:
        raise EngineError(engine.host, f"{engine.host}: {image.name} did not report its packages") from error


def check_image(client: HostClient, engine: DockerEngine, plan: Plan, build: BuildOptions) -> None:
    """Check that the plan's image exists or can be made.

    Raises RefusedError for a build that needs credentials on an engine without BuildKit.
    """
    image = plan.image
    if image is None or image.dockerfile is None or engine.image_id(image.name) is not None:
        return
    if not client.making.has_buildkit(engine.way):
        classic(image, build)


def image_supplies(engine: DockerEngine, root: str | None = None) -> list[SharedResource]:
    """Return the images that launcher built on an engine, or those of a root, the latest first.

    An image is launcher's if its label repeats the digest in its name: an image that another user built from it
    inherits the label, but not the name.
    """
    users = Counter(container.image for container in engine.containers())
    found = [
        SharedResource("image", name, image.bytes, image.created, users[image.id])
        for image in engine.images(LABEL_IMAGE)
        if root is None or (image.labels or {}).get(LABEL_ROOT) == root
        for name in image.names or ()
        if _is_ours(name, image)
    ]
    return sorted(found, key=lambda image: -image.created)


def _is_ours(name: str, image: ListedImage) -> bool:
    match = _OURS.fullmatch(name)
    return match is not None and (image.labels or {}).get(LABEL_IMAGE, "")[:12] == match[1]


def _build(
    client: HostClient, engine: DockerEngine, image: Image, build: BuildOptions, root: str, say: Say
) -> str:
    """Build an image on the host and return the builder's name.

    Raises EngineError with the last lines of output. No image without a name remains after success, failure
    or interruption.
    """
    say(f"{image.name}: building it, once for this host; with torch this can take minutes")
    try:
        if client.making.has_buildkit(engine.way):
            labels = {LABEL_ROOT: root, LABEL_NAME: image.name}
            _build_with_buildkit(client, engine, image, build, labels, say)
            return "BuildKit"
        _build_classic(engine, image, build, root, say)
        return "classic builder"
    finally:
        with contextlib.suppress(HostError):  # the next build, `gc` or `image prune` finds leftovers
            clear_remains(client, engine, image.name, root)


def _build_with_buildkit(
    client: HostClient,
    engine: DockerEngine,
    image: Image,
    build: BuildOptions,
    labels: dict[str, str],
    say: Say,
) -> None:
    recipe = buildkit(image, build)
    payload = {"files": encoded(recipe.files), "secrets": encoded(recipe.secrets)}
    lines = OutputLines(say, _step, KEPT_LINES)
    end = client.making.build_image(
        engine.way,
        image.name,
        json.dumps(payload).encode(),
        lambda _, data: lines.take(data),
        labels=labels,
        network=build.network,
        arguments=recipe.arguments,
    )
    if end.exit != 0:
        raise _failed(engine, image, lines.last(), build)


def _build_classic(engine: DockerEngine, image: Image, build: BuildOptions, root: str, say: Say) -> None:
    recipe = classic(image, build, {LABEL_STEP: step_label(image.name, root)})
    lines = OutputLines(say, _step, KEPT_LINES)
    labels = {LABEL_ROOT: root, LABEL_NAME: image.name, LABEL_STEP: ""}
    options = {"buildargs": recipe.arguments, "network_mode": build.network, "labels": labels}
    for message in engine.build(_tar(recipe.files), tag=image.name, **options):
        lines.take((message.stream or message.error).encode())
        if message.error:
            raise _failed(engine, image, lines.last(), build)


def _pull(engine: DockerEngine, image: Image, say: Say) -> None:
    try:
        for message in engine.pull(image.name):
            if message.error:
                raise EngineError(engine.host, f"{engine.host}: {printable(message.error)}")
            say(printable(f"{message.status} {message.id} {message.progress}"))
    except EngineError as error:
        by_hand = engine.by_hand("pull", image.name)
        mend = f"does the image {image.name} exist, and may {engine.host} pull it?   {by_hand}"
        raise EngineError(engine.host, f"{error}\n  {mend}") from error


def _step(line: str) -> str | None:
    if match := _STEP.match(line):
        return f"step {match[1] or match[3]}: {match[2] or match[4]}"
    download = _DOWNLOAD.match(line)
    return f"pip: {download[1]}" if download else None


def _failed(engine: DockerEngine, image: Image, lines: Sequence[str], build: BuildOptions) -> EngineError:
    own = _TORCH_INDEX.search(image.dockerfile or "")
    failure = build_failure(lines, engine.host, indexes(own[1] if own else None, build))
    text = "\n".join(f"  | {line}" for line in failure.lines)
    why = f": {failure.what}" if failure.what else ""
    return EngineError(
        engine.host, f"{engine.host}: the build of {image.name} failed{why}\n{text}\n  {failure.mend}"
    )


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
