"""A sealed checkpoint, as its host describes it: another machine's data, checked before any use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from launcher.base.text import is_obeyed
from launcher.values.base import Record
from launcher.values.reported.answers import RejectedCheckpoint
from launcher.values.reported.output import CONTENT, Content, Sha256, Size

MANIFEST = "manifest.json"
Step = Annotated[int, Field(ge=0, le=2**53)]


class SealedFile(Record):
    """A file of a checkpoint, as its manifest lists it."""

    size: Size
    sha256: Sha256


class CheckpointManifest(Record):
    """The fields of a manifest that the client uses."""

    step: Step
    files: dict[str, SealedFile]


class SealedCheckpoint(Record):
    """A checkpoint: the name of its folder, its step, and the manifest as bytes.

    `contents` are its files with their paths below the run's work/; the manifest comes last. `passed_over`
    are newer checkpoints that the host found damaged, with the reasons.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$")]
    step: Step
    manifest: bytes
    contents: tuple[Content, ...]
    passed_over: tuple[RejectedCheckpoint, ...] = ()


def sealed_checkpoint(
    name: str,
    manifest: bytes,
    sha256: str,
    changed_ns: Mapping[str, int],
    passed_over: Sequence[RejectedCheckpoint] = (),
) -> SealedCheckpoint:
    """Return the checkpoint that a manifest describes; `sha256` is the manifest's digest. Raises ValueError.

    `changed_ns` has the modification time of each file, by the host's clock.
    """
    listed = CheckpointManifest.model_validate_json(manifest)
    if is_obeyed("".join(listed.files)):
        raise ValueError("the name of one of its files has control characters")
    files = {**listed.files, MANIFEST: SealedFile(size=len(manifest), sha256=sha256)}
    contents = tuple(
        CONTENT.validate_python(
            (f"checkpoints/{name}/{path}", file.size, changed_ns.get(path, 0), file.sha256)
        )
        for path, file in files.items()
    )
    return SealedCheckpoint(
        name=name,
        step=listed.step,
        manifest=manifest,
        contents=contents,
        passed_over=tuple(passed_over),
    )
