"""The warning time before a Slurm job's end, for planning. The arithmetic is the agent's."""

from launcher.agent.liveness.slurm.slurm_submission import MAX_TOLD, told_s

__all__ = ["MAX_TOLD", "told_s"]
