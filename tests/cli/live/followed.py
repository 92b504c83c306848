"""A run that is followed, acted out: each line on standard input is the next scene. Clocks stand still.

python followed.py PATH_OF_THE_RUN
"""

import types
from pathlib import Path

from launcher.cli.follow import ending, idle_notice, link_loss, progress
from launcher.cli.follow.screens import make_view
from launcher.copy.record_sync import News
from launcher.errors import UnreachableError
from launcher.runs.follow.view import Result
from launcher.values.record import Event, PlanSummary, RunState

RUN = "261122-sft-k3f9w2"
now = types.SimpleNamespace(s=100.0)
clock = types.SimpleNamespace(monotonic=lambda: now.s, time=lambda: now.s)
for module in (progress, idle_notice, link_loss):
    module.time = clock
ending.shutil.which = lambda _name: None


def event(kind, time, step=None, **values):
    """Return an event of attempt 2."""
    return Event(version=1, kind=kind, attempt=2, step=step, time=time, values=values)


def metric(step, time):
    """Return the figures of a step."""
    values = {"loss": 1.284, "grad_norm": 0.91, "learning_rate": 1.7e-4, "tokens_per_s": 3120.0}
    return event("metric", time, step, **values)


def news(state, *events):
    """Return an answer."""
    return News(RunState(state=state, attempt=2), list(events), [], is_all=True)


view = make_view(False)
view.begin(RUN, PlanSummary(host="lambda", steps=900, profile={"title": "TITAN RTX 24 GB"}), [])
card = event("host", 900.0, **{"gpu0.use_percent": 96, "gpu0.memory_gb": 38.1})
view.news(news("running", event("state", 0.0, state="running"), metric(0, 10.0), card, metric(412, 962.0)))
input()
lost = UnreachableError("lambda", "cannot connect to lambda: timed out")
view.lost(lost, 1, 1.0)
now.s += 12
view.lost(lost, 3, 4.0)
input()
view.back()
view.news(news("running", metric(899, 1900.0)))
input()
home = {Path(f"runs/{RUN}/outputs/model.safetensors"): 310_000_000, Path(f"runs/{RUN}/outputs/log.csv"): 4000}
picture, folder = Path(f"runs/{RUN}/loss.png"), Path(f"runs/{RUN}")
metrics = {"loss": 0.874, "accuracy": 0.41}
view.end(RUN, RunState(state="succeeded"), Result(None, home, picture, metrics, 2.271, 962.0, folder=folder))
