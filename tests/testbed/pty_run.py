"""Run `launch` in a terminal of a given width, and return what it wrote there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from testbed.client import LAUNCH, Client

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def in_terminal(client: Client, *words: str, columns: int, lines: int = 50, **variables: str) -> str:
    """Run `launch …` to its end in a terminal with this many columns. Fail if it shows a traceback."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    env = {key: value for key, value in client.env.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    env |= {"TERM": "xterm-256color", **variables}
    process = None
    if (server := client.forks(*variables)) is not None:
        status = server.start([*words], str(client.project), env, (theirs, theirs), program=client.program[2])
    else:
        process = subprocess.Popen(
            [*LAUNCH, *words],
            cwd=client.project,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    if process is not None:
        process.wait(timeout=180)
    else:
        os.close(status)
    text = written.decode("utf-8", "replace")
    assert "Traceback" not in text, text
    return text.replace("\r\n", "\n")


def without_style(text: str) -> str:
    """Remove colours and other styles from what a terminal got; other escapes stay."""
    return _STYLE.sub("", text)
