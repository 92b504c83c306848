"""The states and reasons of runs, in the words of this version.

Shell completion loads them without pydantic.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a run.

    preparing -> running -> (stopping | resuming | waiting) -> succeeded | failed | stopped. `interrupted` is
    derived: the run's lock is free, and the last recorded state is not terminal. `unreachable` is a client's
    view, never a state of the run.
    """

    RESERVED = "reserved"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    RESUMING = "resuming"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    STOP_INCOMPLETE = "stop-incomplete"
    INTERRUPTED = "interrupted"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.STOP_INCOMPLETE})


def is_terminal(state: object) -> bool:
    """Return whether no further attempt follows. A state that this version does not know is not terminal."""
    return isinstance(state, str) and state in TERMINAL


class Reason(StrEnum):
    """The reason for a run's state."""

    COMPLETED = "completed"
    EXIT_ONLY = "exit-only"
    BY_USER = "by-user"
    BY_USER_NOW = "by-user-now"
    TIME_LIMIT = "time-limit"
    EXIT_NONZERO = "exit-nonzero"
    KILLED_BY_SIGNAL = "killed-by-signal"
    NO_COMPLETION_MARKER = "no-completion-marker"
    COMMAND_NOT_FOUND = "command-not-found"
    ATTEMPTS_EXHAUSTED = "attempts-exhausted"
    NOT_RESTARTABLE = "not-restartable"
    CODE_DAMAGED = "code-damaged"
    OUTPUTS_LOST = "outputs-lost"
    HOST_SHUTDOWN = "host-shutdown"
    CONTAINER_STOPPED = "container-stopped"
    SESSION_LIMIT = "session-limit"
    CARD = "card"
    DISK = "disk"
    IMAGE = "image"
    SECRET = "secret"  # noqa: S105
    CLIENT = "client"
    NEXT_TRIAL = "next-trial"
    VERIFIED = "verified"
    NOT_VERIFIABLE = "not-verifiable"
    AGENT_LOST = "agent-lost"
    SUPERSEDED = "superseded"
    NEVER_STARTED = "never-started"
    NO_PROGRESS = "no-progress"
    PROCESSES_REMAIN = "processes-remain"
    ENGINE_SILENT = "engine-silent"
    NAN_DIVERGENCE = "nan-divergence"
    NOT_LEARNING = "not-learning"
    NOT_REHEARSABLE = "not-rehearsable"
    FP16_UNSCALE = "fp16-unscale"
    BF16_UNSUPPORTED = "bf16-unsupported"
    BF16_DTYPE_MISMATCH = "bf16-dtype-mismatch"
    CUDA_OOM = "cuda-oom"
    SHM_TOO_SMALL = "shm-too-small"
    HOST_OOM_KILLED = "host-oom-killed"
    PORT_IN_USE = "port-in-use"
    GPU_BUSY_EXCLUSIVE = "gpu-busy-exclusive"
    NO_KERNEL_IMAGE = "no-kernel-image"
    WRONG_CARD = "wrong-card"
    DRIVER_TOO_OLD = "driver-too-old"
    NO_GPU_IN_CONTAINER = "no-gpu-in-container"
    GPU_LOST = "gpu-lost"
    DEVICE_SIDE_ASSERT = "device-side-assert"
    WRONG_DEVICE_ORDINAL = "wrong-device-ordinal"
    CHECKPOINT_CORRUPT = "checkpoint-corrupt"
    DISK_FULL = "disk-full"
    SHARED_FILE_REFUSED = "shared-file-refused"
    DOCKER_PERMISSION = "docker-permission"
    DOCKER_BUILD_FAILURE = "docker-build-failure"
    SSH_HOSTKEY_MISMATCH = "ssh-hostkey-mismatch"
    SSH_AUTH_FAILED = "ssh-auth-failed"
    SSH_CONNECTION_LOST = "ssh-connection-lost"
    HUB_ACCESS = "hub-access"
    DEVICE_MAP_CONFLICT = "device-map-conflict"
    MPS_UNSUPPORTED_OP = "mps-unsupported-op"
    MISSING_DEPENDENCY = "missing-dependency"
    NCCL_ERROR = "nccl-error"
    PREEMPTED = "preempted"
    HOST_LOST = "host-lost"
    ENDED_BY_SLURM = "ended-by-slurm"
    CANCELLED_IN_SLURM = "cancelled-in-slurm"
    HANG = "hang"
    NEEDS_TERMINAL = "needs-terminal"
    DOWNLOAD_FAILED = "download-failed"
    USER_CODE_ERROR = "user-code-error"


_WORDS_BEFORE = {
    "cancelled": State.STOPPED,
    "cancel-incomplete": State.STOP_INCOMPLETE,
    "stopped-by-user": Reason.BY_USER,
    "cancelled-by-user": Reason.BY_USER_NOW,
}
"""The old names of states and reasons, in records until 2026-11-23."""


def in_todays_words(word: object) -> object:
    """Return a recorded state or reason in the words of this version."""
    return _WORDS_BEFORE.get(word, word) if isinstance(word, str) else word
