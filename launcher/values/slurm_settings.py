"""A job's request to Slurm: the keys of a `[hosts.NAME]` table with `kind = "slurm"`, and of `--set slurm.KEY=…`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from launcher.values.base import StrictModel
from launcher.values.credential import credential_in

MAX_NODES = 1024
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}"
_TIME = re.compile(
    r"(?P<minutes>\d{1,6})(:(?P<seconds>[0-5]?\d))?"
    r"|(?P<hours>\d{1,6}):(?P<hour_minutes>[0-5]?\d):(?P<hour_seconds>[0-5]?\d)"
    r"|(?P<days>\d{1,4})-(?P<day_hours>[01]?\d|2[0-3])(:(?P<day_minutes>[0-5]?\d)(:(?P<day_seconds>[0-5]?\d))?)?",
    re.ASCII,
)
_UNITS_S = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
_GRES = re.compile(r"[A-Za-z]\w{0,63}(:(?!0+\b)[\w.-]{1,64}(:[1-9]\d{0,5}[KMGT]?)?)?", re.ASCII)
_CONSTRAINT = re.compile(r"[\w(\[][\w.&|*,:()\[\]-]{0,255}", re.ASCII)
_MODULE = re.compile(r"[A-Za-z0-9][\w.+/@:-]{0,127}", re.ASCII)
_IMAGE = re.compile(r"(?:/|(?:docker|oras|library)://\w)[\w./:@+-]{0,511}", re.ASCII)
_FLAG = re.compile(r"--([a-z][a-z0-9-]+)(?:=([^\x00-\x1f\x7f]*))?")

FLAG_KEYS = ("partition", "account", "qos", "time", "nodes", "gres", "constraint", "reservation")
"""The keys that are flags of sbatch by the same name."""
_OURS = "launcher sets it for each run"
_ONE_A_NODE = "launcher starts one process on each node, which starts the ranks"
_CARDS = "write it as `gres`, which is checked against the plan"
_OTHER_ANSWER = "sbatch would answer without submitting the job"
_REFUSED = {
    **dict.fromkeys(FLAG_KEYS, "it is a separate key"),
    **dict.fromkeys(
        ("job-name", "comment", "output", "error", "input", "open-mode", "export", "export-file", "chdir"), _OURS
    ),
    **dict.fromkeys(("signal", "requeue", "no-requeue", "parsable", "wrap"), _OURS),
    "array": "each run is a separate job; several are a batch, see   launch batch --help",
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core", "tasks-per-node"), _ONE_A_NODE),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), _CARDS),
    **dict.fromkeys(("help", "usage", "version", "test-only"), _OTHER_ANSWER),
    **dict.fromkeys(("quiet", "verbose"), "launcher reads the output of sbatch"),
    "no-kill": "after the loss of a node, Slurm would keep the job on the other nodes, too few for another attempt",
    "wait": "sbatch would wait for the end of the job",
    "clusters": "define another cluster as a separate host",
    "cluster": "define another cluster as a separate host",
    **dict.fromkeys(("hetjob", "packjob"), "launcher starts no heterogeneous jobs: all nodes of a run are alike"),
    "uid": "a run belongs to the user who logs in",
    "gid": "a run belongs to the user who logs in",
}  # fmt: skip
"""The flags of sbatch that `extra` may not contain, and the reasons."""


_HINTS = {
    **dict.fromkeys(("cpus", "cpus_per_task", "cpus-per-task"), 'extra = ["--cpus-per-task=8"]'),
    **dict.fromkeys(("mem", "memory"), 'extra = ["--mem=64G"]'),
    **dict.fromkeys(("mail_type", "mail-type"), 'extra = ["--mail-type=END"]'),
    "dependency": 'extra = ["--dependency=afterok:12"]',
    "exclusive": 'extra = ["--exclusive"]',
    "gpus": 'gres = "gpu:2"',
    "array": "a batch, see   launch batch --help",
}
"""What to write in place of keys that a user of sbatch may expect."""


def _names(written: str) -> str:
    if not re.fullmatch(rf"{_NAME}(,{_NAME})*", written):
        raise ValueError("expected a name that Slurm knows, or several, separated by commas")
    return written


def _name(written: str) -> str:
    if not re.fullmatch(_NAME, written):
        raise ValueError("expected a name that Slurm knows")
    return written


def _time(written: str) -> str:
    if not _TIME.fullmatch(written) or _seconds(written) < 60:
        raise ValueError(
            'expected a minute or more as Slurm reads it: "90" (minutes), "1:30:00", "2-12" (2 days and 12 hours)'
        )
    return written


def _seconds(time: str) -> int:
    match = _TIME.fullmatch(time)
    parts = match.groupdict(default="0") if match else {}
    return sum(int(value) * _UNITS_S[key.rpartition("_")[2]] for key, value in parts.items())


def _minutes(written: Any) -> Any:
    return str(written) if isinstance(written, int) and not isinstance(written, bool) else written


def _listed(written: Any) -> Any:
    if isinstance(written, str):
        one = {"one": json.dumps(written, ensure_ascii=False)}
        raise PydanticCustomError("list", "expected a list, as in [{one}]", one)
    return tuple(written) if isinstance(written, list) else written


def _gres(written: str) -> str:
    if not all(_GRES.fullmatch(one) for one in written.split(",")):
        raise ValueError('expected NAME, NAME:COUNT or NAME:TYPE:COUNT, such as "gpu:a100:2"')
    return written


def _constraint(written: str) -> str:
    if not _CONSTRAINT.fullmatch(written):
        raise ValueError('expected features of nodes, such as "a100" or "a100|h100"')
    return written


def _module(written: str) -> str:
    if not _MODULE.fullmatch(written):
        raise ValueError('expected the name of a module, such as "cuda/12.4"')
    return written


def _image(written: str) -> str:
    if not _IMAGE.fullmatch(written):
        raise ValueError('expected a path, such as "/shared/torch.sif", or "docker://ORG/NAME:TAG"')
    if credential_in(written):
        raise PydanticCustomError("credential", "holds a credential, which plans and records would show")
    return written


def reason_against(option: str) -> str | None:
    """Return why `extra` may not contain an option of sbatch, without its `--`; None if it may."""
    # sbatch accepts an abbreviation of a flag.
    return next((reason for flag, reason in _REFUSED.items() if flag.startswith(option)), None)


def _flag(written: str) -> str:
    match = _FLAG.fullmatch(written)
    if not match:
        raise ValueError("expected one whole flag of sbatch, such as --exclusive or --mem=64G")
    word, value = match[1], match[2] or ""
    if credential_in(value, word):
        raise PydanticCustomError(
            "credential", "holds a credential, which everybody on the cluster would see"
        )
    if reason := reason_against(word):
        raise ValueError(f"--{word}: {reason}")
    if "help" in value.lower().split(","):
        raise ValueError(f"--{word}={value}: {_OTHER_ANSWER}")
    return written


class SlurmSettings(StrictModel):
    """The request to Slurm for one job; a key that is None is not sent, so the cluster's default applies."""

    hints: ClassVar[Mapping[str, str]] = _HINTS

    partition: Annotated[str, AfterValidator(_names)] | None = None
    """One partition, or several separated by commas: Slurm takes the first that is free. By default the cluster's."""
    account: Annotated[str, AfterValidator(_name)] | None = None
    """As in `sbatch`."""
    qos: Annotated[str, AfterValidator(_name)] | None = None
    """As in `sbatch`."""
    time: Annotated[str, BeforeValidator(_minutes), AfterValidator(_time)] | None = None
    """The time limit of one start of the job: `90` or `"90"` (minutes), `"1:30:00"`, `"2-12"` (2 days and 12
    hours). By default the partition's. The job is started again until the run has ended.
    """
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    """The number of nodes, fixed."""
    gres: Annotated[str, AfterValidator(_gres)] | None = None
    """The resources of each node, as `"gpu:a100:2"`; by default those that the plan needs."""
    constraint: Annotated[str, AfterValidator(_constraint)] | None = None
    """Features of nodes, as in `sbatch`."""
    reservation: Annotated[str, AfterValidator(_names)] | None = None
    """As in `sbatch`."""
    extra: Annotated[tuple[Annotated[str, AfterValidator(_flag)], ...], BeforeValidator(_listed)] = ()
    """Other flags of `sbatch`, one string each: `["--exclusive", "--mem=64G"]`."""
    build: Literal["login", "job"] = "login"
    """Where environments are made: on the login node, or in a job if the login node has another system or may
    not make them. In a table with other keys of `build`, write `build.where`.
    """
    modules: Annotated[tuple[Annotated[str, AfterValidator(_module)], ...], BeforeValidator(_listed)] = ()
    """Modules that the job loads before the run, in this order, as `["cuda/12.4"]`."""
    # Older versions would refuse the key in a run's record.
    image: Annotated[
        Annotated[str, AfterValidator(_image)] | None, Field(exclude_if=lambda value: value is None)
    ] = None
    """The image in which Apptainer runs the command: a path that all nodes see, or a registry's name."""

    @classmethod
    def from_flags(cls, flags: Iterable[str]) -> Self:
        """Return the settings that produced these flags.

        `build`, `modules` and `image`, which are not flags, are the defaults.
        """
        values: dict[str, Any] = {}
        extra = []
        for flag in flags:
            key, _, value = flag.removeprefix("--").partition("=")
            if key in FLAG_KEYS:
                values[key] = int(value) if key == "nodes" else value
            else:
                extra.append(flag)
        return cls(**values, extra=tuple(extra))

    def changed_by(self, changes: SlurmSettings | None) -> SlurmSettings:
        """Return the settings with changes. Only keys that a job's table or --set gives replace a value."""
        if changes is None:
            return self
        named = {key: getattr(changes, key) for key in changes.model_fields_set}
        return SlurmSettings.model_validate({**self.model_dump(), **named})

    @property
    def time_s(self) -> int | None:
        """The limit in seconds, None without one. Slurm rounds it up to whole minutes."""
        return None if self.time is None else -(-_seconds(self.time) // 60) * 60

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of sbatch for these settings, one word each."""
        values = {key: getattr(self, key) for key in FLAG_KEYS}
        return (*(f"--{key}={value}" for key, value in values.items() if value is not None), *self.extra)
