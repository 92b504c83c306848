"""A verification: a run whose attempts are trials. It is followed to its end, reported, and always removed."""

from __future__ import annotations

from typing import NamedTuple

from launcher.base.delayed_interrupts import HeldInterrupts
from launcher.copy.local_copy import LocalCopy
from launcher.errors import LaunchError
from launcher.runs.cleaning import free, remove_here
from launcher.runs.follow.following import follow
from launcher.runs.follow.view import View
from launcher.runs.launch.launching import Started
from launcher.runs.run_client import open_client
from launcher.runs.run_stopping import stop
from launcher.values.host import Host
from launcher.values.record import is_terminal
from launcher.verify.verification_report import VerificationReport, verification_report


class Verified(NamedTuple):
    """A report, and the problem if its run could not be removed."""

    report: VerificationReport
    problem: str | None


def finish(started: Started, view: View) -> Verified:
    """Follow a started verification to its end, report it, and remove its run.

    Raises KeyboardInterrupt and Terminated once the run has been stopped and removed.
    """
    host, local_copy = started.host, started.local_copy
    try:
        state = follow(host, local_copy, view, started.client, pulls=False)
        report = verification_report(local_copy, state)
    except BaseException:
        if problem := remove(host, local_copy, view):
            view.note(problem)
        raise
    finally:
        view.close()
    return Verified(report, remove(host, local_copy, view))


def remove(host: Host, local_copy: LocalCopy, view: View) -> str | None:
    """Stop a verification if it still runs, and remove its run from the host and from this computer.

    Return the problem, if any. Ctrl-C and SIGTERM are delayed until the run is removed, because it holds a
    card.
    """
    held = HeldInterrupts()
    try:
        state = local_copy.state()
        with view.stage("remove") as stage, open_client(host, local_copy) as client:
            if state is None or not is_terminal(state.state):
                stop(client, local_copy.run, now=True, grace_s=0.0)
            problem = free(client, local_copy, "all", stage).problem
            stage.text = f"{local_copy.run}, on {host.name} and here"
        remove_here(local_copy, force=True)
        return problem
    except LaunchError as error:
        why = str(error).splitlines()[0]
        short = local_copy.short
        return (
            f"{local_copy.run} could not be removed: {why}\n"
            f"  next   launch stop --now {short}     then   launch rm --force --here {short}"
        )
    finally:
        held.release()
