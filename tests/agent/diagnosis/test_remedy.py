"""What follows a failure, as a value; and the values in force after any history."""

import pytest

from launcher.agent.diagnosis.failures import FAILURES
from launcher.agent.diagnosis.remedy import (
    TABLE,
    AttemptFailure,
    CurrentChanges,
    FailedAttempt,
    Remedy,
    client_remedy,
    decide,
    in_force,
    tries,
)
from launcher.agent.training.retry import back_off_s
from launcher.values.record import Reason

LADDER = [{"mode": "fp16", "base_dtype": "float16"}, {"mode": "fp32", "base_dtype": "float32", "tf32": True}]
PLAN = {
    "ladder": LADDER,
    "split": {"global_batch": 64, "micro_batch": 8, "accumulation": 8},
    "loader_workers": 4,
}
ALL = {"precision", "split", "loaders", "activation_checkpointing", "resume"}


def verdict(name="nan-divergence", failure=(), **more):
    told = {
        "plan": PLAN,
        "changes": {},
        "consumed": ALL,
        "may_begin_again": True,
        "attempts_left": 1,
        "checkpoint": 2,
        "tries": 0,
    }
    return decide(
        FailedAttempt(
            failure=AttemptFailure(**{"name": name, "since": 4, **dict(failure)}), **{**told, **more}
        )
    )


CHANGES = {
    "nan-divergence": {"rung": 1},
    "fp16-unscale": {"rung": 1},
    "bf16-unsupported": {"rung": 1},
    "bf16-dtype-mismatch": {"rung": 1},
    "cuda-oom": {"micro_batch": 4, "accumulation": 16},
    "gpu-busy-exclusive": {},
    "host-oom-killed": {"loader_workers": 2},
    "port-in-use": {},
    "nccl-error": {},
    "disk-full": {"keep_checkpoints": 1},
    "checkpoint-corrupt": {},
    "preempted": {},
    "host-lost": {},
    "hang": {},
    "unknown": {},
}
NOT_NOW = {"no-gpu-in-container", "not-learning"}


@pytest.mark.parametrize("name", sorted({one.name for one in FAILURES} - {"none"}))
def test_each_class_has_its_answer(name):
    """Of all that is known of failures: an edit, or the end; nothing else is ever tried again."""
    found = verdict(name)
    assert found.reason == name
    assert (found.remedy and found.remedy.changes) == CHANGES.get(name)


def test_every_class_is_a_reason_to_fail():
    """Known to the client; what no rule knows is told by how it ended."""
    names = {one.name for one in FAILURES} - {"none", "unknown"}
    assert names <= set(Reason)
    assert TABLE.keys() == CHANGES.keys() | NOT_NOW


@pytest.mark.parametrize(
    ("name", "more", "waits_for"),
    [
        ("no-kernel-image", {}, "image"),
        ("driver-too-old", {}, "image"),
        ("gpu-lost", {}, "card"),
        ("no-gpu-in-container", {"is_in_container": True}, None),  # a new container first
        ("no-gpu-in-container", {"is_in_container": True, "tries": 1}, "client"),
        ("no-kernel-image", {"may_begin_again": False}, None),
        ("no-kernel-image", {"may_begin_again": False, "failure": {"has_trained": False}}, "image"),
        ("no-kernel-image", {"attempts_left": 0}, None),
        ("no-kernel-image", {"plan": {**PLAN, "rehearsed": True}}, None),
        ("user-code-error", {}, None),
    ],
)
def test_what_a_client_alone_can_mend_is_waited_for(name, more, waits_for):
    """Unless the script would do again what it has done, the attempts are used up, or there is no card anyway."""
    found = verdict(name, **more)
    assert found.waits_for == waits_for
    assert found.remedy is None or waits_for is None


@pytest.mark.parametrize(("is_job", "where"), [(False, "in a new container"), (True, "in a new job")])
def test_a_run_goes_on_where_its_place_makes_it_anew(is_job, where):
    """A cluster has no containers of ours."""
    remedy = client_remedy(AttemptFailure("preempted"), "client", 6, is_job=is_job)
    assert remedy.text == f"{where}; resuming from step 6"


@pytest.mark.parametrize(
    ("name", "more", "reason", "mend"),
    [
        ("nan-divergence", {"consumed": {"resume", "steps"}}, "nan-divergence", "worker.training_arguments"),
        ("nan-divergence", {"consumed": set()}, "nan-divergence", "lower the learning rate"),
        ("nan-divergence", {"consumed": set()}, "nan-divergence", "worker.autocast() and worker.scaler()"),
        ("unknown", {"consumed": set(), "may_begin_again": False}, "unknown", "to start it again"),
        (
            "nan-divergence",
            {"changes": {"rung": 1}},
            "nan-divergence",
            "no rung is left below fp32 with tf32",
        ),
        ("nan-divergence", {"may_begin_again": False}, "nan-divergence", "restart = true"),
        ("nan-divergence", {"attempts_left": 0}, "attempts-exhausted", "attempts"),
        ("nan-divergence", {"plan": {"ladder": [None]}}, "nan-divergence", "no rung is left"),
        ("cuda-oom", {"consumed": {"resume"}}, "cuda-oom", "knobs().split"),
        ("cuda-oom", {"failure": {"others": "others hold the card"}}, "cuda-oom", "others hold the card"),
        ("host-oom-killed", {"changes": {"loader_workers": 0}}, "host-oom-killed", "more memory"),
        ("host-oom-killed", {"consumed": {"resume"}}, "host-oom-killed", "loader_workers"),
        (
            "checkpoint-corrupt",
            {"failure": {"since": None, "mend": "fetch it"}},
            "checkpoint-corrupt",
            "fetch",
        ),
        (
            "unknown",
            {"tries": 1, "failure": {"reason": "exit-nonzero", "mend": "look"}},
            "exit-nonzero",
            "look",
        ),
        ("unknown", {"may_begin_again": False}, "unknown", "worker.resume_from"),
        ("hang", {"tries": 1}, "hang", ""),
        ("gpu-busy-exclusive", {"tries": 1}, "gpu-busy-exclusive", "no other process used the card"),
        (
            "gpu-busy-exclusive",
            {"tries": 5, "failure": {"others": "GPU 0 held by pid 8", "mend": "end it"}},
            "gpu-busy-exclusive",
            "end it",
        ),
        ("no-gpu-in-container", {}, "no-gpu-in-container", ""),
        ("user-code-error", {"failure": {"mend": "mend it"}}, "user-code-error", "mend it"),
    ],
)
def test_where_there_is_no_remedy_there_is_a_mend(name, more, reason, mend):
    """The run ends, and says what a person can do."""
    found = verdict(name, **more)
    assert (found.remedy, found.reason) == (None, reason)
    assert mend in found.mend


def test_memory_is_saved_step_by_step_and_the_global_batch_stays():
    """Down to a micro-batch of one, then activations are computed anew, then there is nothing left."""
    changes, seen = {}, []
    while (found := verdict("cuda-oom", changes=changes).remedy) is not None:
        changes = {**changes, **found.changes}
        seen.append(changes)
    assert [one["micro_batch"] * one["accumulation"] for one in seen] == [64] * 4
    assert [one["micro_batch"] for one in seen] == [4, 2, 1, 1]
    assert seen[-1]["activation_checkpointing"] is True
    planned = {**PLAN, "checkpointing": True}
    assert verdict("cuda-oom", changes={"micro_batch": 1, "accumulation": 64}, plan=planned).remedy is None


@pytest.mark.parametrize(("micro", "accumulation", "smaller"), [(6, 1, 3), (3, 1, 1), (9, 2, 3), (7, 1, 1)])
def test_an_odd_micro_batch_goes_down_to_a_divisor(micro, accumulation, smaller):
    """No example is lost."""
    plan = {
        "split": {"global_batch": micro * accumulation, "micro_batch": micro, "accumulation": accumulation}
    }
    found = verdict("cuda-oom", plan=plan).remedy.changes
    assert found == {"micro_batch": smaller, "accumulation": micro * accumulation // smaller}


def test_a_lost_gpu_wants_a_new_container_and_only_a_container_can_have_one():
    """Natively there is nothing to start anew."""
    assert verdict("no-gpu-in-container", is_in_container=True).remedy.changes == {}
    assert verdict("no-gpu-in-container", is_in_container=True, tries=1).remedy is None


def test_a_script_that_trained_nothing_is_started_again_without_having_asked():
    """If it takes its values from us, and the class is known: nothing is done twice."""
    untouched = {"failure": {"has_trained": False}, "may_begin_again": False}
    assert verdict("fp16-unscale", **untouched).remedy
    assert verdict("port-in-use", **untouched, consumed=set()).remedy is None
    assert verdict("unknown", **untouched).remedy is None


def test_a_script_that_ended_before_its_first_step_is_not_told_to_resume():
    """It ended before it would have asked for a checkpoint. After a step it is told why it is not restarted."""
    words = {"failure": {"mend": "read the line"}, "may_begin_again": False}
    before, after = ({**words, "failure": {**words["failure"], "has_trained": one}} for one in (False, True))
    assert verdict("unknown", **before).mend == "read the line"
    assert "never called worker.resume_from()" in verdict("unknown", **after).mend


def test_a_card_that_others_hold_is_waited_for_again():
    """Where nobody was seen to hold it, once is enough."""
    told = {"others": "GPU 0 held by pid 8 (ada)"}
    assert verdict("gpu-busy-exclusive", failure=told, tries=4).remedy is not None
    assert verdict("gpu-busy-exclusive", failure={"others": None}, tries=0).remedy is not None


def test_a_full_disk_is_waited_for_as_often_as_somebody_fills_it():
    """Where nobody makes room, as in a session of a service, one more attempt with fewer checkpoints is all."""
    first, again = {"tries": 0}, {"tries": 7, "changes": {"keep_checkpoints": 1}}
    assert verdict("disk-full", failure={"needs": 1000}, **first).remedy.text.startswith("old checkpoints")
    assert verdict("disk-full", failure={"needs": 1000}, **again).remedy.text.startswith(
        "as soon as there is room"
    )
    assert verdict("disk-full", **first).remedy is not None
    assert verdict("disk-full", **again).remedy is None
    assert [back_off_s(tries) for tries in (0, 1, 2, 3, 99)] == [0, 0, 30, 60, 600]


def test_a_remedy_says_in_one_sentence_what_it_does():
    """From what to what, and from where on."""
    text = "precision fp16 over float16 → fp32 with tf32 over float32, rung 2 of 2; resuming from step 2"
    told = {"class": "nan-divergence", "changes": {"rung": 1}, "resume_before": 4, "text": text}
    assert verdict().remedy.record() == told
    assert verdict(checkpoint=None).remedy.text.endswith("; from the beginning")
    batch = "micro-batch 8 → 4, accumulation 8 → 16 (global batch stays 64); resuming from step 2"
    assert verdict("cuda-oom").remedy.text == batch


def begun(changes=None, **state):
    return {"kind": "attempt", "changes": changes or {}}, {"began": True, **state}


DOWN = {"rung": 1}
FAILURE = {"class": "nan-divergence", "since": 4}
REMEDY = {"class": "nan-divergence", "changes": DOWN, "resume_before": 4, "text": "down"}
PREPARE = ({"kind": "prepare"}, {"state": "preparing"})
CONTACT = ({"kind": "contact"}, {"state": "resuming", "reason": "agent-lost"})
NEVER_BEGAN = ({"kind": "attempt", "changes": DOWN}, {})
SMALLER = {"changes": {"micro_batch": 4}}
ANSWERED = Remedy("nan-divergence", DOWN, 4, "down")
UNANSWERED = AttemptFailure("nan-divergence", since=4)
CHILD = ({"kind": "prepare", "changes": DOWN}, {"state": "preparing"})


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([PREPARE], CurrentChanges({}, None, None)),
        ([PREPARE, begun()], CurrentChanges({}, None, None)),
        ([PREPARE, begun(failure=FAILURE)], CurrentChanges({}, None, UNANSWERED)),
        ([PREPARE, begun(failure=FAILURE), NEVER_BEGAN, CONTACT], CurrentChanges({}, None, UNANSWERED)),
        ([PREPARE, begun(failure=FAILURE), begun(DOWN)], CurrentChanges(DOWN, None, None)),
        ([PREPARE, begun(failure=FAILURE, remedy=REMEDY)], CurrentChanges(DOWN, ANSWERED, None)),
        (
            [PREPARE, begun(failure=FAILURE, remedy=REMEDY), NEVER_BEGAN, CONTACT],
            CurrentChanges(DOWN, ANSWERED, None),
        ),
        ([PREPARE, begun(failure=FAILURE, remedy=REMEDY), begun(DOWN)], CurrentChanges(DOWN, None, None)),
        (
            [PREPARE, begun(remedy=REMEDY), begun(DOWN), CONTACT, begun(DOWN)],
            CurrentChanges(DOWN, None, None),
        ),
        (
            [PREPARE, begun(remedy=REMEDY), begun(DOWN, failure=FAILURE)],
            CurrentChanges(DOWN, None, UNANSWERED),
        ),
        (
            [PREPARE, begun(DOWN, remedy=SMALLER)],
            CurrentChanges({"rung": 1, "micro_batch": 4}, Remedy("", {"micro_batch": 4}, None, ""), None),
        ),
        ([CHILD], CurrentChanges(DOWN, None, None)),
        (
            [PREPARE, ({"kind": "attempt", "rung": 1}, {"began": True})],
            CurrentChanges(DOWN, None, None),
        ),  # of old
    ],
)
def test_the_values_in_force_follow_from_what_is_on_disk(history, expected):
    """An edit is never forgotten; a remedy counts until an attempt has begun with it, a failure until it is answered."""
    assert in_force(history) == expected


def failed(name, checkpoint):
    return begun(failure={"class": name}, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("history", "newest", "expected"),
    [
        ([], None, 0),
        ([failed("hang", None)], None, 1),
        ([failed("hang", None), failed("hang", None)], None, 2),
        ([failed("hang", None)], 5, 0),
        ([failed("hang", 5)], 5, 1),
        ([failed("hang", 5), failed("unknown", 5)], 5, 1),
        ([failed("hang", 5), failed("hang", 10)], 10, 1),
        ([failed("hang", 5), begun(checkpoint=5)], 5, 1),
    ],
)
def test_what_was_tried_in_vain_is_counted_since_the_last_checkpoint(history, newest, expected):
    """A crash every thousand steps is another matter than one at the same step each time."""
    assert tries(history, "hang", newest) == expected


@pytest.mark.parametrize(("ladder", "is_named"), [(LADDER, True), (LADDER[1:], False)])
def test_a_safer_precision_is_named_where_there_is_one(ladder, is_named):
    """A CPU has one rung."""
    found = verdict(consumed=set(), plan={**PLAN, "ladder": ladder})
    assert ("--adapt" in found.mend, "learning rate" in found.mend) == (is_named, True)


@pytest.mark.parametrize(("line", "asks"), [(None, True), ("Training failed: shapes do not fit", False)])
def test_a_second_start_is_not_advised_for_an_error_that_comes_again(line, asks):
    told = {"line": line, "mend": "read the line"}
    assert ("restart = true" in verdict("unknown", told, consumed=set(), may_begin_again=False).mend) == asks
