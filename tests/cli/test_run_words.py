"""The runs that a shell offers: found in a folder of mirrors, without a host and without a shell."""

import json
import time

import pytest
from testbed.entries import know

from launcher.cli.completion.run_words import offered_runs
from launcher.copy import index, index_folder, known_runs
from launcher.copy.run_files import RunFiles

OLD, MIDDLE, NEW = "261120-sft-aaa9w2", "261121-embed-k3f1x1", "261122-sft-lab777"


@pytest.fixture
def local_copy(tmp_path, monkeypatch):
    """Make the mirror of a run in the folder of this client's runs."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    monkeypatch.delenv("_LAUNCH_COMPLETE", raising=False)

    def make(run, state, order, **record):
        folder = tmp_path / run / "0001"
        folder.mkdir(parents=True)
        launched = time.time() - 7200 - 60 * (100 - order)
        know(run, tmp_path, order=order, launched=launched, **record)
        if state is not None:
            (folder / "state.json").write_text(json.dumps({"state": state}))
        return folder

    return make


@pytest.fixture
def three(local_copy):
    local_copy(OLD, "cancelled", 1)
    local_copy(MIDDLE, "running", 2)
    return local_copy(NEW, "failed", 3)


def values(verb, word="", before=()):
    return [offer.value for offer in offered_runs(verb, word, before)]


def test_runs_come_newest_first_with_their_state_their_name_and_their_age(three):
    """Below `last`, which is the newest; in the words of today."""
    assert [tuple(offer)[:2] for offer in offered_runs("logs", "")] == [
        ("last", "lab777  failed  sft  3 h ago"),
        (NEW, "failed  sft  3 h ago"),
        (MIDDLE, "running  embed  3 h ago"),
        (OLD, "stopped  sft  3 h ago"),
    ]


@pytest.mark.parametrize(
    ("word", "runs"),
    [
        ("261121", [MIDDLE]),
        ("k3", ["k3f1x1"]),
        ("a9w2", ["aaa9w2"]),
        ("9w", []),
        ("emb", [MIDDLE]),
        ("sft", [NEW, OLD]),
        ("sft-a", [OLD]),
        ("la", ["last", "lab777"]),
        ("zzz", []),
    ],
)
def test_a_word_is_the_start_of_an_id_of_its_last_part_or_its_name_or_its_last_four_letters(
    three, word, runs
):
    """What is offered begins with the word, where the id does."""
    assert values("logs", word) == runs


def test_bash_gets_the_last_part_for_a_name(three, monkeypatch):
    """It would replace the name by the digits that all ids begin with."""
    monkeypatch.setenv("_LAUNCH_COMPLETE", "complete_bash")
    assert values("logs", "sft") == ["lab777", "aaa9w2"]


@pytest.mark.parametrize(
    ("verb", "runs"),
    [
        ("stop", [MIDDLE]),
        ("resume", ["last", NEW, OLD]),
        ("rm", ["last", NEW, OLD]),
        ("attach", ["last", NEW, MIDDLE, OLD]),
        ("diagnose", ["last", NEW, MIDDLE, OLD]),
    ],
)
def test_a_verb_is_offered_the_runs_that_it_can_act_on(three, verb, runs):
    """`last` too only if it can act on that."""
    assert values(verb) == runs


def test_a_run_that_was_removed_from_its_host_can_only_be_looked_at(local_copy):
    """Its record here can still go."""
    local_copy(OLD, "succeeded", 1, freed=1.0)
    assert values("rm") == values("resume") == values("stop") == values("pull") == values("cp") == []
    assert values("rm --here") == values("logs") == ["last", OLD]


def test_a_run_of_which_nothing_was_heard_may_be_stopped(local_copy):
    """It may be live."""
    local_copy(OLD, None, 1)
    assert values("stop") == ["last", OLD]
    assert values("rm") == []


def test_a_run_is_not_offered_twice(three):
    """Behind `rm` stand several."""
    assert values("rm", "", [NEW]) == [OLD]
    assert values("rm", "", ["aaa9w2"]) == [NEW]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"state": 3}', b'{"launched": NaN}'])
def test_a_broken_record_hides_no_other_run(three, tmp_path, content):
    """Torn, empty, another's."""
    (three / "state.json").write_bytes(content)
    assert MIDDLE in values("logs")
    assert NEW in values("logs")
    (index.place(NEW) / "run.json").write_bytes(content)
    assert MIDDLE in values("logs")


def test_the_records_of_a_few_dozen_are_read_among_a_thousand(local_copy, tmp_path, monkeypatch):
    """Those of the newest; of an older one, when more of its id is typed."""
    ids = [f"2611{day:02}-sft-{number:06}" for day in range(1, 21) for number in range(50)]
    for run in ids:
        (tmp_path / run / "0001").mkdir(parents=True)
        know(run, tmp_path)
    read = []
    entry, record = index_folder.read, RunFiles.read_json
    monkeypatch.setattr(index_folder, "read", lambda run: read.append(run) or entry(run))
    monkeypatch.setattr(RunFiles, "read_json", lambda *one: read.append(one) or record(*one))
    assert known_runs.NEWEST <= 60
    offered = values("logs", "2611")
    assert len(offered) == known_runs.NEWEST
    assert len(read) == 2 * known_runs.NEWEST  # run.json and state.json
    assert set(offered) <= set(ids[-50:])
    assert values("logs", ids[3]) == [ids[3]]
