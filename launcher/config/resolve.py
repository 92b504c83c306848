"""Read the job of a command line from files and options, its runtime, and the sources of images.

Hosts are read in `lookup.py`.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.base.toml import TomlTable, parse_toml, read_text, read_toml
from launcher.check.reading.script_use import BY_ADAPTATION, BY_THE_WORKER, worker_use
from launcher.config import local_paths, trust
from launcher.config.catalogue import file as catalogued
from launcher.config.catalogue import user_folder_text
from launcher.config.lookup import Lookup, check_runtime
from launcher.errors import BadFileError, UsageError
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.parsing import Advice, build, unknown_name
from launcher.values.plan import Finding
from launcher.values.profile import NAME, Profile

if TYPE_CHECKING:
    from launcher.planning.software.image_plan import Sources
    from launcher.planning.software.wheels import WheelTable

DEFAULT_JOB = "sft"


class Task(NamedTuple):
    """A job, the folder that is sent, and the folder that its file's paths are relative to.

    `file` is the job's file, None for the words after `--`; `declared` are the names of the settings in it.
    `changed` are the keys given by --set, whose paths are relative to the working directory. `inferred` are
    the keys whose value, such as `models/tiny`, counts as a path because it exists here. `said` reports a default
    that was chosen for the user. `names_packages`: the job itself lists requirements; otherwise `packages_from`
    names their source. `package_findings` reports the parts of that source that were left out.
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
        """Return the path here for the value of a key such as `model` or `data.train`."""
        return self.folder_of(key) / os.path.expanduser(written)


def cards() -> Iterator[Profile]:
    """Yield all profiles; the files are read when the first profile is requested."""
    yield from Lookup().profiles.values()


def with_runtime(host: Host, name: str) -> Host:
    """Return a host with the runtime of a command line.

    Raises BadFileError for a runtime that it cannot have.
    """
    check_runtime(name, "--runtime")
    if objection := host.runtime_objection(name):
        raise BadFileError(f"--runtime {name}: {objection}")
    return host.model_copy(update={"runtime": name})


def template() -> tuple[str, Path]:
    """Return the template of images, and its file. Raises BadFileError if it cannot be read."""
    path = catalogued("images", "Dockerfile")
    return read_text(path), path


def image_sources() -> Sources:
    """Return the sources of images: the template, and the table of torch's builds. Raises BadFileError."""
    from launcher.planning.software.image_plan import Sources  # most commands plan nothing

    return Sources(template()[0], wheels())


def wheels() -> WheelTable:
    """Return the table of torch's builds. Raises BadFileError."""
    from launcher.planning.software.wheels import WheelTable

    path = catalogued("images", "torch.toml")
    data, text = read_toml(path)
    return build(WheelTable, data, file=str(path), text=text)


def task(
    name: str | None,
    words: Sequence[str],
    settings: Sequence[str],
    run_name: str | None,
    variables: Mapping[str, str] | None = None,
    lookup: Lookup | None = None,
) -> Task:
    """Return the job with its folders.

    The job is the words after `--`, or the job `name`: a job's name or the path of its file. Without either, it
    is the project's job, else the built-in `sft`.

    `settings` are KEY=VALUE changes, in TOML's notation; one of `settings.epochs` leaves out the job's steps. `variables` are the variables of the command line.
    Raises UsageError or BadFileError.
    """
    if name and words:
        raise UsageError("--job and words after -- are two jobs: give one of them")
    lookup = lookup or Lookup()
    written = _of_words(words) if words else _of_file(name, lookup)
    data, settings_of_file = written.data, written.data.get("settings")
    declared = tuple(settings_of_file) if isinstance(settings_of_file, dict) else ()
    needs_trust = {} if written.file is None else trust.job_values(data, lookup.names)
    is_projects_end = "on_end" not in data and lookup.project.on_end is not None
    if is_projects_end:
        data["on_end"] = lookup.project.on_end
    changed = frozenset(change(data, setting) for setting in settings)
    if "settings.epochs" in changed and "steps" not in changed:
        data.pop("steps", None)  # the passes count only in a job without steps
    if variables:
        _change_table(data, "variables", variables)
    file = f"{written.title} with --set" if changed else written.title
    if run_name is not None:
        data["name"] = checked_name(run_name)
    try:
        job = build(
            Job,
            data,
            file=file,
            text="" if changed else written.text,
            advise=_advice_on_setting(words, settings) if written.file is None else None,
        )
    except BadFileError as error:
        raise BadFileError(_by_option(str(error), written, changed)) from error
    if is_projects_end and "on_end" not in changed:
        lookup.check_trust()
    if (
        written.file is not None
        and not needs_trust.keys() <= changed
        and not trust.is_users_own(written.file)
    ):
        trust.check_trust(written.file, needs_trust)
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
        words = f'{file}: code = "{task.job.code}": {folder} is not a folder'
        raise BadFileError(_by_option(words, written, changed))
    return task._replace(code=folder.resolve())


class _WrittenJob(NamedTuple):
    """The tables of a job, its title for messages, its text and its file, and a note about how it was chosen."""

    data: TomlTable
    title: str
    text: str = ""
    file: Path | None = None
    said: str | None = None


def _by_option(said: str, written: _WrittenJob, changed: Iterable[str]) -> str:
    """Return an error message about a job of the command line. If --set caused the error, the message names --set only."""
    tops = "|".join(sorted({re.escape(key.partition(".")[0]) for key in changed}))
    if written.file is not None or not tops:
        return said
    before = rf"(?m)^{re.escape(written.title)} with --set"
    named = re.sub(rf"{before}: (?=(?:{tops})\b)", "--set ", said)
    return re.sub(rf"{before}(?=: unknown key '(?:{tops})\b)", "--set", named)


_JOB_KEYS = [*Job.model_fields]
_OPTIONS = ("gpus", "host", "precision", "profile", "runtime", "wait")


def _advice_on_setting(words: Sequence[str], settings: Sequence[str]) -> Advice:
    """Return the text after an unknown key of --set: the key that was meant, and ways by which the script gets the value.

    No key is suggested that would be refused because the script does not import launcher_worker.
    """

    def advice(key: str, guess: str) -> str:
        if key in _OPTIONS:
            return f"\n  it is an option   --{key} …"
        use = worker_use(Job(name="job", command=tuple(words)), Path.cwd())
        is_worker_less = use.is_certain and not use.uses_worker
        close = difflib.get_close_matches(key, _JOB_KEYS, n=1)
        said = "" if is_worker_less and {*close} & {*BY_THE_WORKER} else guess
        value = next(one.partition("=")[2] for one in settings if one.partition("=")[0].strip() == key)
        if is_worker_less and {*close} & {*BY_ADAPTATION}:
            said += f"\n  for a Trainer of the unchanged script   --adapt --set {close[0]}={value}"
        if not use.uses_worker:
            said += f"\n  an argument of the script   -- {shlex.join([*words, f'--{key}', value])}"
        if not is_worker_less:
            said += f"\n  a setting of the script is   --set settings.{key}=…"
        return f"{said}\n  all keys   docs/keys.md"

    return advice


def _of_words(words: Sequence[str]) -> _WrittenJob:
    return _WrittenJob({"name": name_of(words), "command": list(words)}, "the words after --")


def _of_file(name: str | None, lookup: Lookup) -> _WrittenJob:
    """Return the job of a name or a path, else the project's, else the built-in default."""
    chosen = name or lookup.project.job
    path = _job_file(chosen or DEFAULT_JOB, lookup.jobs)
    data, text = lookup.tables(path)
    said = None if chosen else f"no job named: our {DEFAULT_JOB} with the demo data"
    return _WrittenJob(data, str(path), text, path, said)


def checked_name(name: str) -> str:
    """Return a run's name from the command line. Raises UsageError for an invalid name."""
    if not re.fullmatch(NAME, name):
        raise UsageError(f"--name '{name}': expected small letters, digits, and . _ - between, 48 at most")
    return name


def _job_file(name: str, known: Mapping[str, Path]) -> Path:
    if name.endswith(".toml") or "/" in name:
        if not os.path.lexists(name):
            there = [str(path.with_suffix("")) for path in Path(name).parent.glob("*.toml")]
            match = difflib.get_close_matches(name.removesuffix(".toml"), there, n=1)
            guess = f": did you mean '{match[0]}.toml'?" if match else ""
            mend = f"jobs by name   {'   '.join(f'launch --job {one}' for one in known)}"
            raise BadFileError(f"{name}: cannot be read: no such file{guess}\n  {mend}")
        return Path(name)
    if name not in known:
        meant = [f"--job {name}.toml"] if os.path.isfile(f"{name}.toml") else []
        raise unknown_name(
            "job", name, known, looked_in=f"jobs/, {user_folder_text()}/jobs/, the built-in ones", meant=meant
        )
    return known[name]


def name_of(words: Sequence[str]) -> str:
    """Name a job after its program: `python train.py --lr 1` is `train`."""
    program = next((word for word in words[1:] if word.endswith((".py", ".sh"))), words[0])
    return re.sub(r"[^a-z0-9_.-]+", "-", Path(program).stem.lower()).strip("-_.")[:24] or "job"


def change(data: TomlTable, setting: str) -> str:
    """Apply one change KEY=VALUE, in TOML's notation, to a job's tables; return its key.

    Raises UsageError.
    """
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


def changed_values(settings: Iterable[str]) -> TomlTable:
    """Return KEY=VALUE changes as tables. Raises UsageError."""
    tables: TomlTable = {}
    for setting in settings:
        change(tables, setting)
    return tables


def _change_table(data: TomlTable, name: str, values: Mapping[str, str]) -> None:
    """Set some values of a table in a job's tables.

    If the job has another value in place of the table, leave it: the reader of the tables refuses it.
    """
    table = data.get(name, {})
    if isinstance(table, dict):
        data[name] = {**table, **values}
