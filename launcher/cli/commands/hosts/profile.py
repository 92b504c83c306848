"""profile: list and show the known cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag
from launcher.cli.quick import LocalCommand, QuickCommand, QuickGroup

if TYPE_CHECKING:
    from launcher.values.profile import Profile

app = typer.Typer(
    help="The known cards: list, show.", no_args_is_help=True, cls=QuickGroup, rich_markup_mode=None
)


@app.command("list", cls=LocalCommand)
def list_profiles(as_json: JsonFlag = False) -> None:
    """List the profiles, yours and the built-in ones.

    Examples:
        launch profile list
    """
    if as_json:
        from launcher.cli.json_output.host_shapes import Profiles
        from launcher.cli.output.answer import answer
        from launcher.config.lookup import Lookup

        answer(Profiles(profiles=list(Lookup().profiles.values())))
        return
    from launcher.base.toml import read_toml
    from launcher.config.catalogue import files

    rows = []
    for name, path in files("profiles").items():  # not validated: validation is slow
        written = read_toml(path).tables
        kind = f"capability {written['capability']}" if "capability" in written else written.get("kind", "")
        rows.append((name, str(written.get("title", "")), kind))
    names, titles = (max(len(row[place]) for row in rows) for place in (0, 1))
    for name, title, kind in rows:
        print(f"{name:<{names}}  {title:<{titles}}  {kind}")


@app.command("show", cls=QuickCommand)
def show(
    name: Annotated[str | None, typer.Argument(metavar="PROFILE", help="A profile's name.")] = None,
    host: HostOption = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print its file, as a start for your own profile.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show a card: its rates, its features, and the precisions that follow from them. With --host, the host's card.

    Examples:
        launch profile show titan_rtx
        launch profile show l40s --toml >profiles/mine.toml
        launch profile show --host lab
    """
    from launcher.errors import UsageError

    if as_toml and as_json:
        raise UsageError("profile show: --toml and --json are two forms: give one of them")
    if name is None and host is None:
        raise UsageError(
            "profile show: name a card, or a host that has one\n  the names   launch profile list"
        )
    if as_toml:
        _show_file(name, host)
        return
    from launcher.planning.precision.ladder import LadderInputs, ladder

    card = _card(name, host)
    can = {
        "bf16": card.has_bf16,
        "tf32": card.has_tf32,
        "fp16 tensor cores": card.has_fp16_tensor_cores,
        "torch.compile (Triton)": card.has_triton,
    }
    rungs = ladder(LadderInputs(card, "lora")).rungs
    if as_json:
        from launcher.cli.json_output.host_shapes import ProfileShown
        from launcher.cli.output.answer import answer

        answer(ProfileShown(profile=card, can=can, ladder=list(rungs)))
        return
    print(f"{card.name}   {card.title}{f', capability {card.capability}' if card.capability else ''}")
    if card.memory_mib is not None:
        whose = "which it shares with its host" if card.unified else "as its driver reports it"
        print(f"  memory     {card.memory_mib:,.0f} MiB, {whose}")
    if card.peak:
        rates = card.peak.model_dump(exclude={"source", "bandwidth_gb_s"}, exclude_none=True)
        print(
            f"  peak       {', '.join(f'{kind} {rate:g}' for kind, rate in rates.items())} TFLOP/s, {card.peak.bandwidth_gb_s:g} GB/s"
        )
        print(f"             ({card.peak.source})")
    if card.kind == "cuda":
        print(f"  can        {', '.join(feature for feature, supported in can.items() if supported) or '-'}")
        print(
            f"  cannot     {', '.join(feature for feature, supported in can.items() if not supported) or '-'}"
        )
    for number, rung in enumerate(rungs, start=1):
        print(f"  rung {number}     {rung.title}   ({rung.why})")


def _card(name: str | None, host: str | None) -> Profile:
    """Return a known card, or a card of a host."""
    from launcher.config.lookup import Lookup

    if name is not None and host is None:
        return Lookup().profile(name)
    from launcher.cli.output.wait_notice import waiting_for
    from launcher.runs.host_probes import profile_there

    place = Lookup().host(host)
    with waiting_for(place.name):
        return profile_there(place, name)


def _show_file(name: str | None, host: str | None) -> None:
    from launcher.base.toml import read_text
    from launcher.config.catalogue import files

    known = files("profiles")  # not validated: the shell may have created the new, empty file already
    if name in known:
        print(read_text(known[name]), end="")
        return
    card = _card(name, host)
    print(read_text(known[card.name]) if card.name in known else _file_of(card), end="")


def _file_of(card: Profile) -> str:
    """Return the file of a profile that was derived from a probe."""
    import json

    from launcher.values.profile import DERIVED

    values = card.model_dump(exclude={"peak"}, exclude_defaults=True)
    values["title"] = card.title.removesuffix(DERIVED).rstrip()
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "".join(f"{line}\n" for line in lines)
