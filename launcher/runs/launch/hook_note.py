"""The notes about the start-up hook before a launch."""

from __future__ import annotations

from launcher.planning.script.script import starts_python
from launcher.values.job import Job
from launcher.values.plan import Plan

ADAPT_NOTE = "start-up hook: gives the script the plan's precision, resume, checkpoints and guard, and reads its steps   (--adapt)"
HOOK_NOTE = "start-up hook: reads steps and metrics of a Hugging Face Trainer, and a training's precision   (off: --set inject=false)"


def hook_note(task: Job | Plan) -> str | None:
    """Return the note on the hook; None if it is off, or if the command does not visibly start Python."""
    if task.adapt:
        return ADAPT_NOTE
    return HOOK_NOTE if task.inject and starts_python(task.command) else None
