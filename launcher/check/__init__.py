"""Read training scripts without running them: what they take from a plan, how they use ranks, and known bugs.

`reading/` finds the sources that a command starts and parses them. `file_report` checks one file, `many_files` many,
and `fixing` mends them.
"""

FRONT_DOOR = (
    "checking",
    "file_report",
    "file_search",
    "fixing",
    "inference.card_calls",
    "many_files",
    "project",
    "reading.positions",
    "reading.script_use",
    "reading.sources",
    "reading.time_limit",
    "rule",
    "rule_choice",
    "rules.table",
)
