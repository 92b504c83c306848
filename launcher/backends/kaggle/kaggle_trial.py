"""A trial of a Kaggle account, `launch doctor kaggle --probe`: one session without a card, of seconds, which is deleted.

It shows what no other call does: whether the account's sessions have internet, which needs a verified phone, how
soon a new kernel shows, and the session's Python and torch.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from launcher.backends.kaggle import kaggle_log
from launcher.backends.kaggle.kaggle import MISSING, STATUSES
from launcher.backends.kaggle.kaggle_host import KaggleSettings
from launcher.backends.kaggle.kaggle_kernel import NO_ACCELERATOR, KernelRef, NewKernel
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.backends.kaggle.kaggle_service import HOST, KaggleService, log_in_here
from launcher.base.text import printable
from launcher.errors import ServiceError, UnknownOutcomeError
from launcher.values.prerequisite import Prerequisite

QUESTION = "launch will push a private script without a card to Kaggle, wait for its session of seconds, and delete it: it costs no hours"
WAIT_S, LOOK_S = 900.0, 3.0
"""The longest wait for the session, which may queue, and the pause between looks, in seconds."""
SESSION_S = 300
MARK = "launch-trial "
SCRIPT = f"""\
import os, platform, urllib.request
from importlib import metadata
try:
    torch = metadata.version("torch")
except metadata.PackageNotFoundError:
    torch = "none"
try:
    urllib.request.urlopen("https://pypi.org/simple/pip/", timeout=20).close()
    internet = "reaches"
except OSError:
    internet = "does not reach"
print("{MARK}Python " + platform.python_version(), "torch " + torch, str(os.cpu_count()) + " CPUs", internet + " pypi.org", sep=", ")
"""


def try_account(settings: KaggleSettings) -> Iterator[Prerequisite]:
    """Push a script, wait for its end, delete it, and yield the results as rows. Raises ServiceError."""
    service = log_in_here(settings.api)
    try:
        ref = KernelRef(service.user, f"launch-probe-{secrets.token_hex(4)}")
        kernel = NewKernel(
            ref=ref,
            source=SCRIPT,
            machine=NO_ACCELERATOR,
            timeout_s=SESSION_S,
            has_internet=settings.internet,
        )
        try:
            service.push(kernel)
        except UnknownOutcomeError as error:
            yield Prerequisite.unknown("push", str(error).splitlines()[0])
        except ServiceError as error:
            name = "phone" if error.reason == Reason.NO_PHONE else "push"
            yield Prerequisite.lacking(name, str(error).removeprefix(f"{HOST}: "))
            return
        try:
            yield from _watch(service, ref, settings)
        finally:
            deletion = _deletion(service, ref)
        yield deletion
    finally:
        service.close()


def _watch(service: KaggleService, ref: KernelRef, settings: KaggleSettings) -> Iterator[Prerequisite]:
    began, shown_s, status = time.monotonic(), None, ""
    while True:
        now_s = time.monotonic() - began
        if now_s > WAIT_S:
            words = f"its session is {status.lower() or 'not shown'} after {WAIT_S / 60:.0f} min"
            yield Prerequisite.lacking("session", words, f"its page   https://www.kaggle.com/code/{ref}")
            return
        try:
            status = service.status(ref).status
            shown_s = now_s if shown_s is None else shown_s
        except ServiceError as error:
            if error.reason not in MISSING:
                raise
        if STATUSES.get(status) == "over":
            break
        time.sleep(LOOK_S)
    text = "".join(piece.text for piece in kaggle_log.follow(service, ref) if piece is not None)
    said = next((line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)), "")
    took = f"shown after {shown_s or 0.0:.0f} s, ended after {time.monotonic() - began:.0f} s"
    if not said:
        yield Prerequisite.lacking("session", f"it ended as {status} without output; {took}")
        return
    yield Prerequisite.ok("session", f"{printable(said[:200])}; {took}")
    if not settings.internet:
        yield Prerequisite.unknown("phone", "not tried: internet = false in the host's table")
    elif said.endswith("does not reach pypi.org"):
        yield Prerequisite.lacking(
            "phone", "the session has no internet", "verify your phone at kaggle.com/settings"
        )
    else:
        yield Prerequisite.ok("phone", "verified: the session has internet")


def _deletion(service: KaggleService, ref: KernelRef) -> Prerequisite:
    try:
        service.delete(ref)
    except ServiceError as error:
        words = f"{ref} stays: {str(error).splitlines()[0]}"
        return Prerequisite.lacking("deletion", words, f"kaggle kernels delete {ref}     or on kaggle.com")
    return Prerequisite.ok("deletion", f"{ref} is deleted")
