"""What `make curves` has measured, as values: the distance of each run from fp32, and the table, picture and page of them."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.values.public_result import as_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUCCEEDED = "succeeded"
COLOURS = {
    "fp32": ("tab:blue", "tab:cyan", "navy", "slateblue"),
    "bf16": ("tab:green", "olive"),
    "fp16": ("tab:orange", "tab:brown"),
    "fp16-native": ("tab:red", "tab:pink"),
}
STYLES = ("-", "--", ":", "-.")
HEAD = ["run", "precision", "split", "first loss", "last loss", "largest distance", "last distance", "state"]
INTRODUCTION = """\
# The same curve

A fine-tune should learn the same on any card: in any precision of its [ladder](precision.md), with any micro-batch, on one card or
several. `make curves` measures this. It runs one job in every rung of the ladder, with the same seed and data. In fp32 it also runs
other splits of the same global batch, and two and four processes. It compares the loss of each step with that of fp32.

`make curves` writes this page; do not edit it. `tests/bench/CURVES.json` has the loss of each step.

## On your own card

<!-- not run: trains for minutes, and writes this page anew -->
```sh
make curves                        # sft, a LoRA
make curves JOB=distill STEPS=100  # another job, more steps
```

If this computer has a card that `launch` knows, all runs use that card and its ladder. Two cards of one kind add a run of two ranks, four cards add one of four.
The installed torch must support the card: see [install](install.md#which-torch). Without a card, `make curves` rehearses the plans of some cards on the CPU.

The command replaces the picture and the table of that job. If a rung fails, its row shows that, the others still run, and the command exits with 1.
"""
LEGEND = """\
A distance is the absolute difference from the loss of the first run at the same step. The picture has no point for a distance of zero.
For each run that succeeded, the [start-up hook](precision.md#precision-used-by-a-run) confirmed the precision of its row. The runs are not allowed to fall back to a lower rung.
"""
REQUESTED = """\
A precision *on request* is one that `--precision` names and that is never chosen automatically. If it fails, the command still succeeds.
"""
REFUSED = """\
`fp16-native` could be requested when this was measured. launch now [refuses](precision.md#why-pure-float16-is-refused) it.
"""
REHEARSED = """\
A rehearsal has the card's plan: its dtypes, autocast, scaler and split. It does not have the card's kernels, their order of addition, tensor
cores, tf32, NCCL, speed or memory. On a real card the distances differ, and fp32 itself differs from the CPU's in the last digits.
"""


class Curve(NamedTuple):
    """A run: how it is called, what ran, how it ended, and its loss at each step as far as it came.

    `counts`: its failure is one of `make curves`; that of a precision which is never chosen automatically is not.
    """

    name: str
    mode: str
    precision: str
    split: str
    state: str
    counts: bool
    seconds: float
    losses: dict[int, float]

    @property
    def has_succeeded(self) -> bool:
        """Whether it trained to its end, as it was meant to."""
        return self.state == SUCCEEDED


class Measurement(NamedTuple):
    """The runs of one job, the first of which is fp32, to which the others are compared; and where they ran."""

    job: str
    date: str
    where: str
    is_rehearsed: bool
    torch: str
    transformers: str
    steps: int
    batch: int
    seed: int
    seconds: float
    curves: tuple[Curve, ...]

    @property
    def has_failed(self) -> bool:
        """Whether a run failed that must not."""
        return any(curve.counts and not curve.has_succeeded for curve in self.curves)


def distances(curve: Curve, reference: Curve) -> dict[int, float]:
    """Return how far a run's loss is from the reference's at each step that both have."""
    return {
        step: abs(loss - reference.losses[step])
        for step, loss in sorted(curve.losses.items())
        if step in reference.losses
    }


# the table


def row(curve: Curve, reference: Curve) -> list[str]:
    """Return a run as cells of the table. A curve that breaks off has the last loss that it had."""
    losses = [loss for _, loss in sorted(curve.losses.items())]
    ends = [f"{losses[0]:.4f}", f"{losses[-1]:.4f}"] if losses else ["-", "-"]
    apart = [] if curve is reference else list(distances(curve, reference).values())
    largest = math.nan if any(map(math.isnan, apart)) else max(apart, default=math.nan)
    far = [f"{largest:.1e}", f"{apart[-1]:.1e}"] if apart else ["-", "-"]
    return [curve.name, curve.precision, curve.split, *ends, *far, curve.state]


def table(curves: tuple[Curve, ...]) -> str:
    """Return the runs as Markdown."""
    rows = [HEAD, ["---"] * len(HEAD), *(row(curve, curves[0]) for curve in curves)]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n" for cells in rows)


# the picture


def picture_name(job: str) -> str:
    """Return the name of a job's picture; that of `sft`, which runs by default, is the page's own."""
    return "same-curve.png" if job == "sft" else f"same-curve-{job}.png"


def draw(measurement: Measurement, path: Path) -> None:
    """Write the picture as PNG. Of 64 colours, because it lies in the repository: that is a third of the bytes."""
    from PIL import Image

    png = io.BytesIO()
    figure_of(measurement).savefig(png, format="png")
    Image.open(png).convert("RGB").quantize(64).save(path, optimize=True)


def figure_of(measurement: Measurement) -> Figure:
    """Return the figure: the losses above, their distances from fp32 below.

    A logarithmic axis has no place for a distance of zero: such a step has no point.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    reference = measurement.curves[0]
    figure = Figure(figsize=(9, 8), dpi=100, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    drawn: dict[str, int] = {}
    for curve in measurement.curves:
        number = drawn[curve.mode] = drawn.get(curve.mode, -1) + 1
        shade, style = divmod(number, len(STYLES))
        colours = COLOURS[curve.mode]
        look = {"color": colours[shade % len(colours)], "linestyle": STYLES[style], "linewidth": 1.3}
        if curve is reference:
            look |= {"color": "0.8", "linewidth": 6}
        ended = "" if curve.has_succeeded else f" ({curve.state.partition(':')[0]})"
        above.plot(*_points(curve.losses), label=f"{curve.name}{ended}", **look)
        if curve is not reference:
            apart = {step: far or math.nan for step, far in distances(curve, reference).items()}
            below.plot(*_points(apart), marker=".", markersize=3, **look)
    where = f"{measurement.job} · {measurement.where} · {measurement.date}"
    above.set_title(where, parse_math=False, fontsize=11)
    above.set_ylabel("loss")
    below.set_ylabel("distance from fp32, in loss")
    below.set_yscale("log")
    below.set_xlabel("step")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.grid(alpha=0.3)
    above.legend(loc="upper right", ncols=2, fontsize=8)
    return figure


def _points(values: dict[int, float]) -> tuple[list[int], list[float]]:
    """Return steps and values to draw; what is not finite breaks the line."""
    return list(values), [value if math.isfinite(value) else math.nan for value in values.values()]


# the page


def page(measurements: list[Measurement]) -> str:
    """Return the page as Markdown, with a section for each job."""
    return "\n".join((INTRODUCTION, *map(section, measurements)))


def section(measurement: Measurement) -> str:
    """Return the section of one job."""
    one = measurement
    missed = [curve.name for curve in one.curves if not curve.has_succeeded]
    versions = f"torch {one.torch}, transformers {one.transformers}"
    what = f"{one.steps} steps of {one.batch} examples, seed {one.seed}, the demo's model and data"
    parts = [
        f"## {one.job}\n",
        f"{one.date}, {one.where}. {versions}. {what}. The {len(one.curves)} runs took {one.seconds / 60:.1f} minutes.\n",
        f"![The losses of all runs of {one.job}, and their distances from fp32]({picture_name(one.job)})\n",
        table(one.curves),
        LEGEND,
        f"Did not train to the end: {'; '.join(missed)}.\n" if missed else "",
        REQUESTED if any(not curve.counts for curve in one.curves) else "",
        REFUSED if any(curve.mode == "fp16-native" for curve in one.curves) else "",
        REHEARSED if one.is_rehearsed else "",
    ]
    return "\n".join(filter(None, parts))


# the JSON beside the bench


def read(path: Path) -> list[Measurement]:
    """Return what was measured before, a measurement for each job."""
    written = json.loads(path.read_text()) if path.exists() else {}
    return [
        Measurement(**{**one, "job": job, "curves": tuple(map(_curve, one["curves"]))})
        for job, one in written.items()
    ]


def _curve(written: dict[str, Any]) -> Curve:
    return Curve(
        **{**written, "losses": {int(step): float(loss) for step, loss in written["losses"].items()}}
    )


def write(measurements: list[Measurement], path: Path) -> None:
    """Write measurements as JSON, a run a line; a loss that is not finite is its name."""
    path.write_text("{" + ",\n ".join(map(_written, measurements)).rstrip() + "}\n")


def _written(measurement: Measurement) -> str:
    """Return the JSON of a measurement's job and of its values."""
    named = {name: value for name, value in measurement._asdict().items() if name not in ("job", "curves")}
    lines = [
        json.dumps(
            {**curve._asdict(), "losses": {step: as_json(loss) for step, loss in curve.losses.items()}}
        )
        for curve in measurement.curves
    ]
    head = json.dumps(named).removesuffix("}")
    return f'{json.dumps(measurement.job)}: {head}, "curves": [\n  ' + ",\n  ".join(lines) + "]}"
