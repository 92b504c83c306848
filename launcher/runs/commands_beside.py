"""Run commands and shells beside a run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.backends.runtimes import open_for_run
from launcher.errors import HostError
from launcher.runs.follow.summaries import known_summary
from launcher.transport.client.host_client import HostClient

if TYPE_CHECKING:
    from launcher.transport.agent_input import Keyboard
    from launcher.values.reported.answers import CommandEnd


def execute(client: HostClient, run: str, command: Sequence[str], take: Callable[[int, bytes], None]) -> int:
    """Run a command beside a run, in the run's container if it has one. Return the command's exit code.

    The exit code is as a shell reports it. `take` receives the output as (file descriptor, bytes): 1 is stdout,
    2 is stderr. After Ctrl-C, wait until the command has ended and return 130; a second Ctrl-C interrupts that
    wait. Raises HostError, and NoRunError for a run that was removed.
    """
    with _beside(client, run) as inside, _interrupt_noted() as interrupts:
        end = inside.runs.execute(run, command, take, lambda: bool(interrupts))
    return 128 + signal.SIGINT if interrupts else _exit_code(client, end)


def interact(
    client: HostClient,
    run: str,
    command: Sequence[str],
    take: Callable[[int, bytes], None],
    keyboard: Keyboard,
) -> int:
    """Run a command, by default the user's shell, on a terminal beside a run; return its exit code.

    The exit code is as a shell reports it. `take` receives the terminal's output; `keyboard` supplies the input.
    Raises HostError, and NoRunError for a run that was removed.
    """
    with _beside(client, run) as inside:
        return _exit_code(client, inside.runs.interact(run, command, take, keyboard))


@contextlib.contextmanager
def _beside(client: HostClient, run: str) -> Iterator[HostClient]:
    """Yield a host client whose commands run where the run's processes do: on its host, in its container or on its node."""
    with open_for_run(client, known_summary(client, run)) as runtime, runtime.inside(run) as inside:
        yield inside


def _exit_code(client: HostClient, end: CommandEnd) -> int:
    if end.signal is not None:
        return 128 + end.signal
    if end.exit is None:
        raise HostError(client.host, f"{client.host}: the agent did not report how the command ended")
    return end.exit


@contextlib.contextmanager
def _interrupt_noted() -> Iterator[list[int]]:
    """Record the first Ctrl-C; the second one interrupts."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
