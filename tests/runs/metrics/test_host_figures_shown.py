"""The host's own figures on the client: beside the metrics, never among them."""

import csv
import io
import json
import struct

import pytest
from testbed.cards import uuid_of
from testbed.drawn import drawn
from testbed.measured import curve

from launcher.cli.follow.progress import Progress
from launcher.metrics.curves import HOST, Point, host_points
from launcher.metrics.host_figures import FigureSummary, summarize, thinned
from launcher.metrics.picture import draw
from launcher.values.record import Event

MEASURES = """
import os, time
for step in range(1, 4):
    print(f"step {step}: loss {3 - step / 2}", flush=True)
path = os.path.join(os.environ["LAUNCH_ATTEMPT"], "events.jsonl")
while '"kind":"host"' not in open(path).read():
    time.sleep(0.05)
"""
FIGURES = {"cpu_percent", "memory_gb", "disk_free_gb"}
CARD = ("use_percent", "memory_gb", "power_w", "temperature_c")


def host(time=7.5, **values):
    """An event of the host's figures; `__` stands for the dot."""
    return Event(
        version=1, kind="host", attempt=1, time=time, values={name.replace("__", "."): value for name, value in values.items()}
    )  # fmt: skip


def figure(name, value, time=0.0):
    return Point(1, 0, None, time, HOST + name, value)


def height(png):
    return struct.unpack(">II", png.read_bytes()[16:24])[1]


def test_figures_are_no_metrics_and_have_no_step():
    """Their names say whose they are."""
    event = host(cpu_percent=12, gpu0__use_percent=96.0, odd="text", flag=True)
    assert curve([event]) == []
    assert host_points(event) == [
        Point(1, 0, None, 7.5, "host/cpu_percent", 12.0),
        Point(1, 0, None, 7.5, "host/gpu0.use_percent", 96.0),
    ]
    assert host_points(Event(version=1, kind="metric", time=1.0, values={"loss": 1.0})) == []


def test_a_summary_has_the_last_the_mean_and_the_range():
    """By name, in whatever order the figures come."""
    found = summarize([figure("b", 1.0), figure("a", 5.0), figure("b", 4.0), figure("b", 2.5)])
    assert found == {"host/a": FigureSummary(5.0, 5.0, 5.0, 5.0), "host/b": FigureSummary(2.5, 2.5, 1.0, 4.0)}
    assert list(found) == ["host/a", "host/b"]
    assert summarize([]) == {}


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100, 1001])
def test_many_figures_are_thinned_to_means_that_keep_time_and_level(count):
    """A line of a week is drawn with a few hundred points."""
    kept = thinned((figure("a", float(number), number) for number in range(count)), 4)[HOST + "a"]
    assert min(count, 4) <= len(kept) < 8
    size = count if len(kept) == 1 else round(kept[1].time - kept[0].time)
    assert [(point.time, point.value) for point in kept] == [
        (start, start + (size - 1) / 2) for start in range(0, len(kept) * size, size)
    ]
    assert count - len(kept) * size < size


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cpu_percent": 3.0, "memory_gb": 9.0}, []),
        ({"gpu0__use_percent": 96, "gpu0__memory_gb": 38.12, "memory_gb": 9.0}, ["card 96 %", "38.1 GB"]),
        ({"gpu0__use_percent": 96, "gpu1__use_percent": 50, "gpu0__memory_gb": 1.5}, ["2 cards 73 %", "1.5 GB"]),
        ({"gpu0__memory_gb": 0.0}, ["0.0 GB"]),
        ({"gpu0__use_percent": "[N/A]"}, []),
    ],
)  # fmt: skip
def test_the_bar_has_the_use_of_the_cards_before_the_time_left(values, words):
    """A figure is no step, no value of the training and no sign that it goes on."""
    progress = Progress("run", 10)
    for step, when in ((1, 1.0), (2, 2.0)):
        progress.take(Event(version=1, kind="metric", step=step, time=when, values={"loss": 1.0}))
    assert progress.take(host(**values)) is False
    assert progress.card_words() == words
    assert progress.words(*progress.card_words()) == ["loss 1", *words, "eta 0:08"]
    assert (progress.step, progress.words()) == (2, ["loss 1", "eta 0:08"])


@pytest.mark.long
def test_the_picture_has_a_panel_for_cards_only_where_there_are_figures_of_cards(tmp_path):
    """The loss keeps its size."""
    losses = [Point(1, 0, step, float(step), "loss", 1.0 / step) for step in range(1, 9)]
    cards = [figure(f"gpu{card}.{name}", 50.0, time) for card in (0, 1) for name in CARD for time in (0.0, 60.0)]  # fmt: skip
    hostile = [figure("gpu0.use_percent", float("nan")), figure("gpu0.memory_gb", float("inf"))]
    heights = []
    for figures in ([figure("cpu_percent", 5.0)], cards, hostile):
        (tmp_path / "loss.png").write_bytes(draw("run", losses, figures))
        heights.append(height(tmp_path / "loss.png"))
    assert heights == [540, 720, 720]


@pytest.mark.slow(reason="a client and a run of some seconds")
def test_a_client_shows_the_figures_apart_from_the_script_s_metrics(client, cards):
    """In the stream, in `metrics`, in TensorBoard and in the picture."""
    cards.put(("l40s", {"utilization.gpu": 96, "memory.used": 36337, "power.draw": "287.31", "temperature.gpu": 64}))  # fmt: skip
    client.script(MEASURES)
    done = client.run("--json", "--profile", "l40s", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (event,) = [line for line in lines if line.get("kind") == "host"]
    of_card = {"gpu0.use_percent": 96, "gpu0.memory_gb": 38.1, "gpu0.power_w": 287.3, "gpu0.temperature_c": 64}  # fmt: skip
    assert of_card.items() <= event["values"].items()
    (end,) = [line for line in lines if line.get("kind") == "end"]
    assert end["metrics"].keys() == {"loss"}
    measured = [json.loads(line) for line in client.ok("metrics", "last", "--json").splitlines()]
    own = [line for line in measured if not line["name"].startswith("host/")]
    assert [(line["step"], line["name"]) for line in own] == [(1, "loss"), (2, "loss"), (3, "loss")]
    names = {*FIGURES, *(f"gpu0.{name}" for name in CARD)}
    others = {line["name"]: line for line in measured[3:]}
    assert others.keys() == {f"host/{name}" for name in names}
    assert others["host/gpu0.power_w"]["value"] == 287.3
    assert {line["step"] for line in others.values()} == {None}
    rows = list(csv.DictReader(io.StringIO(client.ok("metrics", "last", "--csv"))))
    assert [(row["name"], row["step"]) for row in rows] == [
        (line["name"], str(line["step"] or "")) for line in measured
    ]
    text = client.ok("metrics", "last").splitlines()
    assert [line.split() for line in text[:4]] == [["STEP", "loss"], ["1", "2.5"], ["2", "2"], ["3", "1.5"]]
    assert [line.split()[0] for line in text[5:]] == sorted(f"host/{name}" for name in names)
    assert next(line for line in text if "gpu0.power_w" in line).split()[1:] == ["287.3"] * 4
    (run,) = client.runs.glob("[0-9]*-train-*")
    tags = {name for name, _, _ in drawn(run / "tensorboard")}
    assert tags == {"loss", *(f"host/{name}" for name in names)}
    assert height(run / "loss.png") == 720
    assert all(line.startswith(uuid_of(0)) for report in cards.reported() for line in report["lines"])
