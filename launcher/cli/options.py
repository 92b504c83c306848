"""Arguments and options that several verbs share, each said once."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import typer

from launcher.errors import UsageError


def _accept_new_host_keys(value: bool) -> bool:
    if value:
        from launcher.cli.say import complain
        from launcher.hosts.new_keys import NEW_KEYS

        NEW_KEYS.accept(complain)
    return value


def seconds(wait: str | None) -> float:
    """Return a time of --wait as people write it, e.g. `30m`, in seconds. Raises UsageError."""
    if wait is None:
        return 0.0
    found = re.fullmatch(r"([0-9]{1,6})(s|m|h|d)", wait)
    if found is None:
        raise UsageError(f"--wait {wait}: a number and s, m, h or d   --wait 30m")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


RunWord = Annotated[
    str, typer.Argument(metavar="RUN", help="The start of a run's id, or of its last letters; or `last`.")
]
HostOption = Annotated[
    str | None, typer.Option("--host", metavar="HOST", help="A name from launch.toml or ~/.ssh/config.")
]
CardOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="PROFILE", help="The card; by default the one that is found."),
]
JobOption = Annotated[str | None, typer.Option("--job", metavar="JOB", help="A job's name or TOML file.")]
PrecisionOption = Annotated[
    Literal["auto", "bf16", "fp16", "fp16-native", "fp32"], typer.Option(help="Begin the ladder here.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the job.")
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="The run's name, in place of the job's.")
]
WaitOption = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait so long for a card that somebody has: 30m."),
]
DetachFlag = Annotated[bool, typer.Option("--detach", help="Start, say how to attach, and leave.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="For scripts: JSON on standard output.")]
AcceptFlag = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-key",
        callback=_accept_new_host_keys,
        help="Believe a host key that no known_hosts file holds yet, and note it; never a changed one.",
    ),
]
