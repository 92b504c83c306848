"""What failed here before does not go first: pure, from the facts of a probe."""

import pytest
from testbed.profiles import profile

from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.precision.precision_history import failed_before
from launcher.values.facts import PrecisionEvidence
from launcher.values.job import Job
from launcher.values.plan import Source

JOB = Job(name="sft", command=("python", "sft.py"), model="org/model", method="lora")
MODEL = Source(kind="name", value="org/model")
T4 = profile("t4")
RUNGS = ladder(LadderInputs(T4, "lora")).rungs


def record(rung=0, failed="fp16-unscale", time=1.0, **more):
    """What a run of the job on a T4 left."""
    values = {"card": "t4", "method": "lora", "job": "sft", "torch": "2.13.0+cu126", "run": "sft-5k7p"}
    return PrecisionEvidence(
        **{**values, "precision": RUNGS[rung].digest, "failed": failed, "time": time, **more}
    )


def failures(*records, job=JOB, model=MODEL, torch="2.13.0+cu126"):
    """The records that count for a new plan."""
    return failed_before(records, T4, job, model, torch)


def modes(*records, request="auto"):
    """The rungs that the records leave, as positions on the usual ladder."""
    known = [rung.digest for rung in RUNGS]
    return [
        known.index(rung.digest) for rung in ladder(LadderInputs(T4, "lora", failures=records), request).rungs
    ]


def test_a_rung_that_failed_here_moves_behind_the_next_one():
    """It stays on the ladder; the rungs keep their order otherwise."""
    assert modes() == [0, 1, 2]
    assert modes(record(0)) == [1, 0, 2]
    assert modes(record(0), record(1)) == [2, 0, 1]
    assert modes(record(1)) == [0, 1, 2]
    assert modes(record(0), record(2)) == [1, 0, 2]


def test_a_ladder_whose_every_rung_failed_is_as_it_was():
    """Nothing is better than another then."""
    assert modes(record(0), record(1), record(2)) == [0, 1, 2]


def test_its_reason_says_how_it_failed_but_not_in_which_run():
    """A plan contains no ids. A precision with another reason is the same precision."""
    rungs = ladder(LadderInputs(T4, "lora", failures=(record(0),))).rungs
    assert rungs[1].why == f"failed here before: fp16-unscale; {RUNGS[0].why}"
    assert rungs[0] == RUNGS[1]
    assert "5k7p" not in "".join(rung.why for rung in rungs)


def test_a_precision_that_is_requested_goes_first_whatever_failed():
    """`--precision fp16` is how a rung gets another chance."""
    assert modes(record(0), request="fp16") == [0, 1, 2]


def test_a_failure_counts_for_its_card_method_and_model():
    """Nothing else is known to fail as it did."""
    assert failures(record()) == (record(),)
    for more in ({"card": "titan_rtx"}, {"method": "full"}):
        assert failures(record(**more)) == ()


@pytest.mark.parametrize("model", [None, Source(kind="local", value="./model")])
def test_a_model_without_a_name_of_its_own_is_known_by_its_job(model):
    """`./model` of one project is not that of another."""
    assert failures(record(), model=model) == (record(),)
    assert failures(record(job="other"), model=model) == ()
    assert failures(record(job="other")) == (record(job="other"),)


@pytest.mark.parametrize(
    ("before", "now", "counts"),
    [
        ("2.13.0+cu126", "2.13.0+cu126", True),
        ("2.13.0+cu130", "2.13.0", True),
        ("2.13.0+cu126", "2.13.0+cu130", False),
        ("2.12.1+cu126", "2.13.0+cu126", False),
        (None, "2.13.0", True),
        ("2.13.0+cu126", None, True),
    ],
)
def test_another_torch_starts_afresh(before, now, counts):
    """PyPI's version names no build; a version that is unknown does not differ."""
    assert bool(failures(record(torch=before), torch=now)) is counts


def test_a_later_success_clears_a_failure():
    """The newest record of a precision counts, in whatever order the host lists them."""
    success = record(failed=None, time=2.0)
    assert failures(record(), success) == failures(success, record()) == ()
    again = record(time=3.0)
    assert failures(again, success, record()) == (again,)
    assert failures(record(), record(1, failed=None, time=2.0)) == (record(),)


@pytest.mark.parametrize("failed", ["not-learning", "user-code-error", "fp32"])
def test_a_failure_that_no_precision_causes_does_not_count(failed):
    """A rung is not to blame for it."""
    assert failures(record(failed=failed)) == ()
