"""profile: the known cards."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import ColorOption, JsonFlag, VerboseFlag
from launcher.cli.quick import QuickCommand, QuickGroup

app = typer.Typer(
    help="The known cards: list, show.", no_args_is_help=True, cls=QuickGroup, rich_markup_mode=None
)


@app.command("list", cls=QuickCommand)
def list_profiles(
    _color: ColorOption = None, _verbose: VerboseFlag = False, as_json: JsonFlag = False
) -> None:
    """List the profiles, yours and the built-in ones.

    Examples:
        launch profile list
    """
    if as_json:
        from launcher.cli import json_shapes
        from launcher.cli.answer import answer
        from launcher.runs.resolve import profiles

        answer(json_shapes.Profiles(profiles=list(profiles().values())))
        return
    from launcher.runs.catalogue import files
    from launcher.values.toml import read_toml

    for name, path in files("profiles").items():  # not validated: that would make the listing slow
        written, _ = read_toml(path)
        kind = f"capability {written['capability']}" if "capability" in written else written.get("kind", "")
        print(f"{name:<12} {written.get('title', '')!s:<20} {kind}")


@app.command("show", cls=QuickCommand)
def show(
    name: Annotated[str, typer.Argument(metavar="PROFILE", help="A profile's name.")],
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print its file, to begin a profile of yours with.")
    ] = False,
    _color: ColorOption = None,
    _verbose: VerboseFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Show a card: its rates, what it supports, and the precisions that follow from that.

    Examples:
        launch profile show titan_rtx
        launch profile show l40s --toml >profiles/mine.toml
    """
    if as_toml:
        _show_file(name, as_json=as_json)
        return
    from launcher.planning.ladder import LadderInputs, ladder
    from launcher.runs.resolve import profile

    card = profile(name)
    can = {
        "bf16": card.has_bf16,
        "tf32": card.has_tf32,
        "fp16 tensor cores": card.has_fp16_tensor_cores,
        "torch.compile (Triton)": card.has_triton,
    }
    rungs = ladder(LadderInputs(card, "lora")).rungs
    if as_json:
        from launcher.cli import json_shapes
        from launcher.cli.answer import answer

        answer(json_shapes.ProfileShown(profile=card, can=can, ladder=list(rungs)))
        return
    print(f"{card.name}   {card.title}{f', capability {card.capability}' if card.capability else ''}")
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


def _show_file(name: str, *, as_json: bool) -> None:
    from launcher.errors import UsageError
    from launcher.runs.catalogue import files
    from launcher.runs.resolve import profile
    from launcher.values.toml import read_text

    if as_json:
        raise UsageError("profile show: --toml and --json are two forms: give one of them")
    known = files("profiles")  # not validated: the new file may be among them already, and empty
    path = known[name] if name in known else known[profile(name).name]
    print(read_text(path), end="")
