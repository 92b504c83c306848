"""Runs scripts in processes forked from a Python that has imported their libraries: torch, transformers and peft take 8 s of processor time.

The libraries are imported by a Python that starts as a training's does, with its variables and its start-up hook. Each
script is a process of its own, with its own folder, variables and output, and ends as Python ends.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path


class WarmPython:
    """A Python with these variables that has run a program of imports; it ends with `end`."""

    def __init__(self, variables: dict[str, str], imports: str) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, imports],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: str, *arguments: str, folder: Path, variables: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of a folder there to its end; `variables` are added to those of the start."""
        request = json.dumps([str(folder), script, arguments, variables])
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        out, err = ((folder / f"{script}.{name}").read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess([script, *arguments], status, out, err)

    def end(self) -> None:
        """End it."""
        self._process.communicate()


def _next_script() -> str:
    """Return, in a process forked for it, the path of the next script that is asked for. Ends this process after the last one."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the imports print is no answer
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _enter(*json.loads(line))
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()
    sys.exit()


def _enter(folder: str, script: str, arguments: list[str], variables: dict[str, str]) -> str:
    """Make this process that of a script."""
    os.chdir(folder)
    for descriptor, name in ((0, os.devnull), (1, f"{script}.out"), (2, f"{script}.err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(variables)
    sys.argv = [script, *arguments]
    sys.path[0] = folder
    return script


if __name__ == "__main__":
    exec(sys.argv[1], {})  # noqa: S102 - a test's own
    gc.freeze()  # else each script's collections copy the memory of all that was imported
    path = _next_script()
    exec(compile(Path(path).read_bytes(), path, "exec"))  # noqa: S102 - likewise
