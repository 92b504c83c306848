"""Find the known bug of a script that a failed run shows."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from launcher.config.script_problems import mending_command, problems
from launcher.copy.local_copy import LocalCopy
from launcher.errors import LaunchError
from launcher.planning.script.script import script_of
from launcher.runs.follow import evidence
from launcher.upload import upload_record
from launcher.values.plan import Plan
from launcher.values.record import RunState, State

_NAMED = re.compile(r"unexpected keyword argument '(\w+)'")


def mending_check(local_copy: LocalCopy, state: RunState) -> str | None:
    """Return the command that mends the bug behind a failure, if the sent script has it and is unchanged here."""
    if state.state != State.FAILED:
        return None
    with contextlib.suppress(LaunchError, OSError, ValueError):
        plan = local_copy.whole_plan()
        folder = _code_folder(local_copy, plan)
        if folder is not None:
            found, _ = problems(plan.command, folder, plan.profile, is_planned=plan.hands_out("precision"))
            line = evidence.diagnosis(state.evidence).get("line", "")
            named = _NAMED.search(line)
            for one in found:
                is_cause = state.reason in one.rule.causes
                if is_cause or (
                    named is not None and one.rule.code == "LC601" and f"argument {named[1]} " in one.message
                ):
                    return f"{mending_command(one, plan.profile)}     {one.rule.code} {one.rule.what}"
    return None


def _code_folder(local_copy: LocalCopy, plan: Plan) -> Path | None:
    """Return the folder here whose script was sent for a run; None if the script has changed since."""
    script = script_of(plan.command)
    record = upload_record.read(local_copy)
    sent = record.manifest.get(f"code/{script.path}") if record is not None and script is not None else None
    if script is None or script.is_module or record is None or sent is None:
        return None
    digest = str(sent.get("sha256"))
    unchanged = upload_record.find(record, {digest}).files
    source = record.sources.get(digest, "")
    if digest not in unchanged or not source.endswith(os.sep + script.path):
        return None
    return Path(source.removesuffix(script.path))
