"""The agent's command line."""

from __future__ import annotations

import sys

from . import contain, keeper, serve, store, supervise

_VERBS = {
    "serve": serve.main,
    "keep": keeper.main,
    "supervise": supervise.main,
    "contain": contain.main,
    "spare": store.main,
}


def main(argv: list[str]) -> int:
    """Run one verb of the agent; return its exit status."""
    if not argv or argv[0] not in _VERBS:
        sys.stderr.write("usage: agent (serve ROOT | keep RUN | supervise RUN | contain RUN | spare RUN)\n")
        return 2
    return int(_VERBS[argv[0]](argv[1:]))
