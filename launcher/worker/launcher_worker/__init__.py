"""The link between a training script and its run: values in, metrics and checkpoints out.

    import launcher_worker as worker

    plan = worker.knobs()                # the values in force: precision, split, steps, ...
    model = AutoModelForCausalLM.from_pretrained(name, **worker.model_arguments())
    model = worker.prepare(model)        # after adapters, before an optimizer: sets dtypes, starts the guard
    args = TrainingArguments(**worker.training_arguments(learning_rate=2e-4))
    trainer = Trainer(model, args, callbacks=[worker.trainer_callback()], ...)
    trainer.train(resume_from_checkpoint=worker.resume_from())
    if not worker.stopping():            # the run was not asked to end early
        worker.done(trainer.state.global_step)  # call this last, when all results are on disk

A loop in plain torch uses `with worker.autocast():` and `scaler = worker.scaler()`. A loop with accelerate
uses `worker.accelerator()`. Both end each step with

    if worker.due(step):                 # every N steps or minutes, or when the run is asked to end
        worker.save(step, write)
    if worker.stopping():
        sys.exit(0)                      # the next start resumes from this checkpoint

A run sets two variables. `LAUNCH_ATTEMPT` names the attempt's folder: the worker reads its values from
`attempt.json` and the checkpoints of earlier attempts from `sealed.json`. `LAUNCH_SOCKET` is the agent's Unix
stream socket: each process of the training opens one connection and sends one line of JSON per event. Without
an agent the worker sends nothing, and the training continues.

Outside a run every function has a plain default, so a script that imports this package still works by hand.

Reading a knob reports that the script uses it. To recover from a crash, the agent changes only knobs that
were read.

The guard checks every optimizer step of a prepared model, or of a Trainer with `trainer_callback`. A training
that diverges or does not learn ends with `Tripped`, usually within five steps. No checkpoint is sealed after
a step that may have spoiled the weights.

If another agent has continued the run because this one seemed dead, `save` raises `SupersededError`.

The package runs on Python 3.8 and later, on Linux and macOS. Importing it needs the standard library only;
torch, transformers and accelerate are imported inside the functions that need them. It does not choose the
precision or the checkpoint to resume from, and it does not retry: the agent does.

The modules, in the order in which they import each other:

    json_values, channel   strict JSON; the connection to the agent
    values                 the values of `attempt.json`: Knobs, Precision, Split, Peek
    quantization           4-bit base models: loading, and settings of their layers
    unsaved_hook           a hook on a model; it is not saved with the model
    guard/                 judges optimizer steps; hooks into torch
    pace                   decides when to save and when to stop
    succession             whether a later attempt has replaced this one
    manifests, checkpoints sealing, rotation, where to resume
    events                 log, progress, begin, done
    planned_optimizer      the plan's variant of AdamW
    compiled_models        torch.compile: when it applies, and the tools that it needs on the host
    mixed_precision        keywords, autocast, scaler and Accelerator from the plan
    throughput             tokens per second, and the share of the card's peak rate
    preparation            makes a model safe to train at the plan's precision
    trainer_lines, trainer metrics from a Trainer's log lines; the callback for a transformers.Trainer
    observer, startup/     the start-up hook, which observes scripts that do not use the worker
    adaptation/            the hook applies the plan to such a script (`--adapt`)
    rehearsal/             the hook makes torch imitate a missing card (`--rehearse`)
    precision_seen, _watch the precision that such a script really uses
"""

from __future__ import annotations

from .events import begin, done, log, progress
from .guard.rules import Tripped
from .pace import due, stopping
from .precision.compiled_models import compiled
from .precision.mixed_precision import accelerator, autocast, model_arguments, scaler, training_arguments
from .precision.planned_optimizer import adamw, optimizer_arguments, restore_form
from .precision.preparation import prepare
from .saving.checkpoints import Best, best, resume_from, save
from .saving.succession import SupersededError
from .throughput import Speedometer
from .trainer import trainer_callback
from .values import Knobs, Peek, Precision, Split, knobs

__all__ = [
    "Best",
    "Knobs",
    "Peek",
    "Precision",
    "Speedometer",
    "Split",
    "SupersededError",
    "Tripped",
    "accelerator",
    "adamw",
    "autocast",
    "begin",
    "best",
    "compiled",
    "done",
    "due",
    "knobs",
    "log",
    "model_arguments",
    "optimizer_arguments",
    "prepare",
    "progress",
    "restore_form",
    "resume_from",
    "save",
    "scaler",
    "stopping",
    "trainer_callback",
    "training_arguments",
]
