"""The table of `launch verify`: what it says of a rung is what its trial has shown."""

import pytest
from testbed.profiles import profile

from launcher.cli.output.live_region import headline
from launcher.cli.text.verification_text import conclusions, make_view, report_json, show_report, trial_line
from launcher.copy.request import Request
from launcher.planning.assembly import plan
from launcher.planning.verification_plan import verification
from launcher.values.facts import Measured, PrecisionEvidence
from launcher.values.host import LOCAL
from launcher.values.job import Job
from launcher.values.record import Event, PlanSummary, RunState
from launcher.values.reported.trial_record import JobMeasured, TrialEnded
from launcher.verify.verification_report import RungReport, VerificationReport, launch_command

JOB = Job(name="sft", command=("python", "sft.py"), model="org/model", method="lora")
PLAN = verification(plan(profile("t4"), LOCAL, JOB), JOB)


@pytest.fixture
def shown(capsys, monkeypatch):
    """Show a report of a T4's rungs, each by its result and its figures, and return the line of each rung."""
    monkeypatch.setenv("COLUMNS", "200")

    def show(*rungs, takes=None):
        reports = [
            RungReport(
                number, PLAN.ladder[number - 1], result, None, None, 4, None if figures is None else JobMeasured(**figures), None
            )
            for number, result, figures in rungs
        ]  # fmt: skip
        of_run = PLAN.model_copy(update={"takes": takes})
        state = RunState(state="succeeded", reason="verified")
        show_report(VerificationReport("sft-5k7p", of_run, state, None, None, tuple(reports), None))
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line[:1].isdigit()]

    return show


def test_why_no_gradient_was_compared_is_what_fp32_has_shown(shown):
    """It may have ended with a failure, or have trained with gradients that are no plain tensors."""
    first, plain = shown((1, "good", {}), (3, "user-code-error", None))
    assert "fp32 ended with user-code-error, so no gradient to compare with" in first
    first, plain = shown((1, "good", {}), (3, "good", {}))
    assert "no gradient could be compared with fp32's" in first
    assert "gradient" not in plain
    (first,) = shown((1, "good", {}))
    assert "fp32 was not tried, so no gradient to compare with" in first
    first, plain = shown((1, "good", {"cosine": 0.9}), (3, "good", {"cosine": 1.0}))
    assert "compare" not in first + plain


def test_a_failure_is_shown_with_the_line_that_proves_it(capsys, monkeypatch):
    """The log is gone with the run, so nobody could look there."""
    monkeypatch.setenv("COLUMNS", "200")
    line, why = "PermissionError: /data/x", "the script, its arguments or its data are wrong"
    rung = RungReport(1, PLAN.ladder[0], "user-code-error", why, line, 4, None, None)
    state = RunState(state="failed", reason="user-code-error")
    show_report(VerificationReport("sft-5k7p", PLAN, state, None, None, (rung,), None))
    out = " ".join(capsys.readouterr().out.split())
    assert f"{why}: {line}" in out


def test_a_verification_that_did_not_come_to_its_end_says_so():
    """Its host was started anew, for example."""
    rung = RungReport(3, PLAN.ladder[2], "good", None, None, 4, JobMeasured(), None)
    state = RunState(state="interrupted", reason="host-restarted")
    lines = conclusions(VerificationReport("sft-5k7p", PLAN, state, None, None, (rung,), None))
    assert "not finished: interrupted host-restarted; verify it again" in lines
    card = TrialEnded(trial="card", result="no-kernel-image")
    lines = conclusions(VerificationReport("sft-5k7p", PLAN, state, None, card, (), None))
    assert not [line for line in lines if "not finished" in line]


def begins(view, **values):
    """Let a view hear that a trial has begun."""
    values = {
        "state": "running",
        "rung": 0,
        "micro_batch": PLAN.split.micro_batch,
        "accumulation": 1,
        **values,
    }
    view.event(Event(version=1, kind="state", time=1.0, attempt=2, values=values))


def test_what_is_tried_is_a_line_in_a_pipe(capsys):
    """Else nobody knows what goes on, for minutes."""
    view = make_view()
    view.head(PLAN)
    view.begin("sft-5k7p", PlanSummary(), [])
    capsys.readouterr()
    begins(view, trial="card", steps=None)
    begins(view, trial="rung", rung=2, steps=12)
    begins(view, trial="rung", rung=2, steps=12, micro_batch=1)
    begins(view, trial="batch", steps=4, micro_batch=16)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "  · card",
        "  · rung 3 of 3, fp32",
        "  · rung 3 of 3, fp32, micro-batch 1",
        "  · micro-batch 16",
    ]


def test_what_is_tried_stands_in_the_live_line():
    """In place of the attempt, and its steps are those of the trial."""
    view = make_view()
    view.head(PLAN)
    view.begin("sft-5k7p", PlanSummary(), [])
    begins(view, trial="rung", rung=1, steps=12)
    line = headline(view.progress, PlanSummary(), 120)
    assert "sft-5k7p · rung 2 of 3, fp16 autocast + scaler" in line
    assert "attempt" not in line
    assert view.progress.where() == "0/12"


def nowhere(result="unknown", evidence=None):
    """A report of a job that trains in no rung of a T4; each printed three lines."""
    rungs = tuple(
        RungReport(number, precision, result, "why", None, 4, None, None, tuple(f"{number} {line}" for line in "abc"))
        for number, precision in enumerate(PLAN.ladder, start=1)
    )  # fmt: skip
    state = RunState(state="failed", reason=result, evidence=evidence)
    command = "launch --adapt -- python boom.py"
    return VerificationReport("sft-5k7p", PLAN, state, None, None, rungs, None, command)


def test_a_job_that_trains_nowhere_shows_what_it_printed_last_and_what_to_type_next(capsys):
    """Its log is removed with the run, and of a sys.exit with a text no line is known."""
    show_report(nowhere())
    out = capsys.readouterr().out
    assert "rung 1 printed last:\n  1 a\n  1 b\n  1 c\nno rung works here\n" in out
    assert "2 a" not in out
    assert "to see the complete output   launch --adapt -- python boom.py" in out
    found = report_json(nowhere(), None)
    assert found.rungs[2].printed == ["3 a", "3 b", "3 c"]
    assert "no rung works here" in found.conclusions


def test_what_mends_a_failure_is_said():
    """The agent's own words, else those of its class; of an unknown failure none."""
    assert conclusions(nowhere())[1].startswith("to see the complete")
    assert "micro-batch" in conclusions(nowhere("cuda-oom"))[1]
    evidence = {"class": "not-verifiable", "mend": "launch verify … --adapt"}
    assert conclusions(nowhere("not-verifiable", evidence))[1] == "launch verify … --adapt"
    card = TrialEnded(trial="card", result="no-kernel-image")
    failed = nowhere()._replace(rungs=(), card_failure=card)
    assert "torch.cuda.get_arch_list()" in conclusions(failed)[0]


def test_the_next_command_is_that_of_the_verification():
    """With its options, as they are typed."""
    request = Request(
        host="lab", settings=["steps=9", "adapt=true"], words=["python", "a b.py"], rehearses=True, profile="t4",
        secrets=["TOKEN"], wait_s=9.0, is_sure=True, verifies=True,
    )  # fmt: skip
    command = (
        "launch --rehearse --adapt --host lab --profile t4 --set steps=9 --secret TOKEN -- python 'a b.py'"
    )
    assert launch_command(request) == command


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"tokens_per_s": 1568.2, "examples_per_s": 9.0}, "1,568 tokens/s"),
        ({"examples_per_s": 0.717}, "0.717 examples/s"),
    ],
)
def test_the_line_of_a_trial_has_its_speed(measured, words):
    """In examples where tokens are not known; a rehearsal's would be that of a CPU."""
    trial = TrialEnded(trial="rung", result="good", measured=measured)
    assert trial_line(trial, PLAN.ladder, is_rehearsed=False).endswith(words)
    assert words not in trial_line(trial, PLAN.ladder, is_rehearsed=True)


def test_a_rehearsal_names_no_fastest_rung():
    """A CPU's speed says nothing of the card that it acts as, and a launch there knows nothing of it."""
    rungs = tuple(
        RungReport(number, PLAN.ladder[number - 1], "good", None, None, 4, JobMeasured(tokens_per_s=speed), None)
        for number, speed in ((1, 100.0), (3, 900.0))
    )  # fmt: skip
    state = RunState(state="succeeded", reason="verified")
    real = VerificationReport("sft-5k7p", PLAN, state, None, None, rungs, None)
    assert report_json(real, None).fastest == 3
    rehearsed = real._replace(plan=PLAN.model_copy(update={"rehearsed": True}))
    assert report_json(rehearsed, None).fastest is None
    assert not [line for line in conclusions(rehearsed) if "fastest" in line]


@pytest.mark.parametrize(
    ("result", "figures", "is_moved"),
    [
        ("cuda-oom", None, False),
        ("unknown", None, False),
        ("nan-divergence", None, True),
        ("good", JobMeasured(cosine=0.5), True),
    ],
)
def test_a_first_rung_that_fails_is_said_to_stay_first_if_it_does(result, figures, is_moved):
    """Only what a precision causes moves it."""
    rungs = (
        RungReport(1, PLAN.ladder[0], result, None, None, 4, figures, None),
        RungReport(2, PLAN.ladder[1], "good", None, None, 4, JobMeasured(), None),
        RungReport(3, PLAN.ladder[2], "good", None, None, 4, JobMeasured(), None),
    )
    state = RunState(state="succeeded", reason="verified")
    lines = conclusions(VerificationReport("sft-5k7p", PLAN, state, None, None, rungs, None))
    assert lines[0] == "rung 1 does not work here; rung 2 works"
    assert any("a launch still begins with rung 1" in line for line in lines) is not is_moved


def test_the_fastest_rung_is_the_one_that_a_later_plan_begins_with():
    """Which knows speed and gradient, but not that a script has changed its dtypes."""
    rungs = [
        RungReport(1, PLAN.ladder[0], "good", None, None, 4, JobMeasured(tokens_per_s=100.0), ()),
        RungReport(2, PLAN.ladder[1], "good", None, None, 4, JobMeasured(tokens_per_s=900.0, cosine=0.5), ()),
        RungReport(3, PLAN.ladder[2], "good", None, None, 4, JobMeasured(tokens_per_s=300.0), ("base fp16 instead of fp32",)),
    ]  # fmt: skip
    state = RunState(state="succeeded", reason="verified")
    report = VerificationReport("sft-5k7p", PLAN, state, None, None, tuple(rungs), None)
    evidence = tuple(
        PrecisionEvidence(
            card="t4", method="lora", job="sft", precision=rung.precision.digest, run="sft-5k7p", time=1.0,
            measured=Measured(
                workload=PLAN.verification.workload, micro_batch=4, fits=4,
                tokens_per_s=rung.measured.tokens_per_s, cosine=rung.measured.cosine,
            ),
        )
        for rung in rungs
    )  # fmt: skip
    later = plan(profile("t4"), LOCAL, JOB, evidence=evidence)
    assert report.fastest.precision.digest == later.ladder[0].digest == PLAN.ladder[2].digest


def test_a_micro_batch_is_named_where_the_script_takes_it(shown):
    """One that decides its own batch has another."""
    assert "micro-batch 4" in shown((1, "good", {}))[0]
    assert "micro-batch" not in shown((1, "good", {}), takes=("precision",))[0]
