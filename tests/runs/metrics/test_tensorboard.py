"""TensorBoard's files: what the mirror holds, and of very many points enough."""

import json
import math
import subprocess
import sys

import pytest
from testbed.drawn import drawn

from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event
from launcher.metrics import tensorboard


@pytest.fixture
def local_copy(tmp_path):
    """A mirror's folder, and a way to let its numbered folders grow."""

    def grow(number, *lines):
        folder = grow.copy.folder / f"{number:04}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "events.jsonl").open("a") as file:
            file.writelines(lines)
        return [event for line in lines if (event := parse_event(line.encode())) is not None]

    grow.copy = LocalCopy("0101-sft-w8q2", tmp_path)
    grow.tensorboard = grow.copy.tensorboard
    return grow


def metric(step, rank=0, **values):
    return (
        json.dumps(
            {"version": 1, "kind": "metric", "rank": rank, "step": step, "time": 7.5, "values": values}
        )
        + "\n"
    )


def test_what_arrives_while_a_run_is_followed_is_drawn_once_and_whole(local_copy):
    """Of every attempt, rank 0 alone; lines that are no metrics draw nothing."""
    board = tensorboard.TensorBoard(local_copy.copy)
    board.add(local_copy(1, metric(1, loss=3.0), '{"version":1,"kind":"begin","time":1}\n', "torn\n"))
    board.add(local_copy(1, metric(2, loss=2.0, lr=0.5), metric(2, rank=1, loss=9.0)))
    board.add(local_copy(2, metric(2, loss=1.0)))
    board.close()
    expected = [("loss", 1, 3.0), ("loss", 2, 2.0), ("lr", 2, 0.5), ("loss", 2, 1.0)]
    assert sorted(drawn(local_copy.tensorboard)) == sorted(expected)


def test_a_value_without_a_step_is_drawn_over_the_seconds(local_copy):
    """Its name says so, so that no curve mixes steps and seconds."""
    lines = [
        json.dumps({"version": 1, "kind": "metric", "step": None, "time": time, "values": {"loss": loss}})
        + "\n"
        for time, loss in ((100.0, 3.0), (102.4, 2.0))
    ]
    board = tensorboard.TensorBoard(local_copy.copy)
    board.add(local_copy(1, '{"version":1,"kind":"begin","time":90}\n', *lines, metric(5, loss=1.0)))
    board.close()
    expected = [("by_seconds/loss", 10, 3.0), ("by_seconds/loss", 12, 2.0), ("loss", 5, 1.0)]
    assert sorted(drawn(local_copy.tensorboard)) == sorted(expected)


def test_a_run_without_metrics_draws_nothing(local_copy):
    """And pays for no process."""
    board = tensorboard.TensorBoard(local_copy.copy)
    board.add(local_copy(1, '{"version":1,"kind":"begin","time":1}\n', metric(1, rank=1, loss=1.0)))
    board.close()
    assert not local_copy.tensorboard.exists()


def test_the_host_s_figures_are_drawn_over_the_seconds_since_the_run_began(local_copy):
    """Under their own name, for a run without any metric too."""
    line = '{"version":1,"kind":"host","rank":0,"time":%s,"values":{"gpu0.use_percent":%d}}\n'
    board = tensorboard.TensorBoard(local_copy.copy)
    board.add(
        local_copy(1, '{"version":1,"kind":"begin","time":100.0}\n', line % (107.2, 96), line % (117.2, 97))
    )
    board.close()
    assert drawn(local_copy.tensorboard) == [
        ("host/gpu0.use_percent", 7, 96.0),
        ("host/gpu0.use_percent", 17, 97.0),
    ]


def test_a_value_of_any_size_and_a_name_of_any_kind_is_drawn(local_copy):
    """A file's numbers have single precision, its names the letters that TensorBoard takes."""
    values = {"a b": 1.0, "/x": 1e300, "y": -1e300, "z": "nan", "l" * 300: 0.5}
    board = tensorboard.TensorBoard(local_copy.copy)
    board.add(local_copy(1, metric(-3, **values), metric(2**53, loss=1.0)))
    board.close()
    found = {(name, step): value for name, step, value in drawn(local_copy.tensorboard)}
    assert math.isnan(found.pop(("z", -3)))
    assert found == {
        ("a_b", -3): 1.0,
        ("x", -3): math.inf,
        ("y", -3): -math.inf,
        ("l" * 300, -3): 0.5,
        ("loss", 2**53): 1.0,
    }


def test_fifty_runs_are_drawn_at_once_without_a_process_or_a_library(tmp_path):
    """A process with a library for these files takes 44 MB, for each run of a batch."""
    code = """
import json, pathlib, resource, sys
from launcher.copy.printed_lines import parse_event
from launcher.copy.local_copy import LocalCopy
from launcher.metrics.tensorboard import TensorBoard
mirrors = [LocalCopy(f"0101-sft-{number:04}", pathlib.Path(sys.argv[1])) for number in range(50)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
boards = [TensorBoard(mirror) for mirror in mirrors]
for step in range(20):
    line = json.dumps({"version": 1, "kind": "metric", "step": step, "time": 7.5, "values": {"loss": 1.0}})
    for board in boards:
        board.add([parse_event(line.encode())])
children = pathlib.Path("/proc/self/task").glob("*/children")
print(json.dumps({
    "children": "".join(path.read_text() for path in children),
    "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
    "kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
}))
for board in boards:
    board.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["children"] == ""
    assert not {"torch", "tensorboardX", "google"} & set(found["loaded"])
    assert found["kb"] < 50 * 100, "100 kB a run"
    for number in range(50):
        assert len(drawn(tmp_path / f"0101-sft-{number:04}" / "tensorboard")) == 20


def test_of_very_many_points_some_are_drawn_and_the_last_and_every_rare_one(local_copy):
    """A curve of 12,000 steps is thinned, its evaluations are not."""
    lines = [metric(step, loss=1.0) for step in range(1, 12_001)]
    rare = [metric(step, eval_loss=2.0) for step in (1, 6000, 12_000)]
    board = tensorboard.TensorBoard(local_copy.copy)
    board.add(local_copy(1, *rare[:1], *lines[:6000], *rare[1:2], *lines[6000:], *rare[2:]))
    board.close()
    steps = {
        name: [step for one, step, _ in drawn(local_copy.tensorboard) if one == name]
        for name in ("loss", "eval_loss")
    }
    assert steps["eval_loss"] == [1, 6000, 12_000]
    assert tensorboard.MAX_POINTS / 2 <= len(steps["loss"]) <= tensorboard.MAX_POINTS
    assert steps["loss"] == sorted(steps["loss"])
    assert steps["loss"][-1] == 12_000


def test_what_the_disk_refuses_is_told_once(local_copy):
    """With the reason; the run is followed on."""
    board = tensorboard.TensorBoard(local_copy.copy)
    local_copy.tensorboard.write_text("a file, where the folder should be")
    events = local_copy(1, metric(1, loss=1.0))
    while board.problem is None:
        board.add(events)
    assert board.problem == f"{local_copy.tensorboard}: is not a folder"
    board.problem = None
    board.add(events)
    assert board.problem is None
    board.close()


def test_a_run_of_very_many_steps_a_second_gets_about_as_many_points_as_are_shown(local_copy, monkeypatch):
    """Each answer brings few of them; what is slower than that is drawn in full."""
    now = 0.0
    monkeypatch.setattr(tensorboard.time, "monotonic", lambda: now)
    board = tensorboard.TensorBoard(local_copy.copy)
    for answer in range(200):  # 2 s at 100 answers a second
        now += 0.01
        lines = [metric(100 * answer + step, loss=1.0) for step in range(100)]
        board.add(local_copy(1, *lines))
    fast = len(drawn(local_copy.tensorboard))
    assert 2 * tensorboard.MAX_POINTS <= fast <= 3.2 * tensorboard.MAX_POINTS
    for answer in range(50):
        now += 1.0
        board.add(local_copy(1, *(metric(30_000 + 100 * answer + step, loss=1.0) for step in range(100))))
    board.close()
    assert len(drawn(local_copy.tensorboard)) == fast + 5000
