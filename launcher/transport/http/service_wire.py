"""HTTP to a cloud service: each call has limits of time and size, and each kind of failure has a name.

Only the Authorization header authenticates: no netrc is read, and no redirect is followed. Proxies and
certificates come from the environment variables, as `requests` finds them.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from launcher.agent.record import strict_json
from launcher.errors import UsageError
from launcher.transport.http.call_recording import Answer, Call, note
from launcher.transport.resolving import SilentResolverError, resolve

if TYPE_CHECKING:
    import requests

CONNECT_S, READ_S, CALL_S = 10.0, 30.0, 60.0
ANSWER_BYTES = 64_000_000
PIECE_BYTES = 65_536
SLOW_BYTES, SLOW_S = 61_440, 60.0
"""A file of which fewer bytes arrive within so many seconds is not waited for: 1 KiB/s."""
HTTP_DATE = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
"""The date format that every service must use, RFC 9110 section 5.6.7."""
YEARS = range(2020, 2101)
"""The plausible years of a service's clock. Any other year is an error."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class CallFailure(StrEnum):
    """How a call failed. The values are also reasons of a ServiceError."""

    NO_NETWORK = "no-network"
    CERTIFICATE = "certificate"
    SILENT = "silent"
    BROKEN_OFF = "broken-off"
    TOO_LARGE = "too-large"
    MALFORMED = "malformed"


class WireError(Exception):
    """Raised when a call gets no complete answer. `was_sent`: the service may have acted on it.

    The message contains no URL, because a signed link is a credential.
    """

    def __init__(self, failure: CallFailure, words: str, *, was_sent: bool) -> None:
        super().__init__(words)
        self.failure = failure
        self.was_sent = was_sent


REDIRECTS, REDIRECTED = 3, (301, 302, 303, 307, 308)


def is_undecided(status: int) -> bool:
    """Return whether an answer leaves open if its call was accepted: a redirect, a timeout, or a failure of the service."""
    return 300 <= status < 400 or status == 408 or status >= 500


class ServiceReply(NamedTuple):
    """A complete answer. `moment` is the service's clock, in seconds since 1970, or None."""

    status: int
    kind: str
    body: bytes
    retry_s: float | None = None
    moment: float | None = None

    def json(self) -> Any:
        """Return the body as JSON, or None if it is not JSON."""
        if "json" not in self.kind:
            return None
        try:
            return strict_json.decode(self.body)
        except (ValueError, RecursionError):
            return None


class ServiceWire:
    """Calls one service at a base URL."""

    def __init__(self, base: str) -> None:
        """Use this base URL. Raises UsageError unless it is HTTPS, or this machine's loopback."""
        from launcher.transport.http.response_deadline import NoRedirectSession

        parts = urlsplit(base)
        if parts.username or (parts.scheme != "https" and parts.hostname not in LOOPBACK):
            raise UsageError(
                f"{parts.hostname or 'the address of a service'}: its URL must begin with https://"
            )
        self.where = parts.hostname or base
        self._base = base.rstrip("/")
        self._known: set[str] = set()
        self._session = NoRedirectSession(CALL_S)
        self._session.trust_env = False  # otherwise requests reads ~/.netrc, which overrides the header
        self._session.headers["User-Agent"] = "launcher"

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, authorization: str = ""
    ) -> ServiceReply:
        """Call a path below the base, with JSON if there is a body. Return the answer, whatever its status.

        Raises WireError.
        """
        data, headers = None, {"Accept": "application/json", **_authorization(authorization)}
        if body is not None:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        with self._opened(method, f"{self._base}/{path}", headers, data, READ_S) as response:
            return _reply(response)

    def post(self, path: str, body: Mapping[str, Any], authorization: str = "") -> ServiceReply:
        """Send JSON and return the answer, whatever its status. Raises WireError."""
        return self.ask("POST", path, body, authorization)

    def put(self, link: str, data: bytes | IO[bytes]) -> ServiceReply:
        """Send the bytes of a file to a link, and return the answer. Raises WireError."""
        with self._opened("PUT", _checked(link), {}, data, READ_S) as response:
            return _reply(response)

    @contextmanager
    def get(self, url: str, authorization: str = "", read_s: float = READ_S) -> Iterator[Download]:
        """Open a link, or a path below the base if it begins with `/`. Raises WireError.

        At most REDIRECTS redirects are followed. Each address must be HTTPS or this machine's loopback. Another
        host gets no credentials.
        """
        address = _checked(f"{self._base}{url}" if url.startswith("/") else url)
        headers = {"Accept": "text/event-stream, */*", "Accept-Encoding": "identity"}
        for _ in range(REDIRECTS + 1):
            is_own = urlsplit(address).netloc == urlsplit(self._base).netloc
            asked = {**headers, **(_authorization(authorization) if is_own else {})}
            with self._opened("GET", address, asked, None, read_s) as response:
                target = response.headers.get("Location") if response.status_code in REDIRECTED else None
                if target is None:
                    yield Download(response)
                    return
            address = _checked(target, address)
        raise WireError(CallFailure.MALFORMED, "its link leads on and on", was_sent=True)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    @contextmanager
    def _opened(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | IO[bytes] | None, read_s: float
    ) -> Iterator[requests.Response]:
        import requests

        failed: WireError | None = None
        proxies = dict(requests.utils.get_environ_proxies(url))
        if not proxies:
            self._look_up(urlsplit(url).hostname or "")
        try:
            response = self._session.request(
                method,
                url,
                headers=headers,
                data=data,
                timeout=(CONNECT_S, read_s),
                stream=True,
                allow_redirects=False,
                proxies=proxies,
                verify=os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True,
            )
        except (requests.RequestException, OSError) as error:
            failed = _failure(error, urlsplit(url).hostname or self.where)
        if failed is not None:
            note(Call(method, url, headers, data), str(failed))
            raise failed  # outside the handler: the exception there contains the whole URL
        with response:
            yield response

    def _look_up(self, name: str) -> None:
        """Resolve a host name before the first call.

        A resolver that never answers would block the call for minutes.
        """
        if not name or name in self._known:
            return
        try:
            resolve(name, 443, time.monotonic() + CONNECT_S)
        except SilentResolverError:
            words = f"no resolver answers within {CONNECT_S:.0f} s for '{name}'; is the network up?"
            raise WireError(CallFailure.NO_NETWORK, words, was_sent=False) from None
        except (OSError, ValueError):
            words = f"'{name}' cannot be resolved; is the network up?"
            raise WireError(CallFailure.NO_NETWORK, words, was_sent=False) from None
        self._known.add(name)


class Download:
    """An answer whose body arrives in pieces."""

    def __init__(self, response: requests.Response) -> None:
        """Take over an open response."""
        self._response = response
        self.status = response.status_code
        self.kind = response.headers.get("Content-Type", "").lower()

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives. Raises WireError if it breaks off or stalls."""
        _note(self._response, None)
        yield from _pieces(self._response)

    def file(self) -> Iterator[bytes]:
        """Yield a file as it arrives. Raises WireError, also if it is slower than SLOW_BYTES in SLOW_S."""
        size, since = 0, time.monotonic()
        for piece in self.pieces():
            yield piece
            size += len(piece)
            if size >= SLOW_BYTES:
                size, since = 0, time.monotonic()
            elif time.monotonic() > since + SLOW_S:
                words = f"only {size:,} bytes arrive in {SLOW_S:.0f} s"
                raise WireError(CallFailure.SILENT, words, was_sent=True)

    def reply(self) -> ServiceReply:
        """Return the complete answer. Raises WireError."""
        return _reply(self._response)


def _checked(link: str, base: str = "") -> str:
    """Return the address of a link on a page. Raises WireError unless it is HTTPS, or this machine's loopback."""
    try:
        address = urljoin(base, link)
        parts = urlsplit(address)
    except ValueError:  # e.g. https://[::bad
        raise WireError(CallFailure.MALFORMED, "its link is not a URL", was_sent=True) from None
    if parts.username or (parts.scheme != "https" and parts.hostname not in LOOPBACK):
        raise WireError(CallFailure.MALFORMED, "its link leads to an address without HTTPS", was_sent=True)
    return address


def _authorization(value: str) -> dict[str, str]:
    return {"Authorization": value} if value else {}


def _reply(response: requests.Response) -> ServiceReply:
    """Read a complete answer, within CALL_S and ANSWER_BYTES."""
    until, parts, size = time.monotonic() + CALL_S, [], 0
    for piece in _pieces(response):
        size += len(piece)
        if size > ANSWER_BYTES:
            raise WireError(
                CallFailure.TOO_LARGE, f"its answer is larger than {ANSWER_BYTES:,} bytes", was_sent=True
            )
        if time.monotonic() > until:
            raise WireError(
                CallFailure.SILENT, f"its answer is incomplete after {CALL_S:.0f} s", was_sent=True
            )
        parts.append(piece)
    _note(response, b"".join(parts))
    headers = response.headers
    kind = headers.get("Content-Type", "").lower()
    moment = _moment(headers.get("Date"))
    return ServiceReply(
        response.status_code, kind, b"".join(parts), _retry_s(headers.get("Retry-After"), moment), moment
    )


def _note(response: requests.Response, body: bytes | None) -> None:
    asked = response.request
    call = Call(asked.method or "", asked.url or "", asked.headers, asked.body)
    note(call, Answer(response.status_code, response.headers, body))


def _pieces(response: requests.Response) -> Iterator[bytes]:
    import urllib3

    failed: WireError | None = None
    try:
        while piece := response.raw.read1(PIECE_BYTES, decode_content=True):
            yield piece
    except urllib3.exceptions.ReadTimeoutError:
        failed = WireError(CallFailure.SILENT, "it fell silent in the middle of its answer", was_sent=True)
    except (urllib3.exceptions.HTTPError, OSError):
        failed = WireError(CallFailure.BROKEN_OFF, "its answer broke off", was_sent=True)
    if failed is not None:
        raise failed


def _failure(error: Exception, where: str) -> WireError:
    """Return the WireError for an exception of the libraries."""
    import ssl

    import requests
    import urllib3

    if isinstance(error, ValueError):  # requests' errors about URLs are ValueErrors
        return WireError(CallFailure.MALFORMED, "its link is not a URL", was_sent=False)
    cause = getattr(error.args[0], "reason", error.args[0]) if error.args else None
    if any(isinstance(one, ssl.SSLCertVerificationError) for one in getattr(cause, "args", ())):
        words = f"the certificate of {where} is not accepted here"
        return WireError(CallFailure.CERTIFICATE, words, was_sent=False)
    if isinstance(error, requests.exceptions.ProxyError):
        words = f"the proxy before {where} refuses the connection (HTTPS_PROXY)"
        return WireError(CallFailure.NO_NETWORK, words, was_sent=False)
    if isinstance(cause, urllib3.exceptions.NameResolutionError):
        words = f"'{where}' cannot be resolved; is the network up?"
        return WireError(CallFailure.NO_NETWORK, words, was_sent=False)
    if isinstance(error, requests.exceptions.ConnectTimeout):
        words = f"{where} does not answer within {CONNECT_S:.0f} s; is the network up?"
        return WireError(CallFailure.NO_NETWORK, words, was_sent=False)
    if isinstance(cause, urllib3.exceptions.NewConnectionError):
        return WireError(
            CallFailure.NO_NETWORK, f"{where} cannot be reached; is the network up?", was_sent=False
        )
    if isinstance(error, requests.exceptions.Timeout):
        return WireError(CallFailure.SILENT, f"{where} received the call and gave no answer", was_sent=True)
    return WireError(CallFailure.BROKEN_OFF, f"{where} hung up before its answer", was_sent=True)


def _moment(text: str | None) -> float | None:
    """Parse a date into seconds since 1970. None for an invalid date or an implausible year."""
    if text is None or not HTTP_DATE.fullmatch(text):
        return None
    try:
        date = parsedate_to_datetime(text)
    except ValueError:  # e.g. 31 February
        return None
    return date.timestamp() if date.year in YEARS else None


def _retry_s(text: str | None, moment: float | None) -> float | None:
    """Parse Retry-After, in seconds or as a date relative to the service's clock. Limit it to a day."""
    if text is not None and re.fullmatch("[0-9]+", text):
        return min(float(text), 86_400.0)
    until = _moment(text)
    if until is None or moment is None:
        return None
    return min(max(0.0, until - moment), 86_400.0)
