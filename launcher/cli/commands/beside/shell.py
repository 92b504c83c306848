"""shell: open a shell beside a run."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import HostOption, RunWord
from launcher.errors import AgentError, UsageError


def shell(
    ctx: typer.Context,
    run: RunWord = "last",
    stray: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: HostOption = None,
) -> None:
    """Open a shell on a run's host, in its code folder.

    The shell has the run's environment, but no secrets; it runs in the run's container, if there is one. After `--`, name
    another command to run in the terminal. When the shell or command ends, or the link is lost, its processes end too,
    except tmux and the like.

    Examples:
        launch shell last
        launch shell w8q2 -- python -i train.py
        launch shell w8q2 -- htop
    """
    if stray:
        raise UsageError(f"the command must follow --\n  example   launch shell {run} -- {' '.join(stray)}")
    from launcher.backends.registry import backend_of
    from launcher.cli.commands.beside.execute import code_of
    from launcher.cli.output.keyboard import LocalKeyboard
    from launcher.cli.output.say import complain
    from launcher.runs.commands_beside import interact
    from launcher.runs.locating import locate
    from launcher.runs.run_client import open_client

    place, local_copy = locate(run, host)
    backend_of(place).check_has(place, "shell", local_copy.short)
    local_copy.check_not_freed()
    keyboard = LocalKeyboard()
    with open_client(place, local_copy) as client:
        complain(f"{local_copy.short} on {place.name}   exit or Ctrl-D leaves; the run is not affected")
        try:
            with keyboard.raw():
                code = interact(client, local_copy.run, ctx.obj or [], keyboard.show, keyboard)
        except AgentError as error:
            code = code_of(error)
    raise typer.Exit(code)
