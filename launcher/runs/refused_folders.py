"""Folders that are nobody's project: the home, the system's, those for credentials. They are refused before they are read."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from launcher.runs.default_exclusions import credentials_folder, secrets_among
from launcher.runs.launch_ignore import FILE, read_rules
from launcher.values.plan import Finding

_SYSTEM_NAMES = """
    / /Applications /Library /System /Users /Volumes /bin /dev /home /lib /lib32 /lib64 /media /mnt /opt
    /private /private/tmp /private/var /root /run /sbin /srv /tmp /usr /usr/bin /usr/include /usr/lib
    /usr/lib64 /usr/libexec /usr/local /usr/local/bin /usr/local/lib /usr/local/share /usr/sbin
    /usr/share /var /var/cache /var/lib /var/log /var/run /var/spool /var/tmp
"""
_SYSTEM = frozenset(_SYSTEM_NAMES.split())
_SYSTEM_TREES = ("/boot", "/etc", "/private/etc", "/proc", "/sys", "/System", "/Library")
"""Folders that are refused with everything in them."""
_MEND = f"cd into the project's folder, or name what it needs in {FILE}: `*`, then `!train.py`"


def refusal(folder: Path, what: str) -> Finding | None:
    """Return why a folder is not sent; None if it may be. `what` names it: `the folder that would travel`."""
    path = os.path.realpath(folder)
    for home in _homes():
        if path == home:
            if _names_what_is_needed(folder):
                return None
            secrets = secrets_among(os.listdir(path))
            inside = f" ({', '.join(secrets[:4])} in it)" if secrets else ""
            return _finding(f"{what} is your home{inside}", _MEND)
    if path in _SYSTEM or _is_below(path, _SYSTEM_TREES):
        return _finding(f"{what} is {path}, which is the system's", "cd into the project's folder")
    if name := credentials_folder(path):
        return _finding(f"{what} is {path}: {name} is for credentials", "cd into the project's folder")
    if any(_is_below(home, (path,)) for home in _homes()):
        return _finding(f"{what} is {path}, and your home is in it", "cd into the project's folder")
    return None


def _finding(message: str, mend: str) -> Finding:
    return Finding(level="refuse", code="folder-refused", message=message, mend=mend)


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _names_what_is_needed(folder: Path) -> bool:
    rules = read_rules(folder)
    return rules is not None and rules.names_what_is_needed


def _homes() -> set[str]:
    """Return the user's home, as HOME says and as the system knows it."""
    homes = {os.path.expanduser("~")}
    try:
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        pass  # a user without an entry, as in a container
    return {os.path.realpath(home) for home in homes if home not in ("", "/")}
