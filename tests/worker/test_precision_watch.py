"""What the start-up hook sees of a script's precision: in processes of their own, over a real Unix socket."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_worker.guard.torch_hooks import has_closure

WORKER = Path(__file__).parents[2] / "launcher" / "worker"
pytestmark = pytest.mark.training

BEGIN = """
import torch
base = torch.nn.Linear(16, 16).{cast}.requires_grad_(False)
model = torch.nn.Sequential(base, torch.nn.Linear(16, 16){head})
optimizer = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], lr=1e-3)
"""

AUTOCAST = (
    BEGIN.format(cast="bfloat16()", head="")
    + """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for step in range(600):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step < 300):
        loss = model(torch.randn(2, 16).to(torch.float32 if step < 300 else base.weight.dtype)).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    optimizer.zero_grad()
    if step == 299:
        base.float()
"""
)

CLOSURE = (
    BEGIN.format(cast="bfloat16()", head="")
    + """
for step in range(5):
    def closure():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(2, 16)).float().sum()
        loss.backward()
        return loss
    optimizer.step(closure)
"""
)

UNSCALE = (
    BEGIN.format(cast="half()", head=".half()")
    + """
scaler = torch.amp.GradScaler("cpu")
scaler.scale(model(torch.randn(2, 16).half()).sum().float()).backward()
scaler.step(optimizer)
"""
)

COMPILED = """
import torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())

@torch.compile(backend="aot_eager", fullgraph=True)
def loss_of(inputs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(inputs).sum()

loss_of(torch.randn(2, 16)).backward()
optimizer.step()
torch.save(model, "model.pt")
"""

ONLY_READS = "import torch; model = torch.nn.Linear(2, 2); print(model(torch.ones(1, 2)).shape)"


@pytest.fixture
def start(agent, tmp_path):
    """Run a script in a Python that has the hook, or none; give what it printed, after its exit code was checked."""

    def run(code: str, *, hook: bool = True, status: int = 0, options: tuple[str, ...] = ()) -> str:
        script = tmp_path / "train.py"
        script.write_text(code)
        path = [str(WORKER / "launcher_worker" / "startup"), str(WORKER)] if hook else []
        names = {"LAUNCH_HOOK": "observe", "LAUNCH_SOCKET": agent.address} if hook else {}
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **names}
        words = [sys.executable, *options, str(script)]
        done = subprocess.run(words, check=False, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return run


def seen(agent, count):
    events = agent.events(count)
    assert {(event["kind"], event["source"]) for event in events} == {("evidence", "hook")}
    assert not [event for event in events if "hook" in event["values"]]  # no error of ours
    return [event["values"]["precision_seen"] for event in events]


def test_a_loop_is_seen_at_its_first_steps_and_again_when_it_changes(start, agent):
    """600 steps, the second half of them in float32: two reports, although three steps and then two were looked at."""
    start(AUTOCAST)
    first, second = seen(agent, 2)
    assert (first.pop("steps"), second.pop("steps")) == (1, 512)
    assert first == {
        "device": "cpu", "autocast": ["bfloat16"], "scaler": False, "trainable": {"float32": 2},
        "frozen": {"bfloat16": 2}, "gradients": {"float32": 2}, "computed": {"bfloat16": 1}, "compiled": False,
        "tf32": False, "eps": None, "stochastic_rounding": False, "torch": first["torch"],
    }  # fmt: skip
    changed = {"autocast": [], "frozen": {"float32": 2}, "computed": {"float32": 1}}
    assert second == {**first, **changed}
    assert len(agent.connections) == 1


def test_a_step_whose_gradients_a_closure_computes_is_seen_with_them(start, agent):
    """The first as the others: nothing changes."""
    start(CLOSURE)
    (one,) = seen(agent, 1)
    assert (one["steps"], one["autocast"], one["gradients"]) == (1, ["bfloat16"], {"float32": 2})


def test_a_scaler_that_fails_before_the_first_step_is_seen_and_its_traceback_is_the_script_s_own(
    start, agent
):
    """The field reports end there: the most important precision to see makes no step at all."""
    plain = start(UNSCALE, hook=False, status=1)
    assert "Attempting to unscale FP16 gradients." in plain
    assert start(UNSCALE, status=1) == plain
    (one,) = seen(agent, 1)
    assert (one["steps"], one["scaler"], one["autocast"]) == (0, True, [])
    assert (one["trainable"], one["frozen"]) == ({"float16": 2}, {"float16": 2})
    assert (one["gradients"], one["computed"]) == ({"float16": 2}, {"float16": 1})


@pytest.mark.long
def test_a_script_in_python_s_development_mode_fails_as_without_the_hook(start, agent):
    """Python warns of more there; the last line is the script's own."""
    (last,) = start(UNSCALE, status=1, options=("-X", "dev")).splitlines()[-1:]
    assert "Attempting to unscale FP16 gradients." in last
    (one,) = seen(agent, 1)
    assert (one["steps"], one["scaler"]) == (0, True)


@pytest.mark.long
def test_a_compiled_script_is_compiled_as_a_whole_and_its_autocast_is_seen(start, agent, tmp_path):
    """Warnings are errors, and what it saves loads where launcher is not there."""
    start(COMPILED, options=("-W", "error"))
    (one,) = seen(agent, 1)
    assert (one["autocast"], one["compiled"], one["computed"]) == (["bfloat16"], True, {})
    load = "import torch; print(type(torch.load('model.pt', weights_only=False)))"
    assert "Linear" in start(load, hook=False)


@pytest.mark.long
def test_a_script_that_trains_nothing_opens_no_connection(start, agent):
    """It may be an evaluation, or a server."""
    assert start(ONLY_READS) == "torch.Size([1, 2])\n"
    assert agent.connections == []


def test_a_step_that_is_given_no_closure_by_name_or_place_has_none():
    """accelerate hands None on."""
    assert not has_closure(("optimizer", None), {})
    assert not has_closure(("optimizer",), {"closure": None})
    assert has_closure(("optimizer", print), {})
    assert has_closure(("optimizer",), {"closure": print})
