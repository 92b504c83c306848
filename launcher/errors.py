"""The error tree: one branch for each answer to "whose move is it?".

LaunchError                    exit 1
├── UsageError                 exit 2   yours: a command line or a file that you wrote
│   ├── BadFileError                    a key or value in it
│   ├── UnknownNameError                an unknown host, profile, job or run
│   └── LackingError                    a verb that a host's backend cannot do
├── RefusedError               exit 3   the gate: this plan cannot work there
│   ├── UnequalSharesError              its cards cannot have equal shares of the batch
│   └── CardBusyError                   others hold its cards just now: wait for them
├── HostError                  exit 4   the host, or the way to it
│   ├── UnreachableError                no answer
│   │   ├── ConnectionLostError         it answered, then fell silent
│   │   ├── MachineGoneError            it was rented, and is rented no more
│   │   └── ServiceUnreachableError     a cloud service, likewise
│   ├── AuthRefusedError                it does not let us in
│   │   ├── NoKeyError                  we have no key to offer
│   │   └── ServiceAuthError            a cloud service, likewise
│   ├── ServiceError                    a cloud service said no; the two above are such errors too
│   │   └── UnsettledError              it may have done what was asked, or not: look before asking again
│   ├── HostKeyError                    its key is unknown or has changed
│   ├── AgentError                      our agent there said no
│   ├── MalformedAnswerError            our agent there sent an answer of the wrong form
│   ├── RefusedStreamError              its sshd forbids forwarding, or nothing listens
│   └── EngineError                     its container engine said no
├── RunError                   exit 1   the run's own
│   ├── LastCopyError                   it would be lost: nothing else has these files
│   └── OtherRootError                  its host has another root now than the one it was launched in
└── InterruptedRunError        exit 5   waiting or interrupted: resumable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple


class LaunchError(Exception):
    """Raised for every error that a person can act on; the message says what happened, where, and what to do next."""

    exit_code: ClassVar[int] = 1


class UsageError(LaunchError):
    """Raised when a command line or a file that a person wrote cannot be used."""

    exit_code = 2


class BadFileError(UsageError):
    """Raised when a file that a person wrote holds an unknown key or a wrong value."""


class UnknownNameError(UsageError):
    """Raised when a command names an unknown host, profile, job or run."""


class Lack(NamedTuple):
    """Why a backend cannot do something, and what to type instead; `{host}` and `{run}` in `mend` are filled in."""

    why: str
    mend: str


class LackingError(UsageError):
    """Raised for a verb that a host's backend cannot do. `why` says so; `mend` is what to type instead, for `{host}` and `{run}`."""

    def __init__(self, host: str, verb: str, lack: Lack, run: str = "RUN") -> None:
        why, mend = lack
        super().__init__(f"{verb}: not on {host}: {why}\n  {mend.format(host=host, run=run)}")
        self.host, self.verb = host, verb


class SeveralRunsError(UsageError):
    """Raised when a word is the whole name of several runs, of which `runs` are the ids, the latest first."""

    def __init__(self, word: str, runs: list[str], next_words: str = "") -> None:
        self.word, self.runs = word, runs
        shorts = [run.rpartition("-")[2] for run in runs]
        named = ", ".join(shorts[:8]) + (", …" if len(runs) > 8 else "")
        next_words = next_words or f"name one by its id, e.g. {shorts[0]}     they are listed by   launch ps"
        super().__init__(f"'{word}' is the name of {len(runs)} runs: {named}\n  {next_words}")


class RefusedError(LaunchError):
    """Raised when the gate finds that a plan cannot work on a host; nothing has been sent."""

    exit_code = 3


class UnequalSharesError(RefusedError):
    """Raised when the global batch does not divide among the cards of a plan."""


class CardBusyError(RefusedError):
    """Raised when others hold the cards that a plan needs; `holders` says who, in one line."""

    def __init__(self, message: str, holders: str) -> None:
        super().__init__(message)
        self.holders = holders


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
    """Raised when the machine of a run was rented, and is rented no more: it never answers again."""


class AuthRefusedError(HostError):
    """Raised when a host refuses every key that we may offer."""


class NoKeyError(AuthRefusedError):
    """Raised when a host wants a key, and we have none to offer: to wait does not help."""


class HostKeyError(HostError):
    """Raised when a host's key is unknown, or is not the known one."""


class AgentError(HostError):
    """Raised when the agent on a host refuses a request; `code` is the agent's code for the reason, `values` are details."""

    def __init__(
        self, host: str, code: str, message: str, values: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(host, message)
        self.code = code
        self.values = values or {}


class MalformedAnswerError(HostError):
    """Raised when an agent's answer is not of the declared type."""


class RefusedStreamError(HostError):
    """Raised when a socket on a host cannot be reached: forwarding is forbidden, or nobody listens there."""


class NobodyListensError(RefusedStreamError):
    """Raised when nobody listens on a port of a host's loopback, which may change."""


class EngineError(HostError):
    """Raised when a host's container engine refuses, or does not answer."""


class ServiceError(HostError):
    """Raised when a cloud service refuses a call; `reason` is its kind in one word, for programs.

    `retry_s` is how long the service asks to wait before the next call, in seconds, if it says so.
    """

    def __init__(self, host: str, reason: str, message: str, retry_s: float | None = None) -> None:
        super().__init__(host, message)
        self.reason = reason
        self.retry_s = retry_s


class ServiceUnreachableError(ServiceError, UnreachableError):
    """Raised when a cloud service does not answer, or only its front door does."""


class ServiceAuthError(ServiceError, AuthRefusedError):
    """Raised when a cloud service does not accept our credentials, or we have none."""


class UnsettledError(ServiceError):
    """Raised when a call that must not be made twice got no clear answer: it may have been accepted."""


class RunError(LaunchError):
    """Raised when a run, or what it left behind, does not allow the command."""


class NoRunError(RunError):
    """Raised when a host that answers has no such run."""


class LastCopyError(RunError):
    """Raised when a removal would lose files that exist nowhere else; `only_checkpoints` if they are all checkpoints."""

    def __init__(self, message: str, *, only_checkpoints: bool) -> None:
        super().__init__(message)
        self.only_checkpoints = only_checkpoints


class OtherRootError(RunError):
    """Raised when a host's folder for runs is not the one that a run was launched in."""


class InterruptedRunError(LaunchError):
    """Raised when a run waits for cards, or was interrupted and can be resumed."""

    exit_code = 5
