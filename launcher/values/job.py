"""A job: a training program or another command, its method, model, data, variables, budgets and notification."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    field_validator,
)
from pydantic_core import PydanticCustomError

from launcher.values.base import StrictModel
from launcher.values.precision import Attention
from launcher.values.profile import Name
from launcher.values.slurm_settings import SlurmSettings
from launcher.values.software.image import Reference
from launcher.values.software.requirement import RequirementText

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET_BY_LAUNCH = {
    "CUDA_VISIBLE_DEVICES": "cards are chosen by --gpus",
    "CUDA_DEVICE_ORDER": "cards are chosen by --gpus",
    "MASTER_ADDR": "launch sets it for each attempt",
    "MASTER_PORT": "launch sets it for each attempt",
}
_PREFIXES_SET_BY_LAUNCH = ("LAUNCH_", "PET_")


def objection_to(name: str) -> str | None:
    """Return the reason why a job cannot set a variable of this name; None if it can."""
    if not NAME.fullmatch(name):
        return "is not the name of a variable: letters, digits and _ only"
    if name.startswith(_PREFIXES_SET_BY_LAUNCH):
        return "cannot be set: launch sets it for each attempt"
    why = _SET_BY_LAUNCH.get(name)
    return f"cannot be set: {why}" if why is not None else None


def _name(written: str) -> str:
    if problem := objection_to(written):
        raise PydanticCustomError("variable", "{problem}", {"problem": problem})
    return written


def _text_of(written: Any) -> Any:
    """Return a whole number as text: `OMP_NUM_THREADS = 1`."""
    return str(written) if type(written) is int else written


def _text(written: str) -> str:
    if "\0" in written:
        raise PydanticCustomError("variable", "holds a NUL byte")
    return written


VariableName = Annotated[str, AfterValidator(_name)]
"""The name of a variable that a job may set."""
VariableText = Annotated[str, BeforeValidator(_text_of), AfterValidator(_text)]
"""The value of a variable; whole numbers are taken as text."""


_ADDRESS = re.compile(r"https?://[^\s/]+.*|\$.+")
_SECRET = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def _words(written: Any) -> Any:
    """Return a webhook's address as a tuple of one word; a list of words is a command."""
    if not isinstance(written, str):
        return tuple(written) if isinstance(written, list) else written
    if not _ADDRESS.fullmatch(written):
        raise ValueError('expected a list of words, ["notify.sh"], or an address, "https://…" or "$NAME"')
    return (written,)


def _checked(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and not words[0]:
        raise ValueError("its first word is empty")
    if any("\0" in word for word in words):
        raise ValueError("a word holds a NUL byte")
    return words


OnEnd = Annotated[
    tuple[Annotated[str, Field(max_length=4000)], ...], BeforeValidator(_words), AfterValidator(_checked)
]
"""The words of a command, or one word: the address of a webhook, in which `$NAME` stands for a secret."""


def is_webhook(words: Sequence[str]) -> bool:
    """Return whether these words are a webhook's address."""
    return len(words) == 1 and _ADDRESS.fullmatch(words[0]) is not None


def secrets_of(words: Sequence[str]) -> list[str]:
    """Return the names of the secrets in a webhook's address. A command gets its secrets as variables."""
    return [first or second for first, second in _SECRET.findall(words[0])] if is_webhook(words) else []


Method = Literal["lora", "qlora", "full"]


def trains_adapter(method: Method) -> bool:
    """Return whether the base is frozen and an adapter is trained."""
    return method != "full"


Scalar = bool | int | float | str
Count = Annotated[int, Field(ge=1)]
Minutes = Annotated[float, Field(gt=0, allow_inf_nan=False)]


Pattern = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00\n]+$")]
"""A pattern as in a .gitignore, relative to the working folder."""
PullLimit = Annotated[ByteSize, Field(ge=0)]


class BatchSize(StrictModel):
    """The global batch, which is the same on every card, and the largest micro-batch that the job allows."""

    model_config = ConfigDict(populate_by_name=True)

    global_size: Count = Field(
        default=8, validation_alias=AliasChoices("global", "global_size"), serialization_alias="global"
    )
    """Examples per step, the same on every card."""
    micro: Count | None = None
    """The largest micro-batch; by default the card decides."""


class Data(StrictModel):
    """The job's data: a path on this machine (`./x`, `/x`, `~/x`), `host:PATH` on the host, or a name that the script resolves."""

    train: str | None = None
    """The training data: a path, `host:PATH`, or a name for the script."""
    eval: str | None = None
    """The evaluation data, in the same form."""


class Job(StrictModel):
    """A job, as written in its TOML file or as the words after `--`.

    Paths are relative to the file that contains them.
    """

    name: Name
    """Lowercase letters and digits, with `. _ -` between them; at most 48 characters."""
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """The words of the command. `python` as the first word is the job's interpreter. In `sh -c '…'`, `python`
    is found in PATH: the interpreter's folder comes first, but the folder of a Debian system has only
    `python3`.
    """
    code: str | None = None
    """The folder to send, relative to the file; by default the current folder."""
    requirements: tuple[RequirementText, ...] = ()
    """Packages, as pip writes them; by default those of the folder. torch is chosen for the card."""
    image: Reference | None = None
    """Your own image, used unchanged."""
    model: str | None = None
    """A path, `host:PATH`, or a name for the script."""
    teacher: str | None = None
    """The model that `model` learns from, in the same form; its memory counts in the plan."""
    method: Method = "full"
    """`lora` trains an adapter, `qlora` one over a base in 4 bits, `full` all weights."""
    attention: Attention = "sdpa"
    """The attention kernel; refused where the card cannot run it, for example `flash_attention_2` on a T4."""
    compile: bool = False
    """`torch.compile`; refused where the card cannot run it."""
    checkpointing: bool | Literal["auto"] = "auto"
    """Activation checkpointing, which saves memory. `auto`: only if nothing fits without it."""
    sharding: bool = False
    """The script can divide a model among its cards (`worker.knobs().sharding`). The plan asks for it in a
    full fine-tune that otherwise does not fit.
    """
    steps: Count | None = None
    """The number of optimizer steps."""
    seed: int = 0
    """The seed of the data order and of new weights."""
    save_every_steps: Count | None = None
    """Steps between checkpoints."""
    save_every_minutes: Minutes | None = 15.0
    """Minutes between checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=0)] = 2
    """The number of newest checkpoints to keep; the best by `eval_loss` is kept too. With 0 the old
    checkpoint is removed before the new one is written.
    """
    checkpoints: Literal["host", "pull"] = "host"
    """`pull`: a client that follows the run also keeps the newest complete checkpoint in
    `runs/RUN/checkpoints`.
    """
    loader_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that load data."""
    batch: BatchSize = BatchSize()
    """The batch."""
    data: Data = Data()
    """The data."""
    settings: dict[str, Scalar] = {}
    """Settings of the script, passed unchanged. With `optim = "auto"` the script takes the plan's optimizer."""
    verify: dict[str, Scalar] = {}
    """Settings that replace those of `settings` while `launch verify` tries the job."""
    writable: tuple[Pattern, ...] = ()
    """Patterns of large files that the job changes in place, for example `["model.pt"]`."""
    variables: dict[VariableName, VariableText] = {}
    """Variables of the job's processes, which the plan records."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values are sent as secrets and never recorded."""
    attempts: Count = 20
    """Starts of the training within one run."""
    restart: bool = False
    """Allow a second start of a script that does not resume through the worker. Such a
    script resumes from its own file, or begins again; a `Trainer` of transformers gets its last checkpoint.
    """
    hang_minutes: Minutes | None = None
    """Minutes of silence that count as a hang; by default 30 times the median step, but at least 15 minutes.
    Before the second step, 60 idle minutes.
    """
    time_limit_minutes: Minutes | None = None
    """After this time the run saves a checkpoint and ends."""
    stop_grace_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds that a stopping script has to save."""
    outputs: tuple[Pattern, ...] = ()
    """Patterns of the files to download; by default all new files."""
    pull_limit: PullLimit = ByteSize(2_000_000_000)
    """The most bytes that are downloaded automatically; text such as `"2GB"` is accepted."""
    inject: bool = True
    """The start-up hook observes the script's Python processes."""
    adapt: bool = False
    """The hook gives the script the plan's precision, resume, checkpoints and guard."""
    check: Annotated[Literal["off", "warn", "strict"], Field(exclude_if=lambda value: value == "warn")] = (
        "warn"
    )
    """`warn`: a launch shows the known bugs that `launch check` finds in the script. `strict`: it refuses them."""
    guard: Literal["end", "warn"] = "end"
    """`end`: the guard ends a training that looks sick. `warn`: it only reports."""
    on_end: OnEnd = ()
    """A command as a list of words, or a webhook's address, called when the run ends."""
    slurm: SlurmSettings | None = None
    """This job's values for keys of the cluster's table."""

    @field_validator("command")
    @classmethod
    def _command_has_words(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0]:
            raise ValueError("its first word is empty")
        if any("\0" in word for word in command):
            raise ValueError("a word holds a NUL byte")
        return command


OF_ONE_KIND = {"slurm": SlurmSettings}
"""The tables of a job that apply to one kind of host only, by that kind's name."""
