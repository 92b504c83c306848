"""A recording of the calls to cloud services, for a report: `--record FILE`.

A line of JSON for each call has its method, address, status, and the *form* of what was sent and answered. In a
form each text is replaced by its length, except times, and texts below the keys in KEPT, which lose each word that
may be a secret. So a secret stays out wherever it is: in a header, an address, a body, or JSON within JSON.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from launcher.agent.record import strict_json
from launcher.errors import UsageError

MAX_BYTES = 200_000
"""The size of a recording in bytes, small enough for an issue. Later calls are left out."""
MAX_LINE, MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 8_000, 300, 5, 8
"""Limits of a call's line and of a text, in characters; of a list, in elements; of nested JSON, in levels."""
KEPT = frozenset((
    "status", "state", "code", "reason_code", "message", "error", "errors", "suggestion", "failureMessage",
    "name", "description", "gpu_description", "region", "region_name", "instance_type_name", "machineShape",
    "family", "version", "architecture", "language", "kernelType", "dockerImagePinningType", "stream_name", "protocol",
    "invalidTags", "invalidDatasetSources", "invalidKernelSources", "invalidModelSources",
))  # fmt: skip
"""The keys whose texts are kept."""
KEPT_HEADERS = ("accept", "content-type", "content-length", "date", "retry-after", "server", "user-agent")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?|\d{1,9}(\.\d{1,9})?s")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,47}")
_WORD = re.compile(r"[^\s\"'`,;:(){}\[\]<>|]+")
_CHUNK = re.compile(r"[A-Za-z0-9]+")
_WORDS = re.compile(r"[A-Za-z]?[a-z]{2,14}([A-Z][a-z]{2,14})*([A-Z]?[0-9]{1,4})?|[0-9]{1,15}|[A-Z]{3,15}")
"""Camel case with a number at the end, such as `NvidiaTeslaT4`."""
_HEX = re.compile(r"[0-9a-f]{8,}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ENCODED = re.compile(r"[+=%$!*~^\\]")
LONGEST_WORD = 12
"""The length in characters from which a word must consist of English words."""
_SECRET_NAME = re.compile(r"token|key|secret|pass|credential|auth|signature|user_?data", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"((?:\w*(?:token|key|secret|passw\w*|credential|signature)\w*[\"']?\s*[=:]|\bbearer\b|\bbasic\b)\s*[\"']?)[^\s\"',}]+",
    re.IGNORECASE,
)
_OUR_NAME = re.compile(r"launch-\d{6}-[a-z0-9-]{1,36}")
SHORTEST = 6
"""The length from which the values of variables named like a secret are hidden literally, in characters."""
HIDDEN = "***"


class Call(NamedTuple):
    """A request to a service."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: object


class Answer(NamedTuple):
    """A service's answer. The body is None if it is a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class CallRecording:
    """A file with the forms of this process's calls."""

    def __init__(self, path: Path) -> None:
        """Create the file for its owner alone. Raises UsageError if it exists or cannot be created."""
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise UsageError(f"--record {path}: {error.strerror}\n  name a new file") from None
        self._path = path.resolve()
        self._room = MAX_BYTES

    def add(self, call: Call, answer: Answer | str) -> None:
        """Add a call and its answer, or the reason why none came."""
        masks = _masks(call.headers)
        line: dict[str, object] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "method": call.method,
            "url": address(call.url, masks),
            "headers": {name: _header(name, value, masks) for name, value in call.headers.items()},
        }
        if isinstance(answer, str):
            line["failed"] = answer
        else:
            headers = {name: _header(name, value, masks) for name, value in answer.headers.items()}
            line |= {"status": answer.status, "answer_headers": headers}
        bodies = {"sent": body_form(call.body, masks)}
        if isinstance(answer, Answer):
            bodies["answer"] = "a stream" if answer.body is None else body_form(answer.body, masks)
        text = json.dumps(line | bodies)
        if len(text) > MAX_LINE:
            text = json.dumps(line | dict.fromkeys(bodies, "left out: too large"))[:MAX_LINE]
        self._room -= len(text) + 1
        if self._room >= 0:
            with self._path.open("a") as file:
                file.write(f"{text}\n")


_recording: CallRecording | None = None


def record_calls(path: Path) -> None:
    """Record the calls of this process from now on. Raises UsageError for a file that exists."""
    global _recording  # noqa: PLW0603 - an option of every command, as the log's level is
    _recording = CallRecording(path)


def note(call: Call, answer: Answer | str) -> None:
    """Add a call to the recording, if one is kept."""
    if _recording is not None:
        _recording.add(call, answer)


# forms


def body_form(body: object, masks: frozenset[str]) -> object:
    """Return the form of a body: of its JSON, else its size."""
    if body is None:
        return None
    data = body.encode() if isinstance(body, str) else body
    if not isinstance(data, bytes):
        return "a file"
    try:
        return form(strict_json.decode(data), "", masks)
    except (ValueError, RecursionError):
        return f"<{len(data)} bytes>"


def form(value: object, key: str, masks: frozenset[str], depth: int = 0) -> object:
    """Return the form of a value of JSON below a key."""
    if isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            return f"<an object of {len(value)}>"
        return {_key_form(str(name)): form(one, str(name), masks, depth + 1) for name, one in value.items()}
    if isinstance(value, list):
        if depth >= MAX_DEPTH:
            return f"<a list of {len(value)}>"
        shown = [form(one, key, masks, depth + 1) for one in value[:MAX_ITEMS]]
        return [*shown, f"… {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else shown
    if isinstance(value, str):
        if _TIME.fullmatch(value):
            return value
        return masked(value, masks) if key in KEPT else f"<{len(value)} characters>"
    if value is None or isinstance(value, bool):
        return value
    return "<a number>" if _SECRET_NAME.search(key) else value


def masked(text: str, masks: frozenset[str]) -> str:
    """Return a text without words that may be secrets, cut to MAX_TEXT."""
    for mask in sorted(masks, key=len, reverse=True):
        text = text.replace(mask, HIDDEN)
    text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
    return _WORD.sub(lambda found: HIDDEN if may_be_secret(found[0]) else found[0], text)[:MAX_TEXT]


def may_be_secret(word: str) -> bool:
    """Whether a word looks generated: long, and neither made of English words nor a name of launcher's."""
    if _OUR_NAME.fullmatch(word.rpartition("/")[2]):
        return False
    is_encoded = len(word) >= LONGEST_WORD and _ENCODED.search(word) is not None
    return is_encoded or _UUID.search(word) is not None or any(map(_is_generated, _CHUNK.findall(word)))


def _is_generated(chunk: str) -> bool:
    if len(chunk) >= LONGEST_WORD:
        return _WORDS.fullmatch(chunk) is None
    return _HEX.fullmatch(chunk) is not None and not chunk.isdigit() and not chunk.isalpha()


def address(url: str, masks: frozenset[str]) -> str:
    """Return an address without its login, its secret parts, and the values of its query."""
    parts = urlsplit(url)
    host = masked(parts.hostname or "", masks)
    path = "/".join(masked(one, masks) for one in parts.path.split("/"))
    names = "&".join(f"{_key_form(name)}=" for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return f"{parts.scheme}://{host}{path}{f'?{names}' if names else ''}"


def _key_form(name: str) -> str:
    is_plain = _KEY.fullmatch(name) is not None and not may_be_secret(name)
    return name if is_plain else f"<{len(name)} characters>"


def _header(name: str, value: str, masks: frozenset[str]) -> str:
    if name.lower() == "authorization":
        scheme, _, secret = value.partition(" ")
        return f"{scheme if scheme in ('Basic', 'Bearer') else ''} <{len(secret)} characters>".strip()
    return masked(value, masks) if name.lower() in KEPT_HEADERS else f"<{len(value)} characters>"


def _masks(headers: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets that are known here: of the call's login, and of this process's variables."""
    secret = headers.get("Authorization", "").partition(" ")[2]
    found = {secret, *_decoded(secret)}
    found |= {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    long = {one for one in found if len(one) >= SHORTEST}
    encoded = {base64.b64encode(one.encode(errors="surrogateescape")).decode() for one in long}
    return frozenset(long | encoded | {quote(one, safe="") for one in long})


def _decoded(text: str) -> tuple[str, ...]:
    """Return the name and key in a login of the kind Basic."""
    try:
        return (base64.b64decode(text, validate=True).decode().partition(":")[2],)
    except ValueError:
        return ()
