"""What a host keeps of precisions: one small file a key, and no more files than a bound."""

import json
import os
from pathlib import Path

from launcher.remote.record import precision_evidence

RECORD = {
    "card": "t4",
    "driver": "580.65.06",
    "key": {"torch": "2.13.0"},
    "proof": {"steps": 20},
    "failed": None,
}


def test_a_key_has_one_file_which_the_latest_record_is_in(tmp_path):
    """Another card, driver or key has another; an order of words has not."""
    folder = str(tmp_path / "evidence")
    first = precision_evidence.keep(folder, RECORD)
    assert precision_evidence.keep(folder, dict(reversed(RECORD.items()), failed="nan-divergence")) == first
    assert json.loads(Path(first).read_text())["failed"] == "nan-divergence"
    others = [{"card": "l40s"}, {"driver": None}, {"key": {"torch": "2.14.0"}}]
    assert len({first, *(precision_evidence.keep(folder, {**RECORD, **other}) for other in others)}) == 4


def test_a_number_that_json_cannot_hold_is_a_text(tmp_path):
    """1e999 is strict JSON, and infinite once it is read."""
    path = precision_evidence.keep(str(tmp_path), {**RECORD, "proof": {"loss_last": float("inf")}})
    assert json.loads(Path(path).read_text())["proof"]["loss_last"] == "inf"


def test_neither_a_file_nor_the_folder_grows_without_bound(tmp_path, monkeypatch):
    """What is too large is not kept; the oldest make room."""
    assert (
        precision_evidence.keep(
            str(tmp_path), {**RECORD, "proof": {"dtypes": "x" * precision_evidence.MOST_BYTES}}
        )
        is None
    )
    monkeypatch.setattr(precision_evidence, "MOST_FILES", 2)
    paths = []
    for number in range(4):
        paths.append(precision_evidence.keep(str(tmp_path), {**RECORD, "card": str(number)}))
        os.utime(paths[-1], (number, number))
    assert sorted(map(str, tmp_path.iterdir())) == sorted(paths[2:])


def test_the_driver_is_that_of_the_kernel_s_own_word(tmp_path, monkeypatch):
    """With the open module and the closed one; none where there is no such file."""
    for words in (
        "UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27",
        "UNIX Open Kernel Module for x86_64  570.26  Release",
    ):
        (tmp_path / "version").write_text(f"NVRM version: NVIDIA {words}\nGCC version: gcc 13.3.0\n")
        monkeypatch.setattr(precision_evidence, "_DRIVER", str(tmp_path / "version"))
        assert precision_evidence.driver() == words.split("  ")[1]
    monkeypatch.setattr(precision_evidence, "_DRIVER", str(tmp_path / "missing"))
    assert precision_evidence.driver() is None
