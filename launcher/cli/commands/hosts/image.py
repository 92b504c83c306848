"""image: show, build, list and prune the container images of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import CardOption, HostOption, JobOption, JsonFlag
from launcher.cli.output.figures import size_text
from launcher.cli.output.say import say
from launcher.cli.quick import LocalCommand, QuickCommand, QuickGroup
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.backends.base.runtime import SharedResource
    from launcher.cli.json_output.preview_shapes import ImageRow

app = typer.Typer(
    help="Container images: show, build, list, prune.",
    no_args_is_help=True,
    cls=QuickGroup,
    rich_markup_mode=None,
)


@app.callback()
def _images() -> None:
    pass


@app.command("show", cls=LocalCommand)
def show(
    profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="The card; by default the profile of the host or the project."),
    ] = None,
    job: JobOption = None,
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a job's image for a card: its name, how its parts were chosen, and its Dockerfile. No host is asked.

    Examples:
        launch image show --profile titan_rtx
    """
    from launcher.backends.registry import backend_of
    from launcher.cli.output.wrapping import say_wrapped
    from launcher.config import resolve
    from launcher.config.lookup import Lookup
    from launcher.planning.software.image_plan import image, torch_for
    from launcher.planning.software.wheel_choice import TorchTarget
    from launcher.runs.launch import package_sources

    lookup = Lookup()
    place = lookup.host(host)
    backend_of(place).check_has(place, "image")
    profile_name = profile or place.profile or lookup.project.profile or "auto"
    if profile_name == "auto":
        raise UsageError("an image depends on the card, and no profile is set\n  next   launch image show --profile PROFILE")  # fmt: skip
    card = lookup.profile(profile_name)
    task = package_sources.with_packages(resolve.task(job, (), (), None), place, ())
    path, sources = resolve.template()[1], resolve.image_sources()
    chosen = image(card, task.job, place.build, sources)
    torch = torch_for(task.job.requirements, TorchTarget(card), sources.wheels)
    if as_json:
        from launcher.cli.json_output.preview_shapes import ImageShown
        from launcher.cli.output.answer import answer

        wheels = torch if chosen.dockerfile is not None else None
        answer(ImageShown(profile=card.name, wheels=wheels, **dict(chosen)))
        return
    say(chosen.name)
    if chosen.dockerfile is None:
        say("  the job's own image: used unchanged, nothing is installed in it")
        return
    url, why = torch.url, torch.why
    if place.build.torch_index is not None:
        url, why = place.build.torch_index or "pip_conf's index", f"{place.name}'s build options"
    by = f"{place.name}'s build options" if "base" in place.build.model_fields_set else "the default"
    say_wrapped(
        f"  from          {place.build.base}   ({by})",
        f"  torch         {url}   ({why})",
        *(f"  note          {note}" for note in torch.notes),
        f"  requirements  {', '.join(chosen.requirements) or '-'}   ({task.job.name}; torch is pinned and installed first)",
        f"  template      {path}",
        hang=16,
    )
    say("", *chosen.dockerfile.rstrip("\n").split("\n"))


@app.command("build", cls=QuickCommand)
def build(
    host: HostOption = None,
    profile: CardOption = None,
    job: JobOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Build a job's image on a host now, so that no launch waits for it. Ctrl-C cancels the build.

    Examples:
        launch image build --host lab --job sft
    """
    from launcher.cli.follow.screens import make_view
    from launcher.copy.request import Request
    from launcher.runs.launch.launching import build_image

    build_image(Request(host=host, profile=profile, job=job), make_view(as_json))


@app.command("list", cls=QuickCommand)
def listing(
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the images that launch has built on a host, newest first.

    Examples:
        launch image list --host lab
    """
    from launcher.backends.registry import backend_of
    from launcher.cli.output.columns import Column, print_columns
    from launcher.config.lookup import Lookup
    from launcher.runs.cleaning import images_of
    from launcher.runs.run_client import connect

    place = Lookup().host(host)
    backend_of(place).check_has(place, "image")
    with connect(place) as client:
        images = images_of(client, place)
    if as_json:
        from launcher.cli.json_output.preview_shapes import Images
        from launcher.cli.output.answer import answer

        answer(Images(host=place.name, images=[_listed(image) for image in images]))
        return
    if not images:
        say(
            f"{place.name}: no images built by launch yet", f"  next   launch image build --host {place.name}"
        )
        return
    columns = (Column("IMAGE", 20), Column("SIZE", is_figure=True), Column("MADE", drop=1), Column("USED BY"))
    print_columns(columns, [_cells(entry) for entry in images])


def _cells(image: SharedResource) -> tuple[str, ...]:
    made = datetime.fromtimestamp(max(0.0, min(1e11, image.created))).astimezone().strftime("%Y-%m-%d %H:%M")
    used = f"{image.users} container{'s' * (image.users != 1)}" if image.users else "-"
    return image.name, size_text(image.bytes), made, used


def _listed(image: SharedResource) -> ImageRow:
    from launcher.cli.json_output.preview_shapes import ImageRow

    return ImageRow(name=image.name, bytes=image.bytes, created=image.created, containers=image.users)


@app.command("prune", cls=QuickCommand)
def prune(
    host: HostOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed; remove nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove images that launch has built on a host, if no run and no container uses them.

    Examples:
        launch image prune --host lab --dry-run
    """
    from launcher.backends.registry import backend_of
    from launcher.base.text import printable
    from launcher.config.lookup import Lookup
    from launcher.runs.cleaning import prune_images
    from launcher.runs.run_client import connect

    place = Lookup().host(host)
    backend_of(place).check_has(place, "image")
    with connect(place) as client:
        items = prune_images(client, place, dry_run=dry_run)
    total = sum(item.bytes for item in items)
    if as_json:
        from launcher.cli.json_output.preview_shapes import NamedSize, Pruned
        from launcher.cli.output.answer import answer

        images = [NamedSize(name=item.path, bytes=item.bytes) for item in items]
        answer(Pruned(host=place.name, dry_run=dry_run, bytes=total, images=images))
        return
    for item in items:
        say(f"  {printable(item.path):<40} {size_text(item.bytes):>9}")
    say(f"{place.name}: {size_text(total)} {'would be freed' if dry_run else 'freed'}, {len(items)} images")
