"""Save checkpoints, remove old ones, and find the one to resume from."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Union

from ..channel import rank, send
from ..guard import process_guard
from ..values import knobs
from .manifests import SealedManifest, seal, sealed_checkpoints, sync_folder
from .succession import check_fence


class Best(NamedTuple):
    """The checkpoint with the lowest `eval_loss`: its folder, its step, and that loss."""

    path: str
    step: int
    eval_loss: float


def save(
    step: int, source: Union[str, "os.PathLike[str]", Callable[[str], Any]], epoch: Optional[float] = None
) -> None:
    """Seal a checkpoint, report it, and remove the old checkpoints.

    `source` is a complete folder inside the checkpoints folder, or a function that writes the files into a
    given folder. That folder is renamed to `step-N` only when it is sealed, and replaces an older `step-N`.
    The last `keep_checkpoints` are kept, and the one with the lowest `eval_loss` if a loss was logged at its
    step. With `keep_checkpoints` 0, only the new one is kept, and the function is called after the old ones
    are removed.

    Only rank 0 saves and calls the function: gather sharded state before the call. After a bad step no
    checkpoint is sealed, because a resume must not start from it; an event reports the reason. Raises
    ValueError for a folder elsewhere, OSError on a disk error, and SupersededError if a later attempt has
    replaced this one.
    """
    if rank() != 0:
        return
    complaint = process_guard.complaint(step)
    if complaint is not None:
        send("evidence", step=step, values={"unsealed": complaint})
        return
    began_s = time.monotonic()
    values = knobs()
    checkpoints = Path(values.checkpoints)
    if callable(source):
        make_way(step)
        folder = _publish(checkpoints, step, source, epoch)
    else:
        folder = Path(source)
        if folder.resolve().parent != checkpoints.resolve():
            raise ValueError(
                f"save() got the folder {folder}, but checkpoints are looked for in {checkpoints}: "
                "write it into the folder, or pass a function that writes the files"
            )
        seal(folder, step, epoch)
    sync_folder(checkpoints)
    send("checkpoint", step=step, values={"path": folder.name, "seconds": time.monotonic() - began_s})
    if values.keep_checkpoints is not None:
        _remove_old(checkpoints, max(1, values.keep_checkpoints), keeps_best=values.keep_checkpoints > 0)


def make_way(step: int) -> None:
    """Remove the old checkpoints before this step's checkpoint is written, if the job keeps 0 of them.

    Until the new checkpoint is sealed, the run has none: a training that fails before then starts again from
    the beginning.
    """
    values = knobs()
    if values.keep_checkpoints == 0 and rank() == 0 and process_guard.complaint(step) is None:
        _remove_old(Path(values.checkpoints), 0, keeps_best=False)


def resume_from() -> Optional[str]:
    """Return the folder of the checkpoint to resume from, or None to start from the beginning.

    In a run the agent has chosen it: the newest checkpoint whose files all match the sizes and SHA-256 in its
    manifest. Outside a run it is the newest sealed checkpoint.
    """
    values = knobs()
    values.consume("resume")
    checkpoint = values.checkpoint
    if values.run is None:
        sealed = sealed_checkpoints(Path(values.checkpoints))
        checkpoint = max(sealed, key=lambda manifest: manifest["step"], default=None)
    if checkpoint is None:
        return None
    process_guard.locate(checkpoint["step"])
    path = Path(checkpoint["path"])
    return str(path) if values.peek.precision.scaler else _without_scaler(path)


def best() -> Optional[Best]:
    """Return the sealed checkpoint with the lowest `eval_loss`, which rotation keeps; None if none was logged."""
    rated = _rated(sealed_checkpoints(Path(knobs().checkpoints)))
    found = min(rated, key=lambda manifest: manifest["eval_loss"], default=None)
    return None if found is None else Best(found["path"], found["step"], found["eval_loss"])


def _rated(manifests: List[SealedManifest]) -> List[SealedManifest]:
    return [manifest for manifest in manifests if isinstance(manifest.get("eval_loss"), float)]


def _without_scaler(folder: Path) -> str:
    """Return a checkpoint without the state of a gradient scaler: a Trainer without a scaler fails on that state.

    A checkpoint with this state comes from an attempt at another precision. It is not changed: the result is
    a folder of links.
    """
    if not (folder / "scaler.pt").exists():
        return str(folder)
    view = folder.parent / ".without-scaler" / folder.name  # a script may read the step from the name
    view.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name != "scaler.pt":
            with contextlib.suppress(FileExistsError):  # another rank was faster
                (view / path.name).symlink_to(path.resolve())
    return str(view)


def _publish(checkpoints: Path, step: int, write: Callable[[str], Any], epoch: Optional[float]) -> Path:
    """Let `write` fill a hidden folder and seal it; then rename it to its final name."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    final, hidden, older = (
        checkpoints / name.format(step) for name in ("step-{}", ".step-{}.new", ".step-{}.old")
    )
    shutil.rmtree(hidden, ignore_errors=True)  # left behind by a crash
    shutil.rmtree(older, ignore_errors=True)
    hidden.mkdir()
    try:
        write(str(hidden))
        seal(hidden, step, epoch)
        check_fence()
        if final.exists():
            final.rename(older)
        hidden.rename(final)
    except BaseException:  # every error: torch and safetensors have their own for a full disk
        send("evidence", step=step, values={"unsaved": {"bytes": _size(hidden)}})
        raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    shutil.rmtree(older, ignore_errors=True)
    return final


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _remove_old(checkpoints: Path, keep: int, *, keeps_best: bool) -> None:
    """Remove all sealed checkpoints but the last `keep`; with `keeps_best` the best one stays too.

    Each is renamed first, so that an interrupted removal leaves no folder that looks like a checkpoint.
    """
    check_fence()
    sealed = sorted(sealed_checkpoints(checkpoints), key=lambda manifest: manifest["step"])
    best = min(_rated(sealed), key=lambda manifest: manifest["eval_loss"], default=None)
    for manifest in sealed[: max(0, len(sealed) - keep)]:
        if manifest is not best or not keeps_best:
            dropped = checkpoints / f".dropped-{os.path.basename(manifest['path'])}"
            shutil.rmtree(dropped, ignore_errors=True)
            os.rename(manifest["path"], dropped)
            shutil.rmtree(dropped, ignore_errors=True)
