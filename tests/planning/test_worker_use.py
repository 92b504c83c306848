"""What a script takes from the plan, by its source; and that a plan claims nothing that it does not take."""

import sys
import threading

import pytest
from testbed.profiles import profile

from launcher.check.reading import worker_use
from launcher.check.reading.module import Module
from launcher.cli.text.plan_text import headline
from launcher.planning.assembly import plan
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import ScriptUse

ALL = ("checkpointing", "precision", "split")
BOTH = ("precision", "split")
PRECISION = ("precision",)
SPLIT = ("split",)


def values_taken(sources):
    modules = (Module.of("train.py", source.encode()) for source in sources)
    return worker_use.values_taken([one for one in modules if one is not None])


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("print('hi')", ()),
        ("import torch\ntorch.split(x, 2)\nmodel.precision = 16\n", ()),
        ("import launcher_worker as w\nw.log(1, loss=0.5)\nw.done(1)", ()),
        ("import launcher_worker as w\nargs.precision; 'a b'.split()\nw.done(1)", ()),
        ("import launcher_worker\nlauncher_worker.autocast()", PRECISION),
        ("import launcher_worker as worker\nplan = worker.knobs()\nplan.split.micro_batch", SPLIT),
        ("import launcher_worker as worker\nworker.knobs().precision.mode", PRECISION),
        ("import launcher_worker as worker\nworker.knobs().peek.split.micro_batch", SPLIT),
        ("import launcher_worker as worker\npeek = worker.knobs().peek\npeek.precision", PRECISION),
        ("from launcher_worker import knobs as values\nprint(values().split, values().precision)", BOTH),
        ("from launcher_worker import *\nscaler()", PRECISION),
        ("from launcher_worker import training_arguments\ntraining_arguments(lr=1)", ALL),
        ("from launcher_worker import training_arguments\ntraining_arguments(bf16=True)", ("checkpointing", "split")),
        ("import launcher_worker as w\nw.training_arguments(per_device_train_batch_size=2)", ("checkpointing", "precision")),
        ("import launcher_worker as w\nw.training_arguments(gradient_checkpointing=False)", BOTH),
        ("import launcher_worker as w\nmodel = w.prepare(model)", ("checkpointing",)),
        ("import launcher_worker as w\nif w.knobs().activation_checkpointing: again()", ("checkpointing",)),
        ("import launcher_worker as w\nw.accelerator(mixed_precision='no')", ()),
        ("import launcher_worker as w\nw.model_arguments(dtype='auto')", ()),
        ("try:\n    import launcher_worker as w\nexcept ImportError:\n    w = None\nif w: w.scaler()", PRECISION),
        ("def main():\n    import launcher_worker as w\n    return w.model_arguments()", PRECISION),
        ("import importlib\nw = importlib.import_module('launcher_worker')\nw.autocast()", PRECISION),
        ("class A:\n  def __init__(self):\n    import launcher_worker as w\n    self.plan = w.knobs()\n  def f(self): return self.plan.split", SPLIT),
        ("from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments(bf16=True)).train()", ()),
        ("import launcher_worker as w\nTrainer(callbacks=[w.trainer_callback()])", ()),
        ("echo '", ()),
    ],
)  # fmt: skip
def test_a_source_takes_what_it_reads_of_the_plan(source, taken):
    """Also where the import is conditional or dynamic. A keyword of its own is its own decision."""
    assert values_taken([source]) == taken


def test_knobs_that_one_source_reads_may_be_used_in_another():
    """A script hands its knobs to a function of another module."""
    main = "import launcher_worker as w, other\nplan = w.knobs()\nother.train(plan)"
    assert values_taken([main, "def train(plan):\n    return plan.split.micro_batch"]) == SPLIT


class Garbage:
    """What only the garbage collector finds, and whose end lets another thread run."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        for _ in range(3):
            pass


@pytest.mark.long
@pytest.mark.slow(reason="many threads read many sources")
def test_threads_read_sources_at_the_same_time():
    """As the items of a batch do. Without a lock about one source in seven was a SystemError here, by CPython 3.11.7."""
    source = "\n".join(f"a = {'-' * 40}{n}" for n in range(60))
    failed = []

    def read():
        try:
            for _ in range(100):
                _litter = [Garbage() for _ in range(300)]
                values_taken([source])
        except SystemError as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed


def test_the_headline_says_what_the_script_decides():
    """An older plan, which does not say, reads as before."""
    job = Job(name="train", command=("python", "train.py"))
    host = Host(name="lab", address="lab")
    plans = {
        takes: plan(profile("titan_rtx"), host, job, script=ScriptUse(takes))
        for takes in (None, (), BOTH, PRECISION, SPLIT)
    }
    told = {takes: headline(one) for takes, one in plans.items()}
    title = plans[None].ladder[0].title
    assert told[()].endswith("· your script decides its own precision and batch")
    assert title not in told[()]
    assert told[None] == told[BOTH]
    assert told[BOTH].endswith(title)
    assert told[PRECISION].endswith(f"{title} · your script decides its own batch")
    assert told[SPLIT].endswith("· your script decides its own precision")
