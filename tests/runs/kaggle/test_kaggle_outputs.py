"""What jobs leave in a session at Kaggle, wherever and under whatever name, comes home or is said to be left there."""

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.slow(reason="each test waits for a session")]
LEAVES = """
import os, shutil
import launcher_worker as worker

artifacts = os.fsencode(worker.knobs().artifacts)
working = os.fsencode(os.environ.get("LAUNCH_KAGGLE_WORKING", "/kaggle/working"))
odd = [b"plain", b"two\\nlines", b"no-text-\\xff", "\\u00e9\\u2028".encode()]
for path in [artifacts + b"/" + name for name in odd] + [working + b"/model.bin", working + b"/out/scores.csv"]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("left")
"""
TURNS = """
import os, shutil
shutil.rmtree("notes")
open("notes", "w").write("a file now")
"""


def test_what_lies_anywhere_in_the_working_folder_comes_home(kaggle_account):
    """A script for Kaggle writes to /kaggle/working. A name with control characters stays there, with its kernel, and is named."""
    account = kaggle_account
    account.client.script(LEAVES)
    said = account.client.seen("--host", "k", "--", "python", "train.py")
    (run,) = account.runs()
    home = account.client.runs / run
    names = {path.name for path in (home / "artifacts").iterdir()}
    assert names == {"plain", "no-text-\\xff"}, said
    assert "its name has control characters" in said
    for path in ("model.bin", "out/scores.csv"):
        assert (home / "outputs" / "WORK" / "working" / path).read_text() == "left", said
    assert account.kernels() == [f"alice/launch-{run}-1"]


@pytest.mark.long
def test_an_output_that_cannot_be_here_is_named_and_its_kernel_stays(kaggle_account):
    """The job has put a file where a folder was sent."""
    account = kaggle_account
    (account.client.project / "notes").mkdir()
    (account.client.project / "notes" / "one").write_text("sent")
    account.client.script(TURNS)
    said = account.client.seen("--host", "k", "--", "python", "train.py")
    (run,) = account.runs()
    assert account.kernels() == [f"alice/launch-{run}-1"]
    assert "work/code/notes" in said
    assert f"it is in alice/launch-{run}-1" in said
