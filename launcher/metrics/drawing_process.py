"""Draw a picture in a separate process.

matplotlib obeys a file `matplotlibrc` in the working directory, and a cloned repository may contain one. The file
names programs, and before matplotlib 3.10.9 it could contain code. So the process runs in `/`.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable

from launcher.errors import RunError

LONGEST_S = 120.0


def drawn(draw: Callable[..., bytes], *arguments: object) -> bytes:
    """Run a module's function in a separate process and return its PNG. Raises RunError on a failure, or after 120 s."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=pickle.dumps((draw, arguments)),
            cwd="/",
            capture_output=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"the picture was not drawn within {LONGEST_S:g} s") from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.returncode}"]
        raise RunError(f"the picture was not drawn: {words[-1]}")
    return done.stdout


def _main() -> None:
    draw, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - sent by `drawn` in the parent process
    sys.stdout.buffer.write(draw(*arguments))


if __name__ == "__main__":
    _main()
