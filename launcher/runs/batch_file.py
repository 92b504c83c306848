"""From a batch's file, or the words of `--grid`, to its items: every mistake of the whole file at once, each with its line."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.errors import BadFileError, RefusedError, UsageError
from launcher.runs import job_variables, resolve, secret_values
from launcher.runs.launching import understand
from launcher.runs.lookup import Lookup
from launcher.runs.request import Request
from launcher.values.batch import MOST_ITEMS, BatchFile, BatchRun, Rules
from launcher.values.credential import credential_in
from launcher.values.job import Job
from launcher.values.parsing import build, line_of
from launcher.values.toml import inline, parse_toml, read_toml

OWN_KEYS = ("host", "profile", "precision", "gpus")
"""The keys of a run that a matrix may vary beside those of `--set`."""
SEEDS, EXCLUDE = "seeds", "exclude"
_DEFAULT_NAME = "batch"
TOLD_EVERY = 100
Tell = Callable[[str], None]


def _tell_nobody(_words: str) -> None:
    pass


class Draft(NamedTuple):
    """An item before it is queued. `place` says where the file has it, for messages; `values` are those of the matrix."""

    name: str
    request: Request
    hosts: tuple[str, ...]
    values: Mapping[str, Any]
    place: str

    @property
    def as_json(self) -> str:
        """Its launch as it is queued."""
        return json.dumps(self.request._asdict())


class Batch(NamedTuple):
    """A batch as it was asked for."""

    name: str
    rules: Rules
    drafts: tuple[Draft, ...]


def read_batch(path: Path, changes: Mapping[str, Any], tell: Tell = _tell_nobody) -> Batch:
    """Read a batch's file; `changes` are keys that the command line sets instead, `tell` hears how many items are checked.

    Raises BadFileError with every mistake.
    """
    data, text = read_toml(path)
    written = build(BatchFile, {**data, **changes}, file=str(path), text=text)
    return _batch(written, written.name or _name_of(path), str(path), text, tell)


def grid_batch(words: Sequence[str], values: Mapping[str, Any], tell: Tell = _tell_nobody) -> Batch:
    """Return the batch of `--grid KEY=V1,V2` words; `values` are the other keys of a batch. Raises UsageError."""
    matrix = dict(map(_grid_values, words))
    written = build(BatchFile, {**values, "matrix": matrix}, file="--grid")
    return _batch(written, written.name or _DEFAULT_NAME, "--grid", "", tell)


def _grid_values(word: str) -> tuple[str, list[Any]]:
    """Split `KEY=V1,V2` into its key and its values, each in TOML's notation or a bare word."""
    key, separator, written = word.partition("=")
    if not separator or not key.strip() or not written:
        raise UsageError(f"--grid {word}: expected KEY=V1,V2, e.g. --grid settings.learning_rate=1e-4,3e-4")
    return key.strip(), [_value(one.strip()) for one in written.split(",")]


def _value(written: str) -> Any:
    try:
        return parse_toml(f"value = {written}", "--grid")["value"]
    except BadFileError:
        return written  # a bare word is text


def _name_of(path: Path) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "-", path.stem.lower()).strip("-_.")[:48] or _DEFAULT_NAME


def _batch(written: BatchFile, name: str, file: str, text: str, tell: Tell) -> Batch:
    """Multiply the runs by the matrix, and check each. Raises BadFileError with every mistake."""
    mistakes = _Mistakes(file, text)
    points = _points(written.matrix, mistakes)
    runs = written.run or (BatchRun(),)
    if len(runs) * len(points) > MOST_ITEMS:
        mistakes.add("matrix", f"{len(runs) * len(points):,} items: a batch has at most {MOST_ITEMS:,}")
        mistakes.tell()
    lookup = Lookup()
    drafts: list[Draft] = []
    for number, run in enumerate(runs, start=1):
        place = f"run.{number}" if written.run else ""
        try:
            found = [
                _draft(written, run, point, len(points) > 1, lookup.project.host, place) for point in points
            ]
        except _PlaceholderError as error:
            mistakes.add(f"matrix.{error.key}", str(error))
            continue
        drafts += found
    drafts = _with_names(drafts, lookup.project.job, mistakes)
    mistakes.tell()
    _check(drafts, lookup, mistakes, tell)
    mistakes.tell()
    rules = Rules(**{key: getattr(written, key) for key in Rules.model_fields})
    return Batch(name, rules, tuple(drafts))


class _Mistakes:
    """The mistakes of a file: told all at once."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text = file, text
        self._said: dict[str, None] = {}

    def add(self, key: str, words: str) -> None:
        """Add a mistake at a dotted key, which may be empty."""
        line = line_of(key, self._text) if key else None
        place = f"   (line {line})" if line else ""
        first, *rest = f"{self._file}: {f'{key}: ' if key else ''}{words}".splitlines()
        self._said["\n".join([f"{first}{place}", *rest])] = None

    def tell(self) -> None:
        """Raise BadFileError if there are any."""
        if self._said:
            raise BadFileError("\n".join(self._said))


def _points(matrix: Mapping[str, Any], mistakes: _Mistakes) -> list[dict[str, Any]]:
    """Return the points of a matrix: every combination of its values that is not excluded; one empty point without a matrix."""
    axes: dict[str, list[Any]] = {}
    for key, values in _flat(matrix):
        if key == EXCLUDE:
            continue
        if key == SEEDS and isinstance(values, int) and not isinstance(values, bool) and values > 0:
            axes["seed"] = [*range(values)]
        elif not isinstance(values, list):
            mistakes.add(f"matrix.{key}", f"{inline(values)}: expected a list of values")
        elif not values:
            mistakes.add(f"matrix.{key}", "is empty: nothing would be run")
        else:
            axes["seed" if key == SEEDS else key] = values
    mistakes.tell()
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_ITEMS * 10:  # before it is multiplied out
        mistakes.add("matrix", f"{count:,} combinations: a batch has at most {MOST_ITEMS:,} items")
        mistakes.tell()
    excluded = _excluded(matrix.get(EXCLUDE, []), axes, mistakes)
    points: list[dict[str, Any]] = []
    for chosen in itertools.product(*axes.values()):
        point = dict(zip(axes, chosen, strict=True))
        if not any(all(point[key] == value for key, value in one.items()) for one in excluded):
            points.append(point)
    if not points:
        mistakes.add(f"matrix.{EXCLUDE}", "leaves no combination: nothing would be run")
        mistakes.tell()
    return points


def _flat(table: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a matrix and their values: `[matrix.settings]` holds keys that begin with `settings.`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def _excluded(written: Any, axes: Mapping[str, Any], mistakes: _Mistakes) -> list[dict[str, Any]]:
    """Return the combinations that are left out, each as the values that it has."""
    if not isinstance(written, list) or not all(isinstance(one, dict) and one for one in written):
        mistakes.add(
            f"matrix.{EXCLUDE}", "expected a list of tables, e.g. exclude = [{ seed = 1, steps = 100 }]"
        )
        return []
    excluded = [dict(_flat(one)) for one in written]
    for key in dict.fromkeys(key for one in excluded for key in one if key not in axes):
        mistakes.add(f"matrix.{EXCLUDE}", f"'{key}' is no key of the matrix: {', '.join(axes)}")
    mistakes.tell()
    return excluded


class _PlaceholderError(Exception):
    """Raised for a key of the matrix that can stand nowhere."""

    def __init__(self, key: str, words: str) -> None:
        super().__init__(words)
        self.key = key


def _draft(
    batch: BatchFile,
    run: BatchRun,
    point: Mapping[str, Any],
    is_one_of_several: bool,
    project_host: str | None,
    place: str,
) -> Draft:
    """Return the item of a run at a point of the matrix. Its name is still that of the run."""
    words = run.command or (() if run.job else batch.command)
    holes = {key for key in point if any(f"{{{key}}}" in word for word in words)}
    if holes:  # in one pass: what a value holds is no hole
        pattern = re.compile("|".join(re.escape(f"{{{key}}}") for key in holes))
        words = tuple(pattern.sub(lambda hole: _shown(point[hole[0][1:-1]]), word) for word in words)
    own = {key: value for key, value in point.items() if key in OWN_KEYS and key not in holes}
    for key, value in own.items():
        if not isinstance(value, str):
            raise _PlaceholderError(key, f"{inline(value)}: expected text")
    settings = {**dict(_flat(batch.settings)), **dict(_flat(run.settings))}
    for key, value in point.items():
        if key not in holes and key not in own:
            settings.update(_flat({key: value}))
    hosts = (own["host"],) if "host" in own else run.host or batch.host or (project_host or "local",)
    request = Request(
        profile=own.get("profile") or run.profile or batch.profile,
        job=run.job or (None if words else batch.job),
        precision=own.get("precision") or run.precision or batch.precision or "auto",
        settings=[f"{key}={inline(value)}" for key, value in settings.items()],
        words=list(words),
        secrets=[*dict.fromkeys((*batch.secrets, *run.secrets))],
        packages=[*batch.packages, *run.packages],
        variables=[f"{key}={value}" for key, value in {**batch.variables, **run.variables}.items()],
        gpus=own.get("gpus") or run.gpus or batch.gpus,
        is_sure=True,
    )
    return Draft(run.name or "", request, tuple(dict.fromkeys(hosts)), dict(point), place)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else inline(value)


def _with_names(drafts: Sequence[Draft], project_job: str | None, mistakes: _Mistakes) -> list[Draft]:
    """Give each item a name of its own: that of its run, else its job's, with a number where several would have it."""
    bases = [draft.name or _job_name(draft.request, project_job) for draft in drafts]
    given = Counter(
        (draft.name, draft.place) for draft in {(one.name, one.place): one for one in drafts}.values()
    )
    names = Counter(name for name, _ in given if name)
    for name, times in names.items():
        if times > 1:
            places = [draft.place for draft in drafts if draft.name == name]
            mistakes.add(f"{places[-1]}.name", f'"{name}": two runs have this name')
    mistakes.tell()
    counts, numbers, taken = Counter(bases), Counter[str](), {base for base in bases if base}
    named = []
    for draft, base in zip(drafts, bases, strict=True):
        name = base
        if counts[base] > 1:
            width = len(str(counts[base]))
            while name in taken:
                numbers[base] += 1
                name = f"{base}-{numbers[base]:0{width}}"
            taken.add(name)
        named.append(draft._replace(name=name))
    return named


def _job_name(request: Request, project_job: str | None) -> str:
    if request.words:
        return resolve.name_of(request.words)
    return re.sub(r"[^a-z0-9_.-]+", "-", Path(request.job or project_job or resolve.DEFAULT_JOB).stem.lower())


def _check(drafts: Sequence[Draft], lookup: Lookup, mistakes: _Mistakes, tell: Tell) -> None:
    """Understand each item as a launch would, on each of its hosts; nothing is sent."""
    for number, draft in enumerate(drafts, start=1):
        if number % TOLD_EVERY == 0:
            tell(f"{number:,} of {len(drafts):,} are checked")
        for host in draft.hosts:
            try:
                job = understand(draft.request._replace(host=host, name=draft.name), lookup).job
                _check_recorded(draft.request, job)
            except (UsageError, RefusedError) as error:
                for words in re.split(r"\n(?!\s)", str(error)):
                    mistakes.add(_key_of(draft, words), words)
                break


def _check_recorded(request: Request, job: Job) -> None:
    """Raise RefusedError or UsageError for what would be recorded, with the queue and the results, and is to be kept secret."""
    named = [setting.partition("=")[::2] for setting in request.settings]
    found = [(f"{key}: it holds", credential_in(written)) for key, written in named]
    found += [("command: it holds", credential_in(word)) for word in request.words]
    lines = [
        f'{start} {kind}, and what a batch is made of is recorded\n  its name alone   secrets = ["NAME"]   and its value from your shell'
        for start, kind in dict.fromkeys(found)
        if kind is not None
    ]
    lines += [
        f"{one.message}\n  {one.mend}"
        for one in job_variables.findings(job.variables)
        if one.level == "refuse"
    ]
    if lines:
        raise RefusedError("\n".join(lines))
    known = {name: os.environ[name] for name in job.secrets if os.environ.get(name)}
    secret_values.check_recorded(job, known)


def _key_of(draft: Draft, message: str) -> str:
    """Return the key of the file that a message is about: one of the matrix or of the run's settings that it names, else the run."""
    for key in draft.values:
        if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", message):
            return f"matrix.{key}"
    prefix = f"{draft.place}." if draft.place else ""
    for setting in draft.request.settings:
        key = setting.partition("=")[0]
        if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", message):
            return f"{prefix}settings.{key}"
    return draft.place
