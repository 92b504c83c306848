"""From profile, host and job to the plan."""

from __future__ import annotations

from typing import Literal

from launcher.planning.image import image
from launcher.planning.ladder import Mode, ladder
from launcher.planning.split import split
from launcher.spec.host import Host
from launcher.spec.job import Job
from launcher.spec.plan import Plan, Source
from launcher.spec.profile import Profile


def plan(
    profile: Profile,
    host: Host,
    job: Job,
    mode: Mode = "auto",
    runtime: Literal["docker", "native"] = "native",
    template: str = "",
) -> Plan:
    """Return the plan. Pure: the same inputs give the same bytes. `template` is the Dockerfile's, for docker.

    Raises RefusedError when the card excludes the precision asked for, or a container, or the cards cannot share the
    global batch.
    """
    data = {name: source(value) for name, value in job.data if value is not None}
    return Plan(
        job=job.name,
        host=host.name,
        profile=profile,
        runtime=runtime,
        image=image(profile, job, host.build, template) if runtime == "docker" else None,
        env=host.env,
        command=job.command,
        requirements=job.requirements,
        model=source(job.model) if job.model is not None else None,
        data=data,
        method=job.method,
        steps=job.steps,
        seed=job.seed,
        save_every_steps=job.save_every_steps,
        loader_workers=job.loader_workers,
        settings=job.settings,
        secrets=tuple(sorted(set(job.secrets))),
        ladder=ladder(profile, job.method, mode),
        split=split(profile, job.batch),
        attempts=job.attempts,
        restart=job.restart,
        stop_grace_s=job.stop_grace_s,
    )


def source(written: str) -> Source:
    """Tell a path here (`./x`, `/x`, `~/x`) from one on the host (`host:/x`) and from a word for the script.

    `hub:org/name` is the word `org/name`, whatever it looks like.
    """
    if written.startswith("host:"):
        return Source(kind="host", value=written.removeprefix("host:"))
    if written.startswith(("./", "../", "/", "~")) or written in (".", ".."):
        return Source(kind="local", value=written)
    return Source(kind="name", value=written.removeprefix("hub:"))
