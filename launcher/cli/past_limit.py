"""Say in one line that something is rented beyond its limit, at the end of any command: from the ledger alone, and quickly.

Nearly nobody rents, so pydantic is loaded only for a rental that seems to be open: the first line of its file has the limit,
and later lines say whether it has ended.
"""

from __future__ import annotations

import os
from pathlib import Path

from launcher import untrusted_json

_OVER = {"ended", "refused", "unseen", "dismissed"}


def past_limit() -> str | None:
    """Return the words about what is rented beyond its limit; None if nothing is."""
    base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    folder = Path(base) / "launch" / "rentals"
    suspects = [path.stem for path in folder.glob("*.jsonl") if _may_be_past(path)]
    return _words(suspects) if suspects else None


def _may_be_past(path: Path) -> bool:
    try:
        first, *later = path.read_bytes().splitlines()
        if untrusted_json.decode(first)["deadline"] > _now():
            return False
    except (OSError, ValueError, LookupError, TypeError):
        return False  # `launch reconcile` reports it
    kinds = {_kind(line) for line in later}
    return not kinds & _OVER or "extra" in kinds


def _kind(line: bytes) -> str:
    """Return the kind of a line; empty if it was cut off, which does not count."""
    try:
        kind = untrusted_json.decode(line)["kind"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return kind if isinstance(kind, str) else ""


def _words(nonces: list[str]) -> str | None:
    from launcher.hosts.rental_ledger import Ledger, usual_folder
    from launcher.values.renting import dollars

    ledger, now = Ledger(usual_folder()), _now()
    known = {rental.nonce: rental for rental in ledger.rentals()}
    past = [known[nonce] for nonce in nonces if nonce in known and known[nonce].is_past(now)]
    if not past:
        damaged = [nonce for nonce in nonces if nonce not in known]
        return "what is rented beyond its limit cannot be read   launch reconcile" if damaged else None
    cost = dollars(sum(rental.cents_at(now) for rental in past))
    runs = ", ".join(rental.intent.run for rental in past[:3]) + (", …" if len(past) > 3 else "")
    return f"rented beyond its limit, {cost} so far, for {runs}   launch reconcile"


def _now() -> float:
    from launcher.hosts.service_clock import ServiceClock

    return ServiceClock().likely()
