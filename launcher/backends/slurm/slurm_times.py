"""How long before its end the agent has Slurm tell a run of it, for who plans one: the agent's own arithmetic."""

from launcher.agent.liveness.slurm.slurm_submission import MOST_TOLD, told_s

__all__ = ["MOST_TOLD", "told_s"]
