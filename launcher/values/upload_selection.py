"""The upload of a launch: the files that are sent, the excluded files with the reasons, and the sources of model and data."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, NamedTuple

from launcher.values.plan import Finding, Source


class ExclusionReason(enum.StrEnum):
    """The reason why a path in the folder is not sent, in words for users."""

    RULE = ".launchignore"
    CREDENTIALS = "credentials"
    KEY_NAME = "key or certificate"
    PRIVATE_KEY = "private key or token"
    BUILD_FILE = "named for builds"
    ENV_FILE = "given by --env-file"
    SETTINGS = "settings of launch"
    ENVIRONMENT = "virtual environment"
    CACHE = "cache"
    TRACKER = "wandb's records"
    REPOSITORY = "git's own"
    RUNS = "records of runs"
    ROOT = "a root of launch"
    GIT = "git ignores it"
    UNREADABLE = "cannot be listed"
    LINK_OUT = "points out of the folder"
    LINK_TO_LEFT_OUT = "points to an excluded path"
    SPECIAL = "no file"

    @property
    def is_routine(self) -> bool:
        """Whether users expect this exclusion, so that a summary need not name it."""
        return self in (
            ExclusionReason.CACHE,
            ExclusionReason.REPOSITORY,
            ExclusionReason.RUNS,
            ExclusionReason.ROOT,
            ExclusionReason.SETTINGS,
            ExclusionReason.BUILD_FILE,
        )

    @property
    def is_surprising(self) -> bool:
        """Whether a user may rely on the excluded path, so that a summary must name it."""
        return self in (
            ExclusionReason.LINK_OUT,
            ExclusionReason.LINK_TO_LEFT_OUT,
            ExclusionReason.SPECIAL,
            ExclusionReason.UNREADABLE,
        )

    @property
    def is_secret(self) -> bool:
        """Whether the path was excluded because it contains, or may contain, a secret."""
        return self in (
            ExclusionReason.CREDENTIALS,
            ExclusionReason.KEY_NAME,
            ExclusionReason.PRIVATE_KEY,
            ExclusionReason.BUILD_FILE,
            ExclusionReason.ENV_FILE,
        )


class Size(NamedTuple):
    """A number of bytes; `is_at_least` if counting stopped early, for a folder of very many files."""

    bytes: int
    is_at_least: bool = False


class ExcludedPath(NamedTuple):
    """A path that is not sent, relative to the code folder or to the folder under the job's `key`. A folder ends with `/`.

    `link` is a link's target. `size` is None if the path has no size or it is unknown.
    """

    path: str
    why: ExclusionReason
    size: Size | None = None
    link: str | None = None
    key: str | None = None

    @property
    def bytes(self) -> int | None:
        """The bytes, if known."""
        return self.size.bytes if self.size else None

    @property
    def at_least(self) -> bool:
        """Whether `bytes` is only a lower bound."""
        return self.size is not None and self.size.is_at_least


class JobSource(NamedTuple):
    """The model or a data set of a job: the text under its key, and its source.

    Sizes count only the files that are sent.
    """

    key: str
    written: str
    source: Source
    files: int = 0
    bytes: int = 0

    @property
    def kind(self) -> str:
        """The kind of its source."""
        return self.source.kind


class UploadSelection(NamedTuple):
    """The upload of a launch.

    `files` counts files and links, of code and of data; `bytes` counts each file once. `included` are the
    credentials that are sent because a `.launchignore` names them. `paths` are the code paths, relative to
    `folder`, empty folders included. `findings` are refusals.
    """

    folder: Path
    files: int
    bytes: int
    largest: tuple[tuple[str, int], ...]
    left_out: tuple[ExcludedPath, ...]
    sources: tuple[JobSource, ...]
    paths: frozenset[str]
    findings: tuple[Finding, ...] = ()
    included: tuple[ExcludedPath, ...] = ()

    def has(self, path: str) -> bool:
        """Return whether a path relative to the folder, written without `./`, is a file, link or folder that is sent."""
        return path in self.paths or any(known.startswith(f"{path}/") for known in self.paths)

    def why_left_out(self, path: str) -> ExcludedPath | None:
        """Return the entry that excludes a path: the path or a folder above it; None if it is not excluded."""
        for entry in self.left_out:
            if entry.key is not None:
                continue
            name = entry.path.rstrip("/")
            if path == name or (entry.path.endswith("/") and path.startswith(entry.path)):
                return entry
        return None

    def shown(self) -> dict[str, Any]:
        """Return the public part for scripts, without the list of paths; excluded paths are cut after 1,000 entries."""
        return {
            "folder": str(self.folder),
            "files": self.files,
            "bytes": self.bytes,
            "largest": [{"path": path, "bytes": size} for path, size in self.largest],
            "left_out": self.left_out[:1000],
            "left_out_count": len(self.left_out),
            "included": self.included,
            "sources": self.sources,
        }
