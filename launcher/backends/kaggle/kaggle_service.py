"""Kaggle's service: a typed method for each call, and a named reason for each failure.

Routes and bodies are those of kaggle 2.2.4 (kagglesdk 0.1.38), which also works against the fake service of
the tests. Nothing was tested against the real service. No call is repeated here: a push must not be made
twice, and for the other calls the caller knows how long it may wait.

An answer to a push may be lost, so a push can take two calls: `push`, and `find` after an UnknownOutcomeError. The
caller must record its intent before the push, and use a different slug for each session.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from launcher.backends.kaggle.kaggle_credentials import KaggleLogin, logins
from launcher.backends.kaggle.kaggle_kernel import (
    BlobUpload,
    DatasetAnswer,
    DatasetStatus,
    DeletedKernel,
    FreshToken,
    Kernel,
    KernelPage,
    KernelRef,
    NewKernel,
    OutputFile,
    OutputPage,
    Pushed,
    Quota,
    SessionStatus,
    TokenOwner,
)
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.base.text import printable
from launcher.errors import (
    HostError,
    ServiceAuthError,
    ServiceError,
    ServiceUnreachableError,
    UnknownOutcomeError,
)
from launcher.transport.http.service_wire import (
    READ_S,
    CallFailure,
    Download,
    ServiceReply,
    ServiceWire,
    WireError,
    is_undecided,
)
from launcher.values.base import Record

BASE = "https://api.kaggle.com/v1"
HOST = "kaggle"
SETTINGS = "https://www.kaggle.com/settings"
PAGE = 200
LIST_PAGE, MAX_PAGES = 100, 10
MAX_MESSAGE = 300
"""The number of characters of the service's text in a message."""
SKEW_S = 300.0
"""The clock difference in seconds above which the error of a refused call mentions the clock."""
LOG_HEAD = re.compile(rb"\s*\[\s*\{")
"""The beginning of an ended session's log, which may be too large to read whole."""
EXPIRED = (400, 401, 403, 404, 410)
"""The status codes of a store for an unusable link."""
TOKEN_LIFE_S = 43_200
"""12 hours, as Kaggle's own client asks for."""
STATUS = {
    400: Reason.BAD_REQUEST,
    401: Reason.UNAUTHORIZED,
    403: Reason.FORBIDDEN,
    404: Reason.NOT_FOUND,
    409: Reason.CONFLICT,
    413: Reason.TOO_LARGE,
    429: Reason.RATE_LIMIT,
}
NO_INTERNET = "kernelSessions.enableInternet"
"""The permission that Kaggle names in its refusal of a push with internet by an account without a verified phone."""
PHRASES = (("session count", Reason.SESSION_LIMIT), ("quota", Reason.QUOTA))
"""Words in the error of a push answered with 200: the first from kaggle-cli#185, the second is a guess."""
MENDS = {
    Reason.UNAUTHORIZED: f"make a new token at {SETTINGS}, and set KAGGLE_API_TOKEN",
    Reason.FORBIDDEN: "is it yours? Kaggle gives the same answer for things that do not exist",
    Reason.NO_PHONE: f"verify your phone at {SETTINGS}, or run without internet   internet = false in the host's table",
    Reason.RATE_LIMIT: "wait, then try again",
    Reason.SESSION_LIMIT: "wait until a session of yours ends, or delete its kernel",
    Reason.QUOTA: "wait until Kaggle refills it",
}
A = TypeVar("A", bound=Record)


def log_in(variables: Mapping[str, str], home: Path, base: str = BASE) -> KaggleService:
    """Return the service for this user, with the first valid credentials in Kaggle's own order.

    An unusable token is skipped, as in Kaggle's own client; if no credentials remain, the error names it.
    Raises BadFileError, ServiceAuthError, ServiceUnreachableError or ServiceError.
    """
    wire, useless = ServiceWire(base), []
    for login in logins(variables, home):
        service = KaggleService(login, wire)
        if login.kind == "oauth" and login.needs_renewal:
            service = service.renewed()
        if login.kind == "token":
            owner = service.owner()
            if not owner:
                useless.append(f"Kaggle does not know the token of {login.origin}, or it has expired")
                continue
            service = KaggleService(login.of(owner), wire)
        return service
    why = "; ".join(useless) or "no credentials here"
    words = f"{HOST}: {why}\n  make a token at {SETTINGS}, then   export KAGGLE_API_TOKEN=…"
    raise ServiceAuthError(HOST, Reason.NO_CREDENTIALS, words)


def log_in_here(api: str) -> KaggleService:
    """Return the service at an address with this user's credentials. Raises as `log_in` does."""
    return log_in(os.environ, Path.home(), api)


def account_hours(api: str) -> tuple[str, Quota]:
    """Return the account of this user's credentials, and its hours of the week. Raises as `log_in` does."""
    service = log_in_here(api)
    try:
        return service.user, service.quota()
    finally:
        service.close()


def quota_or_why(api: str) -> str:
    """Return an account's hours in one line, or why they are unknown."""
    try:
        return account_hours(api)[1].title
    except HostError as error:
        return f"unknown: {str(error).splitlines()[0]}"


class KaggleService:
    """Kaggle's service for one account."""

    def __init__(self, login: KaggleLogin, wire: ServiceWire) -> None:
        """Use these credentials for these HTTP calls."""
        self._login = login
        self._wire = wire
        self._ahead_s = 0.0

    @property
    def user(self) -> str:
        """The account's name."""
        return self._login.user

    @property
    def is_out_of_date(self) -> bool:
        """Whether the login expires soon; `log_in` then returns a service with a new one."""
        return self._login.is_out_of_date

    def now(self) -> float:
        """Return the time by the service's clock, from its last answer."""
        return time.time() + self._ahead_s

    # kernels

    def push(self, kernel: NewKernel) -> Pushed:
        """Push a script, which starts its session at once.

        Call it only once for a kernel, whatever the result. Raises UnknownOutcomeError if the push may have been
        accepted: `find` shows whether it was. After any other error it was not.
        """
        try:
            reply = self._post("kernels.KernelsApiService/SaveKernel", kernel.body)
        except WireError as error:
            if error.was_sent:
                raise self._unsettled(kernel.ref, Reason(error.failure), str(error)) from None
            raise self._lost(error) from None
        status = _status(reply)
        if is_undecided(status):
            raise self._unsettled(kernel.ref, Reason.SERVER_ERROR, f"it answered {status}")
        self._check(reply, f"pushing {kernel.ref}")
        try:
            pushed = self._read(Pushed, reply, "")
        except ServiceError:
            raise self._unsettled(kernel.ref, Reason.MALFORMED, "its answer cannot be read") from None
        if pushed.error:
            reason = next((one for word, one in PHRASES if word in pushed.error.lower()), Reason.REFUSED)
            raise self._error(reason, f"pushing {kernel.ref}: {self._said(pushed.error)}")
        if pushed.landed is None:
            raise self._unsettled(kernel.ref, Reason.MALFORMED, "its answer does not say where the kernel is")
        return pushed

    def find(self, ref: KernelRef) -> Kernel | None:
        """Return a kernel of this account; None if it does not exist.

        After a push without an answer, a single None proves nothing: the push may still be in progress. Repeat
        the call for a while. According to Kaggle's own client, a wrong slug is answered with 403, like a kernel
        of another user, and it treats a 401 alike. So the credentials are checked with another call before either
        counts as None.
        """
        try:
            return self._ask(Kernel, "kernels.KernelsApiService/GetKernel", _of(ref), f"looking for {ref}")
        except ServiceError as error:
            if error.reason in (Reason.FORBIDDEN, Reason.UNAUTHORIZED):
                self.quota()
            elif error.reason != Reason.NOT_FOUND:
                raise
            return None

    def kernels(self, words: str) -> Iterator[tuple[KernelRef, float | None]]:
        """Yield the kernels of this account whose titles match some words in Kaggle's search.

        Each comes with the time of its last push in seconds since 1970, if Kaggle names it.
        """
        for number in range(1, MAX_PAGES + 1):
            body = {"group": "PROFILE", "search": words, "page": number, "pageSize": LIST_PAGE}
            page = self._ask(KernelPage, "kernels.KernelsApiService/ListKernels", body, "listing kernels")
            for listed in page.kernels:
                if listed.where is not None and listed.where.owner.lower() == self.user.lower():
                    yield KernelRef(self.user, listed.where.slug), listed.ran_at
            if len(page.kernels) < LIST_PAGE:
                return

    def status(self, ref: KernelRef) -> SessionStatus:
        """Return the status of a kernel's latest session."""
        route = "kernels.KernelsApiService/GetKernelSessionStatus"
        return self._ask(SessionStatus, route, _of(ref), f"the status of {ref}")

    def outputs(self, ref: KernelRef) -> Iterator[OutputFile]:
        """Yield the output files of a session, with links that expire.

        Whether a failed session has any files is unknown.
        """
        token, seen = "", set[str]()
        while True:
            body = {**_of(ref), "pageSize": PAGE, "pageToken": token}
            route, what = "kernels.KernelsApiService/ListKernelSessionOutput", f"the outputs of {ref}"
            page = self._ask(OutputPage, route, body, what)
            yield from page.files
            token = page.next_page_token or ""
            if not token:
                return
            if token in seen:
                raise self._error(Reason.MALFORMED, f"{what}: the service returns the same page again")
            seen.add(token)

    def download(self, file: OutputFile) -> Iterator[bytes]:
        """Yield the bytes of a file. Raises ServiceError with LINK_EXPIRED: `outputs` returns new links."""
        what = f"the output '{file.file_name}'"
        with self._opened(file.url, what) as download:
            if download.status in EXPIRED:
                raise self._error(
                    Reason.LINK_EXPIRED, f"{what}: its link has expired; list the outputs again"
                )
            self._check_opened(download, what)
            yield from download.file()

    @contextmanager
    def open_log(self, ref: KernelRef, read_s: float) -> Iterator[Download]:
        """Open a session's log: a stream of events while it runs, JSON afterwards. See kaggle_log.follow."""
        what = f"the log of {ref}"
        with self._opened(f"/kernels/logs/stream/{ref.owner}/{ref.slug}", what, read_s) as download:
            self._check_opened(download, what)
            yield download

    def has_whole_log(self, ref: KernelRef) -> bool | None:
        """Whether a session's log is a JSON array, as it is after the session, or a stream.

        None if it is neither, or cannot be read: a proxy's error may be JSON too.
        """
        with suppress(ServiceError), self.open_log(ref, READ_S) as log:
            if log.kind.startswith("text/event-stream"):
                return False
            return True if LOG_HEAD.match(next(log.pieces(), b"")) else None
        return None

    def delete(self, ref: KernelRef) -> None:
        """Delete a kernel with its outputs, and end its session. Raises an error if it does not exist."""
        what = f"deleting {ref}"
        answer = self._ask(DeletedKernel, "kernels.KernelsApiService/DeleteKernel", _of(ref), what)
        self._check_words(answer.error_message, what)

    def quota(self) -> Quota:
        """Return the account's hours of the week."""
        return self._ask(Quota, "kernels.KernelsApiService/GetAcceleratorQuotaStatistics", {}, "the quota")

    # datasets

    def upload(self, path: Path) -> str:
        """Upload a file for a new dataset. Return its token."""
        about, name = path.stat(), path.name
        sizes = {"contentLength": about.st_size, "lastModifiedEpochSeconds": int(about.st_mtime)}
        # A field with the default value is omitted, here and in every answer.
        body = {"type": "DATASET", "name": name, **{key: value for key, value in sizes.items() if value}}
        begun = self._ask(BlobUpload, "blobs.BlobApiService/StartBlobUpload", body, f"uploading {name}")
        try:
            with path.open("rb") as file:
                reply = self._wire.put(begun.create_url, file if about.st_size else b"")
        except WireError as error:
            raise self._lost(error) from None
        if reply.status in EXPIRED:
            raise self._error(Reason.LINK_EXPIRED, f"uploading {name}: its link has expired; begin again")
        self._check(reply, f"uploading {name}")
        return begun.token

    def create_dataset(self, slug: str, tokens: list[str]) -> None:
        """Make a private dataset of uploaded files. Its title is its slug."""
        about = {
            "ownerSlug": self.user,
            "slug": slug,
            "title": slug,
            "licenseName": "CC0-1.0",
            "isPrivate": True,
        }
        body = {**about, "files": [{"token": token} for token in tokens]}
        what = f"making the dataset {self.user}/{slug}"
        answer = self._ask(DatasetAnswer, "datasets.DatasetApiService/CreateDataset", body, what)
        if answer.error or (answer.status or "").lower() != "ok":
            words = self._said(answer.error or f"its status is {answer.status}")
            raise self._error(Reason.REFUSED, f"{what}: {words}")

    def dataset_status(self, slug: str) -> DatasetStatus:
        """Return the state of a dataset of this account."""
        what = f"the dataset {self.user}/{slug}"
        return self._ask(
            DatasetStatus, "datasets.DatasetApiService/GetDatasetStatus", self._dataset(slug), what
        )

    def delete_dataset(self, slug: str) -> None:
        """Delete a dataset of this account."""
        what = f"deleting the dataset {self.user}/{slug}"
        route = "datasets.DatasetApiService/DeleteDataset"
        self._check_words(self._ask(DatasetAnswer, route, self._dataset(slug), what).error, what)

    # credentials

    def owner(self) -> str:
        """Return the owner of this access token; empty if it is unusable."""
        try:
            body = {"token": self._login.secret()}
            found = self._ask(TokenOwner, "security.OAuthService/IntrospectToken", body, "logging in")
        except ServiceError as error:
            if error.reason in (Reason.BAD_REQUEST, Reason.FORBIDDEN, Reason.NOT_FOUND):  # as Kaggle's client
                return ""
            raise
        return found.username if found.active else ""

    def renewed(self) -> Self:
        """Return the service with a new access token from this login's refresh token. No file is changed."""
        body = {
            "refreshToken": self._login.secret(),
            "apiVersion": "API_VERSION_V1",
            "expirationDuration": f"{TOKEN_LIFE_S}s",
        }
        login = self._login
        try:
            reply = self._wire.post("users.AccountService/GenerateAccessToken", body)
        except WireError as error:
            raise self._lost(error) from None
        what = f"renewing the login of {login.origin}"
        self._check(reply, what)
        fresh = self._read(FreshToken, reply, what)
        user = fresh.user_name or login.user
        until = datetime.now(UTC) + timedelta(seconds=min(fresh.expires_in or TOKEN_LIFE_S, TOKEN_LIFE_S))
        return type(self)(KaggleLogin("oauth", fresh.token, login.origin, user, until=until), self._wire)

    def close(self) -> None:
        """Close its connections."""
        self._wire.close()

    def __repr__(self) -> str:
        return f"KaggleService({self._login!r})"

    def _dataset(self, slug: str) -> dict[str, str]:
        return {"ownerSlug": self.user, "datasetSlug": slug}

    def _ask(self, kind: type[A], route: str, body: Mapping[str, Any], what: str) -> A:
        return self._read(kind, self._answer(route, body, what), what)

    def _answer(self, route: str, body: Mapping[str, Any], what: str) -> ServiceReply:
        """Make a call that may be repeated. Return its successful answer."""
        try:
            reply = self._post(route, body)
        except WireError as error:
            raise self._lost(error) from None
        self._check(reply, what)
        return reply

    def _post(self, route: str, body: Mapping[str, Any]) -> ServiceReply:
        return self._wire.post(route, body, self._login.header())

    def _read(self, kind: type[A], reply: ServiceReply, what: str) -> A:
        """Parse an answer strictly: the default of an invalid field may be the opposite of the answer."""
        said = reply.json()
        if said is None:  # a page of a proxy before the service, not the service's answer
            words = f"{what}: its answer is not JSON ({reply.kind or 'no type'}, {len(reply.body)} bytes)"
            raise ServiceUnreachableError(HOST, Reason.MALFORMED, f"{HOST}: {words}")
        try:
            fields = {key: value for key, value in said.items() if value is not None}
            return kind.model_validate(fields, strict=True)
        except (ValidationError, AttributeError):
            words = f"{what}: its answer cannot be read ({reply.kind or 'no type'}, {len(reply.body)} bytes)"
            raise self._error(Reason.MALFORMED, words) from None

    def _check_words(self, words: str | None, what: str) -> None:
        """Raise the error in the body of a successful answer."""
        if words:
            raise self._error(Reason.REFUSED, f"{what}: {self._said(words)}")

    def _said(self, words: object) -> str:
        """Return text of the service for one line of a message, without the secret."""
        return printable(" ".join(self._login.redact(str(words)).split())[:MAX_MESSAGE])

    def _check(self, reply: ServiceReply, what: str) -> None:
        """Raise the error of an answer: by its status, or by the code in its JSON."""
        self._ahead_s = self._ahead_s if reply.moment is None else reply.moment - time.time()
        status = _status(reply)
        if status < 300:
            return
        reason = STATUS.get(status, Reason.SERVER_ERROR if is_undecided(status) else Reason.BAD_REQUEST)
        message = self._said(_body(reply).get("message", ""))
        words = f"{what}: {status}{f' {message}' if message else ''}"
        if reason in (Reason.UNAUTHORIZED, Reason.FORBIDDEN) and abs(self._ahead_s) > SKEW_S:
            side = "behind" if self._ahead_s > 0 else "ahead of"
            words += f"; set this machine's clock: it is {abs(self._ahead_s):.0f} s {side} Kaggle's"
        if reason is Reason.FORBIDDEN and NO_INTERNET in message:
            reason = Reason.NO_PHONE
        raise self._error(reason, words, reply.retry_s)

    def _check_opened(self, download: Download, what: str) -> None:
        """Raise the error of an answer that is not a file: only 200 has the whole file."""
        if download.status != 200:
            self._check(download.reply(), what)
            words = f"{HOST}: {what}: it answered {download.status}"
            raise ServiceUnreachableError(HOST, Reason.MALFORMED, words)

    def _error(self, reason: Reason, words: str, retry_s: float | None = None) -> ServiceError:
        mend = MENDS.get(reason)
        message = f"{HOST}: {words}" + (f"\n  {mend}" if mend else "")
        kind = {
            Reason.UNAUTHORIZED: ServiceAuthError,
            Reason.SERVER_ERROR: ServiceUnreachableError,
            Reason.RATE_LIMIT: ServiceUnreachableError,
        }.get(reason, ServiceError)
        return kind(HOST, reason, message, retry_s)

    def _lost(self, error: WireError) -> ServiceError:
        """Return the error for a call without an answer."""
        kind = ServiceError if error.failure is CallFailure.TOO_LARGE else ServiceUnreachableError
        return kind(HOST, Reason(error.failure), f"{HOST}: {error}")

    def _unsettled(self, ref: KernelRef, reason: Reason, words: str) -> UnknownOutcomeError:
        return UnknownOutcomeError(HOST, reason, f"{HOST}: pushing {ref}: {words}; it may have been accepted")

    @contextmanager
    def _opened(self, url: str, what: str, read_s: float | None = None) -> Iterator[Download]:
        """Open a link without credentials, or one of the service's own paths with them."""
        header = self._login.header() if url.startswith("/") else ""
        limit = {} if read_s is None else {"read_s": read_s}
        try:
            with self._wire.get(url, header, **limit) as download:
                yield download
        except WireError as error:
            words = f"{HOST}: {what}: {error}"
            raise ServiceUnreachableError(HOST, Reason(error.failure), words) from None


def _body(reply: ServiceReply) -> dict[str, Any]:
    """Return the fields of an answer in JSON, or those of its error."""
    said = reply.json()
    fields = said if isinstance(said, dict) else {}
    return fields["error"] if isinstance(fields.get("error"), dict) else fields  # Google's form of an error


def _status(reply: ServiceReply) -> int:
    """Return the status of an answer: the code in its JSON, if that is higher."""
    code = _body(reply).get("code")
    return max(reply.status, code) if isinstance(code, int) else reply.status


def _of(ref: KernelRef) -> dict[str, str]:
    return {"userName": ref.owner, "kernelSlug": ref.slug}
