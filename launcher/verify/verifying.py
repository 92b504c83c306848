"""A verification: a run whose attempts are trials. It is followed to its end, reported, and always removed."""

from __future__ import annotations

from typing import NamedTuple

from launcher.base.held_interrupts import HeldInterrupts
from launcher.copy.mirror import LocalCopy
from launcher.errors import LaunchError
from launcher.runs.cleaning import free, remove_here
from launcher.runs.follow.following import follow
from launcher.runs.follow.view import View
from launcher.runs.launch.launching import Started
from launcher.runs.run_desk import open_desk
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
    host, mirror = started.host, started.mirror
    try:
        state = follow(host, mirror, view, started.desk, pulls=False)
        report = verification_report(mirror, state)
    except BaseException:
        if problem := remove(host, mirror, view):
            view.note(problem)
        raise
    finally:
        view.close()
    return Verified(report, remove(host, mirror, view))


def remove(host: Host, mirror: LocalCopy, view: View) -> str | None:
    """Stop a verification if it still runs, and remove it from its host and from here.

    Return the problem, if any. Ctrl-C and SIGTERM are held until it is done, because the run holds a card.
    """
    held = HeldInterrupts()
    try:
        state = mirror.state()
        with view.stage("remove") as stage, open_desk(host, mirror) as desk:
            if state is None or not is_terminal(state.state):
                stop(desk, mirror.run, now=True, grace_s=0.0)
            problem = free(desk, mirror, "all", stage).problem
            stage.text = f"{mirror.run}, on {host.name} and here"
        remove_here(mirror, force=True)
        return problem
    except LaunchError as error:
        why = str(error).splitlines()[0]
        short = mirror.short
        return (
            f"{mirror.run} could not be removed: {why}\n"
            f"  next   launch stop --now {short}     then   launch rm --force --here {short}"
        )
    finally:
        held.release()
