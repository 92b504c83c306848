"""The variables and the command line of a run's processes, for the training and for `launch exec`.

The job's own variables replace the host's. The run's token is among them, so that leftovers of an interrupted
run can be found and ended. Only the training also gets the run's secrets.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Mapping, NamedTuple, Sequence

from ..record import secret
from ..record.files import read_text
from ..record.rundir import Run
from ..store import worker_folder
from ..system import token_processes

if TYPE_CHECKING:
    from ..record.run_records import PlanRecord, RecordedRuntime

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
_STRAY_PREFIXES = ("LAUNCH_", "ACCELERATE_", "TORCHELASTIC_", "PET_")

_LAUNCHERS = (
    "torch",
    "accelerate",
    "deepspeed",
    "horovod",
)  # modules of these packages start ranks themselves
MEETING_S = 600
"""How long a node waits for the first one: loading torch from a shared disk may take minutes."""


class Rendezvous(NamedTuple):
    """The meeting point of the ranks of several nodes: the first node's name, and a free port there.

    `node` is the number of this node, `ranks` the number of its ranks.
    """

    nodes: int
    node: int
    ranks: int
    host: str
    port: int
    name: str

    @property
    def variables(self) -> dict[str, str]:
        """The variables that let this node's torchrun join the torchruns of the other nodes.

        Options on the command line of torchrun would show in `ps`. The number of nodes is fixed. torchrun
        restarts nothing, because the agent does. The backend is the static one, because the agents of `c10d`
        unpickle a value that anyone with access to their store can write.
        """
        master = {"MASTER_ADDR": self.host, "MASTER_PORT": str(self.port)}
        options = {
            **master,
            "NNODES": str(self.nodes),
            "NODE_RANK": str(self.node),
            "NPROC_PER_NODE": str(self.ranks),
            "RDZV_BACKEND": "static",
            "RDZV_ID": self.name,
            "RDZV_CONF": "timeout=%d" % MEETING_S,
            "MAX_RESTARTS": "0",
        }
        return {**master, **{"PET_" + name: value for name, value in options.items()}}


def variables(run: Run, runtime: RecordedRuntime) -> dict[str, str]:
    """Return the variables of a run's processes, without its secrets; `runtime` is the recorded one."""
    plan = run.read_plan()
    inherited = secret.without(dict(os.environ), plan)
    values = {
        name: value
        for name, value in inherited.items()
        if name not in _STRAY and not name.startswith(_STRAY_PREFIXES)
    }
    values.update({str(name): str(value) for name, value in (plan.get("variables") or {}).items()})
    worker = worker_folder.path_of(sys.argv[0])
    for name, first in (("PYTHONPATH", worker), ("PATH", os.path.dirname(interpreter_of(runtime)))):
        values[name] = _first(first, values.get(name))
    values.update(PYTHONUNBUFFERED="1", LAUNCH_RUN=run.id, LAUNCH_TOKEN=read_text(run.token) or "")
    values["LAUNCH_ARTIFACTS"] = run.artifacts
    commit = plan.get("commit")
    if commit:
        values.update(LAUNCH_COMMIT=commit["id"], LAUNCH_DIRTY=str(int(commit["dirty"])))
    if os.environ.get(token_processes.OF_ADOPTER):  # set by the keeper or the job step
        values[token_processes.OF_ADOPTER] = os.environ[token_processes.OF_ADOPTER]
    _keep_hub_downloads(values, run.cache)
    gpus = runtime.get("gpus")
    if gpus is not None:  # empty for a plan without a card, so that no card of the host is visible
        values.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=",".join(gpus))
        # torch.cuda.is_available() must not initialise CUDA: a forked process could then not use the card.
        values.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return values


def training_variables(
    run: Run,
    runtime: RecordedRuntime,
    secrets: Mapping[str, str],
    *,
    port: int,
    ranks: int,
    grace_s: float,
    attempt: str,
    socket: str,
    stacks: str,
    hook: Sequence[str],
    rendezvous: Rendezvous | None = None,
) -> dict[str, str | bytes]:
    """Return the variables of the training itself, the only ones with the secrets.

    `port` is where the ranks connect, `attempt` the attempt's folder, `socket` the path for the workers'
    reports, `stacks` the file for the stacks of its Python processes. `hook` names the enabled parts of the
    start-up hook in the training's Python processes. `ranks` is the number of ranks on this node. With a
    `rendezvous`, the run has several nodes.
    """
    values = variables(run, runtime)
    if hook:
        values["PYTHONPATH"] = _first(worker_folder.hook_of(sys.argv[0]), values["PYTHONPATH"])
    return {
        **{name: secret.as_bytes(value) for name, value in secrets.items()},
        **values,
        # For scripts that read where ranks connect, and for torchrun, whose default port is the same for all
        # runs.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PET_MASTER_PORT": str(port),
        "PET_NPROC_PER_NODE": str(ranks),
        # A torchrun in the user's own command shows each rank only its own card, if it is recent enough.
        "PET_VIRTUAL_LOCAL_RANK": str(int(1 < ranks == len(runtime.get("gpus") or ()))),
        # The grace after which torchrun kills its ranks; its default is 30 s even if a step takes longer.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(grace_s) + 1),
        "LAUNCH_ATTEMPT": attempt,
        "LAUNCH_SOCKET": socket,
        "LAUNCH_STACKS": stacks,
        **({"LAUNCH_HOOK": " ".join(hook)} if hook else {}),
        **({} if rendezvous is None else rendezvous.variables),
    }


def _first(folder: str, rest: str | None) -> str:
    """Return a search path that begins with a folder."""
    return folder + os.pathsep + rest if rest else folder


def _keep_hub_downloads(values: dict[str, str], cache: str) -> None:
    """Share model hub downloads between all runs of a root, unless the user has set HF_HOME; keep a login."""
    if "HF_HOME" not in values:
        home = values.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        values.setdefault("HF_TOKEN_PATH", os.path.join(home, "huggingface", "token"))
        values["HF_HOME"] = os.path.join(cache, "huggingface")


def interpreter_of(runtime: RecordedRuntime) -> str:
    """Return the path of a run's own interpreter."""
    return runtime.get("interpreter") or sys.executable


def by_us(plan: PlanRecord, ranks: int) -> int:
    """Return how many of a command's ranks are started here.

    It is 1 if the script does not take its rank from the environment.
    """
    use = plan.get("rank_use")
    return ranks if use is None or use.get("kind") == "taken" else 1


def is_one_rank(command: list[str]) -> bool:
    """Whether a command is a Python program that does not start ranks itself."""
    starts_ranks = command[1:2] == ["-m"] and command[2:3] and command[2].split(".")[0] in _LAUNCHERS
    return command[0] in ("python", "python3") and not starts_ranks


def native_command(command: list[str], interpreter: str, ranks: int = 1) -> list[str]:
    """Replace a bare `python` with the environment's interpreter; other programs are found by PATH.

    If `ranks`, the number over all nodes, is above 1, the worker starts the ranks of such a Python command, and
    shows each rank only its own card: in exclusive mode, a rank that touched another's card would fail. Other
    commands start their ranks themselves.
    """
    if command[0] in ("python", "python3"):
        is_wrapped = ranks > 1 and is_one_rank(command)
        return [interpreter, *(("-m", "launcher_worker.start_ranks") if is_wrapped else ()), *command[1:]]
    beside = os.path.join(os.path.dirname(interpreter), command[0])
    if os.sep not in command[0] and os.access(beside, os.X_OK):
        return [beside, *command[1:]]
    return command
