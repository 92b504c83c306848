"""Turn a batch's file, or the words of `--grid`, into items.

All mistakes are reported together, with lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from launcher.backends.registry import backend_of
from launcher.base.toml import inline, read_toml
from launcher.batch.input.batch_check import Tell, check, tell_nobody
from launcher.batch.input.batch_definition import MAX_ITEMS, BatchFile, BatchRun, Rules
from launcher.batch.input.batch_draft import Draft, LargeUpload
from launcher.batch.input.batch_matrix import Matrix, Point, flat, grid_of, multiply
from launcher.batch.input.batch_mistakes import Mistakes
from launcher.config import resolve, trust
from launcher.config.lookup import Lookup
from launcher.copy.request import Request
from launcher.errors import BadFileError, UnknownNameError
from launcher.values.job import Job
from launcher.values.parsing import build, nearest
from launcher.values.precision import PrecisionChoice

OWN_KEYS = ("host", "profile", "precision", "gpus")
"""The keys of a run that a matrix may vary, in addition to the keys of `--set`."""
_OF_JOBS = {field.serialization_alias or name for name, field in Job.model_fields.items()}
_DEFAULT_NAME = "batch"
_PLACEHOLDER = re.compile(r"(?<!\$)(\{)?\{([A-Za-z_][\w.-]*)\}(?(1)\})")
"""The placeholder `{KEY}` in a word.

`{{KEY}}` stands for a literal `{KEY}`, and `${KEY}` belongs to the shell.
"""


class Batch(NamedTuple):
    """A batch as requested. `notes` are messages to show before it starts, `large` are uploads to confirm."""

    name: str
    rules: Rules
    drafts: tuple[Draft, ...]
    notes: tuple[str, ...] = ()
    large: tuple[LargeUpload, ...] = ()


def read_batch(path: Path, changes: Mapping[str, Any], tell: Tell = tell_nobody) -> Batch:
    """Read a batch's file. `changes` are keys set by the command line; `tell` receives the progress.

    Raises BadFileError with every key of a wrong name or type. If all keys are valid, raises BadFileError
    with every mistake, or RefusedError where `launch` would refuse.
    """
    data, text = read_toml(path)
    written_here = {key: one for key, one in data.items() if key not in changes}
    lookup = Lookup()
    trust.check_trust(path, trust.job_values(written_here, lookup.names))
    if not data:
        raise BadFileError(f'{path}: is empty: expected at least a job or a command, e.g. job = "sft"')
    build(BatchFile, changes, file="launch batch")
    written = build(BatchFile, {**data, **changes}, file=str(path), text=text)
    mistakes = Mistakes(str(path), text, changes)
    return _batch(written, written.name or _name_of(path), mistakes, lookup, tell)


def grid_batch(words: Sequence[str], values: Mapping[str, Any], tell: Tell = tell_nobody) -> Batch:
    """Return the batch of `--grid KEY=V1,V2` words.

    `values` are the other keys. Raises UsageError, RefusedError.
    """
    written = build(BatchFile, {**values, "matrix": grid_of(words)}, file="launch batch")
    return _batch(written, written.name or _DEFAULT_NAME, Mistakes(None), Lookup(), tell)


def _name_of(path: Path) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "-", path.stem.lower()).strip("-_.")[:48] or _DEFAULT_NAME


def _batch(written: BatchFile, name: str, mistakes: Mistakes, lookup: Lookup, tell: Tell) -> Batch:
    """Multiply the runs by the matrix, and check each item. Raises BadFileError with every mistake."""
    runs = written.run or (BatchRun(),)
    places = [f"run.{number}" for number, _ in enumerate(written.run, start=1)] or [""]
    for place, one in (("", written), *(zip(places, written.run, strict=True) if written.run else ())):
        _check_keys(one, place, mistakes)
    if written.artifacts == "best" and written.best is None:
        mistakes.add(
            "artifacts",
            '"best": needs the key best, which defines the best run\n  for example   best = "loss:min"',
        )
    if "matrix" in written.model_fields_set and not written.matrix:
        mistakes.add("matrix", "is empty: nothing would be multiplied")
    matrix = multiply(written.matrix, mistakes)
    if len(runs) * len(matrix.points) > MAX_ITEMS:
        mistakes.add("matrix", f"{len(runs) * len(matrix.points):,} items: a batch has at most {MAX_ITEMS:,}")
        mistakes.tell()
    drafts = []
    for place, run in zip(places, runs, strict=True):
        maker = _Maker(written, run, place, matrix, mistakes)
        drafts += [maker.draft(point, lookup.project.host) for point in matrix.points]
    drafts = _with_names(drafts, lookup.project.job, mistakes)
    drafts = _in_order(
        drafts,
        {run.name: place for place, run in zip(places, runs, strict=True) if run.name},
        lookup,
        mistakes,
    )
    large = check(drafts, lookup, mistakes, tell)
    mistakes.tell()
    rules = Rules(**{key: getattr(written, key) for key in Rules.model_fields})
    return Batch(name, rules, tuple(drafts), mistakes.notes, large)


def _check_keys(run: BatchRun, place: str, mistakes: Mistakes) -> None:
    """Add the mistakes in the combination of a run's keys, or of the file's."""
    start, given = f"{place}." if place else "", run.model_fields_set
    if run.job is not None and run.command:
        mistakes.add(f"{start}command", "there is a job too: give one of them")
    if "command" in given and not run.command:
        mistakes.add(f"{start}command", "is empty: nothing would be run")
    if run.after and not place:
        mistakes.add("after", "it is a key of a [[run]], which comes after another one")
    if "host" in given and not run.host:
        mistakes.add(f"{start}host", "is empty: it would run nowhere")


def _is_known(key: str) -> bool:
    """Whether a matrix may have a key without a placeholder in the command."""
    return key in OWN_KEYS or key.partition(".")[0] in _OF_JOBS


def _no_such_key(key: str, more: Iterable[str]) -> str:
    """Return the message that a job has no such key, with the nearest key of a job or of `more`."""
    guess = nearest(key, [*more, *_OF_JOBS])
    return f"a job has no key '{key}'{guess}\n  a setting of its script   settings.{key}"


def _objection_to(key: str, value: object) -> str | None:
    """Return the problem with a matrix value for a key of a run, or None."""
    if not isinstance(value, str):
        return f"{inline(value)}: expected text"
    if key == "precision" and value not in (known := get_args(PrecisionChoice)):
        return f"{inline(value)}: expected {', '.join(known)}{nearest(value, known)}"
    return None


class _Maker:
    """Creates the items of one run."""

    def __init__(
        self, batch: BatchFile, run: BatchRun, place: str, matrix: Matrix, mistakes: Mistakes
    ) -> None:
        """Find the matrix keys that its command names. Add unknown keys and wrong values to the mistakes."""
        self._batch, self._run, self._place, self._matrix = batch, run, place, matrix
        self._words = run.command or (() if run.job else batch.command)
        found = {match[2] for word in self._words for match in _PLACEHOLDER.finditer(word) if not match[1]}
        self._named = found & set(matrix.written_as)
        guessed: set[str] = set()
        for key in sorted(found - self._named):
            known = [one for one in matrix.written_as if one not in found]
            guess = nearest(key, known)
            guessed |= {one for one in known if f"'{one}'" in guess}
            words = f"{{{key}}}: the matrix has no key '{key}'{guess}\n  the text itself   {{{{{key}}}}}"
            mistakes.add(self._key("command"), words)
        self._unknown = {key for key in matrix.written_as if key not in self._named and not _is_known(key)}
        for key in self._unknown - guessed:
            lacking = (
                f"{f'{place}: ' if place else ''}the command has no {{{key}}}, and " if self._words else ""
            )
            guess = _no_such_key(key, [*(found - self._named), *OWN_KEYS])
            mistakes.add(f"matrix.{matrix.written_as[key]}", f"{lacking}{guess}")
        written = {
            **{key: f"settings.{key}" for key, _ in flat(batch.settings)},
            **{key: f"{place}.settings.{key}" for key, _ in flat(run.settings)},
        }
        for key, where in written.items():
            if key.partition(".")[0] not in _OF_JOBS:
                self._unknown.add(key)
                mistakes.add(where, _no_such_key(key, ()))
        for key in {*OWN_KEYS} - self._named:
            for value in (point[key] for point in matrix.points if key in point):
                if (objection := _objection_to(key, value)) is not None:
                    mistakes.add(f"matrix.{matrix.written_as[key]}", objection)

    def draft(self, point: Point, project_host: str | None) -> Draft:
        """Return the item at a point of the matrix. Its name is still the run's name."""
        batch, run = self._batch, self._run
        own = {key: point[key] for key in OWN_KEYS if key in point and key not in self._named}
        skipped = {*self._named, *own, *self._unknown}
        own = {key: value for key, value in own.items() if _objection_to(key, value) is None}
        unnamed = {key: value for key, value in point.items() if key not in skipped}
        written = {**dict(flat(batch.settings)), **dict(flat(run.settings)), **unnamed}
        settings = {key: value for key, value in written.items() if key not in self._unknown}
        hosts = (own["host"],) if "host" in own else run.host or batch.host or (project_host or "local",)
        words = [_PLACEHOLDER.sub(lambda match: _filled(match, point), word) for word in self._words]
        request = Request(
            profile=own.get("profile") or run.profile or batch.profile,
            job=run.job or (None if words else batch.job),
            precision=own.get("precision") or run.precision or batch.precision or "auto",
            settings=[f"{key}={inline(value)}" for key, value in settings.items()],
            words=words,
            secrets=[*dict.fromkeys((*batch.secrets, *run.secrets))],
            packages=[*batch.packages, *run.packages],
            variables=[f"{key}={value}" for key, value in {**batch.variables, **run.variables}.items()],
            gpus=own.get("gpus") or run.gpus or batch.gpus,
            is_sure=True,
            after=run.after,
        )
        places = {key: self._key(key) for key in (*OWN_KEYS, "job", "command", "secrets")}
        places |= {key: f"settings.{key}" for key, _ in flat(batch.settings)}
        places |= {key: f"{self._place}.settings.{key}" for key, _ in flat(run.settings)}
        places |= {key: f"matrix.{self._matrix.written_as[key]}" for key in (*own, *unnamed)}
        names = tuple(unnamed)
        return Draft(
            run.name or "", request, tuple(dict.fromkeys(hosts)), dict(point), self._place, places, names
        )

    def _key(self, key: str) -> str:
        """Return the dotted key in the file that sets a key of this run: in the run's table or at the top."""
        return f"{self._place}.{key}" if self._place and key in self._run.model_fields_set else key


def _filled(match: re.Match[str], point: Point) -> str:
    """Fill a placeholder of a word.

    There is only one pass, so a value that looks like `{KEY}` stays as it is.
    """
    if match[1]:
        return match[0][1:-1]
    return _shown(point[match[2]]) if match[2] in point else match[0]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else inline(value)


def _with_names(drafts: Sequence[Draft], project_job: str | None, mistakes: Mistakes) -> list[Draft]:
    """Give each item a unique name: its run's, else its job's. Number items that would share a name."""
    bases = [draft.name or _job_name(draft.request, project_job) for draft in drafts]
    given = Counter(
        (draft.name, draft.run) for draft in {(one.name, one.run): one for one in drafts}.values()
    )
    names = Counter(name for name, _ in given if name)
    for name, times in names.items():
        if times > 1:
            places = [draft.run for draft in drafts if draft.name == name]
            mistakes.add(f"{places[-1]}.name", f'"{name}": two runs have this name')
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


def _in_order(
    drafts: Sequence[Draft], places: Mapping[str, str], lookup: Lookup, mistakes: Mistakes
) -> list[Draft]:
    """Replace the names of runs in each item's `after` by the names of their items.

    `places` are the keys of the named runs. Adds a mistake for a run that is not before the item's own, and for
    items that do not go to one cluster.
    """
    ordered: list[Draft] = []
    for draft in drafts:
        after: list[str] = []
        for written in draft.request.after:
            name, _, condition = written.partition(":")
            before = [one for one in ordered if one.run == places.get(name) != draft.run]
            if not before:
                mistakes.add(f"{draft.run}.after", f'"{name}": no run before this one has this name')
                break
            hosts = {host for one in (draft, *before) for host in one.hosts}
            if len(hosts) > 1 or not _starts_after(next(iter(hosts)), lookup):
                words = f'"{name}": only a Slurm cluster starts a run after another, and all items must name it alone'
                mistakes.add(f"{draft.run}.after", words)
                break
            after += [f"{one.name}:{condition or 'ok'}" for one in before]
        ordered.append(draft._replace(request=draft.request._replace(after=after)))
    return ordered


def _starts_after(host: str, lookup: Lookup) -> bool:
    try:
        return backend_of(lookup.host(host)).planning.has_dependencies
    except UnknownNameError:  # a mistake of its own
        return True


def _job_name(request: Request, project_job: str | None) -> str:
    if request.words:
        return resolve.name_of(request.words)
    return re.sub(r"[^a-z0-9_.-]+", "-", Path(request.job or project_job or resolve.DEFAULT_JOB).stem.lower())
