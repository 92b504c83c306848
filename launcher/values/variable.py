"""The variables that a job sets for its processes, e.g. `WANDB_MODE=offline`.

They are recorded in its plan.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

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
