"""Runs beside each other: what differs in plans and code, how each went, and the picture of their curves."""

import gzip
import hashlib
import itertools
import json
import math
import random
import time

import pytest
from testbed.client import REPOSITORY

from launcher.compare.compared_curves import MADE_BY, MAX_POINTS, ComparedLine, Curves, curves_of, figure_of
from launcher.compare.comparing import compare, draw, lines_to_draw, picture_of
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.copy.run_files import RunFiles
from launcher.errors import RunError
from launcher.metrics.curves import Point
from launcher.metrics.metric_results import goal_of
from launcher.planning.plan_differences import plan_differences
from launcher.values.host import Host

CASES = {
    path.parent.name: json.loads(path.read_text())
    for path in (REPOSITORY / "tests" / "cases").glob("*/plan.json")
}
FOLLOW = {"model_facts", "teacher_facts", "nodes", "allocation", "session"}
"""Values of a plan that are made from others of it."""


@pytest.fixture
def made(tmp_path):
    """Makes the mirror of a run by hand: its plan, the values of each step by attempt, its state, what was sent."""

    def make(short, plan=None, attempts=(), state="succeeded", reason="completed", files=None):
        local_copy = LocalCopy(f"261122-train-{short}", tmp_path / "runs")
        local_copy.bind_seen(Host(name="lab"), "", time.time())
        if plan is not None:
            content = json.dumps(plan).encode()
            local_copy.files.write("plan.json", content)
            index.update(local_copy.entry, plan=hashlib.sha256(content).hexdigest())
        for number, values_of_steps in enumerate(attempts, 1):
            folder = local_copy.folder / f"{number:04}"
            folder.mkdir()
            began = 1000.0 * number
            (folder / "attempt.json").write_text(
                json.dumps({"kind": "attempt", "attempt": number, "time": began, "rung": 0})
            )
            is_last = number == len(attempts)
            ended = (
                {"state": state, "reason": reason} if is_last else {"state": "failed", "reason": "cuda-oom"}
            )
            (folder / "state.json").write_text(
                json.dumps({**ended, "attempt": number, "time": began + len(values_of_steps)})
            )
            lines = (
                {"version": 1, "kind": "metric", "attempt": number, "rank": rank, "step": step, "time": began + at, "values": values}
                for at, (step, rank, values) in enumerate(values_of_steps)
            )  # fmt: skip
            (folder / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        if files is not None:
            manifest = {
                path: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "mode": 0o644}
                for path, data in files.items()
            }
            local_copy.records.write("sent.json.gz", gzip.compress(json.dumps([manifest, {}]).encode()))
        return local_copy

    return make


def losses(*values):
    return [(step, 0, {"loss": value}) for step, value in enumerate(values, 1)]


def words(differences):
    return {one.key: one.words for one in differences}


# plans


@pytest.mark.parametrize("name", CASES)
def test_a_plan_differs_from_itself_in_nothing(name):
    """Nor do three of the same."""
    assert plan_differences([CASES[name]] * 3) == []


@pytest.mark.parametrize("names", [*itertools.combinations(sorted(CASES), 2)], ids="-".join)
def test_every_value_that_differs_is_shown_or_follows_from_one_that_is(names):
    """Of each two golden plans; and what is shown differs, as it is and in words."""
    first, second = (CASES[name] for name in names)
    differing = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
    found = plan_differences([first, second])
    shown = {one.key.partition(".")[0] for one in found}
    assert shown <= differing
    assert differing - shown <= FOLLOW
    assert all(one.values[0] != one.values[1] and one.words[0] != one.words[1] for one in found)
    assert all(word for one in found for word in one.words)


def test_a_card_a_split_and_a_ladder_are_told_in_words():
    """One line each, not a line for each of their parts; what follows from the card has none."""
    found = words(plan_differences([CASES["sft_on_l40s"], CASES["sft_on_titan_rtx"]]))
    assert found["profile"] == ("L40S 48 GB", "TITAN RTX 24 GB")
    assert found["ladder"][0].startswith("bf16 autocast")
    assert found["ladder"][1].startswith("fp16 autocast + scaler")
    assert not [key for key in found if key.startswith(("ladder.", "profile.", "split.", "allocation"))]


def test_settings_and_packages_are_told_by_what_differs():
    """Of lists only what is not in all; `-` where there is none, `?` where the plan is not here."""
    base = CASES["sft_on_l40s"]
    plans = [
        {**base, "settings": {"lr": 0.1 * 3, "note": "yes"}, "requirements": ["torch", "numpy==2.1"]},
        {**base, "settings": {"lr": 0.1 * 3, "note": True}, "requirements": ["torch", "numpy==2.2", "rich"]},
        None,
        {**base, "settings": {"lr": 3e-5}, "requirements": ["torch"]},
    ]
    found = plan_differences(plans)
    assert words(found)["settings.lr"] == ("0.3", "0.3", "?", "3e-05")
    assert words(found)["settings.note"] == ('"yes"', "true", "?", "-")  # they would all be `yes`
    assert words(found)["requirements"] == ("numpy==2.1", "numpy==2.2, rich", "?", "-")
    assert {one.group for one in found if one.key.startswith("settings")} == {"settings"}
    assert next(one.group for one in found if one.key == "requirements") == "packages"
    assert next(one.values for one in found if one.key == "settings.lr") == (0.1 * 3, 0.1 * 3, None, 3e-5)


def test_the_source_of_data_is_one_value():
    """Where it lies, in the words of a job; a name and a path that are written alike are told apart."""
    plans = [
        {"data": {"train": {"kind": kind, "value": value}, "eval": {"kind": "local", "value": "e"}}}
        for kind, value in (("local", "/a"), ("host", "/a"))
    ]
    assert words(plan_differences(plans)) == {"data.train": ("/a", "host:/a")}
    assert words(plan_differences([plans[0], {"data": {}}]))["data.train"] == ("/a", "-")
    plans[1]["data"]["train"] = {"kind": "name", "value": "/a"}
    assert words(plan_differences(plans)) == {"data.train.kind": ("local", "name")}


# how each went


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        *((name, "min") for name in ("loss", "eval_loss", "train/nll_loss", "perplexity_best", "error_rate", "val_wer")),
        *((name, "max") for name in ("accuracy", "val/acc", "answer_rate", "rewards/mean", "eval_f1", "mIoU")),
        *((name, None) for name in ("lr", "learning_rate", "grad_norm", "tokens_per_s", "epoch", "loss_scale", "mfu")),
    ],
)  # fmt: skip
def test_a_name_says_which_way_is_better_or_does_not(name, goal):
    """A loss, an accuracy, and what only sounds like one."""
    assert goal_of(name) == goal


def expected(local_copy, name):
    """Final and best of a metric, by the lines of the mirror alone: of two attempts at a step the later counts, and rank 0."""
    rows = [
        json.loads(line)
        for path in sorted(local_copy.folder.glob("*/events.jsonl"))
        for line in path.read_text().splitlines()
    ]
    by_step = {}
    for row in sorted(rows, key=lambda row: row["attempt"]):
        if row["rank"] == 0 and name in row["values"]:
            by_step[row["step"]] = float(row["values"][name])
    finite = {step: value for step, value in by_step.items() if math.isfinite(value)}
    pick = max if name == "accuracy" else min
    best = pick(finite.values(), default=None)
    steps = [step for step, value in sorted(finite.items()) if value == best]
    return by_step[max(by_step)], max(by_step), best, steps[0] if steps else None


@pytest.mark.parametrize("seed", range(8))
def test_final_and_best_are_those_of_the_events(made, seed):
    """Of two attempts that overlap, two ranks, and values that are not finite."""
    dice = random.Random(seed)

    def attempt(first, last):
        for step in range(first, last):
            for rank in (0, 1):
                loss = dice.choice([dice.random(), dice.random(), "nan", "inf", "-inf"])
                yield step, rank, {"loss": loss, "accuracy": dice.random(), "grad_norm": 1.0}

    local_copy = made("aaaaaa", CASES["sft_on_l40s"], [list(attempt(1, 30)), list(attempt(20, 40))])
    (run, _) = compare([local_copy, made("bbbbbb")]).runs
    for name in ("loss", "accuracy"):
        got = run.metrics[name]
        final, *rest = expected(local_copy, name)
        assert got.final == final or (math.isnan(got.final) and math.isnan(final))
        assert [got.final_step, got.best, got.best_step] == rest
    assert run.metrics["grad_norm"][1:] == (1.0, 39, None, None, None)
    assert (run.attempts, run.step, run.seconds) == (2, 39, 2 * 29 + 2 * 20)


def test_a_run_whose_metrics_are_all_nan_has_no_best(made, tmp_path):
    """It is compared, and its picture has a mark and no line."""
    sick = made("aaaaaa", CASES["sft_on_l40s"], [losses("nan", "nan")], "failed", "nan-divergence")
    comparison = compare([sick, made("bbbbbb", CASES["sft_on_l40s"], [losses(2.0, 1.0)])])
    got = comparison.runs[0].metrics["loss"]
    assert math.isnan(got.final)
    assert got.best is None
    assert draw(comparison, RunFiles(tmp_path), "curves.png")


def test_what_is_not_here_of_a_run_differs_from_nothing(made):
    """A run without plan, state, metrics and record of its code; and one that goes on."""
    live = made("aaaaaa", CASES["sft_on_l40s"], [losses(2.0, 1.0)], "running", None, {"code/train.py": b"a"})
    comparison = compare([live, made("bbbbbb")])
    first, second = comparison.runs
    assert (comparison.plan, comparison.trees, comparison.files) == ((), (), ())
    assert (first.has_plan, first.has_manifest, first.has_ended) == (True, True, False)
    assert (second.has_plan, second.has_manifest, second.has_ended) == (False, False, False)
    assert (second.state, second.attempts, second.code, second.metrics) == (None, None, None, {})
    assert first.seconds is None or first.seconds >= 0


def test_the_precision_is_the_one_that_was_seen(made):
    """Not the one that was planned; and torch's version is that of the worker's proof."""
    runs = [made(short, CASES["sft_on_l40s"], [losses(2.0, 1.0)]) for short in ("aaaaaa", "bbbbbb")]
    seen = {
        "device": "cuda",
        "autocast": ["float16"],
        "scaler": True,
        "trainable": {"float32": 4},
        "steps": 1,
    }
    event = {"version": 1, "kind": "evidence", "attempt": 1, "rank": 0, "time": 1.0}
    with (runs[0].folder / "0001" / "events.jsonl").open("a") as file:
        file.write(f"{json.dumps({**event, 'source': 'hook', 'values': {'precision_seen': seen}})}\n")
        file.write(f"{json.dumps({**event, 'values': {'proof': {'key': {'torch': '2.9.1+cu126'}}}})}\n")
    first, second = compare(runs).runs
    assert (first.precision, first.torch) == ("float16 autocast", "2.9.1+cu126")
    assert (second.precision, second.torch) == (None, None)


def test_a_run_that_continues_another_has_the_metrics_of_both(made):
    """The best of the whole curve, and each step once."""
    parent = made("aaaaaa", attempts=[losses(3.0, 1.0, 9.0)])
    child = made("bbbbbb", attempts=[[(3, 0, {"loss": 2.0}), (4, 0, {"loss": 1.5})]])
    start = child.folder / "0001" / "attempt.json"
    came_from = {"run": parent.run, "checkpoint": "step-2", "step": 2}
    start.write_text(json.dumps({**json.loads(start.read_text()), "parent": came_from}))
    run = compare([child, parent]).runs[0]
    assert run.metrics["loss"][1:5] == (1.5, 4, 1.0, 2)
    assert run.curves.panels[0].ys == [3.0, 1.0, 2.0, 1.5]


@pytest.mark.parametrize("continues", ["in another run", "in another attempt"])
def test_what_continues_without_steps_has_its_own_end(made, continues):
    """A script that resumes by itself may print a value without its step; the steps of the part before are not its."""
    first, second = losses(3.0, 1.0), [(None, 0, {"loss": 0.5}), (None, 0, {"loss": 0.25})]
    other = made("cccccc", attempts=[losses(7.0)])
    if continues == "in another attempt":
        continued = made("bbbbbb", attempts=[first, second])
    else:
        parent = made("aaaaaa", attempts=[first])
        continued = made("bbbbbb", attempts=[second])
        start = continued.folder / "0001" / "attempt.json"
        came_from = {"run": parent.run, "checkpoint": "step-2", "step": 2}
        start.write_text(json.dumps({**json.loads(start.read_text()), "parent": came_from}))
    shown = compare([continued, other]).runs[0]
    assert shown.metrics["loss"][1:5] == (0.25, None, 0.25, None)
    assert shown.step is None
    assert continued.record.last_step() == (None, 0.25)


def test_an_unreadable_plan_is_compared_as_it_lies(made):
    """Of a version that knows other keys."""
    plan = CASES["sft_on_l40s"]
    comparison = compare([made("aaaaaa", plan), made("bbbbbb", {**plan, "warp": 9})])
    assert {one.key: one.values for one in comparison.plan}["warp"] == (None, 9)


def test_the_files_of_the_code_that_differ_are_named(made):
    """Those of data count in the digest of their tree alone; a tree that is the same is not told."""
    same = {"code/same.py": b"s", "data/eval/x": b"x"}
    first = made("aaaaaa", files={**same, "code/train.py": b"1", "data/train/x": b"1"})
    second = made("bbbbbb", files={**same, "code/train.py": b"2", "code/new.py": b"n", "data/train/x": b"2"})
    comparison = compare([first, second, made("cccccc")])
    one, two, new = (hashlib.sha256(data).hexdigest() for data in (b"1", b"2", b"n"))
    assert comparison.files == (("new.py", (None, new, None)), ("train.py", (one, two, None)))
    assert [tree.tree for tree in comparison.trees] == ["code", "data/train"]
    assert comparison.trees[0].digests[:2] == (comparison.runs[0].code, comparison.runs[1].code)


# the picture


def series(name, values, *, with_steps=True, began=60.0):
    return [
        Point(1, 0, step if with_steps else None, began + 30 * step, name, value)
        for step, value in enumerate(values)
    ]


def lines_of(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 1]


def test_every_run_has_a_line_in_each_panel_and_a_name_in_the_legend():
    """Losses with evaluations, then accuracies, then rate and norm; steps are whole."""
    found = [
        *series("loss", [3.0, 2.0, 1.0]),
        *series("eval_loss", [3.5, 2.5, 1.5]),
        *series("accuracy", [0.1, 0.2, 0.3]),
        *series("learning_rate", [1.0, 0.5, 0.1]),
        *series("epoch", [0.1, 0.2, 0.3]),
    ]
    figure = figure_of(
        [ComparedLine(f"run{number} lr={number}", curves_of(found)) for number in range(3)], "3 runs"
    )
    figure.draw_without_rendering()
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "loss, held out dashed",
        "accuracy",
        "learning rate",
    ]
    assert [len(lines_of(axes)) for axes in figure.axes] == [6, 3, 3]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["run0 lr=0", "run1 lr=1", "run2 lr=2"]
    assert figure.axes[-1].get_xlabel() == "step"
    assert len({line.get_color() for line in lines_of(figure.axes[1])}) == 3


def test_the_legend_says_what_a_cross_is():
    """It is there only where a value becomes NaN or infinite."""
    lost = [
        ComparedLine("a", curves_of(series("loss", [2.0, float("nan")]))),
        ComparedLine("b", curves_of(series("loss", [2.0, 1.0]))),
    ]
    (legend,) = figure_of(lost, "").legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "becomes NaN or infinite"]
    assert legend.legend_handles[-1].get_marker() == "x"
    (legend,) = figure_of(lost[1:], "").legends
    assert [text.get_text() for text in legend.get_texts()] == ["b"]


def test_fifty_runs_have_fifty_colours_and_names():
    """However many there are."""
    runs = [
        ComparedLine(f"r{number}", curves_of(series("loss", [2.0, 1.0 / (number + 1)])))
        for number in range(50)
    ]
    figure = figure_of(runs, "50 runs")
    figure.draw_without_rendering()
    assert len({line.get_color() for line in lines_of(figure.axes[0])}) == 50
    assert len(figure.legends[0].get_texts()) == 50


def test_a_run_without_steps_puts_all_over_the_minutes(made):
    """Steps and minutes are never on one axis."""
    stepless = [(None, 0, {"loss": 2.0}), (None, 0, {"loss": 1.0})]
    with_steps = made("aaaaaa", attempts=[losses(3.0, 2.0, 1.0)])
    drawn = lines_to_draw(compare([with_steps, made("bbbbbb", attempts=[stepless])]))
    assert [line.curves.panels[0].xs for line in drawn] == [[0.0, 1 / 60, 2 / 60], [0.0, 1 / 60]]
    assert figure_of(drawn, "").axes[-1].get_xlabel() == "minutes since the run began"
    drawn = lines_to_draw(compare([with_steps, made("cccccc")]))
    assert [line.curves.panels[0].xs for line in drawn] == [[1, 2, 3]]


def test_a_run_without_a_loss_has_its_other_metrics(made, tmp_path):
    """And runs without any have no picture."""
    curves = curves_of(series("return", [1.0, 2.0]))
    assert [panel.label for panel in curves.panels] == ["return"]
    path = tmp_path / "curves.png"
    assert not draw(compare([made("aaaaaa"), made("bbbbbb")]), RunFiles(tmp_path), path.name)
    assert not path.exists()


def test_a_long_curve_keeps_its_peaks_and_what_was_not_finite():
    """A million steps are drawn as a thousand."""
    values = [1.0] * 100_000
    values[41_234], values[70_001], values[80_000], values[-1] = 99.0, -5.0, math.nan, 7.0
    (panel,) = (panel for panel in curves_of(series("loss", values)).panels if panel.label == "loss")
    assert len(panel.xs) <= 1.01 * MAX_POINTS + 2
    assert dict(zip(panel.xs, panel.ys, strict=True))[41_234] == 99.0
    assert dict(zip(panel.xs, panel.ys, strict=True))[70_001] == -5.0
    assert (panel.lost, panel.xs[-1], panel.ys[-1]) == ([80_000], 99_999, 7.0)
    assert panel.xs == sorted(panel.xs)


def test_a_picture_of_ours_is_replaced_and_no_other_file_is(made, tmp_path):
    """A file of the user's stays, whatever it is, also after it was drawn over."""
    runs = [made(short, attempts=[losses(2.0, 1.0)]) for short in ("aaaaaa", "bbbbbb")]
    path = picture_of(runs)
    assert path == tmp_path / "runs" / "compared" / "aaaaaa-bbbbbb.png"
    for _ in range(2):
        assert draw(compare(runs), RunFiles(path.parent), path.name)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert MADE_BY.encode() in path.read_bytes()
    for content in (b"", b"mine", b"\x89PNG\r\n\x1a\n" + b"\0" * 1000):
        path.write_bytes(content)
        with pytest.raises(RunError, match="not drawn by launch compare"):
            draw(compare(runs), RunFiles(path.parent), path.name)
        assert path.read_bytes() == content
    path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match="-o FILE"):
        draw(compare(runs), RunFiles(path.parent), path.name)


def test_the_name_of_a_picture_is_short_and_its_own(made):
    """Of many runs it has a digest of them all."""
    runs = [made(f"{letter * 6}") for letter in "abcdefgh"]
    names = {picture_of(runs[:count]).name for count in range(2, 9)} | {picture_of([*runs[:5], runs[7]]).name}
    assert len(names) == 8
    assert max(map(len, names)) < 40


def test_curves_without_panels_are_over_steps():
    """They mix with any."""
    assert Curves(()).has_steps
