"""The words that start a job's command in an image on a cluster, by Apptainer. Pure; docs/what-was-run.md says what ran it.

    container_words("/shared/torch.sif", has_cards=True)
    ("apptainer", "exec", "--nv", "--bind", "{root}", "--bind", "{socket}", "--pwd", "{code}", "/shared/torch.sif")

The agent in the job puts the paths of its run in place of the words in braces, and the command behind. Apptainer hands the
variables on, and has the home, /tmp and the processes of the node in the container besides.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.values.job import Job

ROOT, SOCKET, CODE = "{root}", "{socket}", "{code}"
"""What the agent replaces: the root, the folder of the socket that workers report to, and the run's code."""


def container_words(image: str, *, has_cards: bool, paths: Iterable[str] = ()) -> tuple[str, ...]:
    """Return what the command of a job in this image begins with; `paths` on the cluster are seen inside too."""
    binds = [word for path in (ROOT, SOCKET, *dict.fromkeys(paths)) for word in ("--bind", path)]
    return ("apptainer", "exec", *(("--nv",) if has_cards else ()), *binds, "--pwd", CODE, image)


def host_paths(job: Job) -> tuple[str, ...]:
    """Return the absolute paths on the cluster that a job names: its model, teacher and data."""
    written = [job.model, job.teacher, *(value for _, value in job.data)]
    paths = (
        value.removeprefix("host:") for value in written if value is not None and value.startswith("host:")
    )
    return tuple(path for path in paths if path.startswith("/"))
