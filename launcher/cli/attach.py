"""attach: follow a run that is there."""

from __future__ import annotations

from launcher.cli.options import AcceptFlag, HostOption, JsonFlag, RunWord


def attach(
    run: RunWord = "last", host: HostOption = None, _accept: AcceptFlag = False, as_json: JsonFlag = False
) -> None:
    """Follow a run, from wherever this client left off; an interrupted one goes on.

    Example:  launch attach last
    """
    from launcher.cli.follow import follow_to_end
    from launcher.cli.screens import make_view
    from launcher.errors import UnreachableError
    from launcher.hosts import connect
    from launcher.runs.control import locate, resume_if_interrupted

    view = make_view(as_json)
    place, mirror = locate(run, host)
    agent = None
    try:
        agent = connect(place)
        if resume_if_interrupted(agent, mirror, view):
            view.note(
                f"{mirror.run} was interrupted, or waited; what was left of it has been ended, and it goes on"
            )
    except UnreachableError as error:
        view.lost(error, 1, 0.0)  # following tries again, for ever
    follow_to_end(place, mirror, view, agent)
