"""Find the packages of a job that names none, from its folder. Only the first source found is used.

1. the block `# /// script` in the command's script (PEP 723)
2. `requirements.txt`
3. `uv.lock`, exported by uv, if uv is installed here
4. `[project]` in `pyproject.toml`

`--with` adds to them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import PydanticCustomError

from launcher.backends.registry import backend_of
from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MAX_BYTES, TomlTable, parse_toml, read_text, read_toml
from launcher.config.resolve import Task
from launcher.errors import BadFileError, UsageError
from launcher.planning.precision.quantizer import with_quantizer
from launcher.planning.script.script import script_of
from launcher.upload.named_paths import refuse_link_out
from launcher.values.host import Host
from launcher.values.plan import Finding
from launcher.values.software.requirement import normalized, package_of, requirement_text

if TYPE_CHECKING:
    from launcher.config.requirement_file import RequirementFile

REQUIREMENTS = "requirements.txt"
LOCK = "uv.lock"
PROJECT = "pyproject.toml"
WITH = "--with"
_BLOCK = re.compile(r"(?m)^# /// script[ \t]*$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///[ \t]*$")
_NEEDS_NONE = frozenset(
    [
        "cat",
        "date",
        "df",
        "dir",
        "du",
        "echo",
        "false",
        "find",
        "free",
        "getconf",
        "head",
        "hostname",
        "id",
        "ip",
        "ldd",
        "ls",
        "lscpu",
        "lsblk",
        "mount",
        "nproc",
        "nvcc",
        "nvidia-smi",
        "printenv",
        "ps",
        "pwd",
        "rocm-smi",
        "sleep",
        "stat",
        "tail",
        "test",
        "true",
        "ulimit",
        "uname",
        "uptime",
        "wc",
        "which",
        "whoami",
    ]
)
"""Programs that inspect a host. They need no environment."""
_OF_TORCH = re.compile(
    r"nvidia-(?:cublas|cuda-(?:cupti|nvrtc|runtime)|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|nvjitlink"
    r"|nvshmem|nvtx)(?:-cu[0-9]+)?|triton|pytorch-triton|cuda-(?:bindings|pathfinder|toolkit)"
)
"""Packages that are installed with a build of torch. A version pinned in a file belongs to another build."""
_OF_PYTORCH = re.compile(r"https?://download\.pytorch\.org/")
_OF_PYPI = re.compile(r"https?://pypi\.(?:org|python\.org)/simple/?")
_EXPORT = (
    "export",
    "--frozen",
    "--no-dev",
    "--no-hashes",
    "--no-emit-project",
    "--no-header",
    "--no-annotate",
    "--no-config",
    "--offline",
    "--no-cache",
)
EXPORT_S = 20.0


class Packages(NamedTuple):
    """Requirements, their source, and findings about them."""

    requirements: tuple[str, ...]
    origin: str
    findings: tuple[Finding, ...] = ()


def with_packages(task: Task, host: Host, added: Sequence[str]) -> Task:
    """Return a task with the packages of its folder, if its job names none, and those of --with.

    A host with a configured environment keeps that environment's packages: of the job's packages, only those
    requested by name are checked in it. Raises BadFileError for a file that cannot be read as packages,
    UsageError for --with.
    """
    wanted = [_checked_word(word) for word in added]
    job = task.job
    has_image = backend_of(host).planning.image(job, host) is not None
    if has_image and wanted:
        raise UsageError("--with: the job names an image, and launch installs nothing into it")
    is_named = task.names_packages or has_image
    if is_named or (PurePosixPath(job.command[0]).name in _NEEDS_NONE and not wanted):
        packages = Packages(job.requirements, "")
    elif host.environment is not None:
        packages = Packages((), "", tuple(_unused(task, host)))
    else:
        packages = found(task, host) or Packages((), "")
    names = {package_of(one) for one in wanted}
    kept = [one for one in packages.requirements if package_of(one) not in names]
    origin = " and ".join(filter(None, (packages.origin, WITH if wanted else "")))
    requirements = (*kept, *wanted) if has_image else with_quantizer((*kept, *wanted), job.method)
    job = job.model_copy(update={"requirements": requirements})
    return task._replace(job=job, packages_from=origin or None, package_findings=packages.findings)


def _checked_word(word: str) -> str:
    try:
        return requirement_text(word)
    except PydanticCustomError as error:
        raise UsageError(f"--with: {error.message()}") from error
    except ValueError as error:
        raise UsageError(f"--with {word}: {error}") from error


def _unused(task: Task, host: Host) -> Iterator[Finding]:
    names = (REQUIREMENTS, LOCK, PROJECT)
    if name := next((one for one in names if (task.code / one).is_file()), None):
        message = f"{name} is not used: {host.name} names its own environment, {host.environment}"
        yield Finding(level="note", code="packages-unused", message=message)


def found(task: Task, host: Host) -> Packages | None:
    """Return the packages of the first source in a task's folder; None without any."""
    block = _of_script(task)
    if block is not None:
        return block
    for name in (REQUIREMENTS, LOCK, PROJECT):
        if (task.code / name).is_file():
            refuse_link_out(task.code / name)
    if (task.code / REQUIREMENTS).is_file():
        from launcher.config import requirement_file  # many folders have none

        read = requirement_file.read(task.code / REQUIREMENTS, task.code)
        return _of_file(read, REQUIREMENTS, task, host)
    project = _project(task.code)
    lock = _of_lock(task, host) if (task.code / LOCK).is_file() else None
    if lock is not None or project is None:
        return lock
    notes = []
    if (task.code / LOCK).is_file():
        message = (
            f"{LOCK} is not used: uv is not installed here; the versions are those that {PROJECT} allows"
        )
        mend = f"install uv, or   uv export --no-hashes -o {REQUIREMENTS}"
        notes = [Finding(level="note", code="lock-unused", message=message, mend=mend)]
    return project._replace(findings=(*notes, *project.findings))


def _of_script(task: Task) -> Packages | None:
    """Return the packages of the block in the command's script (PEP 723)."""
    script = script_of(task.job.command)
    if script is None or script.is_module or not (task.code / script.path).is_file():
        return None
    try:
        data = read_bounded(task.code / script.path, MAX_BYTES, cuts=True)
    except (OSError, BadFileError):
        return None  # the script's own check reports an unreadable file
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    blocks = list(_BLOCK.finditer(text))
    if not blocks:
        return None
    where = f"{script.path}: its block '# /// script'"
    if len(blocks) > 1:
        raise BadFileError(f"{where} occurs twice")
    lines = blocks[0]["content"].splitlines()
    content = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    table = parse_toml(content, where)
    names = _checked(table.get("dependencies", []), f"{where}: dependencies")
    notes = [*_of_uv_alone(table, where), *_of_python(table, script.path)]
    return Packages(names, f"the script block of {script.path}", tuple(notes))


def _of_python(table: TomlTable, where: str) -> Iterator[Finding]:
    """Yield a note on the Python versions that a script requires."""
    if wanted := table.get("requires-python"):
        message = f"{where}: requires-python {wanted}: not checked; the host's own Python is used"
        yield Finding(level="note", code="packages-adapted", message=message)


def _project(folder: Path) -> Packages | None:
    """Return the dependencies of the project in a folder; None if it declares none."""
    path = folder / PROJECT
    if not path.is_file():
        return None
    table = read_toml(path).tables
    project = table.get("project")
    if not isinstance(project, dict):
        return None
    if "dependencies" in _list(project, "dynamic", "project.dynamic"):
        message = f"{PROJECT}: its dependencies are dynamic, and are not read"
        mend = f"name them   --with NAME     or in   {REQUIREMENTS}"
        note = Finding(level="note", code="packages-unused", message=message, mend=mend)
        return Packages((), "", (note,))
    names = _of_project(project, project.get("dependencies", []), "project.dependencies")
    return Packages(names, PROJECT, tuple(_of_uv_alone(table, PROJECT)))


def _of_project(project: TomlTable, written: object, key: str) -> tuple[str, ...]:
    """Return requirements of a project, without the project itself."""
    own = normalized(str(project.get("name", "")))
    names = _checked(written, f"{PROJECT}: {key}")
    return tuple(one for one in names if package_of(one) != own)


def _checked(written: object, where: str) -> tuple[str, ...]:
    if not isinstance(written, list) or not all(isinstance(one, str) for one in written):
        raise BadFileError(f"{where}: expected a list of requirements")
    names = []
    for one in written:
        try:
            names.append(requirement_text(one))
        except PydanticCustomError as error:
            raise BadFileError(f"{where}: one {error.message()}") from error
        except ValueError as error:
            raise BadFileError(f"{where}: {one}: {error}") from error
    return tuple(names)


def _table(table: TomlTable, key: str, where: str) -> TomlTable:
    """Return a table within a table; empty if it is missing.

    Raises BadFileError for another type of value.
    """
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise BadFileError(f"{where}: {key}: expected a table")
    return value


def _list(table: TomlTable, key: str, name: str) -> list[Any]:
    value = table.get(key, [])
    if not isinstance(value, list):
        raise BadFileError(f"{PROJECT}: {name}: expected a list")
    return value


def _of_uv_alone(table: TomlTable, where: str) -> Iterator[Finding]:
    """Yield a note on sources and indexes that only uv reads."""
    uv = _table(_table(table, "tool", where), "uv", where)
    if keys := [f"tool.uv.{key}" for key in ("sources", "index") if uv.get(key)]:
        message = f"{where}: {', '.join(keys)}: not read; packages come from the host's index"
        mend = 'a package from git   "NAME @ git+https://…"     an index   pip_conf = … in [hosts.NAME.build]'
        yield Finding(level="note", code="packages-elsewhere", message=message, mend=mend)


def _of_lock(task: Task, host: Host) -> Packages | None:
    """Return the packages that uv exports from a lock; None if uv is not installed here.

    Raises BadFileError if uv fails.
    """
    uv = shutil.which("uv")
    if uv is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        from launcher.config import requirement_file

        path = Path(folder) / LOCK
        for name in (LOCK, PROJECT):  # only these files: uv.toml and others in the folder are untrusted
            if (task.code / name).is_file():
                (Path(folder) / name).write_text(read_text(task.code / name))
        path.write_text(_exported(uv, folder))
        return _of_file(requirement_file.read(path, Path(folder)), LOCK, task, host)


def _exported(uv: str, folder: str) -> str:
    """Return the requirements that uv exports from the lock in a folder, without uv's settings.

    Raises BadFileError.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    try:
        done = subprocess.run(
            [uv, *_EXPORT],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=EXPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BadFileError(f"{LOCK}: uv export took more than {EXPORT_S:g} s") from error
    except OSError as error:
        raise BadFileError(f"{LOCK}: uv export: {error}") from error
    if done.returncode != 0:
        said = "\n  | ".join(done.stderr.strip().splitlines()[-5:])
        raise BadFileError(f"{LOCK}: uv export failed:\n  | {said}\n  write it again   uv lock")
    return done.stdout


def _of_file(read: RequirementFile, name: str, task: Task, host: Host) -> Packages:
    """Return the packages of a requirements file, with notes on its unused parts."""
    from launcher.config import requirement_file

    requirements = read.requirements
    notes: list[Finding] = []
    if read.extras is not None:
        requirements += _of_folder(task.code, read.extras, name)
        notes.append(_imported_from_folder(task.code, name))
    requirements, unused = requirement_file.constrained(requirements, read.constraints)
    of_torch = [one for one in requirements if _OF_TORCH.fullmatch(package_of(one))]
    for what, why in (
        (unused, "constraints on packages that the file does not name are not read"),
        (read.ignored, "options of pip that are not used"),
        (
            ("--hash",) if read.is_hashed else (),
            "hashes are not checked, because torch's build is chosen for the card",
        ),
        (of_torch, "left to the build of torch that is chosen for the card"),
    ):
        if what:
            message = f"{name}: {_named(what)}: {why}"
            notes.append(Finding(level="note", code="packages-adapted", message=message))
    notes += _indexes(read.indexes, name, host)
    kept = tuple(one for one in requirements if one not in of_torch)
    return Packages(kept, name, tuple(notes))


def _named(what: Sequence[str]) -> str:
    shown = ", ".join(what[:3])
    return f"{shown}, +{len(what) - 3}" if len(what) > 3 else shown


def _of_folder(folder: Path, extras: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the dependencies of the project in the folder itself, with some of its extras."""
    path = folder / PROJECT
    table = read_toml(path).tables.get("project") if path.is_file() else None
    if not isinstance(table, dict) or "dependencies" in _list(table, "dynamic", "project.dynamic"):
        mend = f"list them in {name} instead; code in the folder needs no requirement"
        raise BadFileError(
            f"{name}: the folder itself is required, and no {PROJECT} lists its dependencies\n  {mend}"
        )
    names = _of_project(table, table.get("dependencies", []), "project.dependencies")
    optional = _table(table, "optional-dependencies", PROJECT)
    for extra in extras:
        if extra not in optional:
            raise BadFileError(f"{name}: .[{extra}]: {PROJECT} has no such extra")
        names += _of_project(table, optional[extra], f"project.optional-dependencies.{extra}")
    return names


def _imported_from_folder(folder: Path, name: str) -> Finding:
    message = (
        f"{name}: the folder itself is not installed: it is sent with the code, and imported from its place"
    )
    mend = "its packages are in src/   -e PYTHONPATH=src" if (folder / "src").is_dir() else ""
    return Finding(level="note", code="packages-adapted", message=message, mend=mend)


def _indexes(lines: Sequence[str], name: str, host: Host) -> Iterator[Finding]:
    """Yield findings about the indexes that a file names. A host uses only the index of its pip_conf.

    A private index is never dropped silently, because its package could be a different one on PyPI.
    """
    others = []
    for line in lines:
        option, _, url = line.partition(" ")
        if option == "--trusted-host" or _OF_PYPI.fullmatch(url):
            continue
        if _OF_PYTORCH.match(url):
            message = f"{name}: {line}: torch comes from the index of the build that is chosen for the card"
            yield Finding(level="note", code="packages-adapted", message=message)
        else:
            others.append(option)
    if not others:
        return
    level = "note" if host.build.pip_conf is not None else "refuse"
    message = (
        f"{name}: {', '.join(dict.fromkeys(others))}: a host's index is not taken from a file of requirements"
    )
    if level == "note":
        yield Finding(level="note", code="index-of-host", message=f"{message}, but from its pip_conf")
        return
    mend = f'pip_conf = "pip.conf" in [hosts.{host.name}.build], with the index; or take the line out'
    yield Finding(level="refuse", code="index-of-host", message=message, mend=mend)
