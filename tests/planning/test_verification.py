"""What `launch verify` has measured on a host, read by later plans there: pure."""

import pytest
from testbed.profiles import profile

from launcher.config.resolve import task
from launcher.errors import BadFileError, RefusedError
from launcher.planning.assembly import ladder_inputs, plan
from launcher.planning.verification_plan import verification
from launcher.values.facts import Measured, PrecisionEvidence
from launcher.values.host import LOCAL
from launcher.values.job import Job

T4 = profile("t4")
SETTINGS = {"max_length": 256, "eval_limit": 100}
JOB = Job(
    name="sft", command=("python", "sft.py"), model="org/model", method="lora", settings=SETTINGS,
    verify={"eval_limit": 2}, batch={"global": 64}, save_every_steps=10, on_end=["notify.sh"],
)  # fmt: skip
PLAN = plan(T4, LOCAL, JOB)
RUNGS = PLAN.ladder
WORKLOAD = verification(PLAN, JOB).verification.workload


def measured(rung=0, time=1.0, workload=WORKLOAD, failed=None, card="t4", torch=None, **figures):
    """What a verification of the job on a T4 has kept of a rung."""
    told = {"micro_batch": 4, "fits": 4, "tokens_per_s": 100.0, "cosine": 0.9998, **figures}
    return PrecisionEvidence(
        card=card, method="lora", job="sft", torch=torch, precision=RUNGS[rung].digest, failed=failed,
        measured=Measured(workload=workload, **told), run="sft-5k7p", time=time,
    )  # fmt: skip


def planned(*evidence, job=JOB):
    """The plan that follows."""
    return plan(T4, LOCAL, job, evidence=evidence)


def order(*evidence):
    """The rungs, as positions on the ladder without evidence."""
    known = [rung.digest for rung in RUNGS]
    return [known.index(rung.digest) for rung in planned(*evidence).ladder]


def test_a_verification_is_the_job_s_plan_that_leaves_nothing():
    """Model, data, ladder and split are the job's; nothing is saved, and nobody is told of its end."""
    made = verification(PLAN, JOB)
    assert made.settings == {"max_length": 256, "eval_limit": 2}
    assert (made.save_every_steps, made.save_every_minutes, made.on_end) == (None, None, ())
    assert (made.ladder, made.split, made.steps, made.seed) == (
        PLAN.ladder,
        PLAN.split,
        PLAN.steps,
        PLAN.seed,
    )
    assert made.verification.held < made.verification.steps


@pytest.mark.parametrize("changed", [{"max_length": 32}, {"optim": "sgd"}, {"lora_rank": 2}])
def test_settings_of_trials_cannot_change_what_is_measured(changed):
    """A later plan of the job would rely on the memory of shorter examples, for example."""
    job = JOB.model_copy(update={"verify": {**JOB.verify, **changed}})
    with pytest.raises(BadFileError, match=rf"--set settings\.{next(iter(changed))}="):
        verification(PLAN, job)
    same = JOB.model_copy(update={"verify": {"max_length": 256}})
    assert verification(PLAN, same).verification.workload == WORKLOAD


@pytest.mark.parametrize("name", ["sft", "distill"])
def test_our_own_jobs_log_each_step_of_a_trial(name):
    """A trial has few: from step 1 alone no loss is seen to fall."""
    assert task(name, [], [], None).job.verify["logging_steps"] == 1


def test_what_was_measured_is_said_in_the_plan():
    """Speed, memory and gradient stand before the reason of the rung."""
    why = planned(measured(peak_gb=6.12)).ladder[0].why
    assert why == f"measured here: 100 tokens/s, 6.12 GB, gradient 0.9998; {RUNGS[0].why}"
    why = planned(measured(tokens_per_s=None, examples_per_s=1809.4)).ladder[0].why
    assert why.startswith("measured here: 1,809 examples/s, gradient")
    assert planned().ladder[0].why == RUNGS[0].why


def test_the_fastest_goes_first_if_it_clearly_is():
    """A tenth faster, at least; the others keep their order."""
    assert order(measured(0), measured(2, tokens_per_s=109.0)) == [0, 1, 2]
    assert order(measured(0), measured(2, tokens_per_s=111.0)) == [2, 0, 1]
    assert order(measured(2, tokens_per_s=111.0)) == [0, 1, 2]
    assert order(measured(0, tokens_per_s=None), measured(2)) == [0, 1, 2]


def test_a_gradient_that_is_not_fp32_s_counts_as_a_failure():
    """Below 0.99 it is not chosen automatically, however fast it is."""
    wrong = measured(0, tokens_per_s=900.0, cosine=0.43)
    assert order(wrong) == [1, 0, 2]
    assert (
        planned(wrong)
        .ladder[1]
        .why.startswith("failed here before: the cosine of its gradient with fp32's was 0.43; ")
    )
    assert order(measured(0, tokens_per_s=900.0, cosine=0.991)) == [0, 1, 2]
    wrong = measured(1, tokens_per_s=900.0, cosine=0.43)
    assert order(measured(0), wrong, measured(2, tokens_per_s=300.0)) == [2, 0, 1]
    assert order(measured(0), wrong, measured(2)) == [0, 1, 2]
    assert order(measured(0, cosine=0.43), measured(1), measured(2, tokens_per_s=300.0)) == [2, 1, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"workload": "another"},
        {"card": "l40s"},
    ],
)
def test_a_measurement_of_something_else_does_not_count(other):
    """Another workload or another card."""
    assert planned(measured(**other)).ladder == RUNGS


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": {**SETTINGS, "max_length": 512}},
        {"attention": "eager"},
        {"data": {"train": "./other.jsonl"}},
        {"settings": {**SETTINGS, "optim": "adafactor"}},
        {"command": ("python", "sft.py", "--max-length", "8192")},
        {"teacher": "org/large"},
    ],
)
def test_a_job_that_takes_other_time_or_memory_has_another_workload(changed):
    """What it does not depend on, as the learning rate, has no part in it."""
    job = JOB.model_copy(update=changed) if "data" not in changed else Job.model_validate({**JOB.model_dump(by_alias=True), **changed})  # fmt: skip
    assert not planned(measured(), job=job).ladder[0].why.startswith("measured here")
    same = JOB.model_copy(update={"settings": {**SETTINGS, "learning_rate": 1.0}, "seed": 9, "steps": 7})
    assert planned(measured(), job=same).ladder[0].why.startswith("measured here")


def micro(*evidence, job=JOB):
    """The micro-batch that is planned."""
    return planned(*evidence, job=job).split.micro_batch


def test_the_micro_batch_is_what_was_found_to_fit():
    """Whatever the estimate says; between the largest that fits and the smallest that does not, nothing was tried."""
    estimated = micro()
    assert estimated == 4
    assert micro(measured(fits=16, too_large=32)) == 16
    assert micro(measured(fits=2, too_large=4)) == 2
    assert micro(measured(fits=64)) == 64
    assert micro(measured(fits=2)) == estimated
    assert micro(measured(1, fits=64)) == estimated


def test_it_divides_another_global_batch_and_keeps_the_job_s_limit():
    """What fits does not depend on the number of accumulation steps."""
    smaller = JOB.model_copy(update={"batch": JOB.batch.model_copy(update={"global_size": 24})})
    assert micro(measured(fits=16, too_large=32), job=smaller) == 12
    limited = JOB.model_copy(update={"batch": JOB.batch.model_copy(update={"micro": 2})})
    assert micro(measured(fits=16), job=limited) == 2


def test_the_newest_measurement_counts():
    """Of the same precision."""
    assert order(measured(0), measured(2, tokens_per_s=300.0), measured(2, time=2.0)) == [0, 1, 2]


def test_a_precision_that_is_asked_for_is_not_moved():
    """A person knows why."""
    evidence = (measured(0), measured(2, tokens_per_s=300.0))
    asked = plan(T4, LOCAL, JOB, "fp16", evidence=evidence).ladder
    assert [rung.mode for rung in asked] == ["fp16", "fp16", "fp32"]
    with pytest.raises(RefusedError):
        plan(T4, LOCAL, JOB, "bf16", evidence=evidence)


def test_explain_reads_the_same_evidence():
    """Its ladder is the plan's."""
    inputs = ladder_inputs(T4, JOB, None, None, (measured(0),))
    assert {*inputs.measured} == {RUNGS[0].digest}
