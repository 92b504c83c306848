"""Call a webhook in a separate process, which can be killed.

The address, which may be a secret, is read from standard input.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

from ..record import strict_json


def main(_arguments: list[str]) -> int:
    """Post the body of a letter {"url", "body", "limit_s"} as JSON; on failure print why, and return 1."""
    letter = strict_json.decode(sys.stdin.read())
    if not letter["url"].startswith(("http://", "https://")):
        print("the webhook's address does not begin with http:// or https://")
        return 1
    try:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            letter["url"],
            data=strict_json.encode(letter["body"]).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "launcher"},
        )
        with urllib.request.urlopen(request, timeout=letter["limit_s"]) as answer:  # noqa: S310 - likewise
            answer.read(1)
    except urllib.error.HTTPError as error:
        print("the webhook answers %d %s" % (error.code, error.reason))
        return 1
    except (OSError, ValueError) as error:  # ValueError: not a valid address
        reason = getattr(error, "reason", error)
        print("the webhook cannot be called: %s" % (getattr(reason, "strerror", None) or reason))
        return 1
    return 0
