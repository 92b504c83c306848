"""image: what a job runs in, in a container."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from launcher.cli.figures import size_text
from launcher.cli.options import AcceptFlag, CardOption, HostOption, JobOption, JsonFlag
from launcher.cli.quick import QuickCommand, QuickGroup
from launcher.cli.say import say
from launcher.errors import UsageError

app = typer.Typer(
    help="The images of containers: show, build, list, prune.",
    no_args_is_help=True,
    cls=QuickGroup,
    rich_markup_mode=None,
)


@app.callback()
def _images() -> None:
    pass


@app.command("show", cls=QuickCommand)
def show(
    profile: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="The card; by default the host's or the project's.")
    ] = None,
    job: JobOption = None,
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the image of a job for a card: its name, why it is so, and its Dockerfile. No host is asked.

    Example:  launch image show --profile titan_rtx
    """
    from launcher.planning import TorchTarget, image, torch_for
    from launcher.runs import resolve

    place = resolve.host(host)
    named = profile or place.profile or resolve.project().profile or "auto"
    if named == "auto":
        raise UsageError("an image is for a card, and no host is asked which\n  name it   launch image show --profile PROFILE")  # fmt: skip
    card = resolve.profile(named)
    task = resolve.task(job, (), (), None)
    path, sources = resolve.template()[1], resolve.image_sources()
    one = image(card, task.job, place.build, sources)
    chosen = torch_for(task.job.requirements, TorchTarget(card), sources.wheels)
    if as_json:
        wheels = chosen._asdict() if one.dockerfile is not None else None
        print(json.dumps({"version": 1, "profile": card.name, "wheels": wheels, **one.model_dump()}))
        return
    say(one.name)
    if one.dockerfile is None:
        say("  the job's own image: it is used as it is, and nothing is installed in it")
        return
    url, why = chosen.url, chosen.why
    if place.build.torch_index is not None:
        url, why = place.build.torch_index or "pip_conf's index", f"{place.name}'s build says so"
    by = f"{place.name}'s build says so" if "base" in place.build.model_fields_set else "nothing else is said"
    say(
        f"  from          {place.build.base}   ({by})",
        f"  torch         {url}   ({why})",
        *(f"  note          {note}" for note in chosen.notes),
        f"  requirements  {', '.join(one.requirements) or '-'}   ({task.job.name}; torch is one version, and first)",
        f"  template      {path}",
        "",
        *one.dockerfile.rstrip("\n").split("\n"),
    )


@app.command("build", cls=QuickCommand)
def build(
    host: HostOption = None,
    profile: CardOption = None,
    job: JobOption = None,
    _accept: AcceptFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Build the image of a job on a host now, so that no launch has to wait for it. Ctrl-C cancels the build.

    Example:  launch image build --host lab --job sft
    """
    from launcher.cli.screens import make_view
    from launcher.runs.launching import Request, build_image

    build_image(Request(host=host, profile=profile, job=job), make_view(as_json))


@app.command("list", cls=QuickCommand)
def listing(host: HostOption = None, _accept: AcceptFlag = False, as_json: JsonFlag = False) -> None:
    """List the images that launch has built on a host, the latest first.

    Example:  launch image list --host lab
    """
    from launcher.hosts import connect
    from launcher.hosts.agent import printable
    from launcher.runs import resolve
    from launcher.runs.cleaning import images_of

    place = resolve.host(host)
    with connect(place) as agent:
        found = images_of(agent, place)
    if as_json:
        print(json.dumps({"version": 1, "host": place.name, "images": [one._asdict() for one in found]}))
        return
    if not found:
        say(f"{place.name}: no images of ours yet", f"  build one   launch image build --host {place.name}")
    for one in found:
        age = datetime.fromtimestamp(one.created).astimezone().strftime("%Y-%m-%d %H:%M")
        used = f"{one.containers} containers" if one.containers else "not used"
        say(f"  {printable(one.name):<40} {size_text(one.bytes):>9}   {age}   {used}")


@app.command("prune", cls=QuickCommand)
def prune(
    host: HostOption = None,
    _accept: AcceptFlag = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove from a host the images that we built there, that none of its runs names and no container uses.

    Example:  launch image prune --host lab --dry-run
    """
    from launcher.hosts import connect
    from launcher.hosts.agent import printable
    from launcher.runs import resolve
    from launcher.runs.cleaning import prune_images

    place = resolve.host(host)
    with connect(place) as agent:
        items = prune_images(agent, place, dry_run=dry_run)
    total = sum(item.bytes for item in items)
    if as_json:
        images = [{"name": item.path, "bytes": item.bytes} for item in items]
        values = {"version": 1, "host": place.name, "dry_run": dry_run, "bytes": total, "images": images}
        print(json.dumps(values))
        return
    for item in items:
        say(f"  {printable(item.path):<40} {size_text(item.bytes):>9}")
    say(f"{place.name}: {size_text(total)} {'would be freed' if dry_run else 'freed'}, {len(items)} images")
