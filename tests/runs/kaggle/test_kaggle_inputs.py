"""Datasets of a person's own on Kaggle: each session sees those that the host's table names, one that is gone ends nothing in silence."""

import pytest
from testbed.kaggle_state import Dataset

pytestmark = [pytest.mark.testbed, pytest.mark.slow(reason="each test waits for a session")]
READS = """
import os, pathlib
root = pathlib.Path(os.environ.get("LAUNCH_KAGGLE_INPUT", "/kaggle/input"))
print("found", next(root.rglob("words.txt")).read_text())
"""


def test_a_session_sees_the_datasets_of_the_hosts_table(kaggle_account, tmp_path):
    """It is pushed with the name, and the script finds the file below /kaggle/input."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "words.txt").write_text("a gated thing")
    state = kaggle_account.service.state
    state.datasets["alice/texts"] = Dataset("alice", "texts", {}, [tmp_path / "texts"])
    kaggle_account.host(datasets=["alice/texts"])
    kaggle_account.client.script(READS)
    said = kaggle_account.client.seen("--host", "k", "--", "python", "train.py")
    assert "found a gated thing" in said
    (push,) = kaggle_account.service.calls("SaveKernel")
    assert push["body"]["datasetDataSources"] == ["alice/texts"]


@pytest.mark.long
def test_a_dataset_that_does_not_exist_is_named_and_nothing_runs_without_it(kaggle_account):
    """Kaggle itself would only leave it out."""
    kaggle_account.host(datasets=["alice/typo"])
    kaggle_account.client.script(READS)
    done = kaggle_account.client.run("--host", "k", "--", "python", "train.py")
    assert done.returncode == 4, done.stderr
    assert "would run without alice/typo" in done.stderr
    assert kaggle_account.kernels() == []
