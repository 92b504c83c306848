"""The notice of a run's end (`on_end` of its job): a command that runs on the host, or a webhook.

The notice is sent once for each end, just before the end is recorded, while the secrets still exist. Before the
notice, the agent writes a mark. If it dies before it records the end, its successor reads from the mark how the
run had ended, records that end, and sends nothing. A failure to send is added to the evidence of the end, and
changes nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from typing import (
    TYPE_CHECKING,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    TypedDict,
    Union,
    cast,
)

from ..record import strict_json
from ..record.files import read_json
from ..record.rundir import TERMINAL, Run
from ..record.safe_open import open_regular, write_all
from ..record.secret import Redaction, Redactor, as_bytes
from ..record.strict_json import JsonObject
from ..system import process
from ..system.login_umask import login_umask

if TYPE_CHECKING:
    from ..record.run_records import Loss

LIMIT_S = 20.0
LIMIT_NOW_S = 4.0
"""The limit for a run that must end now: the client waits, and kills an agent that does not answer."""
LOOK_S = 0.2
GRACE_S = 0.5
MAX_MESSAGE = 300
_SECRET = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class EndValues(TypedDict):
    """The values that a notice has for programs, in addition to the run's state."""

    run: str
    job: Optional[str]
    host: Optional[str]
    attempt: int
    step: Optional[int]
    steps: Optional[int]
    loss: Optional[Loss]
    rehearsed: bool


class EndMark(TypedDict, total=False):
    """The end that was announced for a run, and the number of its attempts that had begun by then."""

    begun: int
    state: str
    reason: Optional[str]
    step: Optional[int]
    loss: Optional[Loss]


class EndNotice(NamedTuple):
    """How a run ends, in the words of its notice; `values` are for programs."""

    state: str
    reason: str
    values: EndValues

    @property
    def text(self) -> str:
        """One line for people: `succeeded: sft k3f9w2 on lab, step 300 of 300, loss 0.0035`."""
        values = self.values
        why = "" if self.state == "succeeded" else " (%s)" % self.reason
        line = "%s%s: %s %s on %s" % (
            self.state,
            why,
            values["job"],
            values["run"].rpartition("-")[2],
            values["host"],
        )
        if values.get("step") is not None:
            line += ", step %s" % values["step"]
            line += " of %s" % values["steps"] if values.get("steps") is not None else ""
        loss = values.get("loss")
        return line + (", loss %.4g" % loss if isinstance(loss, float) else "")

    def body(self) -> JsonObject:
        """Return the body for a webhook, or for a command's standard input.

        Slack shows `text`, Discord `content`.
        """
        more = {"state": self.state, "reason": self.reason, "text": self.text, "content": self.text}
        return {"version": 1, "kind": "run-ended", **self.values, **more}


class Notice(NamedTuple):
    """The words of `on_end`, the command's variables and folder, and the run's secrets."""

    words: List[str]
    folder: str
    variables: Mapping[str, str]
    secrets: Mapping[str, str]

    @property
    def is_webhook(self) -> bool:
        """Whether `on_end` is one word: an address, or the name of a secret that holds an address."""
        return len(self.words) == 1 and self.words[0].startswith(("http://", "https://", "$"))


def send_once(
    run: Run, notice: Notice, ending: EndNotice, begun: int, beat: Callable[[], None]
) -> Dict[str, str]:
    """Send the notice of an end unless it was sent before; return the failure as evidence, {} for none.

    `begun` is the number of attempts that have begun. `beat` is called during the wait, which takes LIMIT_S
    at most.
    """
    if not notice.words or not _is_first(run, ending, begun):
        return {}
    limit_s = LIMIT_NOW_S if ending.reason == "by-user-now" else LIMIT_S
    try:
        problem = _send(notice, ending, beat, limit_s)
    except OSError as error:
        problem = "%s: %s" % (notice.words[0], error.strerror)
    return {"on_end": problem} if problem else {}


def end_mark(run: Run, begun: int) -> EndMark:
    """Return the end that was announced but not recorded; {} for none.

    `begun` is the number of attempts that have begun: a mark counts only with the same number.
    """
    for state in TERMINAL:
        mark = cast("EndMark", read_json(run.end_mark_path(state)))
        if mark.get("state") == state and mark.get("begun") == begun:
            return mark
    return {}


def _is_first(run: Run, ending: EndNotice, begun: int) -> bool:
    """Write the mark of this end; return False if it existed."""
    mark: EndMark = {
        "begun": begun,
        "state": ending.state,
        "reason": ending.reason,
        "step": ending.values.get("step"),
        "loss": ending.values.get("loss"),
    }
    try:
        descriptor = open_regular(
            run.end_mark_path(ending.state), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
        )
    except FileExistsError:
        return False
    except OSError:  # a full disk: a second notice is better than none
        return True
    try:
        write_all(descriptor, strict_json.encode(mark).encode())
    except OSError:  # the same
        pass
    finally:
        os.close(descriptor)
    return True


def _send(notice: Notice, ending: EndNotice, beat: Callable[[], None], limit_s: float) -> Optional[str]:
    """Run the command, or the process that calls the webhook; return the failure."""
    body = ending.body()
    hidden = Redaction(Redactor(notice.secrets.values()))
    if not notice.is_webhook:
        facts = {"STATE": ending.state, "REASON": ending.reason, "TEXT": ending.text}
        variables: Dict[str, Union[str, bytes]] = {
            **notice.variables,
            **{name: as_bytes(value) for name, value in notice.secrets.items()},
            **{"LAUNCH_" + name: value for name, value in facts.items()},
        }
        return _run(notice.words, notice.folder, variables, strict_json.encode(body), hidden, beat, limit_s)
    address, missing = _filled_in(notice.words[0], notice.secrets)
    if missing:
        return "secret %s: it is not here" % missing
    letter = strict_json.encode({"url": address, "body": body, "limit_s": limit_s})
    words = [sys.executable, "-I", sys.argv[0], "webhook"]
    return _run(words, "/", dict(os.environ), letter, hidden, beat, limit_s + 1.0)


def _filled_in(text: str, secrets: Mapping[str, str]) -> Tuple[str, Optional[str]]:
    """Replace the names of secrets in a text by their values; return it, and the first name without a value."""
    names = [first or second for first, second in _SECRET.findall(text)]
    missing = next((name for name in names if name not in secrets), None)
    return _SECRET.sub(lambda found: secrets.get(found[1] or found[2], ""), text), missing


def _run(
    words: List[str],
    folder: str,
    variables: Mapping[str, Union[str, bytes]],
    letter: str,
    hidden: Redaction,
    beat: Callable[[], None],
    limit_s: float,
) -> Optional[str]:
    """Run a program with `letter` as its input; return its failure, None on success. Raises OSError.

    The failure has the end of the program's output. Secrets are removed while the output is read: once the
    output is cut, a secret without its beginning could not be found.
    """
    with login_umask():
        child = subprocess.Popen(
            words,
            cwd=folder,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert child.stdin is not None  # noqa: S101 - asked for with PIPE
    assert child.stdout is not None  # noqa: S101 - likewise
    said, deadline = b"", time.monotonic() + limit_s
    with contextlib.suppress(BrokenPipeError):  # not read by the program; the input fits into a pipe's buffer
        child.stdin.write(letter.encode())
        child.stdin.close()
    while child.poll() is None and time.monotonic() < deadline:
        beat()
        if select.select([child.stdout], [], [], LOOK_S)[0]:
            piece = os.read(child.stdout.fileno(), 1 << 16)
            said = (said + hidden.feed(piece))[-MAX_MESSAGE:]
            if not piece:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_S)
    is_late = child.poll() is None
    process.end(lambda: _family(child.pid), "on_end", GRACE_S)
    child.wait()
    with child.stdout:
        if select.select([child.stdout], [], [], 0.0)[0]:
            said += hidden.feed(os.read(child.stdout.fileno(), 1 << 16))
    said = (said + hidden.finish())[-MAX_MESSAGE:]
    if is_late:
        return "was ended after %d s" % limit_s
    words_said = said.decode("utf-8", "replace").strip()
    return None if child.returncode == 0 else "exit %d: %s" % (child.returncode, words_said)


def _family(pid: int) -> List[process.Process]:
    """Return a program that has not ended, and all its descendants."""
    found = process.find(pid)
    alive = [found] if found is not None and found.letter != "Z" else []
    return alive + process.descendants(pid)
