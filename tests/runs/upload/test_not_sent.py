"""A file that a script does not find, and that this client did not send, is named with the way to send it."""

from pathlib import Path

import pytest

from launcher.copy.run_files import RunFiles
from launcher.upload.excluded_files import explained, remember
from launcher.values.upload_selection import ExcludedPath, ExclusionReason, UploadSelection

LEFT_OUT = (
    ExcludedPath("data/", ExclusionReason.GIT),
    ExcludedPath("notes.txt", ExclusionReason.RULE),
    ExcludedPath(".env", ExclusionReason.CREDENTIALS),
    ExcludedPath("big.bin", ExclusionReason.GIT, key="data.train"),
)


@pytest.fixture
def local_copy(tmp_path):
    """A mirror's folder after a launch that left something out."""
    files = RunFiles(tmp_path / "0101-sft-w8q2")
    remember(files, UploadSelection(Path(), 0, 0, (), LEFT_OUT, (), frozenset()))
    return files


@pytest.mark.parametrize(
    ("path", "mend"),
    [
        ("data/train.bin", "!data/"),
        ("./data/train.bin", "!data/"),
        ("/home/me/.launch/runs/261122-x-abcdef/work/code/notes.txt", "!notes.txt"),
        (".env", "--env-file .env"),
    ],
)
def test_what_was_left_out_is_named(local_copy, path, mend):
    """However the script wrote its path."""
    line = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    found = explained(local_copy, {"class": "user-code-error", "line": line, "mend": "mend the script"})
    assert mend in found["mend"]
    assert "was not sent" in found["why"]


@pytest.mark.parametrize(
    "evidence",
    [
        {"class": "user-code-error", "line": "FileNotFoundError: [Errno 2] No such file or directory: 'other.txt'"},
        {"class": "user-code-error", "line": "FileNotFoundError: 'database/x'"},
        {"class": "cuda-oom", "line": "'data/train.bin'"},
        {"exit": 3},
    ],
)  # fmt: skip
def test_any_other_failure_keeps_its_words(local_copy, evidence):
    """Also one of a client that remembers nothing."""
    assert explained(local_copy, evidence) == evidence
    assert explained(RunFiles(local_copy.folder / "none"), evidence) == evidence
