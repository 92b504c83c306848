"""forward: forward a local port to a port beside a run."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag, RunWord
from launcher.errors import UsageError

MOST = 65535


def forward(
    ctx: typer.Context,
    run: RunWord,
    port: Annotated[
        str,
        typer.Argument(metavar="[LOCAL:]PORT", help="The port beside the run, and the local one for it."),
    ],
    stray: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Forward a port beside a run, for example TensorBoard's, to this machine's browser.

    The port is on the host's loopback interface, or in the run's container. The local port is open to this machine only. A
    command after `--` runs beside the run at the same time, and both end together. Ctrl-C ends the forwarding. A lost link
    is restored at the next use of the port.

    Examples:
        launch forward last 6006
        launch forward w8q2 16006:6006
        launch forward last 6006 -- tensorboard --logdir ../artifacts --port 6006
    """
    if stray:
        raise UsageError(
            f"the command must follow --\n  example   launch forward {run} {port} -- {' '.join(stray)}"
        )
    here, there = _ports(port)
    from launcher.backends.registry import backend_of
    from launcher.cli.commands.beside.execute import shown_output
    from launcher.cli.output.say import complain, say
    from launcher.runs.commands_beside import execute
    from launcher.runs.forwarding import LOOPBACK, PortForward, forwarded
    from launcher.runs.locating import locate

    place, local_copy = locate(run, host)
    backend_of(place).check_has(place, "forward", local_copy.short)
    local_copy.check_not_freed()
    words: list[str] = ctx.obj or []
    code = 0
    with (
        contextlib.closing(PortForward(place, local_copy, there)) as door,
        forwarded(door, here, complain) as local,
    ):
        if not (words or local.is_answered):
            complain(f"no process listens on port {there} of the run yet")
        if here is None and local.port != there:
            choose = f"to choose one   launch forward {local_copy.short} LOCAL:{there}"
            complain(f"port {there} of this machine is taken: port {local.port} is used   {choose}")
        run_there = f"port {there} of {local_copy.short} on {place.name}"
        complain(f"{run_there}   Ctrl-C ends it; the run is not affected" if local.is_carried else run_there)
        if as_json:
            from launcher.cli.json_output.file_shapes import Forwarding
            from launcher.cli.output.answer import answer

            answer(Forwarding(run=local_copy.run, address=LOOPBACK, port=local.port, to=there))
        else:
            say(f"http://{LOOPBACK}:{local.port}")
        if words:
            with shown_output() as show:
                code = execute(door.client, local_copy.run, words, show)
        elif local.is_carried:
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    raise typer.Exit(code)


def _ports(written: str) -> tuple[int | None, int]:
    """Return the local port and the port beside the run. A local port of None means the same one, if free. Raises UsageError."""
    found = re.fullmatch(r"(?:([0-9]{1,5}):)?([0-9]{1,5})", written)
    ports = [int(one) for one in found.groups() if one] if found else []
    if not ports or not all(1 <= one <= MOST for one in ports):
        raise UsageError(
            f"{written}: expected PORT or LOCAL:PORT, 1 to {MOST}\n  example   launch forward last 6006"
        )
    return (ports[0] if len(ports) == 2 else None), ports[-1]
