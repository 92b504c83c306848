"""Runs a job on tensors without values, and prints where the host would wait for a card: `waiting.py JOB`.

Models and batches are on torch's device `meta`, which knows shapes alone. So each read of a value is seen: it is what
makes a host wait for its card. It gets ones. What needs values to know a shape, such as `nonzero`, is an error there.
The last line is JSON: for each step, by the function that read, how many reads there were since the step before.
"""

import json
import sys
import traceback
from collections import Counter
from pathlib import Path

import launcher_worker as worker
import torch
from accelerate.state import AcceleratorState, PartialState
from launcher_worker.guard import watched_models
from launcher_worker.pace import process_pace
from torch.utils._python_dispatch import TorchDispatchMode

META = torch.device("meta")


class Reads(TorchDispatchMode):
    """Counts the reads of values on the device by step, and answers them with ones."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [Counter()]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Answer a read; call any other function as it is."""
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].is_meta:
            self._count()
            return torch.ones((), dtype=args[0].dtype).item()
        if name == "_to_copy" and args[0].is_meta and str(kwargs.get("device")) == "cpu":
            self._count()
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "copy_" and args[1].is_meta and not args[0].is_meta:
            self._count()
            return args[0].fill_(1)
        return function(*args, **kwargs)

    def _count(self) -> None:
        """Count a read of the innermost function outside of torch."""
        calls = [(Path(call.filename), call.name) for call in traceback.extract_stack()[:-2]]
        path, name = [one for one in calls if "torch" not in one[0].parts][-1]
        self.steps[-1][f"{path.stem}.{name}"] += 1


def put_on_meta(job) -> None:
    """Let the job load its models to the device, and take it for the one to train on."""
    load = job.AutoModelForCausalLM.from_pretrained
    job.AutoModelForCausalLM.from_pretrained = lambda *args, **kwargs: load(*args, **kwargs).to(META)
    # The guard samples no tensors that are mere shapes, as while a model is loaded.
    watched_models.can_be_sampled = lambda tensor: tensor.is_floating_point() and tensor.numel() > 0
    holder, name = (
        (job, "TrainingArguments") if hasattr(job, "TrainingArguments") else (worker, "accelerator")
    )
    make = getattr(holder, name)

    def made(**keywords):
        one = make(**keywords)
        for place in (PartialState._shared_state, AcceleratorState._shared_state, one.__dict__):
            place.update({key: META for key in ("device", "_setup_devices") if key in place})
        return one

    setattr(holder, name, made)


def count_by_step(reads: Reads) -> None:
    """Begin a new count at the end of each step; after the last one the job ends, for nothing can be saved."""
    is_due, last = process_pace.is_due, worker.knobs().peek.steps

    def end_step(step, steps):
        reads.steps.append(Counter())
        worker.stopping = lambda: step == last
        return is_due(step, steps)

    process_pace.is_due = end_step


if __name__ == "__main__":
    program = __import__(sys.argv[1])
    seen = Reads()
    put_on_meta(program)
    count_by_step(seen)
    with seen:
        program.main()
    print(json.dumps(seen.steps))
