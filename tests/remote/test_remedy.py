"""What follows a failure, as a value; and the values in force after any history."""

import pytest

from launcher.remote.remedy import TABLE, InForce, decide, in_force
from launcher.spec.record import Reason, State

LADDER = [{"mode": "fp16", "base_dtype": "float16"}, {"mode": "fp32", "base_dtype": "float32", "tf32": True}]


def verdict(name="nan-divergence", since=4, **more):
    told = {
        "ladder": LADDER,
        "rung": 0,
        "consumed": {"precision"},
        "may_begin_again": True,
        "attempts_left": 1,
    }
    return decide({"class": name, "since": since}, **{**told, "checkpoint": 2, **more})


@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("nan-divergence", 1),
        ("fp16-unscale", 1),
        ("bf16-unsupported", 1),
        ("bf16-dtype-mismatch", 1),
        ("not-learning", None),
    ],
)
def test_each_class_has_its_answer(name, rung):
    """A row of the table: the next rung, or the end."""
    found = verdict(name)
    assert found.reason == name
    assert (found.remedy and found.remedy["rung"]) == rung
    assert found.remedy or found.mend


def test_the_table_is_tested_whole():
    """A class of its own for each row above, known to the client as a reason to fail."""
    assert len(TABLE) == 5
    assert {Reason(name).state for name in TABLE} == {State.FAILED}


@pytest.mark.parametrize(
    ("more", "reason", "mend"),
    [
        ({"consumed": {"resume", "steps"}}, "nan-divergence", "worker.training_arguments"),
        ({"rung": 1}, "nan-divergence", "no rung is left below fp32 with tf32 over float32"),
        ({"may_begin_again": False}, "nan-divergence", "restart = true"),
        ({"attempts_left": 0}, "attempts-exhausted", "attempts"),
        ({"ladder": [None]}, "nan-divergence", "no rung is left"),
    ],
    ids=["not consumed", "last rung", "cannot resume", "no attempt left", "no ladder"],
)
def test_where_there_is_no_remedy_there_is_a_mend(more, reason, mend):
    """The run ends, and says what a person can do."""
    found = verdict(**more)
    assert (found.remedy, found.reason) == (None, reason)
    assert mend in found.mend


def test_a_remedy_says_in_one_sentence_what_it_does():
    """From which precision to which, and from where on."""
    text = "precision fp16 over float16 → fp32 with tf32 over float32, rung 2 of 2; resuming from step 2"
    assert verdict().remedy == {"class": "nan-divergence", "rung": 1, "resume_before": 4, "text": text}
    assert verdict(checkpoint=None).remedy["text"].endswith("; from the beginning")


def begun(rung, **state):
    return {"rung": rung}, {"began": True, **state}


FAILURE = {"class": "nan-divergence", "since": 4}
REMEDY = {"rung": 1, "resume_before": 4}
PREPARE = ({"kind": "prepare"}, {"state": "preparing"})
CONTACT = ({"kind": "contact"}, {"state": "resuming", "reason": "agent-lost"})
NEVER_BEGAN = ({"rung": 1}, {})


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([PREPARE], InForce(0, None, None)),
        ([PREPARE, begun(0)], InForce(0, None, None)),
        ([PREPARE, begun(0, failure=FAILURE)], InForce(0, None, FAILURE)),
        ([PREPARE, begun(0, failure=FAILURE), NEVER_BEGAN, CONTACT], InForce(0, None, FAILURE)),
        ([PREPARE, begun(0, failure=FAILURE), begun(1)], InForce(1, None, None)),
        ([PREPARE, begun(0, failure=FAILURE, remedy=REMEDY)], InForce(1, REMEDY, None)),
        ([PREPARE, begun(0, failure=FAILURE, remedy=REMEDY), NEVER_BEGAN, CONTACT], InForce(1, REMEDY, None)),
        ([PREPARE, begun(0, failure=FAILURE, remedy=REMEDY), begun(1)], InForce(1, None, None)),
        ([PREPARE, begun(0, remedy=REMEDY), begun(1), CONTACT, begun(1)], InForce(1, None, None)),
        ([PREPARE, begun(0, remedy=REMEDY), begun(1, failure=FAILURE)], InForce(1, None, FAILURE)),
    ],
)
def test_the_values_in_force_follow_from_what_is_on_disk(history, expected):
    """A rung is never forgotten; a remedy counts until an attempt has begun with it, a failure until it is answered."""
    assert in_force(history) == expected
