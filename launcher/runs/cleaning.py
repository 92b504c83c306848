"""Remove ended runs from their host and from this computer, and remove a host's items that no run uses any more."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from pydantic import ValidationError
from rich.filesize import decimal

from launcher.backends.base.probing import NO_JOB
from launcher.backends.base.runtime import RunResource, SharedResource, UnknownResource
from launcher.backends.registry import backend_of
from launcher.backends.runtimes import Runtime, open_all, open_for_run
from launcher.base.meter import Meter
from launcher.base.text import files_text
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, EngineError, HostError, LastCopyError, MalformedAnswerError, RunError
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import summary_of
from launcher.runs.follow.view import Stage
from launcher.runs.pull.local_copies import LocalCopies
from launcher.runs.pull.pulling import shown_path
from launcher.runs.rented.machine_gone import gone
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.record import Summary, is_terminal
from launcher.values.reported.answers import RemovedThing
from launcher.values.reported.output import LastCopies, Loss

MAX_NAMED = 10
MAX_RECORD = 1 << 28
"""The maximum bytes of a run's record that a forced removal fetches first."""
UNNAMED_S = 86_400.0
"""How long an image that no run names is kept, in seconds: `launch image build` makes images before their first run."""


class Freeing(NamedTuple):
    """The removal of a run from its host: the freed bytes, or None if the host did not have the run.

    `problem` names the items that its runtime could not remove, and the fix.
    """

    bytes: int | None
    problem: str | None


def free(client: HostClient, local_copy: LocalCopy, lose: Loss, stage: Stage) -> Freeing:
    """Remove an ended run from its host, including its runtime's data. Its record is fetched first.

    All local files of the run are read again, and the host compares them with its own. Raises LastCopyError
    if a file would be lost that `lose` does not cover, and RunError for a run that has not ended.
    """
    summary = summary_of(client, local_copy.run)
    freed = None
    if summary is not None:
        if is_terminal(summary.state):
            _end_runtime(client, summary)
        _fetch_record(client, local_copy, lose)
        keep_end(local_copy, summary)
        try:
            with local_copy.alone("pull"):
                freed = _remove(client, local_copy, lose, stage)
        except AgentError as error:
            if error.code == "last-copies":
                raise _last_copies(client, local_copy, error) from error
            if error.code == "refused":
                mend = f"launch stop {local_copy.short}     or   launch stop --now {local_copy.short}"
                raise RunError(f"{error}\n  {mend}") from error
            if error.code != "no-run":
                raise
    problem = None
    if summary is not None:
        with open_for_run(client, summary) as runtime:
            problem = runtime.remove(local_copy.run)
    local_copy.mark_freed()
    return Freeing(freed, problem)


def _fetch_record(client: HostClient, local_copy: LocalCopy, lose: Loss) -> None:
    """Fetch a run's record.

    If `lose` allows the loss of all files, ignore failures of the host or the local disk, and limit the
    record's size, because a sparse log can be of any length without using disk space.
    """
    if lose != "all":
        refresh(client, local_copy)
        return
    with contextlib.suppress(AgentError, RunError):
        refresh(client, local_copy, MAX_RECORD)


def keep_end(local_copy: LocalCopy, summary: Summary) -> None:
    """Write an end that the host has only derived, e.g. from Slurm, into the local record, before its source is removed."""
    last, folders = local_copy.record.last_state(), local_copy.files.numbered()
    if last is None or not folders or is_terminal(last.state) or not is_terminal(summary.state):
        return
    name = f"{folders[-1]}/state.json"
    ended = {"state": summary.state, "reason": summary.reason, "evidence": summary.evidence}
    with local_copy.disk_errors(local_copy.folder):
        state = {**local_copy.files.read_json(name), **ended}
        local_copy.files.write(name, json.dumps(state).encode(), durably=True)


def _end_runtime(client: HostClient, summary: Summary) -> None:
    """Stop the run's runtime: the job may have written its own end state while its container still runs."""
    with contextlib.suppress(EngineError), open_for_run(client, summary) as runtime:
        runtime.stop(summary.run, 0.0)


def _remove(client: HostClient, local_copy: LocalCopy, lose: Loss, stage: Stage) -> int:
    held: dict[str, str] = {}
    if lose != "all":
        copies = LocalCopies(local_copy)
        listed = client.runs.outputs(local_copy.run, lambda _count: None, every_file=True).files
        here = [file for file in listed if local_copy.files.exists(local_copy.place(file.path))]
        meter = Meter(sum(file.size for file in here), stage.moved, "reading")
        with local_copy.disk_errors(local_copy.folder):
            for file in here:
                advance = functools.partial(meter.advance, name=shown_path(file.path))
                if digest := copies.read(file.path, advance):
                    held[file.path] = digest
            local_copy.files.sync_names(local_copy.place(path) for path in held)
    return client.runs.remove(
        local_copy.run, held, lose, lambda count: stage.progress(f"{decimal(count)} compared")
    ).bytes


def _last_copies(client: HostClient, local_copy: LocalCopy, error: AgentError) -> LastCopyError:
    """Return the error that names the files that only the host has, with both ways to proceed."""
    try:
        copies = LastCopies.model_validate_json(json.dumps(dict(error.values)), strict=True)
    except ValidationError as malformed:
        raise MalformedAnswerError(
            client.host, f"{client.host}: the agent's refusal is malformed"
        ) from malformed
    short, host = local_copy.short, client.host
    rows = [(shown_path(path), decimal(size)) for path, _, size in copies.files[:MAX_NAMED]]
    rows += [(shown_path(path), why) for path, why in sorted(copies.unseen.items())[:MAX_NAMED]]
    more = copies.count + len(copies.unseen) - len(rows)
    head = (
        f"{short}: {files_text(copies.count)} ({decimal(copies.bytes)}) {_verb(copies.count)} only on {host}"
    )
    if not copies.count:
        head = f"{short}: {host} cannot compare all of its files with those here"
    lines = [f"  {path}   {what}" for path, what in rows] + ([f"  and {more} more"] if more > 0 else [])
    lines += [
        f"  download them    launch pull {short} --all",
        f"  or lose them      launch rm --force {short}",
    ]
    kinds = {kind for _, kind, _ in copies.files}
    only_checkpoints = kinds == {"checkpoint"} and len(copies.files) == copies.count and not copies.unseen
    return LastCopyError("\n".join([head, *lines]), only_checkpoints=only_checkpoints)


def _verb(count: int) -> str:
    return "exists" if count == 1 else "exist"


def check_here(local_copy: LocalCopy, *, force: bool) -> None:
    """Raise LastCopyError if a run's files on this computer are the last copies, unless `force`."""
    if local_copy.is_freed and not local_copy.files.is_folder() and not force:
        raise LastCopyError(
            f"{local_copy.short}: its local copy is not at {local_copy.folder}, and its host has no copy; without its record here, launcher no longer finds a copy\n"
            f"  if you moved the copy, type there   launch rm --here {local_copy.short}     to forget the run   launch rm --here --force {local_copy.short}",
            only_checkpoints=False,
        )
    files = LocalCopies(local_copy).files()
    if files and not force:
        short, size = local_copy.short, decimal(sum(status.st_size for status in files.values()))
        keep = (
            ""
            if local_copy.is_freed or gone(local_copy) is not None
            else f"to keep them   launch rm {short}     or "
        )
        raise LastCopyError(
            f"{short}: the last copies of {files_text(len(files))} ({size}) would be removed: {local_copy.folder}\n"
            f"  {keep}lose them   launch rm --here --force {short}",
            only_checkpoints=False,
        )


def remove_here(local_copy: LocalCopy, *, force: bool) -> None:
    """Remove this client's copy of a run. Raises RunError if the disk refuses.

    Also raises LastCopyError, unless `force`: a pull may have downloaded files since the last check.
    """
    with local_copy.alone("pull"), local_copy.disk_errors(local_copy.folder):
        check_here(local_copy, force=force)
        local_copy.remove()


class Collected(NamedTuple):
    """The items removed from a host, and the host's unreadable runs with the reasons.

    `unknown` are objects that may be launcher's, and that no run here knows: they stay.
    """

    items: list[RemovedThing]
    unreadable: dict[str, str]
    unknown: list[UnknownResource]


def collect_garbage(
    client: HostClient, host: Host, heard: Callable[[int], None], *, dry_run: bool
) -> Collected:
    """Remove the items of a host that no run uses any more, unless `dry_run`; return them.

    They include containers of ended runs, and images older than a day that no run names. `heard` gets the
    number of runs read so far.
    """
    with open_runtimes(client, host) as runtimes:
        root = client.upkeep.root_label()
        # Look at the runtimes before listing the runs: items that appear in between belong to a new run.
        kept = [(runtime, runtime.holdings(), _old(runtime.supplies(root))) for runtime in runtimes]
        garbage = client.upkeep.collect_garbage(heard, dry_run=dry_run)
        items = [*garbage.items]
        for runtime, holdings, supplies in kept:
            ended = [
                holding
                for holding in holdings
                if holding.root == garbage.root and holding.run not in garbage.runs and not holding.is_up
            ]
            unneeded = _unneeded(supplies, garbage.images)
            items += _discard(runtime, [*ended, *unneeded], dry_run=dry_run)
        unknown = [one for runtime in runtimes for one in runtime.unknown()]
        return Collected(items, garbage.unreadable, unknown)


def prune_images(client: HostClient, host: Host, *, dry_run: bool) -> list[RemovedThing]:
    """Remove images that were built for this root of a host and that no run or container uses; return them.

    Raises HostError if the host has no usable container engine.
    """
    with open_runtimes(client, host) as runtimes:
        root = client.upkeep.root_label()
        kept = [(runtime, runtime.supplies(root)) for runtime in _with_images(runtimes, host)]
        named = client.upkeep.collect_garbage(lambda _runs: None, dry_run=True).images
        items = []
        for runtime, images in kept:
            items += _discard(runtime, _unneeded(images, named), dry_run=dry_run)
        return items


def images_of(client: HostClient, host: Host) -> list[SharedResource]:
    """Return the images that launch built on a host, in all its roots.

    Raises HostError if it has no container engine.
    """
    with open_runtimes(client, host) as runtimes:
        return [image for runtime in _with_images(runtimes, host) for image in runtime.supplies()]


@contextlib.contextmanager
def open_runtimes(client: HostClient, host: Host) -> Iterator[list[Runtime]]:
    """Probe a host, and open each of its usable runtimes."""
    facts = backend_of(host).probing.probe(client, host, NO_JOB)
    with open_all(client, host, facts) as runtimes:
        yield runtimes


def _with_images(runtimes: Collection[Runtime], host: Host) -> list[Runtime]:
    chosen = [runtime for runtime in runtimes if runtime.has_images]
    if not chosen:
        mend = f"the host's facts   launch probe --host {host.name}"
        raise HostError(host.name, f"{host.name} has no container engine that can be used\n  {mend}")
    return chosen


def _old(supplies: Collection[SharedResource]) -> list[SharedResource]:
    """Return the shared resources that are old enough, or have no name that a run could use."""
    return [supply for supply in supplies if supply.id or time.time() - supply.created > UNNAMED_S]


def _unneeded(supplies: Collection[SharedResource], named: Collection[str]) -> list[SharedResource]:
    return [supply for supply in supplies if supply.users == 0 and supply.name not in named]


def _discard(
    runtime: Runtime, things: Collection[RunResource | SharedResource], *, dry_run: bool
) -> list[RemovedThing]:
    gone = [thing for thing in things if dry_run or runtime.discard(thing)]
    return [
        RemovedThing(
            kind=thing.kind, path=thing.name, bytes=thing.bytes if isinstance(thing, SharedResource) else 0
        )
        for thing in gone
    ]
