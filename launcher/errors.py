"""The error tree: one branch for each party that has to act, with its exit code.

LaunchError                    exit 1
├── UsageError                 exit 2   the user: a command line or a file of the user
│   ├── BadFileError                    a key or value in it
│   ├── UnknownNameError                an unknown host, profile, job or run
│   ├── SeveralRunsError                a name that several runs have
│   └── LackingError                    a verb that a host's backend cannot do
├── RefusedError               exit 3   the gate: this plan cannot work on the host
│   ├── UnequalSharesError              its cards cannot have equal shares of the batch
│   └── CardBusyError                   others hold its cards now: wait for them
│       └── SubmitLimitError            its scheduler takes no more jobs now: wait
├── HostError                  exit 4   the host, or the connection to it
│   ├── UnreachableError                no answer
│   │   ├── ConnectionLostError         it answered, then fell silent
│   │   ├── MachineGoneError            its rental has ended
│   │   └── ServiceUnreachableError     the same for a cloud service
│   ├── AuthRefusedError                it refuses every key
│   │   ├── NoKeyError                  no key is available
│   │   └── ServiceAuthError            the same for a cloud service
│   ├── ServiceError                    a cloud service refused; the two service errors above belong here too
│   │   └── UnknownOutcomeError         the outcome is unknown: check before asking again
│   ├── HostKeyError                    its key is unknown or has changed
│   ├── AgentError                      its agent refused
│   ├── MalformedAnswerError            its agent sent an answer of the wrong form
│   ├── RefusedStreamError              its sshd forbids forwarding, or nothing listens
│   │   └── PortClosedError             no process listens on the port
│   └── EngineError                     its container engine refused
├── RunError                   exit 1   the run
│   ├── NoRunError                      its host does not have it
│   ├── LastCopyError                   a removal would lose files that exist nowhere else
│   └── OtherRootError                  the host's root is not the one it was launched in
└── InterruptedRunError        exit 5   waiting or interrupted: resumable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple


class LaunchError(Exception):
    """Raised for every error that a user can act on.

    The message says what happened, where, and what to do next.
    """

    exit_code: ClassVar[int] = 1


class UsageError(LaunchError):
    """Raised when a command line or a file of the user cannot be used."""

    exit_code = 2


class BadFileError(UsageError):
    """Raised when a file of the user holds an unknown key or a wrong value."""


class UnknownNameError(UsageError):
    """Raised when a command names an unknown host, profile, job or run."""


class Lack(NamedTuple):
    """The reason why a backend cannot do something, and the command to type instead.

    `{host}` and `{run}` in `mend` are filled in.
    """

    why: str
    mend: str


class LackingError(UsageError):
    """Raised for a verb that a host's backend cannot do.

    `lack` has the reason, and the command to type instead.
    """

    def __init__(self, host: str, verb: str, lack: Lack, run: str = "RUN") -> None:
        why, mend = lack
        super().__init__(f"{verb}: not on {host}: {why}\n  {mend.format(host=host, run=run)}")
        self.host, self.verb = host, verb


class SeveralRunsError(UsageError):
    """Raised when a word is the whole name of several runs. `runs` are their ids, the latest first."""

    def __init__(self, word: str, runs: list[str], next_words: str = "") -> None:
        self.word, self.runs = word, runs
        shorts = [run.rpartition("-")[2] for run in runs]
        named = ", ".join(shorts[:8]) + (", …" if len(runs) > 8 else "")
        next_words = next_words or f"name one by its id, e.g. {shorts[0]}     list them with   launch ps"
        super().__init__(f"'{word}' is the name of {len(runs)} runs: {named}\n  {next_words}")


class RefusedError(LaunchError):
    """Raised when the gate's checks find that a plan cannot work on a host. Nothing has been sent."""

    exit_code = 3


class UnequalSharesError(RefusedError):
    """Raised when the global batch cannot be divided evenly among the cards of a plan."""


class CardBusyError(RefusedError):
    """Raised when others hold the cards that a plan needs. `holders` names these holders in one line."""

    def __init__(self, message: str, holders: str) -> None:
        super().__init__(message)
        self.holders = holders


class SubmitLimitError(CardBusyError):
    """Raised when a host's scheduler accepts no more jobs of the user at present. Its words are the holders."""

    def __init__(self, message: str) -> None:
        super().__init__(message, message)


class HostError(LaunchError):
    """Raised when a host, or the connection to it, fails. `host` is its name."""

    exit_code = 4

    def __init__(self, host: str, message: str) -> None:
        super().__init__(message)
        self.host = host


class UnreachableError(HostError):
    """Raised when a host does not answer. Its runs continue: unreachable is not failed."""


class ConnectionLostError(UnreachableError):
    """Raised when an open connection ends or misses its deadline."""


class MachineGoneError(UnreachableError):
    """Raised when the rental of a run's machine has ended, so that the machine will never answer again."""


class AuthRefusedError(HostError):
    """Raised when a host refuses every available key."""


class NoKeyError(AuthRefusedError):
    """Raised when a host requires a key and none is available. Waiting does not help."""


class HostKeyError(HostError):
    """Raised when a host's key is unknown or differs from the known one."""


class AgentError(HostError):
    """Raised when the agent on a host refuses a request.

    `code` is the agent's reason code, `values` are details.
    """

    def __init__(
        self, host: str, code: str, message: str, values: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(host, message)
        self.code = code
        self.values = values or {}


class MalformedAnswerError(HostError):
    """Raised when an agent's answer is not of the declared type."""


class RefusedStreamError(HostError):
    """Raised when a socket on a host cannot be reached: forwarding is forbidden, or no process listens on it."""


class PortClosedError(RefusedStreamError):
    """Raised when no process listens on a port of a host's loopback. A process may listen there later."""


class EngineError(HostError):
    """Raised when a host's container engine refuses, or does not answer."""


class ServiceError(HostError):
    """Raised when a cloud service refuses a call. `reason` is the kind of refusal in one word, for programs.

    `retry_s` is the pause in seconds that the service requests before the next call, if it names one.
    """

    def __init__(self, host: str, reason: str, message: str, retry_s: float | None = None) -> None:
        super().__init__(host, message)
        self.reason = reason
        self.retry_s = retry_s


class ServiceUnreachableError(ServiceError, UnreachableError):
    """Raised when a cloud service does not answer, or only its gateway answers."""


class ServiceAuthError(ServiceError, AuthRefusedError):
    """Raised when a cloud service rejects the credentials, or none are available."""


class UnknownOutcomeError(ServiceError):
    """Raised when a call that must not be made twice got no clear answer: it may have been accepted."""


class RunError(LaunchError):
    """Raised when a run, or its remains, do not allow the command."""


class NoRunError(RunError):
    """Raised when a host answers that it has no such run."""


class LastCopyError(RunError):
    """Raised when a removal would lose files that exist nowhere else.

    `only_checkpoints`: all of them are checkpoints.
    """

    def __init__(self, message: str, *, only_checkpoints: bool) -> None:
        super().__init__(message)
        self.only_checkpoints = only_checkpoints


class OtherRootError(RunError):
    """Raised when a host's folder for runs is not the one in which a run was launched."""


class InterruptedRunError(LaunchError):
    """Raised when a run waits for cards, or was interrupted and can be resumed."""

    exit_code = 5
