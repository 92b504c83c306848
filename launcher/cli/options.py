"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from launcher.errors import UsageError

WHAT = "What runs"
WHERE = "Where"


def _accept_new_host_keys(value: bool) -> bool:
    if value:
        from launcher.cli.output.say import complain
        from launcher.transport.ssh.new_keys import NEW_KEYS

        NEW_KEYS.accept(complain)
    return value


def _choose_colour(choice: str | None) -> str | None:
    if choice is not None:
        from launcher.cli.output import streams

        if choice not in streams.COLOURS:
            raise UsageError(f"--color {choice}: expected {', '.join(streams.COLOURS)}")
        streams.choose_colour(choice)
    return choice


def _be_verbose(value: bool) -> bool:
    if value:
        from launcher.cli.verbose import turn_on

        turn_on()
    return value


def _record(path: Path | None) -> Path | None:
    if path is not None:
        from launcher.transport.http.call_recording import record_calls

        record_calls(path)
    return path


def seconds(time: str | None, option: str = "--wait") -> float:
    """Convert an option's time, for example `30m`, to seconds. Raises UsageError for another format."""
    if time is None:
        return 0.0
    written = re.fullmatch(r"([0-9]{1,6})(s|m|h|d)", time)
    if written is None:
        raise UsageError(f"{option} {time}: expected a number and s, m, h or d\n  example   {option} 30m")
    return float(written[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[written[2]]


RunWord = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, the start of it or of its last part, its name, or `last`."
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="HOST",
        help="A host of launch.toml or ~/.ssh/config, or user@machine:port.",
        rich_help_panel=WHERE,
    ),
]
CardOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        help="The card; by default the host's.",
        rich_help_panel=WHERE,
    ),
]
JobOption = Annotated[
    str | None,
    typer.Option("--job", metavar="JOB", help="A job's name or its TOML file.", rich_help_panel=WHAT),
]
PrecisionOption = Annotated[
    Literal["auto", "bf16", "bf16-weights", "fp16", "fp32"],
    typer.Option(
        metavar="MODE",
        show_default=False,
        help="Start with this precision: bf16, bf16-weights, fp16 or fp32; auto takes the ladder's first.",
        rich_help_panel=WHAT,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the job.", rich_help_panel=WHAT),
]
EnvFileOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env-file",
        metavar="FILE",
        help="Pass the variables of a file to the job, as secrets; see --secret.",
        rich_help_panel=WHAT,
    ),
]
SendSecretsFlag = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Without asking, send the secrets that the plan of another client's run names, and rent at a high cost.",
    ),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        "-s",
        metavar="NAME",
        help="Pass this environment variable to the job; its value is never recorded.",
        rich_help_panel=WHAT,
    ),
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|UUID,…", help="Use this many of the host's cards, or exactly these.", rich_help_panel=WHERE
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name the run; by default it has the job's name.")
]
WaitOption = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="TIME",
        help="Wait up to this long for an occupied card, for example 30m.",
        rich_help_panel=WHERE,
    ),
]
DetachFlag = Annotated[bool, typer.Option("--detach", help="Start the run, print how to attach, and exit.")]
SureFlag = Annotated[
    bool, typer.Option("--yes", "-y", help="Without asking, send a large folder, and rent at a high cost.")
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show stages, notes and the end, but not the training's output.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def _common(
    color: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            callback=_choose_colour,
            help="auto, always or never; auto follows NO_COLOR and FORCE_COLOR.",
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", callback=_be_verbose, help="Show files read, and each request to a host."
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=_record,
            help="Write the form of each call to a cloud service into a new file, for a report: without secrets, 200 kB at most.",
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept-new-host-key",
            callback=_accept_new_host_keys,
            help="Accept and record a host key that is in no known_hosts file yet; a changed key is still refused.",
        ),
    ] = False,
) -> None:
    """Declare the options of every command. Their callbacks do the work."""


@cache
def common_options() -> list[Any]:
    """Return the options of every command. Their values are not passed to its function.

    The last option is only for commands that contact a host.
    """
    app = typer.Typer(add_completion=False)
    app.command()(_common)
    options = typer.main.get_command(app).params
    for option in options:
        option.expose_value = False
    return options
