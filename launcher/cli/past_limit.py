"""Say at the end of any command what is rented beyond its limit, or looked after by nobody: from the ledger alone, and quickly.

Nearly nobody rents, so pydantic is loaded only for a rental that seems to be open: the first line of its file has the limit,
and later lines say whether it has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from launcher import untrusted_json

_OVER = {"ended", "refused", "unseen", "dismissed"}


def rental_warnings(*, says_all: bool = True) -> list[str]:
    """Return a line about what is rented beyond its limit, and one about what nobody looks after, if `says_all`."""
    base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    folder = Path(base) / "launch" / "rentals"
    limits = {path: limit for path in folder.glob("*.jsonl") if (limit := _open_until(path)) is not None}
    past = [path.stem for path, limit in limits.items() if limit <= _now()]
    left = [path.stem for path in limits if says_all and path.stem not in past and _is_left(path)]
    return [*filter(None, (_words(past) if past else None, _left_words(left) if left else None))]


def _open_until(path: Path) -> float | None:
    """Return the limit of a rental that may be open; None for one that is over, and for one that `launch reconcile` reports."""
    try:
        first, *later = path.read_bytes().splitlines()
        limit = float(untrusted_json.decode(first)["deadline"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    kinds = {_kind(line) for line in later}
    return limit if not kinds & _OVER or "extra" in kinds else None


def _is_left(path: Path) -> bool:
    """Whether no living process looks after a rental whose key the account takes."""
    from launcher.rental.hold import is_alive

    return not is_alive(path.with_suffix(".lock")) or (path.with_suffix("") / "refused").exists()


def _left_words(nonces: list[str]) -> str | None:
    from launcher.runs.open_rentals import open_rentals

    left = [one for one in open_rentals(_now()).rentals if one.rental.nonce in nonces]
    if not left:
        return None
    cost, runs = _cost(one.cents for one in left), _few([one.run for one in left])
    return f"rented, {cost} so far, and no process here ends it: for {runs}   launch reconcile"


def _cost(cents: Iterable[int]) -> str:
    from launcher.values.renting import dollars

    return dollars(sum(cents))


def _few(runs: list[str]) -> str:
    return ", ".join(runs[:3]) + (", …" if len(runs) > 3 else "")


def _kind(line: bytes) -> str:
    """Return the kind of a line; empty if it was cut off, which does not count."""
    try:
        kind = untrusted_json.decode(line)["kind"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return kind if isinstance(kind, str) else ""


def _words(nonces: list[str]) -> str | None:
    from launcher.rental.ledger import Ledger, usual_folder

    ledger, now = Ledger(usual_folder()), _now()
    known = {rental.nonce: rental for rental in ledger.rentals()}
    past = [known[nonce] for nonce in nonces if nonce in known and known[nonce].is_past(now)]
    if not past:
        damaged = [nonce for nonce in nonces if nonce not in known]
        return "what is rented beyond its limit cannot be read   launch reconcile" if damaged else None
    cost = _cost(rental.cents_at(now) for rental in past)
    runs = _few([rental.intent.run for rental in past])
    return f"rented beyond its limit, {cost} so far, for {runs}   launch reconcile"


def _now() -> float:
    from launcher.rental.service_clock import ServiceClock

    return ServiceClock().likely()
