"""What the stand-in for Kaggle knows, and how it answers each call: accounts, kernels, datasets, blobs, quota.

Names, routes, fields and their defaults are as in kagglesdk 0.1.38, which kaggle 2.2.4 and 2.2.5 use. What no source says
is marked *unverified*: nothing here was compared with the real service.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from testbed.kaggle_session import Session

SOURCE_LIMIT = 900_000  # bytes; a ceiling of other launchers, no official figure found (unverified)
TITLE_LIMIT = 50  # kaggle-cli#179, of 2019: a longer one is answered with 500
PAGE_LIMIT = 200
GPU_SESSIONS = 2
BUSY = "Maximum batch GPU session count of {} reached."  # kaggle-cli#185
NO_QUOTA = "You have used up your weekly GPU quota."  # the words are unverified
RETIRED = {
    "NvidiaTeslaP100": "NvidiaTeslaT4",
    "TpuV38": "TpuV5E8",
    "Tpu1VmV38": "TpuV5E8",
    "TpuV232": "None",
    "TpuV2256": "None",
}
"""What runs instead, in silence: `_RETIRED_ACCELERATORS` of kaggle 2.2.5."""
SHAPES = {
    "None",
    "NvidiaTeslaT4",
    "NvidiaTeslaA100",
    "NvidiaL4",
    "NvidiaL4X1",
    "NvidiaH100",
    "NvidiaRtxPro6000",
    "TpuV5E8",
    "TpuV6E8",
}
WEEK_S = 30 * 3600.0
Body = dict[str, Any]


class RefusalError(Exception):
    """Raised when a call is refused: the HTTP status, and the words in the JSON that comes with it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass
class Version:
    """One version of a kernel: what was pushed, the machine that it got, and its session."""

    body: Body
    machine: str
    session: Session


@dataclass
class Kernel:
    """A kernel of an account."""

    id: int
    owner: str
    slug: str
    title: str
    versions: list[Version] = field(default_factory=list)
    made: float = field(default_factory=time.monotonic)
    ran: str = ""
    """When its last session was asked for, by the service's clock."""


@dataclass
class Blob:
    """A file on its way into a dataset."""

    path: Path
    name: str
    size: int


@dataclass
class Dataset:
    """A dataset of an account; each version is a folder."""

    owner: str
    slug: str
    body: Body
    versions: list[Path] = field(default_factory=list)
    made: float = field(default_factory=time.monotonic)


@dataclass
class Account:
    """Someone who may call, by a legacy key or an access token."""

    name: str
    key: str
    token: str
    is_active: bool = True


@dataclass
class Habits:
    """How the service behaves beyond its calls; tests change it. Most of it is unverified, so both ways can be tried."""

    queued_s: float = 0.0
    limit_s: float = 12 * 3600.0
    quota_s: float = WEEK_S
    used_s: float = 0.0
    gpu_sessions: int = GPU_SESSIONS
    source_limit: int = SOURCE_LIMIT
    missing_status: int = 403  # kaggle 2.2.4: "the most likely cause [of 401, 403] is a wrong kernel slug"
    shows_after_s: float = (
        0.0  # a user, 2026-09: for two to five minutes every call about a new kernel is denied
    )
    is_mismatch_refused: bool = False  # else the kernel lands at its title's slug
    keeps_outputs_of_failed: bool = False
    never_ends: bool = False  # sessions are called running after their ends
    has_new_mounts: bool = True  # /kaggle/input/notebooks/OWNER/SLUG, else /kaggle/input/SLUG
    unpacks_archives: bool = True
    dataset_ready_s: float = 0.0
    link_life_s: float = 3600.0
    skew_s: float = 0.0
    python: str = "python3"
    variables: dict[str, str] = field(default_factory=dict)


class State:
    """All of it. A method named after a call answers its body for an account. Every other method is for the HTTP half."""

    def __init__(self, folder: Path, habits: Habits) -> None:
        """Begin empty; sessions, datasets and blobs lie in a folder."""
        self.folder = folder
        self.habits = habits
        self.lock = threading.RLock()
        self.accounts: list[Account] = []
        self.kernels: dict[str, Kernel] = {}
        self.datasets: dict[str, Dataset] = {}
        self.blobs: dict[str, Blob] = {}
        self.refused: set[str] = set()
        self.pushes: list[str] = []  # accepted ones, as `OWNER/SLUG/VERSION`
        self.link_to = lambda path: path  # the HTTP half signs it
        self._numbers = iter(range(1, 10**9))

    # kernels

    def save_kernel(self, who: Account, body: Body) -> Body:
        """Accept a push, and run it; or say in a good answer why not."""
        text, title, slug = body.get("text", ""), body.get("newTitle"), body.get("slug", "")
        if len(text.encode()) > self.habits.source_limit:
            raise RefusalError(400, f"the source is larger than {self.habits.source_limit} bytes")
        if body.get("language") not in ("python", "r", "rmarkdown") or body.get("kernelType") not in (
            "script",
            "notebook",
        ):
            raise RefusalError(400, "language or kernelType is not valid")
        owner, _, name = slug.partition("/")
        if owner != who.name or not name:
            raise RefusalError(403, "Permission 'kernels.create' was denied")
        if title is not None and len(title) > TITLE_LIMIT:
            raise RefusalError(500, "An internal server error occurred")
        known = self.kernels.get(f"{owner}/{name}")
        if known is None and title is not None and slugify(title) != name:
            if self.habits.is_mismatch_refused:
                raise RefusalError(409, "the title does not resolve to the specified id")
            name = slugify(title)
            known = self.kernels.get(f"{owner}/{name}")
        if f"{owner}/{name}" in self.refused:  # as a user saw it: the name of a push without room is taken
            raise RefusalError(409, f"The slug {name} is already in use by another notebook")
        error = self._why_not(body)
        if error:
            if error.startswith(BUSY[:20]):
                self.refused.add(f"{owner}/{name}")
            return {"error": error}
        kernel = known or Kernel(next(self._numbers), owner, name, title or name)
        invalid = self._invalid(body)
        version = self._run(kernel, body, invalid)
        self.kernels[f"{owner}/{name}"] = kernel
        kernel.versions.append(version)
        kernel.ran = self.now()
        self.pushes.append(f"{owner}/{name}/{len(kernel.versions)}")
        return {
            "ref": f"/code/{owner}/{name}",
            "url": f"https://www.kaggle.com/code/{owner}/{name}",
            "versionNumber": len(kernel.versions),
            "kernelId": kernel.id,
            **{key: names for key, names in invalid.items() if names},
        }

    def get_kernel(self, who: Account, body: Body) -> Body:
        """Answer what a kernel is, with its source."""
        kernel, version = self._version(who, body)
        said = version.body
        kept = ("language", "kernelType", "isPrivate", "enableGpu", "enableTpu", "enableInternet")
        sources = ("datasetDataSources", "kernelDataSources", "competitionDataSources", "modelDataSources")
        metadata = {
            "id": kernel.id,
            "ref": f"{kernel.owner}/{kernel.slug}",
            "title": kernel.title,
            "author": kernel.owner,
            "slug": kernel.slug,
            "lastRunTime": kernel.ran,
            "currentVersionNumber": len(kernel.versions),
            "machineShape": version.machine,
            **{key: said[key] for key in (*kept, *sources) if key in said},
        }
        blob = {
            "source": said.get("text", ""),
            "language": said["language"],
            "kernelType": said["kernelType"],
        }
        return {"metadata": metadata, "blob": {**blob, "slug": kernel.slug}}

    def list_kernels(self, who: Account, body: Body) -> Body:
        """Answer a page of the caller's own kernels whose titles have some text. How the real search works is unverified."""
        size, page = int(body.get("pageSize", 20)), int(body.get("page", 1))
        own = [
            one
            for one in self.kernels.values()
            if one.owner == who.name and self.is_shown(f"{one.owner}/{one.slug}")
        ]
        found = [kernel for kernel in own if body.get("search", "") in kernel.title]
        listed = found[(page - 1) * size : page * size]
        return {
            "kernels": [
                {
                    "id": one.id,
                    "ref": f"{one.owner}/{one.slug}",
                    "title": one.title,
                    "author": one.owner,
                    "lastRunTime": one.ran,
                }
                for one in listed
            ]
        }

    def get_kernel_session_status(self, who: Account, body: Body) -> Body:
        """Answer a session's status, with the reason of a failure."""
        session = self._version(who, body)[1].session
        said = {"failureMessage": session.failure} if session.status == "ERROR" and session.failure else {}
        return {"status": session.status, **said}

    def list_kernel_session_output(self, who: Account, body: Body) -> Body:
        """Answer a page of the files that a session has left, with links, and its log."""
        kernel, version = self._version(who, body)
        number = kernel.versions.index(version) + 1
        files, following = self._page(self._outputs(version), body)
        where = f"output/{kernel.owner}/{kernel.slug}/{number}"
        listed = [{"url": self.link_to(f"{where}/{name}"), "fileName": name} for name in files]
        log = {"log": persisted_log(version.session)} if version.session.is_over else {}
        return {"files": listed, **log, **following}

    def list_kernel_files(self, who: Account, body: Body) -> Body:
        """Answer a page of the files that a session has left, with sizes."""
        version = self._version(who, body)[1]
        names, following = self._page(self._outputs(version), body)
        folder = version.session.folder / "working"
        files = [
            {"name": name, "size": (folder / name).stat().st_size, "creationDate": self.now()}
            for name in names
        ]
        return {"files": files, **following}

    def delete_kernel(self, who: Account, body: Body) -> Body:
        """Forget a kernel with all its versions, and end what runs of it."""
        kernel, _ = self._version(who, body)
        del self.kernels[f"{kernel.owner}/{kernel.slug}"]
        for version in kernel.versions:
            version.session.cancel()
        return {}

    def get_accelerator_quota_statistics(self, who: Account, body: Body) -> Body:
        """Answer what of the week's hours is used and reserved. How much a session reserves is unverified."""
        running = [version.session for version in self._gpu_versions() if not version.session.is_over]
        reserved = sum(max(0.0, session.limit_s - session.used_s()) for session in running)
        gpu = {
            "timeUsed": _seconds(self._used_s()),
            "timeReserved": _seconds(reserved),
            "totalTimeAllowed": _seconds(self.habits.quota_s),
            "minimumTimeAllowed": _seconds(WEEK_S),
            "hasEverRun": bool(self.pushes),
        }
        tpu = {
            "timeUsed": "0s",
            "timeReserved": "0s",
            "totalTimeAllowed": "72000s",
            "minimumTimeAllowed": "72000s",
        }
        return {"quotaRefreshTime": self.now(timedelta(days=3)), "gpuQuota": gpu, "tpuQuota": tpu}

    # datasets and blobs

    def start_blob_upload(self, who: Account, body: Body) -> Body:
        """Answer a token and the link for the bytes."""
        token = f"blob{next(self._numbers)}"
        (self.folder / "blobs").mkdir(exist_ok=True)
        name, size = body.get("name", ""), int(body.get("contentLength", 0))
        self.blobs[token] = Blob(self.folder / "blobs" / token, name, size)
        return {"token": token, "createUrl": self.link_to(f"upload/{token}")}

    def create_dataset(self, who: Account, body: Body) -> Body:
        """Make a dataset of blobs."""
        owner, slug = body.get("ownerSlug", who.name), body.get("slug") or slugify(body.get("title", ""))
        if owner != who.name:
            raise RefusalError(403, "Permission 'datasets.create' was denied")
        if f"{owner}/{slug}" in self.datasets:
            words = f'The requested title "{body.get("title")}" is already in use by a dataset.'
            return {"status": "error", "error": words}
        dataset = Dataset(owner, slug, body)
        self._add_files(dataset, body)
        self.datasets[f"{owner}/{slug}"] = dataset
        return self._made(dataset)

    def create_dataset_version(self, who: Account, body: Body) -> Body:
        """Add a version to a dataset."""
        dataset = self._dataset(who, body)
        dataset.made = time.monotonic()
        self._add_files(dataset, body.get("body", {}))
        return self._made(dataset)

    def get_dataset_status(self, who: Account, body: Body) -> Body:
        """Answer whether a dataset can be used yet."""
        dataset = self._dataset(who, body)
        is_ready = time.monotonic() - dataset.made >= self.habits.dataset_ready_s
        return {"status": "READY"} if is_ready else {"status": "BLOBS_RECEIVED"}

    def get_dataset(self, who: Account, body: Body) -> Body:
        """Answer what a dataset is."""
        dataset = self._dataset(who, body)
        ref = f"{dataset.owner}/{dataset.slug}"
        about = {"title": dataset.body.get("title"), "isPrivate": dataset.body.get("isPrivate", False)}
        return {
            "id": 1,
            "ref": ref,
            "ownerRef": dataset.owner,
            "currentVersionNumber": len(dataset.versions),
            **about,
        }

    def list_dataset_files(self, who: Account, body: Body) -> Body:
        """Answer a page of a dataset's files."""
        folder = self._dataset(who, body).versions[-1]
        names, following = self._page(_files_below(folder), body)
        sized = [
            {"name": name, "totalBytes": (folder / name).stat().st_size, "creationDate": self.now()}
            for name in names
        ]
        return {"datasetFiles": sized, **following}

    def delete_dataset(self, who: Account, body: Body) -> Body:
        """Forget a dataset."""
        dataset = self._dataset(who, body)
        del self.datasets[f"{dataset.owner}/{dataset.slug}"]
        return {}

    # accounts

    def introspect_token(self, who: Account | None, body: Body) -> Body:
        """Answer whose token it is; it needs no other authentication."""
        for account in self.accounts:
            if account.token == body.get("token") and account.is_active:
                return {"active": True, "username": account.name, "clientId": "", "scope": ""}
        return {"active": False}

    def generate_access_token(self, who: Account | None, body: Body) -> Body:
        """Give a fresh access token for a refresh token, which is `refresh-` and the account's key here."""
        for account in self.accounts:
            if body.get("refreshToken") == f"refresh-{account.key}" and account.is_active:
                account.token = f"KGAT_fresh{next(self._numbers)}{account.name}"
                return {"token": account.token, "expiresIn": 43_200, "userName": account.name, "userId": 1}
        raise RefusalError(401, "the refresh token is not valid")

    # for the HTTP half

    def now(self, later: timedelta = timedelta()) -> str:
        """Return a moment by the service's clock."""
        moment = datetime.now(UTC) + timedelta(seconds=self.habits.skew_s) + later
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"

    def session(self, who: Account, owner: str, slug: str, label: str | None = None) -> Session:
        """Return the session of a kernel's version. Raises RefusalError."""
        body = {"userName": owner, "kernelSlug": slug, **({"versionLabel": label} if label else {})}
        return self._version(who, body)[1].session

    def is_shown(self, ref: str) -> bool:
        """Whether there is a kernel that calls may ask for: a new one is denied for a while."""
        kernel = self.kernels.get(ref)
        return kernel is not None and time.monotonic() - kernel.made >= self.habits.shows_after_s

    def down(self) -> None:
        """End all sessions."""
        for kernel in list(self.kernels.values()):
            for version in kernel.versions:
                version.session.cancel()

    def _version(self, who: Account, body: Body) -> tuple[Kernel, Version]:
        """Find the version that a call is about: the latest, or that of a label such as `v3`."""
        owner, slug, label = body.get("userName"), body.get("kernelSlug"), body.get("versionLabel")
        kernel = self.kernels.get(f"{owner}/{slug}")
        if kernel is None or kernel.owner != who.name or not self.is_shown(f"{owner}/{slug}"):
            raise RefusalError(self.habits.missing_status, "Permission 'kernels.get' was denied")
        number = re.fullmatch(r"v([1-9]\d*)", label) if label else None
        if label and (number is None or int(number[1]) > len(kernel.versions)):
            raise RefusalError(404, f"no version {label}")
        return kernel, kernel.versions[int(number[1]) - 1 if number else -1]

    def _dataset(self, who: Account, body: Body) -> Dataset:
        dataset = self.datasets.get(f"{body.get('ownerSlug')}/{body.get('datasetSlug')}")
        if dataset is None or dataset.owner != who.name:
            raise RefusalError(self.habits.missing_status, "Permission 'datasets.get' was denied")
        return dataset

    def _gpu_versions(self) -> list[Version]:
        return [
            version
            for kernel in self.kernels.values()
            for version in kernel.versions
            if version.machine.startswith("Nvidia")
        ]

    def _used_s(self) -> float:
        return self.habits.used_s + sum(version.session.used_s() for version in self._gpu_versions())

    def _why_not(self, body: Body) -> str:
        """Return the error that stands in a good answer, or nothing."""
        if body.get("machineShape") == "None":  # as a user saw it: omitted or null, not the word
            return "Machine shape None is not available."
        shape = body.get("machineShape") or "None"
        if shape not in SHAPES and shape not in RETIRED:
            return f"Machine shape {shape} is not available."
        if not RETIRED.get(shape, shape).startswith("Nvidia"):
            return ""
        running = sum(not version.session.is_over for version in self._gpu_versions())
        if running >= self.habits.gpu_sessions:
            return BUSY.format(self.habits.gpu_sessions)
        return NO_QUOTA if self._used_s() >= self.habits.quota_s else ""

    def _invalid(self, body: Body) -> dict[str, list[str]]:
        """Return the sources that do not exist, by the field that names them in the answer."""

        def refs(key: str) -> list[str]:
            return list(body.get(key, []))

        def short(ref: str) -> str:
            return "/".join(ref.split("/")[:2])

        return {
            "invalidTags": refs("categoryIds"),
            "invalidDatasetSources": [r for r in refs("datasetDataSources") if short(r) not in self.datasets],
            "invalidCompetitionSources": refs("competitionDataSources"),
            "invalidKernelSources": [r for r in refs("kernelDataSources") if short(r) not in self.kernels],
            "invalidModelSources": refs("modelDataSources"),
        }

    def _run(self, kernel: Kernel, body: Body, invalid: dict[str, list[str]]) -> Version:
        """Start the session of a new version, with what it mounts."""
        number, habits = len(kernel.versions) + 1, self.habits
        folder = self.folder / "sessions" / f"{kernel.id}-{kernel.slug}-{number}"
        limit = min(habits.limit_s, body.get("sessionTimeoutSeconds") or habits.limit_s)
        session = Session(folder, body["text"], limit, has_internet=body.get("enableInternet", False))
        session.is_stuck = habits.never_ends
        for ref in body.get("datasetDataSources", []):
            if ref not in invalid["invalidDatasetSources"]:
                owner, slug = ref.split("/")[:2]
                self._mount(
                    session, self.datasets[f"{owner}/{slug}"].versions[-1], f"datasets/{owner}/{slug}", slug
                )
        for ref in body.get("kernelDataSources", []):
            if ref not in invalid["invalidKernelSources"]:
                owner, slug = ref.split("/")[:2]
                last = self.kernels[f"{owner}/{slug}"].versions[-1]
                mounted = self._mount(
                    session,
                    last.session.folder / "working",
                    f"notebooks/{owner}/{slug}",
                    slug,
                    set(self._outputs(last)),
                )
                mounted.mkdir(parents=True, exist_ok=True)
        shape = body.get("machineShape") or "None"
        version = Version(body, RETIRED.get(shape, shape), session)
        session.start(habits.python, habits.variables, habits.queued_s)
        return version

    def _mount(
        self, session: Session, source: Path, place: str, old_place: str, only: set[str] | None = None
    ) -> Path:
        """Copy a folder to where the session sees it."""
        target = session.folder / "input" / (place if self.habits.has_new_mounts else old_place)
        for name in _files_below(source):
            if only is None or name in only:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, target / name)
        return target

    def _outputs(self, version: Version) -> list[str]:
        session = version.session
        kept = session.status == "COMPLETE" or (session.is_over and self.habits.keeps_outputs_of_failed)
        return _files_below(session.folder / "working") if kept else []

    def _page(self, names: list[str], body: Body) -> tuple[list[str], Body]:
        """Return a page of some names, and the answer's pointer to the next."""
        size = min(int(body.get("pageSize") or 20), PAGE_LIMIT)
        begin = int(body.get("pageToken") or 0)
        more = {"nextPageToken": str(begin + size)} if begin + size < len(names) else {}
        return names[begin : begin + size], more

    def _add_files(self, dataset: Dataset, body: Body) -> None:
        """Add a version of blobs to a dataset. An archive is unpacked into a folder of its name (recalled, unverified)."""
        folder = self.folder / "datasets" / dataset.slug / str(next(self._numbers))
        folder.mkdir(parents=True)
        for listed in body.get("files", []):
            blob = self.blobs.get(listed.get("token", ""))
            if blob is None or not blob.path.is_file() or blob.path.stat().st_size != blob.size:
                raise RefusalError(400, "a file of the dataset was not uploaded")
            stem, _, kind = blob.name.partition(".")
            if self.habits.unpacks_archives and kind == "zip":
                shutil.unpack_archive(blob.path, folder / stem, "zip")
            elif self.habits.unpacks_archives and kind in ("tar", "tar.gz"):
                shutil.unpack_archive(
                    blob.path, folder / stem, kind.replace("tar.gz", "gztar"), filter="data"
                )
            else:
                shutil.copyfile(blob.path, folder / blob.name)
        dataset.versions.append(folder)

    def _made(self, dataset: Dataset) -> Body:
        ref = f"{dataset.owner}/{dataset.slug}"
        return {"ref": ref, "url": f"https://www.kaggle.com/datasets/{ref}", "status": "Ok"}


def slugify(title: str) -> str:
    """Return the slug of a title, as python-slugify does for ASCII."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def persisted_log(session: Session) -> str:
    """Return the log as it is kept after a session: a JSON array of the events of its stream."""
    return json.dumps([line.json() for line in session.log])


def _files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _seconds(value: float) -> str:
    return f"{int(value)}s"
