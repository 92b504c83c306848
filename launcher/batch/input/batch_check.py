"""Find the errors in a batch's items before a host is contacted, and matrix values that reach no script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from launcher.backends.registry import backend_of
from launcher.batch.input.batch_draft import Draft, LargeUpload
from launcher.batch.input.batch_mistakes import Mistakes
from launcher.check.reading.script_use import BY_THE_WORKER, worker_use
from launcher.config import command_check, job_check, secret_values
from launcher.config.local_paths import values_of
from launcher.config.lookup import Lookup
from launcher.config.resolve import Task
from launcher.config.resolved import Resolved
from launcher.copy.request import Request
from launcher.errors import RefusedError, UsageError
from launcher.planning.script.source import source
from launcher.runs.launch.resolved_request import AUTO, understand
from launcher.upload.loading import Load, load
from launcher.upload.upload_history import UploadHistory, is_large
from launcher.values.credential import credential_in
from launcher.values.job import Job
from launcher.values.plan import Finding

TOLD_EVERY = 100
_SECRET_OPTION = re.compile(r"launch (?:-s|--secret) (\w+)")
Tell = Callable[[str], None]


def tell_nobody(_words: str) -> None:
    """Ignore the progress of a check."""


def check(drafts: Sequence[Draft], lookup: Lookup, mistakes: Mistakes, tell: Tell) -> tuple[LargeUpload, ...]:
    """Resolve each item as a launch would, for each of its hosts.

    Send nothing. Return the uploads to confirm.
    """
    checker = _Checker(lookup, mistakes)
    for number, draft in enumerate(drafts, start=1):
        if number % TOLD_EVERY == 0:
            tell(f"{number:,} of {len(drafts):,} are checked")
        checker.check(draft)
    _note_what_reaches_nothing(drafts, checker.plain_runs, mistakes)
    return checker.large


class _Checker:
    """Checks items one by one. `plain_runs` are the runs whose scripts do not use the worker."""

    def __init__(self, lookup: Lookup, mistakes: Mistakes) -> None:
        self._lookup, self._mistakes = lookup, mistakes
        self._loads: dict[tuple[Path, tuple[str, ...]], Load] = {}
        self._reads_worker: dict[str, bool] = {}
        self._is_known: dict[tuple[str, str], bool] = {}
        self._questions: dict[tuple[str, Path, int], Finding | None] = {}

    @property
    def plain_runs(self) -> set[str]:
        return {run for run, reads in self._reads_worker.items() if not reads}

    @property
    def large(self) -> tuple[LargeUpload, ...]:
        """The large uploads to hosts that do not have the code yet."""
        found = [LargeUpload(host, one) for (host, _, _), one in self._questions.items() if one is not None]
        return tuple(dict.fromkeys(found))

    def check(self, draft: Draft) -> None:
        """Add the mistakes of an item. A host's refusals count only if all of the item's hosts refuse it."""
        request = draft.request._replace(name=draft.name, after=())
        if not self._knows(draft, "profile", request.profile or AUTO):
            request = request._replace(profile=None)
        hosts = [host for host in draft.hosts if self._knows(draft, "host", host)]
        refusals: list[str] = []
        resolved: Resolved | None = None
        for host in hosts or ["local"]:  # the job is the same on any host
            try:
                one = understand(request._replace(host=host), self._lookup)
            except UsageError as error:
                self._add(draft, str(error), is_refusal=False)
                if not request.settings:
                    return
                request = request._replace(settings=[])  # drop the settings to find further mistakes
                try:
                    resolved = understand(request._replace(host=host), self._lookup)
                except (UsageError, RefusedError):
                    return
                break
            except RefusedError as error:
                refusals.append(str(error))
                continue
            resolved = resolved or one
            found = [*_words_of(backend_of(one.host).planning.refusals(one.job, one.host))]
            if not found:
                refusals = []
                break
            refusals += found
        for words in refusals:
            self._add(draft, words, is_refusal=True)
        if resolved is not None:
            self._check_task(draft, hosts, resolved)

    def _knows(self, draft: Draft, key: str, name: str) -> bool:
        """Whether a host or a profile is known. Add a mistake for an unknown one."""
        place = draft.place_of(key), name
        if place not in self._is_known:
            try:
                if key == "host":
                    self._lookup.host(name)
                elif name != AUTO:
                    self._lookup.profiles_meant(name)
            except UsageError as error:
                self._mistakes.add(place[0], str(error))
                self._is_known[place] = False
            else:
                self._is_known[place] = True
        return self._is_known[place]

    def _check_task(self, draft: Draft, hosts: Iterable[str], resolved: Resolved) -> None:
        """Add the mistakes that would stop an item's job on any host."""
        task, job = resolved.task, resolved.job
        refusals = [*_recorded(draft.request, job), *_words_of(job_check.findings(task))]
        if not refusals:
            loaded = self._load(task)
            refusals += _words_of(loaded.selection.findings)
            for words in _words_of(command_check.findings(job, loaded.selection)):
                self._mistakes.add(draft.place_of("command"), words, is_refusal=True)
            if is_large(loaded.selection):
                self._ask(task.code, loaded, hosts)
        for words in dict.fromkeys(refusals):
            self._add(draft, words, is_refusal=True)
        for name in job.secrets:
            try:
                secret_values.values(job.model_copy(update={"secrets": (name,)}), resolved.values)
            except UsageError as error:
                words = str(error).removesuffix(secret_values.FROM_A_FILE)
                self._mistakes.add(draft.place_of("secrets"), words)
        if draft.run not in self._reads_worker:
            self._reads_worker[draft.run] = job.adapt or worker_use(job, task.code).uses_worker

    def _load(self, task: Task) -> Load:
        """Return the upload of a task. Items with the same folder and the same local files share it."""
        local = [(key, value) for key, value in values_of(task.job) if source(value).kind == "local"]
        place = task.code, tuple(str(task.locate(key, value)) for key, value in local)
        if place not in self._loads:
            self._loads[place] = load(task, (), self._lookup)
        return self._loads[place]

    def _ask(self, code: Path, loaded: Load, hosts: Iterable[str]) -> None:
        """Record for each host the question to confirm a large upload, or None if none is needed."""
        for host in hosts:
            place = host, code, id(loaded)
            if place not in self._questions:
                found = UploadHistory(code, self._lookup.host(host)).question(loaded)
                mend = found and found.mend and found.mend.replace("launch --yes", "launch batch --yes")
                self._questions[place] = found and found.model_copy(update={"mend": mend})

    def _add(self, draft: Draft, text: str, *, is_refusal: bool) -> None:
        """Add the mistakes in an error's text, one per unindented line, in terms of the batch's file."""
        for words in re.split(r"\n(?!\s)", text):
            key = _key_of(draft, words.splitlines()[0])
            own = _own_words(words, key)
            self._mistakes.add(draft.place_of(key), own, is_refusal=is_refusal)


def _own_words(words: str, key: str) -> str:
    """Return an error's words about a key in terms of the batch's file, without options such as `--set`."""
    words = _SECRET_OPTION.sub(r'secrets = ["\1"]', words)
    before, with_set, after = words.partition(" with --set: ")
    if with_set:
        words = after if key else f"{before}: {after}"
    for start in ("the words after --: ", "--set: ", "--set ", f"{key}: "):
        words = words.removeprefix(start)
    return words


def _words_of(findings: Iterable[Finding]) -> list[str]:
    """Return the refusals among findings, each with its remedy below it."""
    return ["\n  ".join(filter(None, (one.message, one.mend))) for one in findings if one.level == "refuse"]


def _recorded(request: Request, job: Job) -> list[str]:
    """Return the refusals for credentials in the parts of a request that the queue and the results record."""
    named = [setting.partition("=")[::2] for setting in request.settings]
    found = [(f"{key}: it holds", credential_in(written)) for key, written in named]
    found += [("command: it holds", credential_in(word)) for word in request.words]
    return [
        f'{start} {kind} in plain text, which the batch would record\n  give only its name   secrets = ["NAME"]   and its value from your shell'
        for start, kind in dict.fromkeys(found)
        if kind is not None
    ]


def _key_of(draft: Draft, message: str) -> str:
    """Return the longest key of the item's launch that a message names, or an empty text."""
    named = [key for key in draft.places if re.search(rf"(?<![\w.{{]){re.escape(key)}(?![\w.}}])", message)]
    return max(named, key=len, default="")


def _note_what_reaches_nothing(drafts: Sequence[Draft], plain: set[str], mistakes: Mistakes) -> None:
    """Note the matrix keys that do not reach a run's script. Their items run the same command."""
    for draft in {one.run: one for one in drafts if one.run in plain}.values():
        for key in draft.unnamed:
            if key.partition(".")[0] in BY_THE_WORKER:
                words = f"the command has no {{{key}}}, and its script does not import launcher_worker, so the value does not reach it"
                mistakes.note(draft.place_of(key), words)
