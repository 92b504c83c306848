"""A session as a terminal's: a shell that runs commands one after the other, without a terminal."""

import os
import shlex
import signal
import subprocess
from pathlib import Path

from testbed.client import Client, until


class Session:
    """A shell of its own session, in a client's project and with its variables."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder = client, folder
        self._count = 0
        self.shell = subprocess.Popen(
            ["sh"], stdin=subprocess.PIPE, cwd=client.project, env=client.env, start_new_session=True
        )

    def start(self, *words: str, before: str = "", after: str = "") -> "Command":
        """Start `launch …` in the background, with what a shell says before and after it."""
        self._count += 1
        command = Command(self.folder / str(self._count))
        line = f"{before} {shlex.join([*self.client.program, *words])} {after}"
        streams = f"</dev/null >{command.base}.out 2>{command.base}.err"
        inner = f"echo $$ >{command.base}.pid; exec {line}"
        self.say(
            f"( sh -c {shlex.quote(inner)} {streams}; echo $? >{command.base}.new; mv {command.base}.new {command.base}.code ) &"
        )
        until((command.base.with_suffix(".pid")).exists, "the command's begin", every=0.01)
        return command

    def run(self, *words: str, before: str = "", after: str = "") -> tuple[int, str, str]:
        """Run `launch …`; return its exit code, output and errors."""
        return self.start(*words, before=before, after=after).end()

    def say(self, line: str) -> None:
        """Type a line."""
        assert self.shell.stdin is not None
        self.shell.stdin.write(line.encode() + b"\n")
        self.shell.stdin.flush()

    def leave(self) -> None:
        """End the shell."""
        assert self.shell.stdin is not None
        self.shell.stdin.close()
        self.shell.wait(timeout=180)


class Command:
    """A command that a session runs."""

    def __init__(self, base: Path) -> None:
        self.base = base

    @property
    def pid(self) -> int:
        """The process that was started."""
        return int(self._text("pid"))

    @property
    def out(self) -> str:
        """What it has printed."""
        return self._text("out")

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        """Wait for its end; return exit code, output and errors."""
        until(self.base.with_suffix(".code").exists, "the command's end", timeout, every=0.01)
        return int(self._text("code")), self.out, self._text("err")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def _text(self, kind: str) -> str:
        return self.base.with_suffix(f".{kind}").read_text()
