"""A training's printed lines as JSON: one record for each line."""

from __future__ import annotations

from pydantic_core import to_json

from launcher.copy.printed_lines import Printed


def log_records(run: str, printed: Printed, text: str, *, rehearsed: bool) -> str:
    """Return one JSON record for each line of `text`, the readable form of `printed`."""
    record = {"version": 1, "kind": "log", "run": run, "attempt": printed.attempt}
    more = {"node": printed.node, "continues": printed.continues, "rehearsed": rehearsed}
    lines = (to_json({**record, "text": line, **more}, ensure_ascii=True) for line in text.split("\n"))
    return "".join(f"{line.decode()}\n" for line in lines)
