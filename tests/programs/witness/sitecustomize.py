"""The independent ledger: what torch and the libraries' own log functions do, written down from inside the program.

Its folder stands on PYTHONPATH, and LEDGER names the file. A line is {"kind": "update"}, {"kind": "backward", "loss"},
or {"kind": "logged", "step", "values"}. It knows nothing of launch, and launch nothing of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

OWN = os.getpid()


def write(kind: str, **more: Any) -> None:
    """Append a line; a forked or spawned worker of the program writes none."""
    if os.getpid() == OWN:
        line = json.dumps({"kind": kind, **more}) + "\n"
        with open(os.environ["LEDGER"], "ab", buffering=0) as ledger:
            ledger.write(line.encode())


def number(value: Any) -> float | None:
    """Return a number or a tensor of one element as a float; None for all else."""
    if isinstance(value, (bool, str)) or value is None:
        return None
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        return None


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """Return the numbers among some values."""
    found = {str(name): number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def watch_optimizers(module: Any) -> None:
    """Write each step of each optimizer."""
    module.register_optimizer_step_post_hook(lambda optimizer, *_: write("update", optimizer=id(optimizer)))


def watch_backward(module: Any) -> None:
    """Write the loss of each backward pass."""
    backward = module.backward

    def watched(tensors: Any, *words: Any, **more: Any) -> Any:
        write("backward", loss=number(tensors))
        return backward(tensors, *words, **more)

    module.backward = watched


def watch_transformers(module: Any) -> None:
    """Write what each Trainer logs, at its own step."""
    log = module.Trainer.log

    def watched(self: Any, logs: dict[str, Any], *words: Any, **more: Any) -> Any:
        before = numbers(logs)
        result = log(self, logs, *words, **more)
        values = {**before, **numbers(self.state.log_history[-1])} if self.state.log_history else before
        values.pop("step", None)
        write("logged", step=self.state.global_step, values=values)
        return result

    module.Trainer.log = watched


def watch_lightning(module: Any) -> None:
    """Write what Lightning's progress bar shows, with the optimizer steps and batches so far."""
    connector = module._LoggerConnector
    progress = connector.progress_bar_metrics.fget

    def watched(self: Any) -> Any:
        values = progress(self)
        write("logged", step=self.trainer.global_step, values=numbers(values))
        return values

    connector.progress_bar_metrics = property(watched)


def watch_scalars(module: Any) -> None:
    """Write each scalar that goes to TensorBoard."""
    add_scalar = module.SummaryWriter.add_scalar

    def watched(self: Any, tag: str, value: Any, global_step: Any = None, *words: Any, **more: Any) -> Any:
        write("logged", step=number(global_step), values=numbers({tag: value}))
        return add_scalar(self, tag, value, global_step, *words, **more)

    module.SummaryWriter.add_scalar = watched


def watch_baselines(module: Any) -> None:
    """Write what Stable-Baselines3's logger is given to print."""
    dump = module.Logger.dump

    def watched(self: Any, step: int = 0) -> Any:
        write("logged", step=step, values=numbers(self.name_to_value))
        return dump(self, step)

    module.Logger.dump = watched


def watch_keras(module: Any) -> None:
    """Write what Keras' callbacks get at the end of each batch and epoch, with the batches so far."""
    lists = module.CallbackList
    batches = 0

    def after_batch(self: Any, batch: int, logs: Any = None) -> Any:
        nonlocal batches
        batches += 1
        write("logged", step=batches, values=numbers(logs or {}))
        return end_batch(self, batch, logs)

    def after_epoch(self: Any, epoch: int, logs: Any = None) -> Any:
        write("logged", step=batches, values={"epoch": epoch + 1, **numbers(logs or {})})
        return end_epoch(self, epoch, logs)

    end_batch, end_epoch = lists.on_train_batch_end, lists.on_epoch_end
    lists.on_train_batch_end, lists.on_epoch_end = after_batch, after_epoch


WATCHED = {
    "keras.src.callbacks.callback_list": watch_keras,
    "torch.optim.optimizer": watch_optimizers,
    "torch.autograd": watch_backward,
    "transformers.trainer": watch_transformers,
    "lightning.pytorch.trainer.connectors.logger_connector.logger_connector": watch_lightning,
    "torch.utils.tensorboard.writer": watch_scalars,
    "stable_baselines3.common.logger": watch_baselines,
}


class Watch:
    """A finder that has a watched module changed right after its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a watched module by the other finders."""
        change = WATCHED.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            change(module)

        loader.exec_module = exec_module
        return spec


if "LEDGER" in os.environ:
    sys.meta_path.insert(0, Watch())
