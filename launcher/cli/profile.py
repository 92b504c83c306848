"""profile: the cards we know."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from launcher.cli.options import JsonFlag
from launcher.cli.quick import QuickCommand, QuickGroup

app = typer.Typer(
    help="The cards we know: list, show.", no_args_is_help=True, cls=QuickGroup, rich_markup_mode=None
)


@app.command("list", cls=QuickCommand)
def list_profiles(as_json: JsonFlag = False) -> None:
    """List the profiles: yours and ours.

    Example:  launch profile list
    """
    if as_json:
        from launcher.runs.resolve import profiles

        found = [one.model_dump(mode="json") for one in profiles().values()]
        print(json.dumps({"version": 1, "profiles": found}))
        return
    from launcher.runs.catalogue import files
    from launcher.values.toml import read_toml

    for name, path in files("profiles").items():  # as written: a listing need not pay for checking them
        written, _ = read_toml(path)
        kind = f"capability {written['capability']}" if "capability" in written else written.get("kind", "")
        print(f"{name:<12} {written.get('title', '')!s:<20} {kind}")


@app.command("show", cls=QuickCommand)
def show(
    name: Annotated[str, typer.Argument(metavar="PROFILE", help="A profile's name.")],
    as_json: JsonFlag = False,
) -> None:
    """Show what a card is, what it can do, and the precisions that follow.

    Example:  launch profile show titan_rtx
    """
    from launcher.planning import LadderInputs, ladder
    from launcher.runs.resolve import profile

    one = profile(name)
    can = {
        "bf16": one.has_bf16,
        "tf32": one.has_tf32,
        "fp16 tensor cores": one.has_fp16_tensor_cores,
        "torch.compile (Triton)": one.has_triton,
    }
    rungs = ladder(LadderInputs(one, "lora")).rungs
    if as_json:
        ladder_json = [rung.model_dump(mode="json") for rung in rungs]
        print(json.dumps({"version": 1, **one.model_dump(mode="json"), "can": can, "ladder": ladder_json}))
        return
    print(f"{one.name}   {one.title}{f', capability {one.capability}' if one.capability else ''}")
    if one.peak:
        rates = one.peak.model_dump(exclude={"source", "bandwidth_gb_s"}, exclude_none=True)
        print(
            f"  peak       {', '.join(f'{kind} {rate:g}' for kind, rate in rates.items())} TFLOP/s, {one.peak.bandwidth_gb_s:g} GB/s"
        )
        print(f"             ({one.peak.source})")
    if one.kind == "cuda":
        print(f"  can        {', '.join(word for word, yes in can.items() if yes) or '-'}")
        print(f"  cannot     {', '.join(word for word, yes in can.items() if not yes) or '-'}")
    for number, rung in enumerate(rungs, start=1):
        print(f"  rung {number}     {rung.title}   ({rung.why})")
