"""Calls that may hang, each in a separate thread or process with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Hashable, Mapping, TypeVar

Name = TypeVar("Name", bound=Hashable)


def at_once(questions: Mapping[Name, Callable[[], Any]], timeout_s: float) -> dict[Name, Any]:
    """Call every function in its own thread. Return the answers that arrive in time, by name."""
    answers: dict[Name, Any] = {}

    def ask(name: Name) -> None:
        answers[name] = questions[name]()

    deadline = time.monotonic() + timeout_s
    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)


def run(words: list[str], timeout_s: float) -> tuple[int, str, str]:
    """Run a program. Return its exit code, its output and its errors as text.

    Raises OSError, or TimeoutExpired if it does not end in time; its whole session is killed then.
    """
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # a wrapper's children hold the pipes too
            except (ProcessLookupError, PermissionError):
                pass  # it has just ended
            raise
    return child.returncode, out.decode("utf-8", "replace").strip(), err.decode("utf-8", "replace").strip()
