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
    """It has not started: it waits for a start, a session or its turn in a queue."""
    PREPARING = "preparing"
    """The host prepares an attempt."""
    RUNNING = "running"
    """The training runs."""
    STOPPING = "stopping"
    """It was asked to end, and saves."""
    SUSPENDED = "suspended"
    """Slurm has stopped its job's processes, and continues them later."""
    WAITING = "waiting"
    """It needs you: `launch recover` continues it."""
    RESUMING = "resuming"
    """Another attempt follows automatically."""
    SUCCEEDED = "succeeded"
    """It has ended with success."""
    FAILED = "failed"
    """It has ended without success."""
    STOPPED = "stopped"
    """It has ended because a user or a limit ended it."""
    STOP_INCOMPLETE = "stop-incomplete"
    """It was stopped, and some of its processes may be left."""
    INTERRUPTED = "interrupted"
    """It has not ended, and no agent manages it: `launch recover` continues it."""


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.STOP_INCOMPLETE})


def is_terminal(state: object) -> bool:
    """Return whether no further attempt follows. A state that this version does not know is not terminal."""
    return isinstance(state, str) and state in TERMINAL


class Reason(StrEnum):
    """The reason for a run's state. Those of a failed run are also the classes of agent/diagnosis/failures.py."""

    COMPLETED = "completed"
    """The script reported its end, or the plan's last step."""
    EXIT_ONLY = "exit-only"
    """The command exited with 0; it does not use the worker."""
    BY_USER = "by-user"
    """You stopped it; it could save."""
    BY_USER_NOW = "by-user-now"
    """You stopped it with `--now`."""
    TIME_LIMIT = "time-limit"
    """`time_limit_minutes` is over."""
    EXIT_NONZERO = "exit-nonzero"
    """The command exited with another status than 0, and the log shows no cause."""
    KILLED_BY_SIGNAL = "killed-by-signal"
    """A signal ended the command, and the log shows no cause."""
    NO_COMPLETION_MARKER = "no-completion-marker"
    """The script exited with 0, and did not report its end."""
    COMMAND_NOT_FOUND = "command-not-found"
    """The command cannot be started."""
    ATTEMPTS_EXHAUSTED = "attempts-exhausted"
    """All `attempts` of the job are used."""
    NOT_RESTARTABLE = "not-restartable"
    """Its last attempt was ended from outside, and the script cannot continue from a checkpoint."""
    CODE_DAMAGED = "code-damaged"
    """Its code has changed since it was sent, and the host's store has lost the original: `launch rerun`."""
    OUTPUTS_LOST = "outputs-lost"
    """The disk reported an error while its outputs were written."""
    HOST_SHUTDOWN = "host-shutdown"
    """The host asked it to end."""
    CONTAINER_STOPPED = "container-stopped"
    """Its container was stopped."""
    SESSION_LIMIT = "session-limit"
    """The time of its session or job is over; the run continues in the next one."""
    CARD = "card"
    """It waits for a card."""
    DISK = "disk"
    """It waits for room on the disk."""
    IMAGE = "image"
    """It waits for another environment, image or driver."""
    SECRET = "secret"  # noqa: S105
    """It waits for secrets."""
    CLIENT = "client"
    """It waits for a client: for a new container or job, or because its rental ends."""
    NEXT_TRIAL = "next-trial"
    """The next trial of `launch verify` follows."""
    VERIFIED = "verified"
    """The trials of `launch verify` are done, and the job trains."""
    NOT_VERIFIABLE = "not-verifiable"
    """`launch verify` cannot follow its steps."""
    AGENT_LOST = "agent-lost"
    """Its agent has died."""
    SUPERSEDED = "superseded"
    """The run has continued in a later attempt."""
    NEVER_STARTED = "never-started"
    """Its code never arrived, or its job or first session could not begin."""
    NO_PROGRESS = "no-progress"
    """Two sessions in a row left no new checkpoint, or a start of a job got no further than an earlier one; if the script resumes, two in a row."""
    PROCESSES_REMAIN = "processes-remain"
    """Some of its processes could not be ended."""
    ENGINE_SILENT = "engine-silent"
    """Its container engine did not answer when it was stopped."""
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
    WRONG_PYTHON = "wrong-python"
    """Its environment was made by another version of Python than its node has; nothing was trained."""
    WRONG_CARD = "wrong-card"
    """It got other cards than those of the plan; nothing was trained."""
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
    """Slurm ended its job, and starts it again."""
    CANCELLED_IN_SLURM = "cancelled-in-slurm"
    """Its job was cancelled with `scancel`."""
    TOO_MANY_OPEN_FILES = "too-many-open-files"
    TOO_MANY_PROCESSES = "too-many-processes"
    ILLEGAL_MEMORY_ACCESS = "illegal-memory-access"
    HANG = "hang"
    NEEDS_TERMINAL = "needs-terminal"
    DOWNLOAD_FAILED = "download-failed"
    UPLOAD_FAILED = "upload-failed"
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
