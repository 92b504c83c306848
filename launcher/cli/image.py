"""image: what a job runs in, in a container."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from launcher.cli.quick import QuickCommand, QuickGroup
from launcher.cli.say import say
from launcher.cli.words import HostOption, JsonFlag
from launcher.errors import UsageError

app = typer.Typer(
    help="The images of containers: show.", no_args_is_help=True, cls=QuickGroup, rich_markup_mode=None
)


@app.callback()
def _images() -> None:
    pass


@app.command("show", cls=QuickCommand)
def show(
    profile: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="The card; by default the host's or the project's.")
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="A job's name or TOML file.")] = None,
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the image of a job for a card: its name, why it is so, and its Dockerfile. No host is asked.

    Example:  launch image show --profile titan_rtx
    """
    from launcher.planning import image, torch_wheels
    from launcher.runs import resolve

    place = resolve.host(host)
    named = profile or place.profile or resolve.project().profile or "auto"
    if named == "auto":
        raise UsageError("an image is for a card, and no host is asked which\n  name it   launch image show --profile PROFILE")  # fmt: skip
    card = resolve.profile(named)
    task = resolve.task(job, (), (), None)
    template, path = resolve.template()
    one = image(card, task.job, place.build, template)
    wheels = torch_wheels(card)
    if as_json:
        torch = wheels._asdict() if one.dockerfile is not None else None
        print(json.dumps({"version": 1, "profile": card.name, "torch": torch, **one.model_dump()}))
        return
    say(one.name)
    if one.dockerfile is None:
        say("  the job's own image: it is used as it is, and nothing is installed in it")
        return
    url, why = wheels
    if place.build.torch_index is not None:
        url, why = place.build.torch_index or "pip_conf's index", f"{place.name}'s build says so"
    by = f"{place.name}'s build says so" if "base" in place.build.model_fields_set else "nothing else is said"
    say(
        f"  from          {place.build.base}   ({by})",
        f"  torch         {url}   ({why})",
        f"  requirements  {', '.join(one.requirements) or '-'}   ({task.job.name}; torch is one version, and first)",
        f"  template      {path}",
        "",
        *one.dockerfile.rstrip("\n").split("\n"),
    )
