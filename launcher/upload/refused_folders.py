"""Folders that are refused before they are read: the home, system folders, roots, credentials folders."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from launcher.upload.default_exclusions import ROOT_ID, credentials_folder, secrets_among
from launcher.upload.launch_ignore import FILE, read_rules
from launcher.values.plan import Finding

_SYSTEM_NAMES = """
    / /Applications /Library /System /Users /Volumes /bin /dev /home /lib /lib32 /lib64 /media /mnt /opt
    /private /private/tmp /private/var /root /run /sbin /srv /tmp /usr /usr/bin /usr/include /usr/lib
    /usr/lib64 /usr/libexec /usr/local /usr/local/bin /usr/local/lib /usr/local/share /usr/sbin
    /usr/share /var /var/cache /var/lib /var/log /var/run /var/spool /var/tmp
"""
_SYSTEM = frozenset(_SYSTEM_NAMES.split())
_SYSTEM_TREES = (
    "/boot", "/etc", "/private/etc", "/proc", "/run/secrets", "/sys", "/var/run/secrets", "/System", "/Library",
)  # fmt: skip
"""Folders that are refused with everything in them."""
_MEND = "cd into the project's folder"
_MEND_OF_HOME = f"{_MEND}, or list the needed files in {FILE}: `*`, then `!train.py`"


def refusal(folder: Path, what: str, mend: str = _MEND) -> Finding | None:
    """Return why a folder, or a file because of its folder, is not sent. None if it may be sent.

    `what` names it in the message: `the folder to send`.
    """
    path = os.path.realpath(folder)
    for home in homes():
        if path == home:
            if _names_what_is_needed(folder):
                return None
            secrets = secrets_among(os.listdir(path))
            inside = f" ({', '.join(secrets[:4])} in it)" if secrets else ""
            return _finding(f"{what} is your home{inside}", _MEND_OF_HOME)
    for spelling in (path, os.path.abspath(folder)):  # a refused folder may be a link, or its target
        if spelling in _SYSTEM or is_below(spelling, _SYSTEM_TREES):
            return _finding(f"{what} is {spelling}, which belongs to the system", mend)
        if name := credentials_folder(spelling if os.path.isdir(spelling) else os.path.dirname(spelling)):
            return _finding(f"{what} is {spelling}: {name} is for credentials", mend)
    if any(is_below(home, (path,)) for home in homes()):
        return _finding(f"{what} is {path}, and your home is in it", mend)
    if os.path.lexists(os.path.join(path, ROOT_ID)):
        message = f"{what} is {path}, a root of launch: it holds {ROOT_ID}, and all runs of a host"
        return _finding(message, "name a folder in it, or give the host another root")
    return None


def _finding(message: str, mend: str) -> Finding:
    return Finding(level="refuse", code="folder-refused", message=message, mend=mend)


def is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Return whether an absolute path is one of these folders, or in one."""
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _names_what_is_needed(folder: Path) -> bool:
    rules = read_rules(folder)
    return rules is not None and rules.names_what_is_needed


def homes() -> set[str]:
    """Return the user's homes: by the variable HOME, and by the system's user database."""
    homes = {os.path.expanduser("~")}
    try:
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        pass  # a user without an entry in the database, as in a container
    return {os.path.realpath(home) for home in homes if home not in ("", "/")}
