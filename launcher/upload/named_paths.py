"""Check the code, model and data paths that a job names, by the rules that apply inside the code folder."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG

from launcher.config.resolve import Task
from launcher.errors import BadFileError
from launcher.upload.default_exclusions import of_name
from launcher.upload.digests import Digests
from launcher.upload.launch_ignore import FILE, IgnoreVerdict, rules_for
from launcher.upload.refused_folders import homes, is_below, refusal
from launcher.values.plan import Finding
from launcher.values.upload_selection import ExclusionReason


def refusals(
    task: Task, local: Mapping[str, Path], hidden: Mapping[str, ExclusionReason], digests: Digests
) -> Iterator[Finding]:
    """Yield a finding for each path that must not be sent: the code folder, or a local path that the job names.

    `local` has the paths by their keys in the job, `hidden` the absolute paths to exclude. Raises
    BadFileError for an unreadable `.launchignore`.
    """
    found = refusal(task.code, "the folder to send")
    if found is None and task.job.code is not None:
        found = _link_out(task, "code", task.locate("code", task.job.code))
    if found is not None:
        yield found
    for key, path in local.items():
        mend = f"copy the needed files into the project's folder   --set {key}=./COPY"
        found = refusal(path, key, mend) or _secret(task, key, path, hidden, digests)
        found = found or _link_out(task, key, path)
        if found is not None:
            yield found


def _secret(
    task: Task, key: str, path: Path, hidden: Mapping[str, ExclusionReason], digests: Digests
) -> Finding | None:
    """Return the refusal of a path to a credential; None if a `.launchignore` includes it by name."""
    real = os.path.realpath(path)
    why = _why(os.path.abspath(path), hidden) or _why(real, hidden)
    if why is None:
        status = os.stat(real)
        if S_ISREG(status.st_mode) and digests.is_private_key(real, status):
            why = ExclusionReason.PRIVATE_KEY
    if why is None or _is_included(Path(real), task.code):
        return None
    folder, name = os.path.split(real)
    mend = (
        f"a job gets a secret as a variable   launch --secret NAME …\n"
        f"  if it is not a secret   echo {shlex.quote(f'!/{_escaped(name)}')} >> {shlex.quote(os.path.join(folder, FILE))}"
    )
    return _finding("secret-named", f"{key} is {_to(path, real)}, which is not sent ({why.value})", mend)


def _why(path: str, hidden: Mapping[str, ExclusionReason]) -> ExclusionReason | None:
    folder, name = os.path.split(path)
    why = hidden.get(path) or of_name(name, os.path.basename(folder), is_folder=os.path.isdir(path))
    return why if why is not None and why.is_secret else None


def _is_included(path: Path, code: Path) -> bool:
    """Return whether a `.launchignore` beside or above a path includes the path by name."""
    for rules in rules_for(path.parent, code):
        if (verdict := rules.verdict(path.name, is_folder=path.is_dir())) is not None:
            return verdict is IgnoreVerdict.IN_BY_NAME
    return False


def _link_out(task: Task, key: str, path: Path) -> Finding | None:
    """Return the refusal of a path that leaves the project through a link.

    A link that lies outside the project is the user's choice.
    """
    folders = {Path.cwd(), task.folder_of(key), *(() if key == "code" else (task.code,))}
    project = tuple({top for folder in folders for top in _tops(folder)})
    link = _first_link_out(path, project)
    if link is None:
        return None
    target = os.path.realpath(path)
    message = f"{key} is {_to(path, target)}: {link} is a link out of the project"
    return _finding("link-out", message, f"name its target   --set {key}={shlex.quote(target)}")


def refuse_link_out(path: Path) -> None:
    """Raise BadFileError if a path in the current project leaves it through a link.

    launcher would show and send the content of such a file.
    """
    if _first_link_out(path.absolute(), tuple(_tops(Path.cwd()))) is not None:
        raise BadFileError(
            f"{path}: is a link out of the project, to {os.path.realpath(path)}\n  copy the file here"
        )


def _first_link_out(path: Path, project: tuple[str, ...]) -> str | None:
    """Return the first link in an absolute path that lies in a project and leads out of it."""
    here = path.anchor
    for part in path.parts[1:]:
        link, here = os.path.join(here, part), os.path.realpath(os.path.join(here, part))
        if os.path.islink(link) and is_below(link, project) and not is_below(here, project):
            return link
    return None


def _tops(folder: Path) -> Iterator[str]:
    """Yield a folder, and the top of its git work tree.

    Skip a home and its parents: they are not projects.
    """
    folder = folder.resolve()
    work_tree = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    for top in (str(folder), str(work_tree)):
        if not any(is_below(home, (top,)) for home in homes()):
            yield top


def _escaped(name: str) -> str:
    return re.sub(r"([*?\[\\])", r"\\\1", name)


def _to(path: Path, real: str) -> str:
    return str(path) if str(path) == real else f"{path} -> {real}"


def _finding(code: str, message: str, mend: str) -> Finding:
    return Finding(level="refuse", code=code, message=message, mend=mend)
