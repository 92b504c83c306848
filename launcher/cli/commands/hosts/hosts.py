"""hosts: list the configured hosts with their cards and state."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonFlag

if TYPE_CHECKING:
    from launcher.backends.base.probing import Probed
    from launcher.cli.json_output.host_shapes import HostRow
    from launcher.cli.output.columns import Column
    from launcher.values.host import Host


def hosts(
    every: Annotated[
        bool, typer.Option("--all", help="Also name the other aliases of ~/.ssh/config; they are not probed.")
    ] = False,
    close: Annotated[
        bool,
        typer.Option("--close", help="Close the connections that stay open for the next command."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Probe the configured hosts, and list their cards, memory and free space.

    These are this machine, the hosts of launch.toml and ~/.config/launch/hosts.toml, and the aliases of ~/.ssh/config with a
    run of this client. All are probed at once, except the hosts of an untrusted launch.toml. A Kaggle account shows its
    expected machine and its hours; `kaggle` is such an account if its credentials are here. A Lambda Cloud account shows
    the machine that would be rented, and its price. Then follow the rented machines, with start and cost, and the
    connections that stay open for the next command; --close closes these, and does nothing else.

    Examples:
        launch hosts
        launch hosts --all --json
        launch hosts --close
    """
    if close:
        _close_held(as_json=as_json)
        return
    from launcher.backends.base.probing import Probed
    from launcher.cli.output.wrapping import say_wrapped
    from launcher.cli.text.connection_text import show_held
    from launcher.config.lookup import Lookup
    from launcher.rental.open_rentals import open_rentals
    from launcher.runs.host_probes import known_hosts, probe_all
    from launcher.transport import persistent_connection

    lookup = Lookup()
    lookup.ask_trust()
    configured = known_hosts(lookup)
    aliases = [name for name in lookup.aliases if name not in configured] if every else []
    names = list(configured)
    rows: list[Probed] = []
    with _growing(rows, names) if not as_json and sys.stdout.isatty() else _report_slow_hosts(rows, names):
        rows.extend(probe_all(list(configured.values())))
    rows.sort(key=lambda row: names.index(row.host.name))
    rows += [
        Probed(lookup.written_hosts[name], problem="untrusted: look at launch.toml, then   launch trust")
        for name in sorted(lookup.untrusted)
    ]
    rented = open_rentals()
    connections = persistent_connection.states()
    if as_json:
        from launcher.cli.json_output.host_shapes import Hosts
        from launcher.cli.output.answer import answer
        from launcher.cli.text.rental_text import rental_row

        found = {
            "connections": connections,
            "rentals": [rental_row(one) for one in rented.rentals],
            "unreadable": [*map(str, rented.unreadable)],
        }
        answer(Hosts(hosts=[_shape(row) for row in rows], aliases=aliases, **found))
        return
    _show(rows)
    if rented.rentals or rented.unreadable:
        from launcher.cli.text.rental_text import show_rentals

        show_rentals(rented)
    if connections:
        show_held(connections)
    if aliases:
        say_wrapped(f"aliases of ~/.ssh/config, not probed: {', '.join(aliases)}")


def _close_held(*, as_json: bool) -> None:
    """Close the connections that stay open for the next command, and print them."""
    from launcher.cli.text.connection_text import show_closed
    from launcher.transport import persistent_connection

    closed = persistent_connection.close_all()
    if not as_json:
        show_closed(closed)
        return
    from launcher.cli.json_output.host_shapes import Hosts
    from launcher.cli.output.answer import answer

    answer(Hosts(hosts=[], aliases=[], connections=closed.held, rentals=[], unreadable=[]))


def _growing(rows: list[Probed], names: list[str]) -> AbstractContextManager[None]:
    """Draw each row when its host answers, in the configured order, and below them the hosts without an answer."""
    from launcher.cli.output.columns import lay_out
    from launcher.cli.output.wait_notice import waiting_words
    from launcher.cli.output.watch_loop import growing

    places = {name: place for place, name in enumerate(names)}

    def lines(width: int) -> list[str]:
        come = sorted(rows, key=lambda row: places[row.host.name])
        table = lay_out(_columns(), [(row.host.name, *_cells(row)) for row in come], width).lines
        missing = waiting_words(_missing(rows, names))
        return [*(table if come else []), *([missing] if missing else [])]

    return growing(lines)


def _missing(rows: list[Probed], names: list[str]) -> set[str]:
    """Return the names of the hosts that have not answered."""
    return {*names} - {row.host.name for row in rows}


def _report_slow_hosts(rows: list[Probed], names: list[str]) -> AbstractContextManager[None]:
    """Print the hosts without an answer on standard error, once the wait exceeds a second."""
    from launcher.cli.output.wait_notice import report_missing

    return report_missing(lambda: _missing(list(rows), names))


def _shape(row: Probed) -> HostRow:
    from launcher.cli.json_output.host_shapes import HostRow

    return HostRow(
        host=row.host.name, profile=row.profile, problem=row.problem, facts=row.facts, quota=row.quota
    )


def _columns() -> tuple[Column, ...]:
    from launcher.cli.output.columns import Column

    return (
        Column("HOST", 6),
        Column("CARDS", 12),
        Column("EACH", drop=2),
        Column("DRIVER", drop=4),
        Column("MEMORY", drop=3),
        Column("FREE", drop=1),
        Column("", 30, wraps=True),
    )


def _show(rows: list[Probed]) -> None:
    from launcher.cli.output.columns import print_columns

    print_columns(_columns(), [(row.host.name, *_cells(row)) for row in rows])
    from launcher.backends.kinds import PACKAGES
    from launcher.backends.registry import backend_of
    from launcher.cli.output.wrapping import say_wrapped

    alike: dict[str, list[Host]] = {}
    for row in rows:
        alike.setdefault(row.host.kind, []).append(row.host)
    for kind in PACKAGES:
        hosts = alike.get(kind, [])
        if hosts and (words := backend_of(hosts[0]).probing.note()):
            say_wrapped(f"{', '.join(host.name for host in hosts)}: {words}")


def _cells(row: Probed) -> tuple[str, ...]:
    from launcher.backends.registry import backend_of

    facts = row.facts
    if facts is None:
        return "-", "-", "-", "-", "-", row.problem or ""
    probing = backend_of(row.host).probing
    is_login = probing.is_unused_login(facts)
    return (
        *probing.cells(row.host, facts),
        f"{facts.room_gb:,.0f} GB" if facts.room_gb is not None else "-",
        row.problem
        or row.quota
        or facts.gpu_error
        or facts.holders_error
        or facts.file_system.error
        or ('a login node of a Slurm cluster, without kind = "slurm"' if is_login else ""),
    )
