"""The variables and the command line that a process of a run gets, the training and `launch exec` alike.

They never hold the run's secrets, which are the training's alone. They hold the run's token, so that whoever resumes an
interrupted run can end what is left of it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..record import secret
from ..record.rundir import Run, read_json, read_text
from ..store import worker_folder

_STRAY = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "LOCAL_WORLD_SIZE",
)
_STRAY_PREFIXES = ("LAUNCH_", "ACCELERATE_", "TORCHELASTIC_")


_LAUNCHERS = ("torch", "accelerate", "deepspeed", "horovod")  # a module of theirs starts ranks itself


def variables(run: Run, runtime: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a run's processes, without its secrets; `runtime` is the recorded one."""
    inherited = secret.without(dict(os.environ), read_json(run.plan))
    found = {
        name: value
        for name, value in inherited.items()
        if name not in _STRAY and not name.startswith(_STRAY_PREFIXES)
    }
    worker = worker_folder.path_of(sys.argv[0])
    for name, first in (("PYTHONPATH", worker), ("PATH", os.path.dirname(interpreter_of(runtime)))):
        rest = found.get(name)
        found[name] = first + os.pathsep + rest if rest else first
    found.update(PYTHONUNBUFFERED="1", LAUNCH_RUN=run.id, LAUNCH_TOKEN=read_text(run.token) or "")
    _keep_hub_downloads(found, run.cache)
    gpus = runtime.get("gpus")
    if gpus is not None:  # no card for a plan without one, whatever the host has
        found.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=",".join(gpus))
        # Whoever only asks whether there is a card must not begin CUDA: a fork of it could not use one any more.
        found.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return found


def _keep_hub_downloads(found: dict[str, str], cache: str) -> None:
    """Let all runs of a root share what they take from a model hub, unless the user has named a place; a login stays."""
    if "HF_HOME" not in found:
        home = found.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        found.setdefault("HF_TOKEN_PATH", os.path.join(home, "huggingface", "token"))
        found["HF_HOME"] = os.path.join(cache, "huggingface")


def interpreter_of(runtime: dict[str, Any]) -> str:
    """Return the path of a run's own interpreter."""
    return runtime.get("interpreter") or sys.executable


def native_command(command: list[str], interpreter: str, ranks: int = 1) -> list[str]:
    """Put the environment's interpreter in the place of a bare `python`; other programs are found by PATH.

    Of several ranks each is such a Python, started by torchrun, that sees its own card alone: the worker, as a program,
    sees to it. In exclusive mode a rank that touched another's would fail. Other commands start their ranks themselves.
    """
    if command[0] in ("python", "python3"):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        starts_them = command[1:2] == ["-m"] and command[2:3] and command[2].split(".")[0] in _LAUNCHERS
        wrapped = [*torchrun, "-m", "launcher_worker"] if ranks > 1 and not starts_them else []
        return [interpreter, *wrapped, *command[1:]]
    beside = os.path.join(os.path.dirname(interpreter), command[0])
    if os.sep not in command[0] and os.access(beside, os.X_OK):
        return [beside, *command[1:]]
    return command
