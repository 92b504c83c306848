"""The end is judged, not believed: the logs of commands that ended with exit status 0, and the table of the docs."""

import subprocess
import sys
import time

import pytest
from testbed.client import REPOSITORY
from testbed.ends import BAD, ODD

from launcher.agent.attempt.judging import CommandResult, judge, suspect
from launcher.agent.attempt.progress import AttemptProgress
from launcher.agent.diagnosis.cause import crash
from launcher.agent.diagnosis.good_exit import LogReading, diagnose_log, read_good_exit
from launcher.agent.logs.log_scanner import LogScanner


def verdict(log: str) -> tuple[str, str] | None:
    """Return how a log with exit status 0 is judged: `failed` or `doubt`, with the class; None for a success."""
    scanner = LogScanner()
    scanner.feed(log.encode())
    scanner.finish()
    is_killed = scanner.divergence is not None
    if is_killed or AttemptProgress().lost_loss(scanner.last_loss) is not None:
        return "failed", "nan-divergence"
    found = read_good_exit(log.encode())
    if found.failure is not None:
        return "failed", found.failure.name
    return ("doubt", found.doubt.name) if found.doubt is not None else None


@pytest.mark.parametrize(("log", "expected"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_end_is_seen_behind_exit_status_0(log, expected):
    """NaN in every format, and errors that a script caught."""
    assert verdict(log) == expected


@pytest.mark.parametrize(("log", "expected"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
def test_a_good_end_that_looks_odd_is_a_success(log, expected):
    """Wrong is worse than absent."""
    assert verdict(log) == expected


@pytest.mark.parametrize(
    ("log", "expected"), [case[1:] for case in BAD + ODD], ids=[case[0] for case in BAD + ODD]
)
def test_the_diagnosis_of_a_log_does_not_contradict_the_end_of_its_run(log, expected):
    """`launch diagnose FILE` names the class of the failure or the doubt, and `none` for a success."""
    assert diagnose_log(log.encode()).name == (expected[1] if expected else "none")


def test_there_are_at_least_thirty_of_each():
    """As many as the issue asks for."""
    assert min(len(BAD), len(ODD)) >= 30


def test_a_long_line_of_errors_is_judged_at_once():
    """Half a megabyte of them took a minute and a half."""
    began = time.process_time()
    assert verdict("ValueError: " * 40_000) == ("doubt", "user-code-error")
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([10.37 + 0.01 * (step % 3) for step in range(40)], ("doubt", "not-learning")),
        ([10.37 + 0.01 * (step % 3) for step in range(20)], None),
        ([10.37 - 0.003 * step for step in range(40)], None),
        ([0.2512] * 40, None),
        ([11.0, *[10.9] * 39], None),
    ],
    ids=["flat at a guess", "too few", "falls slowly", "small: learnt", "fell once"],
)
def test_a_loss_that_never_changed_is_a_doubt(losses, expected):
    """A model of 32,000 words that guesses has a loss of 10.37."""
    log = "".join(f"step {number} loss {loss:.4f}\n" for number, loss in enumerate(losses, 1))
    assert verdict(log) == expected


def test_layers_without_a_gradient_are_a_doubt():
    """torch says so once, and the training goes on."""
    log = "UserWarning: None of the inputs have requires_grad=True. Gradients will be None\nstep 1 loss 5.5\nstep 2 loss 5.1\n"
    assert verdict(log) == ("doubt", "not-learning")


@pytest.mark.parametrize(
    ("line", "has_doubt"),
    [
        ("Evaluation: 12 passed, 0 failed", False),
        ("0 of 200 samples failed", False),
        ("failed: 0", False),
        ("Evaluation: 12 passed, 3 failed", True),
        ("10 of 200 samples failed", True),
    ],
)
def test_a_count_of_failures_is_a_doubt_unless_it_is_zero(line, has_doubt):
    assert (read_good_exit(f"trained\n{line}\n".encode()).doubt is not None) == has_doubt


def test_a_helper_that_a_shell_script_ended_is_no_doubt():
    """Bash says so of a process that the script itself ended."""
    assert verdict("loss 0.5\nrun.sh: line 4: 1234 Terminated              python server.py\n") is None


STEPS = 30
UNSCALE = b'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: Attempting to unscale FP16 gradients.\n'
PLAIN = CommandResult(
    code=0, signal=None, remaining=[], is_stop_asked=False, wish="run", failure=None, step=None, marker=None, is_marked=False,
    was_asked_to_end=False, uses_worker=False,
)  # fmt: skip
ROWS = {
    "the worker reported the end, at the plan's last step or before": (
        {"uses_worker": True, "is_marked": True, "marker": STEPS - 1}, b"", "succeeded",
    ),
    "the script used the worker, in this attempt or before, and reported no end": (
        {"uses_worker": True}, b"", "failed: no-completion-marker",
    ),
    "a Trainer began, and reported neither its end nor its last step": (
        {"is_cut_short": True}, b"loss 0.5\n", "failed: no-completion-marker",
    ),
    "in a [rehearsal](profiles.md#a-rehearsal), nothing ran on the card": (
        {"is_off_card": True}, b"loss 0.5\n", "failed: not-rehearsable",
    ),
    "the last training loss is NaN or infinite": ({"lost_loss": "loss nan"}, b"", "failed: nan-divergence"),
    "a precision error at the end of the log": ({}, UNSCALE, "failed: fp16-unscale"),
    "another error at the end of the log": ({}, b"KeyError: 'x'\n", "succeeded, doubt: user-code-error"),
    "a Trainer began to train, and made no step": ({"is_without_step": True}, b"", "succeeded, doubt: no-step"),
    "a share of right answers was 0 at last": ({"zero_shares": ["accuracy"]}, b"", "succeeded, doubt: no-right-answer"),
    "none of these": ({}, b"loss 0.5\n", "succeeded"),
    "an error or a signal": ({"code": 1}, UNSCALE, "failed: fp16-unscale"),
    "any end, after you asked it to stop": ({"wish": "stop", "is_stop_asked": True}, UNSCALE, "stopped"),
    "any end, after the host asked it to stop": ({"is_stop_asked": True}, b"", "resuming"),
}  # fmt: skip


def judged(outcome: CommandResult, log: bytes) -> str:
    """Return the verdict as the docs write it."""
    failure, doubt = suspect(outcome, STEPS, 1, lambda: log) if outcome.is_good_exit else (None, None)
    if outcome.is_bad_end:
        failure = crash(log, outcome.code, outcome.signal, 0)
    state, reason, _ = judge(outcome, failure, doubt, outcome.wish, STEPS)
    return state + (f": {reason}" if state == "failed" else f", doubt: {doubt.name}" if doubt else "")


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_table_in_the_docs_is_so(row):
    """By the values that the agent has at the end of a command."""
    changed, log, expected = ROWS[row]
    assert judged(PLAIN._replace(**changed), log) == expected


def test_a_doubt_about_the_answers_has_its_own_advice():
    """The log has no lines above, which the advice for an unknown failure would name."""
    (_, doubt) = suspect(PLAIN._replace(zero_shares=["accuracy"]), STEPS, 1, lambda: b"")
    assert "compare some answers" in doubt.record()["mend"]


SILENT = """
import sys
from launcher.agent.attempt.judging import CommandResult, suspect
outcome = CommandResult(0, None, [], False, "run", None, None, None, False, False, False)
assert suspect(outcome, None, 1, lambda: b"") == (None, None)
assert not [name for name in sys.modules if name.endswith((".diagnose", ".failures", ".good_exit"))]
"""


def test_the_end_of_a_command_that_printed_nothing_waits_for_no_table_of_failures():
    """To load it takes longer than all else that follows; nothing printed shows nothing."""
    assert read_good_exit(b"") == LogReading()
    subprocess.run([sys.executable, "-c", SILENT], check=True, timeout=60)


def test_the_table_in_the_docs_has_these_rows():
    """Each with its verdict."""
    text = (
        (REPOSITORY / "docs" / "recovery-and-diagnosis.md")
        .read_text()
        .partition("## How an end is judged")[2]
        .partition("\n## ")[0]
    )
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    written = {
        what.strip(): verdict.strip().replace("`", "") for what, verdict in cells[2:] if what.strip() in ROWS
    }
    assert list(written) == list(ROWS)
    for row, (_, _, expected) in ROWS.items():
        state, _, detail = expected.partition(", doubt: ")
        assert written[row].startswith(state.partition(":")[0])
        assert ("doubt" in written[row]) == bool(detail)


def test_a_completed_training_without_one_right_answer_is_in_doubt():
    """The worker's word about its end says nothing about what was learnt."""
    outcome = PLAIN._replace(uses_worker=True, is_marked=True, marker=STEPS, zero_shares=["eval_accuracy"])
    _, doubt = suspect(outcome, STEPS, 1, lambda: b"")
    state, reason, evidence = judge(outcome, None, doubt, outcome.wish, STEPS)
    assert (state, reason) == ("succeeded", "completed")
    assert evidence["doubt"]["why"] == "eval_accuracy 0.00: at the end, no answer was right"


def test_a_log_without_an_error_does_not_promise_a_good_end():
    """`launch diagnose FILE` knows no exit status."""
    found = diagnose_log(b"step 1 loss 0.4\n")
    assert (found.name, "exit status" in found.mend) == ("none", True)
