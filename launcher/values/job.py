"""A job: a training program or another command, its model, data and budgets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, ByteSize, ConfigDict, Field, field_validator

from launcher.values.base import Written
from launcher.values.method import Method
from launcher.values.notice import OnEnd
from launcher.values.precision import Attention
from launcher.values.profile import Name
from launcher.values.slurm_settings import SlurmSettings
from launcher.values.software.image import Reference
from launcher.values.software.requirement import RequirementText
from launcher.values.variable import VariableName, VariableText

Scalar = bool | int | float | str
Count = Annotated[int, Field(ge=1)]
Minutes = Annotated[float, Field(gt=0, allow_inf_nan=False)]


Pattern = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00\n]+$")]
"""A pattern as in a .gitignore, relative to the working folder."""
PullLimit = Annotated[ByteSize, Field(ge=0)]


class BatchSize(Written):
    """The global batch, which is the same on every card, and the largest micro-batch that the job allows."""

    model_config = ConfigDict(populate_by_name=True)

    global_size: Count = Field(
        default=8, validation_alias=AliasChoices("global", "global_size"), serialization_alias="global"
    )
    micro: Count | None = None


class Data(Written):
    """The job's data: a path on this machine (`./x`, `/x`, `~/x`), `host:PATH` on the host, or a name that the script resolves."""

    train: str | None = None
    eval: str | None = None


class Job(Written):
    """A job, as written in its TOML file or as the words after `--`.

    Paths are relative to the file that contains them; `code` is the folder that is sent (default: the working
    folder). `save_every_steps` and `save_every_minutes` set when a checkpoint is saved. The last
    `keep_checkpoints` and the best are kept; with 0 the old checkpoint is removed before the new one is
    written. `checkpoints`: whether a client that follows the run also downloads the newest one (`pull`). A
    training that is silent for `hang_minutes` counts as hung (None: for 30 times the median step, at least 15
    minutes; before the second step, for an hour in which it is idle). After `time_limit_minutes` the run ends
    with a checkpoint. `image` replaces the image that launch would build. `teacher` is the model that `model`
    learns from. `checkpointing`: the backward pass computes activations again, which saves memory (`auto`: if
    no plan fits without it). `settings` are passed to the script unchanged; those of `verify` replace them
    while `launch verify` tries the job. `variables` are set for its processes, and recorded. `secrets` are
    names of variables whose values are never part of a job. `outputs` are patterns of the files to download
    at the end (without any: all files that the run wrote), up to `pull_limit` bytes. `writable` names large
    files that the job changes in place. `inject`: the start-up hook observes its Python processes. `adapt`:
    the hook applies the plan's precision, resume, checkpoints and guard. `guard`: whether the guard ends a
    training that looks sick, or only warns. `on_end` is a command to run, or a webhook to call, when the run
    ends. `slurm` has the keys of a cluster's table that this job changes.
    """

    name: Name
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    code: str | None = None
    requirements: tuple[RequirementText, ...] = ()
    image: Reference | None = None
    model: str | None = None
    teacher: str | None = None
    method: Method = "full"
    attention: Attention = "sdpa"
    compile: bool = False
    checkpointing: bool | Literal["auto"] = "auto"
    steps: Count | None = None
    seed: int = 0
    save_every_steps: Count | None = None
    save_every_minutes: Minutes | None = 15.0
    keep_checkpoints: Annotated[int, Field(ge=0)] = 2
    checkpoints: Literal["host", "pull"] = "host"
    loader_workers: Annotated[int, Field(ge=0)] = 0
    batch: BatchSize = BatchSize()
    data: Data = Data()
    settings: dict[str, Scalar] = {}
    verify: dict[str, Scalar] = {}
    writable: tuple[Pattern, ...] = ()
    variables: dict[VariableName, VariableText] = {}
    secrets: tuple[str, ...] = ()
    attempts: Count = 20
    restart: bool = False
    hang_minutes: Minutes | None = None
    time_limit_minutes: Minutes | None = None
    stop_grace_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    outputs: tuple[Pattern, ...] = ()
    pull_limit: PullLimit = ByteSize(2_000_000_000)
    inject: bool = True
    adapt: bool = False
    guard: Literal["end", "warn"] = "end"
    on_end: OnEnd = ()
    slurm: SlurmSettings | None = None

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
