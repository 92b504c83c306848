"""The agent at the far end of a client's connection: answer requests until the client falls silent.

A message is one line of JSON, followed by `size` raw bytes if it has that key. A request is {"id", "verb",
"args"}, an answer {"id", "ok"} or {"id", "error": {"code", "message"}}. Requests never contain paths of runs:
a run is named by its id.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys

from ..record.strict_json import JsonObject
from ..store import worker_folder
from ..store.manifest import ShippingError
from ..system import login_umask
from .client_connection import ClientConnection
from .requests import RequestError, VerbReply, parse, read_request, refusal, refusal_of
from .session import ClientSession, Verb

MODULES = {
    "probing": ("ping", "probe", "root", "holds"),
    "preparing": ("create", "sources", "offer", "ship", "inherit", "secrets"),
    "starting": ("start", "hand_over", "take_back", "await", "place", "resume"),
    "reading": ("read",),
    "running": ("runs", "wish", "exec", "interact", "entrance"),
    "making_verbs": (
        *("hold", "builder", "build", "packages"),
        *("environment", "make_environment", "seal_environment"),
    ),
    "outgoing": ("outputs", "manifest", "checkpoint", "send"),
    "move_verbs": (
        "outlook",
        "move",
        "tree",
        "contents",
        "lacking",
        "forgo",
        "offer_checkpoint",
        "ship_checkpoint",
    ),
    "removing": ("remove", "gc", "sweep", "remains"),
}
"""The verbs that each module of `verbs/` answers. Its `VERBS` has their functions.

A module is loaded when one of its verbs is first requested: most clients use few verbs.
"""
_NEW_OBJECTS = 50_000
"""The number of new objects after which Python looks for reference cycles.

With the default of 700, this search would take a fifth of the time of making a manifest.
"""
_MODULE_OF = {verb: module for module, verbs in MODULES.items() for verb in verbs}


def main(arguments: list[str]) -> int:
    """Serve one client on standard input and output below a root; return 0 when it has gone."""
    root = os.path.abspath(os.path.expanduser(arguments[0]))
    login_umask.make_private()
    gc.set_threshold(_NEW_OBJECTS)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    signal.signal(signal.SIGHUP, lambda _number, _frame: sys.exit(0))
    # If the disk is full, the verbs that start a run report it. The other verbs do not need the worker.
    with contextlib.suppress(OSError):
        worker_folder.ensure(sys.argv[0])
    session = ClientSession(root, ClientConnection(0, 1))
    try:
        while True:
            serve_one(session)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # the client has gone, which it may at any time
    finally:
        session.clear_away()


def serve_one(session: ClientSession) -> None:
    """Answer the next request. Raises EOFError if the client has gone, or sends anything but a request."""
    connection = session.connection
    try:
        request = read_request(connection.read_line())
    except ValueError:  # a payload may follow, so the next request cannot be found
        raise EOFError from None
    payload = connection.read(request.size)
    back = b""
    try:
        reply = answer(session, request.verb, request.arguments, payload)
        message, back = {"ok": reply.values}, reply.payload
    except ShippingError as error:
        message = {"error": refusal("ship", str(error))}
    except (RequestError, OSError) as error:
        message = {"error": refusal_of(error, session.root)}
    connection.write(dict(message, id=request.id), back)


def answer(session: ClientSession, verb: str, arguments: JsonObject, payload: bytes = b"") -> VerbReply:
    """Answer one verb. Raises RequestError, ShippingError and OSError."""
    if verb not in _MODULE_OF:
        raise RequestError("unknown-verb", "the agent has no verb %r" % verb)
    module = importlib.import_module("..verbs." + _MODULE_OF[verb], __package__)
    entry: Verb = module.VERBS[verb]
    return entry.answer(session, parse(entry.arguments, verb, arguments), payload)
