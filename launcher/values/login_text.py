"""Validate addresses and user names: both reach the shell of a ProxyCommand, and that of a `Match exec`."""

from __future__ import annotations

import json
import re

# OpenSSH's rules, ssh_valid_hostname and ssh_valid_ruser in its readconf.c: a ProxyCommand's shell reads
# both.
_NO_ADDRESS = re.compile(r"""^-|^\Z|['`"$\\;&<>|(){},\s\x00-\x1f\x7f]""")
_NO_USER = re.compile(r"""^-|['`";&<>|(){}\x00-\x1f\x7f]|\s-|\\\Z""")


def address(written: str) -> str:
    """Return an address unchanged. Raises ValueError for text that cannot be one."""
    return _without(_NO_ADDRESS, written, "a name or an address")


def user(written: str) -> str:
    """Return a user's name unchanged. Raises ValueError for text that cannot be one."""
    return _without(_NO_USER, written, "a user's name")


def _without(forbidden: re.Pattern[str], written: str, what: str) -> str:
    if found := forbidden.search(written):
        raise ValueError(f"expected {what}" + (f" without {json.dumps(found[0])}" if found[0] else ""))
    return written
