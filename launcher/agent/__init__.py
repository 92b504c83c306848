"""The agent: the program that the client sends to a host.

It uses the standard library only (Python >= 3.8, Linux and macOS) and imports no other part of the launcher.
It is packed as one zipapp named `launch_agent` (see launcher/transport/agent_file.py). Its verbs:

    serve ROOT           answers one client's requests and starts its runs; does not train
    keep RUN             the parent of `supervise`: restarts it when it dies, and ends its leftover processes
    supervise RUN        runs beside the training: starts its attempts, and alone writes their folders
    contain RUN          a container's main program: does the same as `keep`, inside the container
    compile              compiles the agent with an image's Python, in a separate container: see compiled_code.py
    spare RUN            copies a run's code once more, ready for the next launch of the same tree
    settle ENVIRONMENT   syncs a new environment to the disk, then marks it as permanently complete
    guard TOKEN          runs beside a command of `launch exec`: ends the command if its `serve` was killed
"""

FRONT_DOOR = (
    "diagnosis.cures",
    "diagnosis.diagnose",
    "diagnosis.failures",
    "diagnosis.good_exit",
    "diagnosis.library_changes",
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
"""The modules that other packages may import."""
