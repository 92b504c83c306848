"""The trials of a verification: their order, and an agent that makes them one after the other and survives its own death."""

import json
import os
from pathlib import Path

import pytest
from testbed.client import until
from testbed.tables import mostly_long
from testbed.toy import Toy, rung

from launcher.agent.record import precision_evidence
from launcher.agent.system import process
from launcher.agent.training import trials
from launcher.agent.training.trials import GOOD, FinishedTrial, Trial, next_trial

OOM = "cuda-oom"


def plan(*modes, kind="cuda", share=16, micro=4, rehearsed=False):
    """A verification of a ladder."""
    return {
        "profile": {"kind": kind},
        "rehearsed": rehearsed,
        "ladder": [rung(mode) for mode in modes or ("fp16", "fp32")],
        "split": {"global_batch": share, "ranks": 1, "micro_batch": micro, "accumulation": share // micro},
        "verification": {"steps": 12, "held": 6, "workload": "w"},
    }


def made(plan, answers, takes_batch=True):
    """The trials that are made if each ends as `answers` says; as (kind, rung, micro-batch)."""
    ended, told = [], []
    while (trial := next_trial(plan, ended)) is not None:
        told.append((trial.kind, trial.rung, trial.micro_batch))
        assert trial.micro_batch * trial.accumulation == 16
        assert len(told) < 40, told
        result = answers(trial)
        measured = {"key": {}} if result == GOOD else None
        ended.append(FinishedTrial(trial, result, measured, takes_batch))
    return told


def out_of_memory_above(limit, wide=0):
    """A card on which no larger micro-batch fits; in fp32, which is the last rung, none above `wide`."""

    def answer(trial):
        if trial.kind == "card":
            return GOOD
        return GOOD if trial.micro_batch <= (wide or limit if trial.rung == 1 else limit) else OOM

    return answer


CARD = ("card", 0, 4)
ORDERS = {
    # name: (plan, answers, the trials after the card's)
    "all good, and the whole share fits": (
        plan(),
        lambda _: GOOD,
        [("rung", 1, 4), ("rung", 0, 4), ("batch", 0, 8), ("batch", 0, 16)],
    ),
    "8 is the largest": (
        plan(),
        out_of_memory_above(8),
        [("rung", 1, 4), ("rung", 0, 4), ("batch", 0, 8), ("batch", 0, 16)],
    ),
    "the planned one is too large": (
        plan(),
        out_of_memory_above(2),
        [("rung", 1, 4), ("rung", 1, 2), ("rung", 0, 4), ("rung", 0, 2)],
    ),
    "only fp32 has no room": (
        plan(),
        out_of_memory_above(4, wide=-1),
        [("rung", 1, 4), ("rung", 1, 2), ("rung", 1, 1), ("rung", 0, 4), ("batch", 0, 8)],
    ),
    "nothing has room": (
        plan(),
        out_of_memory_above(0, wide=-1),
        [*(("rung", 1, size) for size in (4, 2, 1)), *(("rung", 0, size) for size in (4, 2, 1))],
    ),
    "the first rung does not train": (
        plan(),
        lambda trial: "nan-divergence" if trial.rung == 0 and trial.kind != "card" else GOOD,
        [("rung", 1, 4), ("rung", 0, 4), ("batch", 1, 8), ("batch", 1, 16)],
    ),
    "a CPU has no memory to fill": (plan("fp32", kind="cpu"), lambda _: GOOD, [("rung", 0, 4)]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_trials_of_a_card(name):
    """fp32 comes first, since the others are compared with it; the largest micro-batch is looked for last."""
    asked, answers, expected = ORDERS[name]
    assert made(asked, answers) == [CARD, *expected]


def test_a_rehearsal_tries_the_rungs_alone():
    """A CPU shows neither the card's speed nor its memory."""
    assert made(plan(rehearsed=True), lambda _: GOOD) == [("rung", 1, 4), ("rung", 0, 4)]


def test_a_card_that_cannot_be_used_ends_it():
    """No training could."""
    assert made(plan(), lambda _: "no-kernel-image") == [CARD]


def test_a_script_with_a_batch_of_its_own_is_tried_once_a_rung():
    """Another micro-batch would change nothing."""
    answers = out_of_memory_above(0, wide=-1)
    assert made(plan(), answers, takes_batch=False) == [CARD, ("rung", 1, 4), ("rung", 0, 4)]


def test_tf32_is_not_the_reference():
    """Its products are rounded, so it is compared as well."""
    asked = plan("bf16", "fp32", "fp32")
    asked["ladder"][1]["tf32"] = True
    assert trials.order(asked["ladder"]) == [2, 0, 1]


def recorded(trial, name=None, measured=None):
    """The records of a folder."""
    failure = {"class": name} if name else None
    return (
        {"kind": "attempt", "changes": trial.changes()},
        {"failure": failure, "trial": measured, "consumed": ["precision", "split"]},
    )


def test_what_says_nothing_is_made_once_more():
    """A taken port is no property of a precision; twice in a row it counts. A trial in the middle has not ended."""
    trial = Trial("rung", 0, 4, 4)
    assert trials.ended_trials([recorded(trial)]) == []
    assert trials.ended_trials([recorded(trial, "port-in-use")]) == []
    twice = trials.ended_trials([recorded(trial, "port-in-use"), recorded(trial, "port-in-use")])
    assert [one.result for one in twice] == ["port-in-use"]
    good = trials.ended_trials([recorded(trial, "port-in-use"), recorded(trial, measured={"steps": 12})])
    assert good == [FinishedTrial(trial, GOOD, {"steps": 12}, True)]
    assert trials.ended_trials([({"kind": "prepare"}, {}), recorded(trial, OOM)])[0].result == OOM


def test_a_measurement_names_what_fits_and_what_does_not():
    """From the trials of that rung alone."""
    ended = [
        FinishedTrial(Trial("rung", 1, 4, 4), OOM),
        FinishedTrial(Trial("rung", 0, 4, 4), GOOD, {"tokens_per_s": 9.0}, True),
        FinishedTrial(Trial("batch", 0, 8, 2), GOOD, {"tokens_per_s": 12.0}, True),
        FinishedTrial(Trial("batch", 0, 16, 1), OOM),
    ]
    assert trials.measurement(ended, 0) == {"tokens_per_s": 9.0, "fits": 8, "too_large": 16}
    assert trials.measurement(ended, 1) is None


# an agent that makes them: the job is a script without torch, which reports what the worker's would

CARD_PROGRAM = """
import os, socket, json, time
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["LAUNCH_SOCKET"])
values = {"trial": {"kind": "card", "device": "cpu", "products": {}}}
channel.sendall(json.dumps({"kind": "evidence", "step": None, "rank": 0, "time": time.time(), "values": values}).encode() + b"\\n")
open(os.path.join(os.environ["HOME"], "cards"), "a").write("x")
"""
JOB = """
trial, micro = values["trial"], values["split"]["micro_batch"]
write(trial=trial["kind"], micro=micro, steps=trial["steps"], held=trial["held"], reference=trial["is_reference"])
tell("consumed", knobs=["precision", "split"])
{hook}
if micro > {limit}:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", file=sys.stderr)
    sys.exit(1)
key = {{"torch": "2.13.0", "model": "m", "trainable": "t", "precision": "p%d" % rung}}
tell("evidence", trial=dict(kind=trial["kind"], steps=trial["steps"], micro_batch=micro, tokens_per_s=100.0 + rung, cosine=0.999, key=key))
time.sleep(0.05)
"""

slow = pytest.mark.slow(reason="each test starts an agent, which makes several attempts, without torch")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A verification on this machine; what it leaves is ended."""
    made = Toy(tmp_path)
    package = tmp_path / "site" / "launcher_worker" / "trials"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "card.py").write_text(CARD_PROGRAM)
    monkeypatch.setenv("LAUNCH_TEST_SITE", str(package.parents[1]))
    yield made
    made.clear_away()


def verify(toy, modes=("fp16", "fp32"), limit=99, hook="", kind="cuda", **more):
    """Plan the verification, and write its job."""
    told = plan(*modes, kind=kind)
    profile = {"name": "t4", "title": "T4", "kind": kind, "memory_gb": 16, "capability": "7.5", "count": 1}
    more = {"attempts": 100, "restart": True, "job": "toy", "model": None, **more}
    toy.plan(modes=modes, **{**more, "profile": profile, "split": told["split"], "verification": told["verification"]})  # fmt: skip
    toy.script(JOB.format(limit=limit, hook=hook))
    code = Path(toy.run.code)
    for path in Path(os.environ["LAUNCH_TEST_SITE"]).rglob("*.py"):
        target = code / path.relative_to(os.environ["LAUNCH_TEST_SITE"])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    return toy


def tried(toy):
    """The trials that the job saw, by its own ledger."""
    return [(line["trial"], line["micro"]) for line in toy.ledger() if "trial" in line]


def evidence(toy):
    """What the host has kept, by the digest of the precision."""
    folder = Path(toy.run.evidence(process.host_id()))
    records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return {record["key"]["precision"]: record for record in records}


@slow
def test_an_agent_makes_all_trials_and_keeps_what_they_measured(toy):
    """Each in a process of its own, from step 0; the run has succeeded, and the host remembers."""
    said = "until(lambda: state()['consumed']); write(reason=state()['reason'])"
    state = verify(toy, limit=8, hook=said).ended()
    assert (state["state"], state["reason"]) == ("succeeded", "verified")
    assert (toy.home / "cards").read_text() == "x"
    assert tried(toy) == [("rung", 4), ("rung", 4), ("batch", 8), ("batch", 16)]
    told = [line for line in toy.ledger() if "trial" in line]
    assert [line["reference"] for line in told] == [True, False, False, False]
    assert [line["held"] for line in told] == [6, 6, 0, 0]
    begun = [event["values"] for event in toy.events("state") if event["values"]["state"] == "running"]
    assert [(one["trial"], one["rung"], one["micro_batch"], one["steps"]) for one in begun] == [
        ("card", 0, 4, None), ("rung", 1, 4, 12), ("rung", 0, 4, 12), ("batch", 0, 8, 4), ("batch", 0, 16, 4),
    ]  # fmt: skip
    reasons = [line["reason"] for line in toy.ledger() if "reason" in line]
    assert reasons == [
        f"verifying, {what}" for what in ("rung 2 of 2", "rung 1 of 2", "micro-batch 8", "micro-batch 16")
    ]
    ended = [(event["values"]["trial"], event["values"]["result"]) for event in toy.events("trial")]
    assert ended == [("card", GOOD), ("rung", GOOD), ("rung", GOOD), ("batch", GOOD), ("batch", OOM)]
    kept = evidence(toy)
    assert kept["p0"]["measured"] == {
        "micro_batch": 4, "fits": 8, "too_large": 16, "cosine": 0.999, "step_s": None, "tokens_per_s": 100.0,
        "examples_per_s": None, "peak_gb": None, "workload": "w",
    }  # fmt: skip
    assert (kept["p1"]["measured"]["fits"], kept["p1"]["measured"]["too_large"]) == (4, None)
    assert precision_evidence.recall(toy.run.evidence(process.host_id()), None)


@slow
@mostly_long("at", ["card", "rung", "batch"], ci=(2,))
def test_an_agent_that_dies_repeats_only_the_trial_that_it_was_in(toy, at):
    """Its successor reads from the records what has been tried."""
    mark = toy.home / "killed"
    die = f"open({str(mark)!r}, 'x').close(); kill_agent()"
    hook = f"if trial['kind'] == {at!r} and not os.path.exists({str(mark)!r}): {die}"
    verify(toy, limit=8, hook=hook)
    if at == "card":
        program = Path(toy.run.code) / "launcher_worker" / "trials" / "card.py"
        die = f"open({str(mark)!r}, 'x').close(); os.kill(os.getppid(), 9); time.sleep(60)"
        program.write_text(CARD_PROGRAM + f"if not os.path.exists({str(mark)!r}): {die}\n")
    assert toy.ended()["reason"] == "verified"
    once = [("rung", 4), ("rung", 4), ("batch", 8), ("batch", 16)]
    repeated = {"card": once, "rung": [once[0], *once], "batch": [*once[:3], *once[2:]]}
    assert tried(toy) == repeated[at]
    assert len((toy.home / "cards").read_text()) == (2 if at == "card" else 1)


@slow
def test_a_job_that_trains_in_no_precision_has_failed_with_its_first_reason(toy):
    """The rungs are tried all the same, since another one may work."""
    state = verify(toy, limit=0).ended()
    assert (state["state"], state["reason"]) == ("failed", OOM)
    assert tried(toy) == [("rung", size) for size in (4, 2, 1, 4, 2, 1)]
    assert {one["failed"] for one in evidence(toy).values()} <= {None}


@slow
def test_a_job_that_ends_without_a_step_is_not_verified(toy):
    """Exit status 0 is not enough: it must have shown something."""
    state = verify(toy, hook="sys.exit(0)").ended()
    assert (state["state"], state["reason"]) == ("failed", "not-verifiable")
    assert "--adapt" in state["evidence"]["mend"]
    assert evidence(toy) == {}


@slow
@mostly_long("steps", ["4", "6", "None"], ci=(0,))
def test_a_job_that_ends_while_its_weights_are_held_is_not_verified(toy, steps):
    """None of its weights could have moved, so nothing of it is kept. It is not tried for ever."""
    state = verify(toy, hook=f"trial = {{**trial, 'steps': {steps}}}").ended()
    assert (state["state"], state["reason"]) == ("failed", "not-verifiable")
    assert "--set steps=12" in state["evidence"]["mend"]
    assert tried(toy) == [("rung", 4)] * 2
    assert evidence(toy) == {}


@slow
def test_a_measurement_without_a_value_is_one(toy):
    """Of the card, here: it is not measured for ever."""
    verify(toy)
    program = Path(toy.run.code) / "launcher_worker" / "trials" / "card.py"
    program.write_text(
        CARD_PROGRAM.replace('{"trial": {"kind": "card", "device": "cpu", "products": {}}}', '{"trial": {}}')
    )
    assert toy.ended()["reason"] == "verified"
    assert (toy.home / "cards").read_text() == "x"


@slow
def test_a_failure_of_the_precision_is_kept_as_that_of_any_run(toy):
    """The next plan begins with another rung."""
    hook = "if rung == 0: trip(3, 2); time.sleep(60)"
    state = verify(toy, hook=hook).ended()
    assert state["reason"] == "verified"
    ended = [(one["values"]["rung"], one["values"]["result"]) for one in toy.events("trial")][1:]
    assert ended == [(1, GOOD), (0, "nan-divergence"), (1, GOOD), (1, GOOD)]
    failed = [one["failed"] for one in evidence(toy).values() if one["failed"]]
    assert failed == ["nan-divergence"]


def test_a_measurement_is_refuted_by_what_the_precision_may_have_caused():
    """Not by a taken port, nor by a job that shows nothing; nor by a batch, which the measurement names."""
    rung, batch = Trial("rung", 0, 4, 4), Trial("batch", 0, 8, 2)
    refuting = ["cuda-oom", "user-code-error", "unknown", "nan-divergence"]
    for result in refuting:
        assert trials.is_refuted([FinishedTrial(rung, result)], rung)
    for result in (GOOD, "not-verifiable", "port-in-use", "gpu-busy-exclusive"):
        assert not trials.is_refuted([FinishedTrial(rung, result)], rung)
    assert not trials.is_refuted([FinishedTrial(rung, GOOD), FinishedTrial(batch, OOM)], batch)
    assert not trials.is_refuted([], rung)


def measured_before(toy):
    """Put what an earlier verification has measured of the first rung onto the host; return its file."""
    key = {"torch": None, "precision": precision_evidence.precision_digest(rung("fp16"))}
    measured = {"workload": "w", "micro_batch": 4, "fits": 4, "tokens_per_s": 900.0}
    record = {
        "card": "t4", "driver": precision_evidence.driver(), "method": "full", "model": None, "job": "toy",
        "run": "0101-toy-bbbb", "time": 1.0, "key": key, "measured": measured,
    }  # fmt: skip
    return Path(precision_evidence.keep(toy.run.evidence(process.host_id()), record))


@slow
@pytest.mark.parametrize(("rehearsed", "is_kept"), [(False, False), (True, True)])
def test_a_rung_that_fails_has_no_older_measurement_any_more(toy, rehearsed, is_kept):
    """A launch would begin with it for its speed. A rehearsal shows nothing about a card."""
    verify(toy, hook="if rung == 0: raise ValueError('boom')", rehearsed=rehearsed)
    path = measured_before(toy)
    assert toy.ended()["reason"] == "verified"
    assert path.exists() is is_kept


@slow
def test_a_rehearsal_leaves_no_evidence(toy):
    """It shows nothing about a card."""
    state = verify(toy, rehearsed=True).ended()
    assert state["reason"] == "verified"
    assert tried(toy) == [("rung", 4), ("rung", 4)]
    assert evidence(toy) == {}


@slow
def test_a_stop_ends_it_between_trials_and_within_one(toy):
    """As it ends any run."""
    hook = "if trial['kind'] == 'batch': write(waits=1); time.sleep(600)"
    verify(toy, hook=hook)
    keeper = toy.start()
    until(lambda: any("waits" in line for line in toy.ledger()), "the batch trial")
    (Path(toy.run.wish)).write_text("cancel")
    assert toy.wait(keeper)["state"] == "stopped"
    assert tried(toy) == [("rung", 4), ("rung", 4), ("batch", 8)]
