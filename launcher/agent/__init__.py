"""What travels: the agent. Standard library only, Python >= 3.8, Linux and macOS; imports nothing else of ours.

Packed as one zipapp under the name `launch_agent` (see launcher/transport/agent_file.py). Its verbs:

    serve ROOT           at the other end of a client's connection: answers requests, starts runs, holds no training
    keep RUN             the parent of `supervise`: brings it back when it dies, ends what it left behind
    supervise RUN        beside the training: makes its attempts, the one writer of their folders
    contain RUN          a container's program: the parent of `supervise` in there, as `keep` is outside
    compile              in a container of its own: has an image's Python compile the agent, see compiled_code.py
    spare RUN            copies a run's code once more, ahead of the next launch of the same tree
    settle ENVIRONMENT   writes a new environment to the disk, and then marks it as complete for good
    guard TOKEN          beside a command of `launch exec`: ends it when its `serve` was killed
"""

FRONT_DOOR = (
    "diagnosis.diagnose",
    "diagnosis.failures",
    "diagnosis.good_exit",
    "liveness.slurm.slurm_submission",
    "logs.log_file",
    "record.files",
    "record.frame",
    "record.locks",
    "record.rundir",
    "record.safe_open",
    "record.strict_json",
    "store.checkpoints",
    "store.worker_folder",
    "system.core_limit",
    "system.process",
)
"""The modules that other rooms may import."""
