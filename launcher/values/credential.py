"""Detect credentials in text, without repeating them."""

from __future__ import annotations

import re

_IN_A_URL = re.compile(
    r"https?://[^/\s]*@"  # a user, or a token in the user's place
    r"|://[^/\s@:]+:(?!\d+/)[^\s@]+@"  # user:password, which may contain a slash; host:port/ does not match
)
_IN_A_QUERY = re.compile(
    r"[?&][^=&#\s]*(?:token|key|secret|password|signature|sig|auth|credential)[^=&#\s]*=[^&#\s]",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|AIza[\w-]{35}|pypi-[\w-]{40,})"
)
"""The token prefixes of GitHub, GitLab, Hugging Face, OpenAI and Anthropic, Slack, AWS, Google and PyPI."""
_WEBHOOK = re.compile(
    r"https://(?:hooks\.slack\.com/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/bot\d"
    r"|[\w-]+\.webhook\.office\.com/|chat\.googleapis\.com/v1/spaces/)"
)
"""Anyone who knows such an address can post to it, according to Slack, Discord, Telegram, Teams and Google Chat."""
_KEY = re.compile(
    r"(?:^|[-_])(?:password|passwd|token|secret|credentials?|auth|key)(?:$|[-_])", re.IGNORECASE
)


def credential_in(value: str, key: str = "") -> str | None:
    """Return the kind of credential in a value, in words that do not repeat it; None if there is none.

    A value also counts if its `key` has a name such as `password`.
    """
    if _IN_A_URL.search(value):
        return "a user or password in a URL"
    if _IN_A_QUERY.search(value):
        return "a token in a URL"
    if _TOKEN.search(value):
        return "a token"
    if _WEBHOOK.search(value):
        return "the address of a webhook"
    return "a password or token" if _KEY.search(key) else None
