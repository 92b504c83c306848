"""Build the command prefix that runs a job in an Apptainer image on a cluster. Pure.

docs/what-was-run.md records the tested versions.

    container_words("/shared/torch.sif", has_cards=True)
    ("apptainer", "exec", "--nv", "--bind", "{root}", "--bind", "{socket}", "--pwd", "{code}", "/shared/torch.sif")

The agent in the job replaces the words in braces by paths of its run, and appends the command. Apptainer
passes the variables on; the container also sees the home, /tmp and the processes of the node.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.values.job import Job

ROOT, SOCKET, CODE = "{root}", "{socket}", "{code}"
"""Placeholders that the agent replaces: the root, the folder of the workers' socket, and the run's code."""


def container_words(image: str, *, has_cards: bool, paths: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the command prefix for a job in this image. `paths` on the cluster are visible inside too."""
    binds = [word for path in (ROOT, SOCKET, *dict.fromkeys(paths)) for word in ("--bind", path)]
    return ("apptainer", "exec", *(("--nv",) if has_cards else ()), *binds, "--pwd", CODE, image)


def host_paths(job: Job) -> tuple[str, ...]:
    """Return a job's absolute paths on the cluster: its model, teacher and data."""
    written = [job.model, job.teacher, *(value for _, value in job.data)]
    paths = (
        value.removeprefix("host:") for value in written if value is not None and value.startswith("host:")
    )
    return tuple(path for path in paths if path.startswith("/"))
