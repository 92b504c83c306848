"""Images on a host's engine: found, pulled or built there, once however many ask."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from launcher.errors import EngineError, RefusedError
from launcher.hosts import Agent
from launcher.hosts.agent import printable
from launcher.hosts.agent_file import torch_check
from launcher.planning import build_failure, buildkit, classic, unfit, verifiable_torch
from launcher.runtimes.docker.container import LABEL_ROOT
from launcher.runtimes.docker.engine import Engine, ListedImage
from launcher.runtimes.making import Lines, alone, encoded
from launcher.runtimes.runtime import Say
from launcher.values.image import BuildOptions, Image
from launcher.values.packages import Packages
from launcher.values.plan import Plan

LABEL_IMAGE = "launcher.image"
"""The Dockerfile's own, with the digest of its content."""
ANSWER = "launch-check "
_OURS = re.compile(r"launcher/[a-z0-9._-]+:([0-9a-f]{12})")
KEPT_LINES = 400
_STEP = re.compile(r"#\d+ \[\s*(?:\S+ )?(\d+/\d+)\] (.*)|Step (\d+/\d+) : ((?:FROM|COPY|RUN) .*)")
"""BuildKit's and the classic builder's; the latter counts settings as steps, which are none worth showing."""


def provide(agent: Agent, engine: Engine, plan: Plan, settings: BuildOptions, say: Say) -> str:
    """See that the engine has the plan's image; return where it came from.

    One launch at a time makes an image; the others wait for it. Its lock is held by the agent on the host, and goes
    with its client. Raises EngineError.
    """
    image = plan.image
    if image is None:
        raise ValueError("the plan has no image")
    if (found := engine.image_id(image.name)) is not None:
        _prove(agent, engine, plan, settings, found, say)
        return f"{image.name}, there"
    name = "image-" + re.sub(r"[^a-z0-9]+", "-", image.name.lower())[-60:].strip("-")
    with alone(agent, name, image.name, say) as answer:
        if (found := engine.image_id(image.name)) is not None:
            _prove(agent, engine, plan, settings, found, say)
            return f"{image.name}, made by another launch"
        began = time.monotonic()
        if image.dockerfile is None:
            _pull(engine, image, say)
            made = f"pulled in {time.monotonic() - began:.0f} s"
        else:
            builder = _build(agent, engine, image, settings, str(answer.values.get("root")), say)
            made = f"built in {time.monotonic() - began:.0f} s ({builder})"
        found = engine.image_id(image.name)
        if found is None:
            raise EngineError(engine.host, f"{engine.host}: {image.name} was {made}, and is gone")
        _prove(agent, engine, plan, settings, found, say)
        return f"{image.name}, {made}"


def _prove(agent: Agent, engine: Engine, plan: Plan, settings: BuildOptions, image_id: str, say: Say) -> None:
    """See that what is in an image runs on the card and fits together, by what its own Python says; asked once an image.

    One of ours that does not is removed. Raises RefusedError, EngineError.
    """
    image = plan.image
    assert image is not None  # noqa: S101 - it was made or found just now
    told = agent.call("packages", image=image_id).values.get("told")
    if told is None:
        say(f"{image.name}: is it sound?")
        told = _asked(engine, image)
        if (
            told is None
        ):  # without Python or its packages there is nothing to be said; the start says what is missing
            return
        agent.call("packages", json.dumps(told).encode(), image=image_id)
    try:
        packages = Packages.model_validate(told)
    except ValidationError as error:
        raise EngineError(engine.host, f"{engine.host}: {image.name} did not say what is in it") from error
    chosen = verifiable_torch(image.torch, settings)
    problems = unfit(packages, None if plan.rehearsed else plan.profile, chosen, image.requirements)
    if not problems:
        return
    if image.dockerfile is not None:
        with contextlib.suppress(
            EngineError
        ):  # a container that somebody made of it keeps it; this is what matters
            engine.remove_image(image.name)
    lines = "\n".join(f"  {printable(problem)}" for problem in problems)
    mend = (
        "  another torch in the job's requirements"
        if image.dockerfile is not None
        else "  another image = … in the job"
    )
    raise RefusedError(f"{engine.host}: {image.name} is not for a {plan.profile.title}:\n{lines}\n{mend}")


def _asked(engine: Engine, image: Image) -> object:
    """Return what an image's Python says of its packages, None where it has no Python. Raises EngineError."""
    try:
        said = engine.ask(image.name, ["python3", "-c", torch_check()])
    except EngineError as error:
        if image.dockerfile is None and "python3" in str(error):
            return None
        raise
    answers = [line.partition(ANSWER)[2] for line in said.splitlines() if line.startswith(ANSWER)]
    if not answers:
        words = printable(" ".join(said.split()))[-500:] or "it said nothing"
        raise EngineError(engine.host, f"{engine.host}: {image.name} does not say what is in it: {words}")
    try:
        return json.loads(answers[-1])
    except ValueError as error:
        raise EngineError(engine.host, f"{engine.host}: {image.name} does not say what is in it") from error


def check(agent: Agent, engine: Engine, plan: Plan, settings: BuildOptions) -> None:
    """See that the plan's image is there or can be made. Raises RefusedError for what only a credential would open."""
    image = plan.image
    if image is None or image.dockerfile is None or engine.image_id(image.name) is not None:
        return
    if not _has_buildkit(agent, engine):
        classic(image, settings)


class Held(NamedTuple):
    """An image of ours on an engine: its name, its bytes, when it was made, and how many containers use it."""

    name: str
    bytes: int
    created: float
    containers: int


def held(engine: Engine, root: str | None = None) -> list[Held]:
    """Return the images that launch built on an engine, or those that a root of ours did; the latest first.

    An image is ours by the digest in its name, which its label repeats: an image that somebody built from ours inherits
    the label, but not the name.
    """
    used = Counter(one.image for one in engine.containers())
    found = [
        Held(name, one.bytes, one.created, used[one.id])
        for one in engine.images(LABEL_IMAGE)
        if root is None or (one.labels or {}).get(LABEL_ROOT) == root
        for name in one.names or ()
        if _is_ours(name, one)
    ]
    return sorted(found, key=lambda one: -one.created)


def unneeded(of_root: Collection[Held], named: Collection[str]) -> list[Held]:
    """Return those images that no run names and no container uses."""
    return [one for one in of_root if one.containers == 0 and one.name not in named]


def _is_ours(name: str, image: ListedImage) -> bool:
    found = _OURS.fullmatch(name)
    return found is not None and (image.labels or {}).get(LABEL_IMAGE, "")[:12] == found[1]


def _has_buildkit(agent: Agent, engine: Engine) -> bool:
    told = agent.call("builder", engine=engine.way.model_dump(), deadline_s=60.0).values
    return told.get("buildkit") is True


def _build(agent: Agent, engine: Engine, image: Image, settings: BuildOptions, root: str, say: Say) -> str:
    """Build an image on the host; return by what. Raises EngineError with the last lines of what failed."""
    labels = {LABEL_ROOT: root}
    if _has_buildkit(agent, engine):
        _build_with_buildkit(agent, engine, image, settings, labels, say)
        return "BuildKit"
    _build_classic(engine, image, settings, labels, say)
    return "classic builder"


def _build_with_buildkit(
    agent: Agent, engine: Engine, image: Image, settings: BuildOptions, labels: dict[str, str], say: Say
) -> None:
    recipe = buildkit(image, settings)
    payload = {"files": encoded(recipe.files), "secrets": encoded(recipe.secrets)}
    lines = Lines(say, _step, KEPT_LINES)
    answer = agent.execute(
        "build",
        json.dumps(payload).encode(),
        lambda _, data: lines.take(data),
        lambda: False,
        engine=engine.way.model_dump(),
        tag=image.name,
        labels=labels,
        network=settings.network,
        arguments=recipe.arguments,
    )
    if answer.values.get("exit") != 0:
        raise _failed(engine, image, lines.last())


def _build_classic(
    engine: Engine, image: Image, settings: BuildOptions, labels: dict[str, str], say: Say
) -> None:
    recipe = classic(image, settings)
    lines = Lines(say, _step, KEPT_LINES)
    options = {"buildargs": recipe.arguments, "network_mode": settings.network, "labels": labels}
    for message in engine.build(_tar(recipe.files), tag=image.name, **options):
        lines.take((message.stream or message.error).encode())
        if message.error:
            raise _failed(engine, image, lines.last())


def _pull(engine: Engine, image: Image, say: Say) -> None:
    try:
        for message in engine.pull(image.name):
            if message.error:
                raise EngineError(engine.host, f"{engine.host}: {printable(message.error)}")
            say(printable(f"{message.status} {message.id} {message.progress}"))
    except EngineError as error:
        by_hand = engine.by_hand("pull", image.name)
        mend = f"is there an image {image.name}, and may {engine.host} have it?   {by_hand}"
        raise EngineError(engine.host, f"{error}\n  {mend}") from error


def _step(line: str) -> str | None:
    found = _STEP.match(line)
    return f"step {found[1] or found[3]}: {found[2] or found[4]}" if found else None


def _failed(engine: Engine, image: Image, lines: Sequence[str]) -> EngineError:
    found = build_failure(lines, engine.host)
    text = "\n".join(f"  | {line}" for line in found.lines)
    why = f": {found.what}" if found.what else ""
    return EngineError(
        engine.host, f"{engine.host}: the build of {image.name} failed{why}\n{text}\n  {found.mend}"
    )


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
