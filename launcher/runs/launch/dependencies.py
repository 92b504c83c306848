"""The runs that must end before another one starts: the option --after of a host with a scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.backends.registry import backend_of
from launcher.errors import UsageError
from launcher.runs.locating import local_copy_here
from launcher.values.host import Host
from launcher.values.record import State, is_terminal

CONDITIONS = ("ok", "any")


def runs_before(written: Iterable[str], host: Host) -> tuple[str, ...]:
    """Return the runs of `--after RUN[:ok|any]`, each as `RUN:ok` or `RUN:any`.

    A run that is known to have ended as asked is left out. Raises UsageError for a host without a scheduler, a
    run on another host, and a run that can no longer end as asked; UnknownNameError for an unknown run.
    """
    found = []
    for word in written:
        if not backend_of(host).planning.has_dependencies:
            raise UsageError(
                f"--after {word}: only a Slurm cluster starts runs after others, and {host.name} is none"
            )
        name, _, condition = word.rpartition(":")
        if not name:
            name, condition = word, "ok"
        if condition not in CONDITIONS:
            raise UsageError(f"--after {word}: expected a run, or RUN:any for any end of it")
        local_copy = local_copy_here(name)
        there = local_copy.host()
        if there.name != host.name:
            is_cluster = backend_of(there).planning.has_dependencies
            mend = f"\n  next   launch --host {there.name} --after {word} …" if is_cluster else ""
            words = f"--after {word}: {local_copy.run} is on {there.name}, and Slurm knows the jobs of one cluster"
            raise UsageError(words + mend)
        state = local_copy.state()
        if state is not None and is_terminal(state.state):
            if state.state != State.SUCCEEDED and condition == "ok":
                raise UsageError(
                    f"--after {word}: {local_copy.run} is {state.state}, so this run would never start\n"
                    f"  whatever its end   --after {name}:any"
                )
            continue
        found.append(f"{local_copy.run}:{condition}")
    return tuple(found)
