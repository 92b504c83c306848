"""Whether a run's virtual environment fits the Python of the node: a cluster's nodes may have other ones than its login node."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Optional

from ..cards.allowed_cards import UnfitError
from ..record.files import read_text
from ..record.rundir import Run

WRONG_PYTHON = "wrong-python"
ANSWER_S = 60.0
"""How long a Python on a busy shared disk may take to start."""
_VERSION = re.compile(r"^version(?:_info)? *= *(\d+\.\d+)", re.MULTILINE)
_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


def check_python(run: Run, node: str) -> None:
    """Raise UnfitError if the virtual environment of a run was made by another Python than the one that it starts here.

    Its packages lie in a folder for one version, so that another one finds none of them. Other environments, such
    as one of conda, bring their own Python.
    """
    interpreter = (run.prepared().get("runtime") or {}).get("interpreter")
    if not interpreter:
        return
    folder = os.path.dirname(os.path.dirname(interpreter))
    made_by = _VERSION.search(read_text(os.path.join(folder, "pyvenv.cfg")) or "")
    here = None if made_by is None else _version(interpreter)
    if made_by is None or here == made_by[1]:
        return
    line = "%s: %s is %s" % (node, interpreter, "Python %s" % here if here else "no program that starts")
    why = (
        "its environment was made by Python %s, on another machine: here, none of its packages would be found"
    )
    mend = "one that a job makes on a compute node   --set slurm.build=job"
    if run.read_plan().get("host_environment"):
        mend = "make that environment again on a compute node, with a Python that all nodes have"
    raise UnfitError(WRONG_PYTHON, line, why % made_by[1], mend)


def _version(interpreter: str) -> Optional[str]:
    try:
        said = subprocess.run(
            [interpreter, "-I", "-c", _ASK],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.decode("ascii", "replace").strip()
