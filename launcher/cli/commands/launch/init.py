"""init: write a project's launch.toml for a host, and try it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag
from launcher.cli.output.asking import agrees
from launcher.cli.output.say import complain
from launcher.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from launcher.runs.launch.init_config import Proposal
    from launcher.values.host import Host

HELLO = "import platform\nprint('hello from', platform.node(), 'with Python', platform.python_version())\n"


def init(
    host: HostOption = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment", metavar="FOLDER", help="Your Python environment on the host, for all jobs."
        ),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke/--no-smoke", help="Run a first job on the host, which takes seconds.")
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Write the file and run the first job without asking.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write launch.toml for a host: probe it, propose its card and environment, and run a first job on it.

    Without --host you are asked. At a terminal you are asked before the file is written; elsewhere --yes must be given. An
    existing launch.toml is never changed. The written values are trusted. A login node of Slurm is written as a cluster, and
    no job is run on it.

    Examples:
        launch init
        launch init --host lab
        launch init --host me@gpu.example.org:2222 --environment ~/venvs/torch
    """
    from launcher.backends.base.probing import NO_JOB
    from launcher.backends.registry import backend_of
    from launcher.cli.follow.screens import make_view
    from launcher.config import trust
    from launcher.config.lookup import PROJECT_FILE, Lookup
    from launcher.runs.launch.init_config import propose, write
    from launcher.runs.run_client import connect

    path = PROJECT_FILE
    if path.exists():
        raise UsageError(f"{path} exists already, and was not changed\n  look   launch hosts")
    place = _asked() if host is None else Lookup().host(host)
    backend_of(place).check_has(place, "init")
    if environment is not None:
        place = place.model_copy(update={"environment": environment})
    view = make_view(as_json)
    with view.stage("probe") as stage, connect(place) as client:
        probing = backend_of(place).probing
        facts = probing.probe(client, place, NO_JOB)
        stage.text = probing.describe(facts)
    proposal = propose(place, environment, facts)
    _show(proposal, path)
    smoke = smoke and not proposal.is_login_node
    if not yes:
        _check_wanted(path, place.name, smoke=smoke)
    write(path, proposal.text)
    values = Lookup().project_values
    if values:
        trust.trust(path, values)
    if as_json:
        from launcher.cli.json_output.preview_shapes import Proposed
        from launcher.cli.output.answer import answer

        written = {"host": proposal.host, "profile": proposal.profile, "runtime": proposal.runtime}
        answer(Proposed(path=str(path), **written))
    if smoke:
        _run_hello(proposal.host, as_json=as_json)
    if proposal.is_login_node:
        _show_next_on_cluster(proposal)
    else:
        complain("  next     launch -- python train.py")


def _show_next_on_cluster(proposal: Proposal) -> None:
    """Show the next commands for a cluster, or the key that the user's own table lacks."""
    from launcher.config.catalogue import user_folder_text

    if "kind" in proposal.text:
        complain("  next     launch --dry-run -- python train.py     shows the request to Slurm")
        complain(f"           launch probe --host {proposal.host}     its partitions, for   partition = …")
    else:
        table = f"[hosts.{proposal.host}] of {user_folder_text()}/hosts.toml"
        complain(f'  next     kind = "slurm"   in {table}: without it, runs train on the login node')


def _check_wanted(path: Path, host: str, *, smoke: bool) -> None:
    """Ask the user whether to write the file. Raises UsageError without a terminal, and Exit with code 1 if the user declines."""
    is_wanted = agrees(f"write {path}{f', and run a first job on {host}' * smoke}?")
    if is_wanted is None:
        command = shlex.join(["launch", *sys.argv[1:], "--yes"])
        raise UsageError(f"nothing was written: there is no terminal to ask at\n  next   {command}")
    if not is_wanted:
        complain("nothing was written")
        raise typer.Exit(1)


def _asked() -> Host:
    """Ask the user for a host, again after an unknown name. Raises UsageError without a terminal."""
    from launcher.config.lookup import Lookup

    known = [*Lookup().aliases, "local"]
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"which host?\n  known  {', '.join(known)}\n  next   launch init --host HOST")
    complain(f"hosts: {', '.join(known)}; or an address such as me@gpu.example.org:2222")
    while True:
        try:
            return Lookup().host(str(typer.prompt("host", default=known[0], err=True)))
        except UnknownNameError as error:
            complain(str(error).splitlines()[0])


def _show(proposal: Proposal, path: Path) -> None:
    complain("\n".join(f"  {label:<9}{text}" for label, text in proposal.lines))
    complain("\n".join([f"{path}:", *(f"  | {line}" for line in proposal.text.splitlines())]))


def _run_hello(host: str, *, as_json: bool) -> None:
    """Run a job of one line on the host, from a temporary folder. Raises Exit if it does not succeed."""
    import tempfile

    from launcher.backends.kinds import own_runtime
    from launcher.cli.follow.screens import make_view
    from launcher.cli.follow.starting import start_and_follow
    from launcher.config.lookup import Lookup
    from launcher.copy.request import Request
    from launcher.runs.launch.launching import launch

    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        Path(folder, "hello.py").write_text(HELLO)
        settings = [f"code={folder}", "inject=false", "time_limit_minutes=10"]
        words = ["python3", "hello.py"]
        request = Request(host=host, settings=settings, name="hello", words=words)
        if own_runtime(Lookup().host(host).kind) is None:
            request = request._replace(runtime="native")
        else:
            request = request._replace(profile="cpu")  # a job for a card might wait
        view = make_view(as_json)
        start_and_follow(lambda: launch(request, view), view, detach=False)
