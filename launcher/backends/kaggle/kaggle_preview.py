"""A dry run's view of a Kaggle session: the parts of its script, and its time limit. Nothing is uploaded."""

from __future__ import annotations

import functools
import os
from typing import IO

from launcher.backends.base.session_preview import SessionPreview
from launcher.backends.kaggle.kaggle_machines import NO_ACCELERATOR
from launcher.backends.kaggle.kaggle_script import MOST_BYTES, Member, parts
from launcher.backends.kaggle.kaggle_service import quota_or_why
from launcher.backends.kaggle.kaggle_session import segment_settings
from launcher.backends.kaggle.kaggle_settings import KaggleSettings
from launcher.errors import UsageError
from launcher.transport.agent_file import agent_file
from launcher.upload.tree import CodeTree
from launcher.values.plan import Plan

RUN = "000000-dry-run-000000"


def preview_session(
    plan: Plan, settings: KaggleSettings, place: str, tree: CodeTree
) -> SessionPreview | None:
    """Return a preview of a plan's first session; None for a plan without sessions.

    Raises UsageError for a file that cannot be read.
    """
    if plan.session is None:
        return None
    session_s = settings.session_hours * 3600
    told = segment_settings(plan, run=RUN, place=place, internet=settings.internet, session_s=session_s)
    run = [Member.of("control/plan.json", plan.to_file()), *_members(tree)]
    try:
        made_of = parts(agent_file().data, told, run)
    except OSError as error:
        raise UsageError(f"{error.filename or 'a file'} cannot be read: {error.strerror or error}") from error
    machine = plan.session.machine
    title = "without a card" if machine == NO_ACCELERATOR else machine
    quota = quota_or_why(settings.api)
    return SessionPreview(machine, title, settings.session_hours, made_of, MOST_BYTES, quota)


def _members(tree: CodeTree) -> list[Member]:
    """Return the files of code and data at their paths in the run's folder."""
    return [
        Member(
            f"work/{entry.path}",
            0 if entry.link is not None else entry.size,
            functools.partial(_open, entry.source),
            is_executable=entry.is_file and os.access(entry.source, os.X_OK),
            link=entry.link,
            is_folder=entry.folder is not None,
        )
        for entry in tree.entries
    ]


def _open(path: str) -> IO[bytes]:
    return open(path, "rb")
