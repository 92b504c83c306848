"""The judge of a drill: what it lets pass, and what it does not."""

import json

import pytest

from launcher.drill.drill_judging import RunObservation, chosen, judge, minutes_of, model_after, read_ledger
from launcher.drill.drill_outcome import AT, FAULTS, SAMPLES, STEPS, Planned
from launcher.errors import UsageError

BY_NAME = {fault.name: fault for fault in FAULTS}


def steps(first, last, **changed):
    """The lines of some steps, 0.1 s each."""
    return [
        {
            "step": step,
            "samples": list(range((step - 1) * SAMPLES, step * SAMPLES)),
            "time": step / 10,
            **changed,
        }
        for step in range(first, last + 1)
    ]


HURT = {"hurt": "trainer-killed"}
END = {"end": STEPS}
GOOD = [
    {"begin": 0, "time": 0.0},
    *steps(1, 13),
    HURT,
    {"begin": 10, "time": 1.8},
    *steps(11, STEPS, time=2.0),
    END,
]


def seen(lines, **changed):
    text = "\n".join(json.dumps(line) for line in lines)
    values = {
        "ledger": read_ledger(text),
        "model": model_after(STEPS),
        "state": "succeeded",
        "reason": "completed",
        "differing": (),
        "left": (),
    }
    return RunObservation(**{**values, **changed})


def problems(lines, fault="trainer-killed", **changed):
    return "; ".join(judge(Planned(BY_NAME[fault]), seen(lines, **changed)).problems)


def test_a_run_that_went_on_from_its_checkpoint_is_as_expected():
    found = judge(Planned(BY_NAME["trainer-killed"]), seen(GOOD))
    assert (found.problems, found.lost) == ((), 3)
    assert found.silent_s == pytest.approx(0.7)  # from 1.3 to 2.0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line for line in GOOD if line != HURT], "the fault did not happen"),
        ([*GOOD, END], "reached the end 2 times"),
        (GOOD[:-1], "reached the end 0 times"),
        ([{"begin": 0}, *steps(1, 13), HURT, {"begin": 15}, *steps(16, STEPS), END], "only 13 steps"),
        ([{"begin": 0}, *steps(1, 13), HURT, {"begin": 5}, *steps(6, STEPS), END], "8 steps were trained again; at most 5"),
        ([{"begin": 0}, *steps(1, 13), HURT, {"begin": 10}, *steps(12, STEPS), END], "step 12 followed step 10"),
        ([{"begin": 0}, *steps(1, 12), *steps(13, 13, samples=[48, 49, 50]), HURT, *steps(14, STEPS), END], "other samples"),
        ([{"begin": 0}, *steps(1, 12), *steps(13, 13, samples=[48, 49, 50, 50]), HURT, *steps(14, STEPS), END], "other samples"),
    ],
)  # fmt: skip
def test_what_a_broken_run_leaves_in_the_ledger_is_seen(lines, words):
    assert words in problems(lines)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"state": "failed", "reason": "hang"}, "ended as failed: hang; expected: succeeded"),
        ({"state": "stopped", "reason": "by-user"}, "expected: succeeded"),
        ({"model": model_after(STEPS - 1)}, "differs from that of an undisturbed training"),
        ({"model": ""}, "differs from that of an undisturbed training"),
        (
            {"differing": ("record/0002/log.txt",)},
            "the local copy differs from the host: record/0002/log.txt",
        ),
        ({"left": ("process 7 drill.py",)}, "left on the host: process 7"),
    ],
)
def test_what_is_seen_from_outside_counts(changed, words):
    assert words in problems(GOOD, **changed)


def test_a_training_that_starts_again_for_its_client_is_not_as_expected():
    """A run does not notice who follows it."""
    assert "3 steps were trained again; at most 0 were expected" in problems(GOOD, "link-cut")


def test_a_torn_checkpoint_may_cost_two_intervals():
    lines = [{"begin": 0}, *steps(1, 13), HURT, {"begin": 5}, *steps(6, STEPS), END]
    assert problems(lines, "checkpoint-torn") == ""
    anew = [{"begin": 0}, *steps(1, 13), HURT, {"begin": 0}, *steps(1, STEPS), END]
    assert "13 steps were trained again; at most 10" in problems(anew, "checkpoint-torn")


def test_a_run_that_is_to_end_must_end_so():
    lines = [{"begin": 0}, *steps(1, 13), {"hurt": "folder-full"}]
    ended = {"state": "failed", "reason": "disk-full", "model": ""}
    assert problems(lines, "folder-full", **ended) == ""
    succeeded = {**ended, "state": "succeeded", "reason": None}
    assert "expected: failed" in problems(lines, "folder-full", **succeeded)
    assert "expected: failed" in problems(lines, "folder-full", **{**ended, "reason": "hang"})
    assert "reached the end" in problems([*lines, END], "folder-full", **ended)


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "7", '{"step": "x"}', '{"step": 1e999}', '{"begin": null, "step": null}', "\0", '{"time": "now"}']
)  # fmt: skip
def test_a_line_that_is_not_ours_counts_as_none(line):
    text = "\n".join([*(json.dumps(one) for one in GOOD), line])
    assert judge(Planned(BY_NAME["trainer-killed"]), seen(GOOD, ledger=read_ledger(text))).problems == ()


def test_by_default_all_faults_of_a_runtime_come_and_none_of_another():
    for runtime in ("native", "docker", "slurm"):
        planned = chosen((), runtime)
        assert [one.fault.name for one in planned] == [
            fault.name for fault in FAULTS if runtime in fault.runtimes
        ]
        assert {one.at for one in planned} == {AT}
        assert minutes_of(planned) == sum(one.fault.seconds for one in planned) / 60


def test_a_fault_can_be_named_with_its_step():
    (one,) = chosen(["agent-killed@3"], "native")
    assert (one.fault.name, one.at, one.name) == ("agent-killed", 3, "agent-killed@3")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("trainer-kiled", "trainer-killed"),
        ("hang@0", "from 1 to 39"),
        ("hang@40", "from 1 to 39"),
        ("hang@x", "from 1 to 39"),
        ("hang@-1", "from 1 to 39"),
        ("hang@", None),
        ("checkpoint-torn@3", "from 7 to 39"),
        ("job-requeued", "only with runtime slurm; this drill runs native"),
    ],
)
def test_a_fault_that_cannot_come_is_refused_with_the_mend(word, words):
    if words is None:
        assert chosen([word], "native")[0].at == AT
        return
    with pytest.raises(UsageError, match=words):
        chosen([word], "native")
