"""The agent's verb `attended WORDS…`: a program on the login node that ends with the client that started it.

An `srun` that waits for its job does not read its input, and would keep waiting without a client.
"""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
from typing import List, Optional

TURN_S = 0.2
LEAVE_S = 5.0
"""How long the program may take to end once its client is gone, and again after SIGTERM."""


def main(arguments: List[str]) -> int:
    """Run a program with this process's input and output until it ends or the client is gone.

    Return its exit status.
    """
    child = subprocess.Popen(arguments)
    client = select.poll()
    client.register(0, select.POLLRDHUP)  # and POLLHUP, which is always reported
    while child.poll() is None and not client.poll(TURN_S * 1000):
        pass
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if _has_ended(child, number):
            break
    code = child.wait()
    return code if code >= 0 else 128 - code


def _has_ended(child: subprocess.Popen[bytes], number: Optional[int]) -> bool:
    if number is not None:
        child.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(LEAVE_S)
    return child.poll() is not None
