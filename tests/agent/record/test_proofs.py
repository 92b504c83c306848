"""What a host keeps of precisions: one small file a key, and no more files than a bound."""

import json
import os
from pathlib import Path

import pytest
from testbed.profiles import profile

from launcher.agent.record import precision_evidence
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.values.facts import PrecisionEvidence

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
            str(tmp_path), {**RECORD, "proof": {"dtypes": "x" * precision_evidence.MAX_BYTES}}
        )
        is None
    )
    monkeypatch.setattr(precision_evidence, "MAX_FILES", 2)
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


MODEL = {"kind": "name", "value": "org/model"}
ENTRY = {
    "card": "t4", "method": "lora", "job": "sft", "run": "sft-5k7p", "precision": "ab", "torch": "2.13.0",
    "failed": None, "time": 5.0,
}  # fmt: skip


def kept(folder, number=0, **more):
    """Keep a record of a run, for a key of its own."""
    record = {
        **RECORD, "driver": None, "model": MODEL, "method": "lora", "job": "sft", "run": "sft-5k7p", "time": 5.0,
        "key": {"torch": "2.13.0", "model": str(number), "trainable": None, "precision": "ab"}, **more,
    }  # fmt: skip
    return precision_evidence.keep(str(folder), record)


@pytest.fixture
def without_driver(tmp_path, monkeypatch):
    """A host without a card."""
    monkeypatch.setattr(precision_evidence, "_DRIVER", str(tmp_path / "no driver"))


@pytest.mark.usefixtures("without_driver")
def test_what_is_recalled_is_of_the_model_and_of_the_present_driver(tmp_path):
    """Another model's, another driver's, and what an older agent kept without saying of which job, are left out."""
    folder = tmp_path / "evidence"
    assert precision_evidence.recall(str(folder), MODEL) == []
    kept(folder)
    kept(folder, 1, model={**MODEL, "value": "org/other"})
    kept(folder, 2, model=None)
    kept(folder, 3, driver="580.65.06")
    kept(folder, 4, job=None)
    assert precision_evidence.recall(str(folder), MODEL) == [ENTRY]
    assert len(precision_evidence.recall(str(folder), None)) == 1


@pytest.mark.usefixtures("without_driver")
@pytest.mark.parametrize(
    "more",
    [
        {"key": ["ab"]},
        {"key": {"precision": None}},
        {"key": {"precision": "a" * 101}},
        {"key": {"precision": "ab", "torch": 2.13}},
        {"card": 4},
        {"failed": {"class": "fp16-unscale"}},
        {"run": "r" * 101},
        {"time": "yesterday"},
        {"time": True},
        {"time": -1},
        {"measured": {"workload": "w"}},
        {"measured": {"workload": "w", "micro_batch": None, "fits": 4}},
        {"measured": {"workload": "w", "micro_batch": 4.5, "fits": 4}},
        {"measured": {"workload": "w", "micro_batch": 4, "fits": 0}},
        {"measured": {"workload": "w", "micro_batch": True, "fits": 4}},
        {"measured": {"workload": "w", "micro_batch": 4, "fits": 4, "too_large": 8.5}},
        {"measured": {"workload": "w", "micro_batch": 4, "fits": 4, "cosine": "nan"}},
        {"measured": {"workload": None, "micro_batch": 4, "fits": 4}},
    ],
)
def test_a_record_with_a_value_that_is_not_ours_is_not_recalled(tmp_path, more):
    """Whatever wrote it."""
    kept(tmp_path, **more)
    assert precision_evidence.recall(str(tmp_path), MODEL) == []


@pytest.mark.usefixtures("without_driver")
def test_a_measurement_is_recalled_as_a_client_takes_it(tmp_path):
    """Which refuses the whole probe, and so each launch there, for one wrong value."""
    measured = {"workload": "w", "micro_batch": 4, "fits": 8, "too_large": None, "tokens_per_s": 9.5}
    kept(tmp_path, measured=measured)
    kept(tmp_path, 1, measured={**measured, "micro_batch": None})
    [entry] = precision_evidence.recall(str(tmp_path), MODEL)
    assert PrecisionEvidence.model_validate(entry, strict=True).measured.fits == 8


@pytest.mark.usefixtures("without_driver")
def test_each_job_and_workload_keeps_its_own_measurement(tmp_path, monkeypatch):
    """Two scripts whose model is not known train the same number of weights, for example; the oldest make room."""
    figures = {"micro_batch": 4, "fits": 4}

    def jobs():
        return [
            (one["job"], one["measured"]["workload"])
            for one in precision_evidence.recall(str(tmp_path), MODEL)
        ]

    for moment, job in enumerate(["train", "tune", "train"]):
        for workload in ("short", "long"):
            path = kept(tmp_path, job=job, time=float(moment), measured={"workload": workload, **figures})
            os.utime(path, (moment, moment))
    assert sorted(jobs()) == [("train", "long"), ("train", "short"), ("tune", "long"), ("tune", "short")]
    monkeypatch.setattr(precision_evidence, "MAX_MEASURED", 2)
    failed = kept(tmp_path, failed="nan-divergence")
    kept(tmp_path, 1, measured={"workload": "short", **figures})
    path = kept(tmp_path, job="other", measured={"workload": "short", **figures})
    assert len(list(tmp_path.iterdir())) == 4
    assert {Path(failed), Path(path)} < {*tmp_path.iterdir()}


@pytest.mark.usefixtures("without_driver")
@pytest.mark.parametrize(
    ("more", "is_kept"),
    [
        ({}, False),
        ({"job": "other"}, False),
        ({"key": {"torch": "2.13.0+cu126", "precision": "ab"}}, False),
        ({"measured": {"workload": "long", "micro_batch": 4, "fits": 4}}, True),
        ({"key": {"torch": "2.12.0", "precision": "ab"}}, True),
        ({"key": {"torch": "2.13.0", "precision": "cd"}}, True),
        ({"card": "l40s"}, True),
        ({"method": "full"}, True),
        ({"model": None}, True),
    ],
)
@pytest.mark.parametrize("failed", [None, "nan-divergence"])
def test_a_precision_that_fails_has_no_measurement_any_more(tmp_path, more, is_kept, failed):
    """Of this workload, wherever its key is from; the worker may have reported none. The failure is kept as ever."""
    path = kept(tmp_path, **{"measured": {"workload": "short", "micro_batch": 4, "fits": 4}, **more})
    key = {"torch": "2.13.0", "model": None, "trainable": None, "precision": "ab"}
    written = kept(tmp_path, key=key, refuted="short", failed=failed)
    assert Path(path).exists() is is_kept
    assert (written is not None) is (failed is not None)
    assert len(list(tmp_path.iterdir())) == is_kept + (failed is not None)


@pytest.mark.usefixtures("without_driver")
def test_measurements_do_not_crowd_out_a_failure(tmp_path, monkeypatch):
    """It decides which precision goes first."""
    monkeypatch.setattr(precision_evidence, "MAX_RECALLED", 2)
    os.utime(kept(tmp_path, failed="nan-divergence"), (1, 1))
    for number in range(3):
        kept(tmp_path, measured={"workload": str(number), "micro_batch": 4, "fits": 4})
    recalled = precision_evidence.recall(str(tmp_path), MODEL)
    assert [(one["failed"], "measured" in one) for one in recalled] == [
        ("nan-divergence", False),
        (None, True),
        (None, True),
    ]


@pytest.mark.usefixtures("without_driver")
def test_what_is_recalled_is_bounded_and_no_file_can_hold_it_up(tmp_path, monkeypatch):
    """A FIFO, a link, a folder, a huge file, deep JSON and no JSON at all; the newest records count."""
    for number in range(5):
        os.utime(kept(tmp_path, number, time=float(number)), (number, number))
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(kept(tmp_path / "elsewhere", 9))
    (tmp_path / "huge.json").write_text('"' + "x" * (2 * precision_evidence.MAX_BYTES) + '"')
    (tmp_path / "deep.json").write_text("[" * 60000)
    (tmp_path / "none.json").write_bytes(b"\xff{")
    (tmp_path / "list.json").write_text("[]")
    times = [entry["time"] for entry in precision_evidence.recall(str(tmp_path), MODEL)]
    assert times == [4.0, 3.0, 2.0, 1.0, 0.0]
    monkeypatch.setattr(precision_evidence, "MAX_RECALLED", 2)
    assert len(precision_evidence.recall(str(tmp_path), MODEL)) == 2
    monkeypatch.setattr(precision_evidence, "MAX_READ", 1)
    assert precision_evidence.recall(str(tmp_path), MODEL) == []


def test_agent_and_client_give_a_precision_the_same_digest():
    """And so does the worker: by it a record is known to be of a rung."""
    for rung in ladder(LadderInputs(profile("t4"), "lora")).rungs:
        values = json.loads(rung.model_dump_json())
        assert precision_evidence.precision_digest(values) == rung.digest
        assert precision_evidence.precision_digest({**values, "why": "another reason"}) == rung.digest
