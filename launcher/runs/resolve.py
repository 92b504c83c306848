"""Resolve names and files to values: the host, the profiles and the job of a command line."""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.errors import BadFileError, UnknownNameError, UsageError
from launcher.hosts.ssh_config import names_and_patterns
from launcher.planning import Sources
from launcher.planning.offers import PROPOSED_HOURS
from launcher.runs import local_paths
from launcher.runs.catalogue import file as catalogued
from launcher.runs.catalogue import files, user_folder, user_folder_text
from launcher.runtimes import names as runtime_names
from launcher.values.host import KAGGLE, LOCAL, Host, runtime_objection
from launcher.values.host_table import read_host
from launcher.values.image import Build
from launcher.values.job import Job
from launcher.values.lambda_settings import CONFIRM_ABOVE
from launcher.values.parsing import build, nearest, unknown_name
from launcher.values.plan import Finding
from launcher.values.profile import NAME, Profile
from launcher.values.toml import parse_toml, read_text, read_toml
from launcher.values.wheels import WheelTable

PROJECT_FILE = Path("launch.toml")
DEFAULT_JOB = "sft"
LAMBDA = "lambda"
"""The name that an account at Lambda Cloud would have; without a table it is no host, since money needs a limit."""
_ADDRESS = re.compile(
    r"(?=.*[@.:])(?:(?P<user>[\w.-]+)@)?(?P<address>\w[\w.-]*|\[[0-9a-fA-F:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
"""An address: it has a user, a dot or a port, by which it differs from a name."""


class Project(NamedTuple):
    """The defaults in `launch.toml` of the working directory; all are optional. `on_end` is as in a job."""

    host: str | None
    profile: str | None
    job: str | None
    on_end: str | list[str] | None


class Task(NamedTuple):
    """A job, the folder that is sent, and the folder that its file's paths are relative to.

    `file` is the job's file, None for the words after `--`; `declared` are the names of the settings in it. `changed` are
    the keys given by --set, whose paths are relative to the working directory. `inferred` are the keys whose value is a
    path because it exists here: `models/tiny`. `said` reports a default that was chosen for the user. `names_packages`
    is whether the job itself has requirements, else `packages_from` says where they are from, and `package_findings` what
    was left out of them.
    """

    job: Job
    code: Path
    base: Path
    changed: frozenset[str]
    said: str | None
    file: Path | None = None
    declared: tuple[str, ...] = ()
    inferred: frozenset[str] = frozenset()
    names_packages: bool = False
    packages_from: str | None = None
    package_findings: tuple[Finding, ...] = ()

    def folder_of(self, key: str) -> Path:
        """Return the folder that the path of a key such as `model` or `data.train` is relative to."""
        is_changed = key in self.changed or key.partition(".")[0] in self.changed
        return Path.cwd() if is_changed else self.base

    def locate(self, key: str, written: str) -> Path:
        """Return the path here that a key such as `model` or `data.train` means."""
        return self.folder_of(key) / os.path.expanduser(written)


def project() -> Project:
    """Read the defaults of `launch.toml`. Raises BadFileError for keys it may not hold."""
    data, _ = _project_tables()
    words = {key: data.get(key) for key in ("host", "profile", "job")}
    for key, value in words.items():
        if value is not None and not isinstance(value, str):
            raise BadFileError(f"{PROJECT_FILE}: {key} = {value!r}: expected text")
    return Project(**words, on_end=data.get("on_end"))


def hosts() -> dict[str, Host]:
    """Return every host of the files, and `local`; not `kaggle`, which is one without any file."""
    found = {"local": LOCAL}
    for path, (data, text) in (
        (user_folder() / "hosts.toml", _tables(user_folder() / "hosts.toml", {"hosts"})),
        (PROJECT_FILE, _project_tables()),
    ):
        tables = data.get("hosts", {})
        if not isinstance(tables, dict):
            raise BadFileError(f"{path}: hosts: expected tables [hosts.NAME]")
        for name, written in tables.items():
            if not isinstance(written, dict):
                raise BadFileError(f"{path}: hosts.{name}: expected a table [hosts.{name}]")
            one = read_host(name, written, is_here=name == "local", file=str(path), text=text)
            if path == PROJECT_FILE:
                _refuse_what_is_your_own(one)
            check_runtime(one.runtime, f'{path}: hosts.{name}.runtime = "{one.runtime}"')
            found[name] = one.model_copy(
                update={"environment": _environment(one, path), "build": _build(one.build, path)}
            )
    return found


def host(name: str | None) -> Host:
    """Return the host of this name: from a file, an alias of ~/.ssh/config, `kaggle`, or an address like user@machine:port.

    None means the project's default, else this machine. Raises UnknownNameError with the nearest name.
    """
    known = hosts()
    wanted = name or project().host or "local"
    if wanted in known:
        return known[wanted]
    names, patterns = names_and_patterns()
    is_plain = not re.search(r"[*?!]", wanted)
    if wanted in names or (is_plain and any(fnmatch.fnmatchcase(wanted, one) for one in patterns)):
        return build(Host, {"name": wanted, "address": wanted}, file="--host")
    if wanted == KAGGLE.name:
        return KAGGLE
    if wanted == LAMBDA:
        raise UnknownNameError(_no_table())
    if found := _ADDRESS.fullmatch(wanted):
        table = {"name": wanted, "address": found["address"].strip("[]"), "user": found["user"]}
        port = int(found["port"]) if found["port"] else None
        return build(Host, {**table, "port": port}, file="--host")
    raise unknown_name(
        "host",
        wanted,
        [*known, *names, KAGGLE.name],
        looked_in=f"launch.toml, {user_folder_text()}/hosts.toml, ~/.ssh/config",
    )


def _no_table() -> str:
    """Say what to write so that machines are rented: what that may cost has no default."""
    return (
        f"{LAMBDA} has no table here, and no alias of ~/.ssh/config is called so\n"
        f"  to rent machines at Lambda Cloud, write into {user_folder_text()}/hosts.toml\n"
        f"    [hosts.{LAMBDA}]\n"
        '    kind = "lambda-cloud"\n'
        f"    max_hours = {PROPOSED_HOURS}           # or max_cost = 20, in dollars: the most that one rental may take\n"
        "  what an hour costs   launch offers     a machine of your own   address = …  instead of  kind"
    )


def check_runtime(name: str, where: str) -> None:
    """Raise BadFileError for an unknown runtime; `where` says where its name is written."""
    known = ["auto", *runtime_names()]
    if name not in known:
        given = "" if name in where else f" {name}"
        raise BadFileError(f"{where}{given}: expected {', '.join(known)}{nearest(name, known)}")


def with_runtime(host: Host, name: str) -> Host:
    """Return a host with the runtime of a command line. Raises BadFileError for one that it cannot have."""
    check_runtime(name, "--runtime")
    if objection := runtime_objection(host.kind, name):
        raise BadFileError(f"--runtime {name}: {objection}")
    return host.model_copy(update={"runtime": name})


def aliases() -> list[str]:
    """Return the plain names of ssh's configuration, each of which is a host."""
    return names_and_patterns()[0]


def profiles() -> dict[str, Profile]:
    """Return all profiles by name; the user's own replace ours."""
    found: dict[str, Profile] = {}
    for name, path in files("profiles").items():
        data, text = read_toml(path)
        found[name] = build(Profile, data, file=str(path), text=text)
        if found[name].name != name:
            raise BadFileError(f"{path}: name = \"{found[name].name}\": the file's name says '{name}'")
    return found


def profiles_meant(name: str) -> tuple[Profile, ...]:
    """Return the profile of this name, else all whose names begin with it and `_`: a100 is a100_40gb or a100_80gb.

    Raises UnknownNameError with the nearest name.
    """
    known = profiles()
    if name in known:
        return (known[name],)
    family = tuple(one for key, one in known.items() if key.startswith(f"{name}_"))
    if family:
        return family
    raise unknown_name("profile", name, known, looked_in=f"profiles/, {user_folder_text()}/profiles/, ours")


def profile(name: str) -> Profile:
    """Return the one profile that a name means. Raises UnknownNameError with the nearest name, or with all it means."""
    one, *others = profiles_meant(name)
    if others:
        names = " or ".join(other.name for other in (one, *others))
        raise UnknownNameError(f"'{name}' means {names}: name one of them")
    return one


def template() -> tuple[str, Path]:
    """Return the template of images, and its file. Raises BadFileError when it cannot be read."""
    path = catalogued("images", "Dockerfile")
    return read_text(path), path


def image_sources() -> Sources:
    """Return the sources of images: the template, and the table of torch's builds. Raises BadFileError."""
    return Sources(template()[0], wheels())


def wheels() -> WheelTable:
    """Return the table of torch's builds. Raises BadFileError."""
    path = catalogued("images", "torch.toml")
    data, text = read_toml(path)
    return build(WheelTable, data, file=str(path), text=text)


def task(
    name: str | None,
    words: Sequence[str],
    settings: Iterable[str],
    run_name: str | None,
    variables: Mapping[str, str] | None = None,
) -> Task:
    """Return the job: `name` or a path, else the words after `--`, else the project's, else our `sft`.

    `settings` are KEY=VALUE changes, in TOML's notation; `variables` those of the command line. Raises UsageError or
    BadFileError.
    """
    if name and words:
        raise UsageError("--job and words after -- are two jobs: give one of them")
    written = _of_words(words) if words else _of_file(name)
    data, settings_of_file = written.data, written.data.get("settings")
    declared = tuple(settings_of_file) if isinstance(settings_of_file, dict) else ()
    if (on_end := project().on_end) is not None:
        data.setdefault("on_end", on_end)
    changed = frozenset(change(data, setting) for setting in settings)
    if variables:
        _change_table(data, "variables", variables)
    file = f"{written.title} with --set" if changed else written.title
    if run_name is not None:
        data["name"] = checked_name(run_name)
    job = build(Job, data, file=file, text="" if changed else written.text)
    base = written.file.parent.resolve() if written.file else Path.cwd()
    task = Task(job, Path.cwd(), base, changed, written.said, written.file, declared)
    task = task._replace(names_packages="requirements" in data)
    marked = local_paths.marked(job, task.folder_of)
    pairs = zip(local_paths.values_of(job), local_paths.values_of(marked), strict=True)
    task = task._replace(job=marked, inferred=frozenset(old[0] for old, new in pairs if old != new))
    if task.job.code is None:
        return task
    folder = task.locate("code", task.job.code)
    if not folder.is_dir():
        raise BadFileError(f'{file}: code = "{task.job.code}": {folder} is not a folder')
    return task._replace(code=folder.resolve())


class _WrittenJob(NamedTuple):
    """The tables of a job, its title for messages, its text and its file, and what to say about how it was chosen."""

    data: dict[str, Any]
    title: str
    text: str = ""
    file: Path | None = None
    said: str | None = None


def _of_words(words: Sequence[str]) -> _WrittenJob:
    return _WrittenJob({"name": name_of(words), "command": list(words)}, "the words after --")


def _of_file(name: str | None) -> _WrittenJob:
    """Return the job of a name or a path, else the project's, else our default."""
    chosen = name or project().job
    path = _job_file(chosen or DEFAULT_JOB)
    data, text = read_toml(path)
    said = None if chosen else f"no job named: our {DEFAULT_JOB} with the demo data"
    return _WrittenJob(data, str(path), text, path, said)


def checked_name(name: str) -> str:
    """Return a run's name from the command line. Raises UsageError for an invalid name."""
    if not re.fullmatch(NAME, name):
        raise UsageError(f"--name '{name}': expected small letters, digits, and . _ - between, 48 at most")
    return name


def _refuse_what_is_your_own(host: Host) -> None:
    """Refuse what a project's file may not say, which may come from someone else: where credentials go, and your money.

    Raises BadFileError.
    """
    cloud = host.lambda_cloud
    if host.kaggle is not None and not host.kaggle.is_kaggles_own:
        key, why = "api", "your credentials for Kaggle would go there"
    elif cloud is not None and not cloud.is_lambdas_own:
        key, why = "api", "your key for Lambda Cloud would go there"
    elif cloud is not None and cloud.confirm_above > CONFIRM_ABOVE:
        key, why = "confirm_above", "how much is spent without asking you is yours to say"
    else:
        return
    own = f"{user_folder_text()}/hosts.toml"
    raise BadFileError(f"{PROJECT_FILE}: hosts.{host.name}.{key}: {why}: write this table into {own}")


def _environment(host: Host, file: Path) -> str | None:
    """Return a host's `environment`; on this machine a path is relative to its file, elsewhere it must be absolute."""
    written = host.environment
    if not written or written.startswith(("/", "~")):
        return written
    here = (file.parent / written).absolute()
    if host.is_local and ("/" in written or here.is_dir()):
        return str(here)
    if "/" in written:
        raise BadFileError(
            f'{file}: hosts.{host.name}.environment = "{written}": expected an absolute path, ~/…, or a program\'s name'
        )
    return written


def _build(written: Build, file: Path) -> Build:
    """Return a build whose paths are absolute; in a file they are relative to it."""
    paths = {"pip_conf": written.pip_conf, "ca_bundle": written.ca_bundle}
    absolute = {
        key: str((file.parent / os.path.expanduser(path)).absolute()) for key, path in paths.items() if path
    }
    return written.model_copy(update=absolute)


def _job_file(name: str) -> Path:
    known = files("jobs")
    if name.endswith(".toml") or "/" in name:
        if not os.path.lexists(name):
            there = [str(path.with_suffix("")) for path in Path(name).parent.glob("*.toml")]
            match = difflib.get_close_matches(name.removesuffix(".toml"), there, n=1)
            guess = f": did you mean '{match[0]}.toml'?" if match else ""
            mend = f"jobs by name   {'   '.join(f'launch --job {one}' for one in known)}"
            raise BadFileError(f"{name}: cannot be read: no such file{guess}\n  {mend}")
        return Path(name)
    if name not in known:
        raise unknown_name("job", name, known, looked_in=f"jobs/, {user_folder_text()}/jobs/, ours")
    return known[name]


def name_of(words: Sequence[str]) -> str:
    """Name a job after its program: `python train.py --lr 1` is `train`."""
    program = next((word for word in words[1:] if word.endswith((".py", ".sh"))), words[0])
    return re.sub(r"[^a-z0-9_.-]+", "-", Path(program).stem.lower()).strip("-_.")[:24] or "job"


def change(data: dict[str, Any], setting: str) -> str:
    """Make one change KEY=VALUE, in TOML's notation, in a job's tables; return its key. Raises UsageError."""
    key, separator, written = setting.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+)*", key.strip()):
        raise UsageError(f"--set {setting}: expected KEY=VALUE, e.g. --set batch.global=32")
    try:
        value = parse_toml(f"value = {written}", "--set")["value"]
    except BadFileError:
        if re.fullmatch(r"[+-]?[1-9][0-9]{18,}", written.strip()):
            mend = f"as text   --set '{key.strip()}=\"{written.strip()}\"'"
            raise UsageError(f"--set {setting}: is a whole number of more than 64 bits\n  {mend}") from None
        value = written  # a bare word is text
    key = key.strip()
    *tables, last = key.split(".")
    for name in tables:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {key}: '{name}' is not a table")
    data[last] = value
    return key


def changed_values(settings: Iterable[str]) -> dict[str, Any]:
    """Return what KEY=VALUE changes say, as tables. Raises UsageError."""
    tables: dict[str, Any] = {}
    for setting in settings:
        change(tables, setting)
    return tables


def _change_table(data: dict[str, Any], name: str, values: Mapping[str, str]) -> None:
    """Set some values of a table in a job's tables. What should be a table and is not is left for its reader to refuse."""
    table = data.get(name, {})
    if isinstance(table, dict):
        data[name] = {**table, **values}


def _tables(path: Path, allowed: set[str]) -> tuple[dict[str, Any], str]:
    if not path.is_file():
        if os.path.lexists(path):
            raise BadFileError(f"{path}: is not a regular file")
        return {}, ""
    data, text = read_toml(path)
    for key in data:
        if key not in allowed:
            raise BadFileError(f"{path}: unknown key '{key}'\n  allowed: {', '.join(sorted(allowed))}")
    return data, text


def _project_tables() -> tuple[dict[str, Any], str]:
    return _tables(PROJECT_FILE, {"hosts", "host", "profile", "job", "on_end"})
