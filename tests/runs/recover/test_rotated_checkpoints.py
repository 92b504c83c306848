"""A checkpoint that the host rotates away while it comes here leaves nothing behind."""

import hashlib
import json

import pytest

from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, RunError
from launcher.runs.follow.view import NullStage
from launcher.runs.pull.checkpoint_pulling import pull_checkpoint
from launcher.values.reported.checkpoint import sealed_checkpoint

RUN = "261125-walk-aaaaaa"
FILES = {"deep/a": b"first", "b": b"second"}


class Stream:
    """The bytes of the files that come before the link is told that the next one is gone."""

    def __init__(self, content):
        self._left = content

    def read(self, size):
        """Return the next bytes, or say that there are no more."""
        if not self._left:
            raise AgentError("A", "changed", "b: No such file or directory")
        piece, self._left = self._left[:size], self._left[size:]
        return piece


class Rotating:
    """A host whose newest checkpoint loses all but its first file while it is sent; the one after `torn` such is whole."""

    host = "A"

    def __init__(self, torn):
        self.runs = self
        self._torn, self._step = torn, 0

    def checkpoint(self, run, which):
        """Name the next one."""
        self._step += 1
        files = {
            name: {"size": len(data) + 1, "sha256": hashlib.sha256(self._of(data)).hexdigest()}
            for name, data in FILES.items()
        }
        self._manifest = json.dumps({"step": self._step, "files": files}).encode()
        digest = hashlib.sha256(self._manifest).hexdigest()
        return sealed_checkpoint(f"step-{self._step}", self._manifest, digest, {})

    def _of(self, data):
        return data + b"%d" % self._step

    def send(self, run, files, take):
        """Send them, as far as they are still there."""
        known = {**{name: self._of(data) for name, data in FILES.items()}, "manifest.json": self._manifest}
        asked = [known[path.split("/", 2)[2]] for path, _, _ in files]
        is_torn = self._step <= self._torn and len(asked) > 1
        take(Stream(asked[0] + asked[1][:3] if is_torn else b"".join(asked)))


@pytest.mark.parametrize("torn", [0, 2, 3])
def test_what_came_of_one_that_is_gone_is_removed(tmp_path, torn):
    """Else a long run would fill this disk with pieces; a file of the user's beside them stays."""
    local_copy = LocalCopy(RUN, tmp_path)
    mine = local_copy.checkpoints / "step-1" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    if torn < 3:
        home = pull_checkpoint(Rotating(torn), local_copy, "last", NullStage())
        assert [content.path.rpartition("/")[2] for content in home.fetched] == ["a", "b", "manifest.json"]
    else:
        with pytest.raises(RunError, match="3 times"):
            pull_checkpoint(Rotating(torn), local_copy, "last", NullStage())
    whole = [] if torn == 3 else [f"step-{torn + 1}/{name}" for name in (*FILES, "manifest.json")]
    here = {
        path.relative_to(local_copy.checkpoints).as_posix()
        for path in local_copy.checkpoints.rglob("*")
        if path.is_file()
    }
    assert here == {"step-1/notes.txt", *whole}
    assert list((local_copy.folder / ".parts").iterdir()) == []
    assert sorted(path.name for path in local_copy.checkpoints.iterdir()) == sorted(
        {"step-1", *(name.split("/")[0] for name in whole)}
    )
