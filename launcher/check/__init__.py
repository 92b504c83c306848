"""Read training scripts without running them: what they take from a plan, how they use ranks, and known bugs.

`reading/` finds the sources that a command starts and parses them.
"""

FRONT_DOOR = ("reading.script_use",)
