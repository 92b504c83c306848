"""The end of a rent: what the run made comes home and is proven by its hash, then the machine is ended, then listed until gone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence

from rich.filesize import decimal

from launcher.errors import AgentError, HostError, LaunchError, RunError, ServiceError, UnreachableError
from launcher.hosts import Desk
from launcher.runs.checkpoint_pulling import WHOLE, pull_checkpoint
from launcher.runs.evidence import of_rent
from launcher.runs.following import LOST_LINKS, checkpoints_left, pause
from launcher.runs.local_copies import LocalCopies
from launcher.runs.mirror import Mirror
from launcher.runs.pulling import Choice, by_number, came, checkpoint_of, pull, shown_path
from launcher.runs.refreshing import refresh
from launcher.runs.run_desk import open_desk
from launcher.runs.tenancies import ENDED_WITH_RUN, note_lost
from launcher.runs.tenant import Tenant
from launcher.runs.view import View
from launcher.values.output import Output
from launcher.values.record import State, is_terminal
from launcher.values.renting import RentalReason
from launcher.values.tenancy import Tenancy

OLDER_BYTES = 20_000_000_000
"""So much of a script's older checkpoints comes home: it costs a few minutes of the rent."""
NO_LIMIT = sys.maxsize
"""Everything comes home whatever its size: nothing can be fetched from a machine that is gone."""

NEVER_BEGUN = "its run never began"
REMOVED = "its run was removed there"
MOST_NAMED = 8
LIST_S = 30.0
"""So long a machine is asked for what has not come home before it is ended."""
KEPT_LOOK_S = 300.0
"""How often the provider is asked whether a machine that is kept is still there."""


def is_over(state: str) -> bool:
    """Whether nothing more happens on the machine unless a client has it happen."""
    return is_terminal(state) or state in (State.WAITING, State.INTERRUPTED)


def bring_home(desk: Desk, mirror: Mirror, view: View) -> None:
    """Bring everything home that a run made on a machine that will be gone, and prove it by the host's own digests.

    That includes its newest whole checkpoint, and those of a script that saves its own, the newest first, as long as they are not
    too large. The others are named: they are lost with the machine. Raises RunError if something cannot be sent or does not
    fit here, and HostError; what can come has come then.
    """
    refresh(desk, mirror)
    with view.stage("home") as stage:
        pulled = pull(desk, mirror, Choice(NO_LIMIT, fits=True), stage)
        words, failed = [came(pulled)], {**pulled.left_out}
        folders = own_checkpoints(pulled.checkpoints)
        try:
            words.append(pull_checkpoint(desk, mirror, WHOLE, stage).words)
        except AgentError as error:
            if error.code != "no-checkpoint":
                raise
        except RunError as error:  # there may be room for others
            failed["checkpoints"] = str(error).splitlines()[0]
        if folders:
            saved = pull(desk, mirror, Choice(NO_LIMIT, paths=(*folders,), fits=True), stage)
            words.append(f"{_few(folders)}: {came(saved)}")
            failed |= saved.left_out
        if failed:
            path, why = min(failed.items())
            more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise RunError(f"{mirror.run}: {shown_path(path)} cannot be brought home: {why}{more}")
        stage.text = "; ".join([*words, "each as its machine has it"])
    if older := checkpoints_left(pulled, mirror):
        names = sorted({checkpoint_of(file.path) for file in older}, key=by_number)
        size = decimal(sum(file.size for file in older))
        view.note(f"older checkpoints are lost with the machine: {_few(names)} ({size})")


def _few(folders: Sequence[str]) -> str:
    """Return the names of the last of some folders, and how many more there are."""
    more = f" and {len(folders) - MOST_NAMED} more" if len(folders) > MOST_NAMED else ""
    return f"{', '.join(folders[-MOST_NAMED:])}{more}"


def own_checkpoints(files: Iterable[Output]) -> list[str]:
    """Return the checkpoints to bring home that a script saved by itself: they may be all that it has made.

    The newest of each series comes, and the newest finished one: a Trainer that was ended while it saved has written no
    `trainer_state.json` there. Older ones come as long as they are not too large.
    """
    sizes: dict[str, int] = {}
    finished: set[str] = set()
    for file in files:
        if file.path.startswith("checkpoints/"):  # of those that launcher has sealed one is enough
            continue
        folder = checkpoint_of(file.path)
        sizes[folder] = sizes.get(folder, 0) + file.size
        if file.path.endswith("/trainer_state.json"):
            finished.add(folder)
    in_order = sorted(sizes, key=by_number)
    newest = {by_number(folder)[0]: folder for folder in in_order}
    newest_finished = {by_number(folder)[0]: folder for folder in in_order if folder in finished}
    left, chosen = OLDER_BYTES, {*newest.values(), *newest_finished.values()}
    for folder in sorted(sizes.keys() - chosen, key=lambda one: -by_number(one)[1]):
        left -= sizes[folder]
        if left < 0:
            break
        chosen.add(folder)
    return sorted(chosen, key=by_number)


def end_rent(tenant: Tenant, mirror: Mirror, state: str, view: View) -> None:
    """Bring a run that is over home, and end its rent; a machine that the user keeps has until its limit.

    If its files do not come home, that is said with what the machine costs, and a process in the background goes on trying.
    In that process it raises RunError then.
    """
    if not is_over(state):
        return
    if tenant.tenancy.keeps and not tenant.is_due and not _keep(tenant, mirror, view):
        return
    try:
        _bring_home_over_lost_links(tenant, mirror, view)
    except ServiceError:
        raise  # the rent is over
    except (HostError, RunError) as error:
        words = f"{tenant.host.name}: its machine is not ended, since not all is here: {str(error).splitlines()[0]}"
        if tenant.is_keeper:
            raise RunError(words) from error  # it tries again
        view.note(f"{words}   to lose the rest   launch reconcile --adopt {tenant.rental.instance} --force")
        view.note(look_after(tenant, mirror))
        return
    tenant.is_home = True
    if not tenant.is_left_alone_until(lambda: tenant.is_due or not tenant.is_left_by_run):
        return
    known = mirror.state()
    is_stopped_by_limit = known is not None and of_rent(known.evidence)
    is_cut_short = is_stopped_by_limit or (tenant.is_due and (tenant.tenancy.keeps or not is_terminal(state)))
    tenant.end(RentalReason.LIMIT if is_cut_short else f"{ENDED_WITH_RUN}{state}", view)


def _keep(tenant: Tenant, mirror: Mirror, view: View) -> bool:
    """Leave a machine to a process in the background until its limit; in that process, return True once that is there.

    False means that the machine is not ours to end: it is left to that process, is gone, or is for another run.
    """
    if tenant.is_keeper:
        while not tenant.is_due:
            if not tenant.is_left_alone_for(min(KEPT_LOOK_S, tenant.due_s)):
                return False
            tenant.look(view)
        return True
    words, cron = _kept(tenant), cron_note(tenant)
    keeper = tenant.hand_over(mirror)
    view.note(f"{words}; process {keeper.pid} does then   {keeper.log}")
    view.note(cron)
    return False


def end_at_limit(tenant: Tenant, mirror: Mirror, view: View) -> None:
    """End a rent whose time is up; before that, bring home what there is, for as long as there is time for that.

    What cannot come is lost, which is said and recorded. Raises ServiceError if the machine is still billed.
    """
    try:
        _bring_home_over_lost_links(tenant, mirror, view, is_last=True)
    except Exception as error:  # noqa: BLE001 - a bug too: the rent ends now
        if lost := _what_is_lost(tenant, mirror):
            words = f"not all came home by the end of its machine's time: {lost}"
            why = (
                "its time was up"
                if tenant.is_past
                else (str(error).splitlines() or [type(error).__name__])[0]
            )
            note_lost(tenant.nonce, words)
            with contextlib.suppress(OSError):  # as of a log on a full disk
                view.note(f"{mirror.run}: {words} ({why})")
    tenant.end(RentalReason.LIMIT, view)


def _what_is_lost(tenant: Tenant, mirror: Mirror) -> str:
    """Ask a machine that is to be ended which of its files are not here, and return that in words; empty if all are."""
    tenant.extend(LIST_S)
    try:
        with open_desk(tenant.host, mirror, tenant.opening) as desk:
            listed = desk.runs.outputs(mirror.run, lambda _read: None, every_file=False)
        copies = LocalCopies(mirror)
        files = [file for file in listed.files if copies.status(file) != "yes"]
    except (LaunchError, OSError):
        return "its machine does not say what it had"
    sizes: dict[str, int] = {}
    for file in files:
        name = checkpoint_of(file.path) if file.kind == "checkpoint" else shown_path(file.path)
        sizes[name] = sizes.get(name, 0) + file.size
    names = [f"{name} ({decimal(size)})" for name, size in sorted(sizes.items(), key=lambda one: -one[1])]
    names += [f"{shown_path(path)} ({why})" for path, why in sorted(listed.left_out.items())]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def end_without_run(tenant: Tenant, mirror: Mirror, view: View) -> bool:
    """End the rent of a machine that has no such run: its launch died before it began, or it was removed there.

    First the machine is told never to begin it. Return False, with nothing ended, if it has begun meanwhile, and for a machine
    that the user keeps after a run. Raises HostError.
    """
    if is_kept_without_run(tenant.tenancy, mirror):
        return False
    with open_desk(tenant.host, mirror, tenant.opening) as desk:
        if not desk.preparation.forgo(mirror.run):
            return False
    tenant.end(NEVER_BEGUN if mirror.state() is None else REMOVED, view)
    return True


def is_kept_without_run(tenancy: Tenancy, mirror: Mirror) -> bool:
    """Whether the user keeps a machine that has its run no more: one that never began is nothing to keep it for."""
    return tenancy.keeps and mirror.state() is not None


def look_after(tenant: Tenant, mirror: Mirror) -> str:
    """Leave a rental to a process in the background; return what is said about it. Raises ServiceError."""
    cost, price, until = tenant.cost, tenant.price, tenant.until
    what = "to end its machine" if tenant.is_home else "to bring home what is missing, and to end its machine"
    keeper = tenant.hand_over(mirror)
    return (
        f"process {keeper.pid} goes on trying {what}, at the latest after {until}: "
        f"{cost} so far, {price}   {keeper.log}"
    )


def _bring_home_over_lost_links(tenant: Tenant, mirror: Mirror, view: View, *, is_last: bool = False) -> None:
    """Bring a run home; a lost link is opened again a few times. Raises as `bring_home`, and as `Tenant.watch`.

    At the last try only a machine that is gone, and the end of the time for it, keep it from going on.
    """
    losses = 0
    while True:
        try:
            with open_desk(tenant.host, mirror, tenant.opening) as desk:
                bring_home(desk, mirror, view)
                return
        except UnreachableError as error:
            losses += 1
            if losses == LOST_LINKS:
                raise
            if is_last:
                tenant.look_after_loss(view)
            else:
                tenant.watch(view, error)
            pause(view, error, losses)


def cron_note(tenant: Tenant) -> str:
    """Return what is said of the line for cron on another machine."""
    return f"in case this machine goes down, a line for crontab -e on another one that has the API key; it goes once the machine has gone:   {tenant.cron_line}"


def _kept(tenant: Tenant) -> str:
    """Return what is said of a machine that the user keeps."""
    return (
        f"{tenant.host.name}: its machine is kept, as its table says: {tenant.cost} so far, {tenant.price}, until its limit at {tenant.until}"
        f"   end it   launch reconcile --adopt {tenant.rental.instance}"
    )
