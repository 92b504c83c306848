"""The attempt loop: a failure of a known class is answered once, on the next rung, whoever dies in between."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from testbed.client import processes_of, until
from testbed.tables import mostly_long
from testbed.toy import RUN, Toy

from launcher.agent.record import precision_evidence
from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import TERMINAL
from launcher.agent.verbs.summary import summary

pytestmark = pytest.mark.slow(
    reason="each makes attempts of a run, which are processes that end by their time limits"
)

AWARE = 'tell("consumed", knobs=["precision", "resume"])\n'
DONE = 'tell("done", 9)\n'


# a trip


def test_a_trip_is_answered_by_the_next_rung_from_before_the_first_bad_step(toy):
    """The script itself sees the rung and the bound, and goes on from the last checkpoint that is good."""
    toy.script(
        AWARE + "write(from_=newest())\n"
        "if rung == 0:\n"
        "    for step in (2, 4, 5): save(step)\n"
        "    trip(6, 4)\n"
        "    raise RuntimeError('given up')\n" + DONE
    )
    assert toy.ended()["state"] == "succeeded"
    assert toy.ledger() == [
        {"rung": 0, "mode": "fp16", "before": None, "attempt": 1},
        {"from_": None},
        {"rung": 1, "mode": "bf16", "before": 4, "attempt": 2},
        {"from_": "step-2"},
    ]
    ended = toy.record(2)
    assert (ended["state"], ended["reason"], ended["step"]) == ("resuming", "nan-divergence", 6)
    text = "precision fp16 over float32 → bf16 over float32, rung 2 of 3; resuming from step 2"
    assert ended["remedy"] == {
        "class": "nan-divergence",
        "changes": {"rung": 1},
        "resume_before": 4,
        "text": text,
    }
    following = toy.record(3, "attempt")
    assert following["previous"] == {"folder": 2, "state": "resuming", "reason": "nan-divergence", "step": 6}
    assert following["remedy"] == ended["remedy"]
    (event,) = toy.events("remedy")
    assert (event["step"], event["values"]["attempt"], event["values"]["text"]) == (6, 1, text)


def test_spoilt_checkpoints_are_kept_where_no_script_looks(toy):
    """They are moved as they are, for a person; those before the first bad step stay."""
    toy.script(AWARE + "if rung == 0:\n    save(2); save(4)\n    trip(5, 4)\n    sys.exit(1)\n" + DONE)
    toy.ended()
    checkpoints = Path(toy.run.checkpoints)
    assert [path.name for path in checkpoints.glob("[!.]*")] == ["step-2"]
    (aside,) = checkpoints.glob(".rejected-*/*")
    assert (aside.name, (aside / "rung").read_text()) == ("step-4", "0")


def test_without_a_good_checkpoint_the_next_rung_begins_at_the_beginning(toy):
    """And so it does where the worker does not say from where on the steps are bad."""
    toy.script(
        AWARE
        + "write(from_=newest())\nif rung == 0:\n    save(2)\n    trip(5, None)\n    sys.exit(1)\n"
        + DONE
    )
    toy.ended()
    assert toy.ledger()[2:] == [{"rung": 1, "mode": "bf16", "before": 0, "attempt": 2}, {"from_": None}]
    assert "from the beginning" in toy.record(2)["remedy"]["text"]


def test_a_script_that_lingers_after_a_trip_is_ended_without_sigterm(toy):
    """SIGTERM would make it, or its child, save a poisoned checkpoint."""
    toy.script(
        AWARE + "if rung == 0:\n"
        "    child = os.fork()\n"
        "    signal.signal(signal.SIGTERM, lambda *_: write(sigterm=True))\n"
        "    if child:\n"
        "        trip(3, 3)\n"
        "    while True: time.sleep(1)\n" + DONE
    )
    assert toy.ended()["state"] == "succeeded"
    assert toy.rungs() == [0, 1]
    assert not [line for line in toy.ledger() if "sigterm" in line]


def test_exit_0_and_the_marker_after_a_trip_are_no_success(toy):
    """A trip wins, whatever else is said, before it or after it."""
    toy.script(AWARE + 'tell("done", 9)\ntrip(9, 8)\ntell("done", 9)\n')
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "nan-divergence")
    assert toy.rungs() == [0, 1, 2]


def test_the_last_rung_is_the_end(toy):
    """No rung is tried twice; what ended the last one is told, and what to do."""
    toy.script(AWARE + "trip(3, 3)\nsys.exit(1)\n")
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "nan-divergence")
    assert toy.rungs() == [0, 1, 2]
    assert ended["evidence"]["why"] == "the loss is not finite"
    assert "no rung is left below fp32" in ended["evidence"]["mend"]


def test_the_job_s_attempts_bound_the_rungs(toy):
    """The reason is the budget's, the evidence the failure's."""
    toy.plan(attempts=2)
    toy.script(AWARE + "trip(3, 3)\nsys.exit(1)\n")
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "attempts-exhausted")
    assert ended["evidence"]["class"] == "nan-divergence"
    assert toy.rungs() == [0, 1]


@pytest.mark.parametrize(
    "told", ['knobs=["steps", "resume"]', 'knobs=["precision", "resume"], held=["precision"]']
)
def test_a_script_that_takes_no_precision_from_us_is_stopped_at_once(toy, told):
    """The next rung would fail in the same way: class, line, why and mend are on record instead."""
    toy.script(f'tell("consumed", {told})\ntrip(3, 3)\nsys.exit(1)\n')
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "nan-divergence")
    assert toy.rungs() == [0]
    told = ended["evidence"]
    assert (told["class"], told["line"]) == ("nan-divergence", "step 3: loss nan")
    assert "worker.training_arguments" in told["mend"]
    assert not toy.events("remedy")


@pytest.mark.parametrize(("guard", "state"), [("end", "failed"), ("warn", "succeeded")])
def test_a_guard_that_only_warns_lets_a_script_skip_losses_that_are_not_finite(toy, guard, state):
    """Also one that knows nothing of the worker: its log is judged."""
    toy.plan(guard=guard)
    toy.script(
        "for step in range(1, 20):\n"
        "    print('step', step, 'loss', 'nan' if 8 < step < 13 else 1 / step, flush=True)\n"
        "    time.sleep(0.02)\n"
    )
    assert toy.ended()["state"] == state


def test_a_run_that_does_not_learn_is_stopped(toy):
    """No precision mends that."""
    toy.script(AWARE + 'trip(3, 1, "not-learning")\nsys.exit(1)\n')
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "not-learning")
    assert toy.rungs() == [0]
    assert "requires_grad" in ended["evidence"]["mend"]


@pytest.mark.parametrize(("restart", "rungs"), [(False, [0]), (True, [0, 1])])
def test_a_script_that_cannot_resume_is_started_again_only_if_the_job_says_so(toy, restart, rungs):
    """It has trained steps, which would be done twice."""
    toy.plan(restart=restart)
    toy.script(
        'tell("consumed", knobs=["precision"])\nif rung == 0:\n    trip(3, 3)\n    sys.exit(1)\n' + DONE
    )
    ended = toy.ended()
    assert toy.rungs() == rungs
    assert ended["state"] == ("succeeded" if restart else "failed")
    assert restart or "resume_from" in ended["evidence"]["mend"]


def test_what_only_looks_like_a_trip_is_none(toy):
    """A class that nobody knows, or no class at all, is an event like any other."""
    toy.script(AWARE + 'trip(3, 3, "bad-mood")\ntell("trip", 3, **{"class": ["nan-divergence"]})\n' + DONE)
    assert toy.ended()["state"] == "succeeded"
    assert len(toy.events("trip")) == 2


LOSE = 'for step in range(%d, %d): tell("metric", step, loss=%r)\n'


def test_a_script_that_reports_lost_losses_and_goes_on_is_given_up(toy):
    """Its worker's guard, if it has one, was not asked; the last good loss says nothing of its own step's update."""
    toy.script(
        AWARE + "write(from_=newest())\n"
        "if rung == 0:\n"
        + "".join(
            f"    {line}"
            for line in (LOSE % (1, 5, 0.5), "save(3); save(4); save(5)\n", LOSE % (5, 8, "nan"))
        )
        + "    time.sleep(1000)\n"
        + DONE
    )
    assert toy.ended()["state"] == "succeeded"
    assert toy.ledger()[2:] == [{"rung": 1, "mode": "bf16", "before": 4, "attempt": 2}, {"from_": "step-3"}]
    assert toy.record(2)["evidence"]["line"] == "step 7: loss nan"


def test_a_lost_loss_between_good_ones_is_none(toy):
    """Two running are what a scaler's first steps may show."""
    toy.script(AWARE + (LOSE % (1, 3, "inf") + LOSE % (3, 4, 0.5)) * 3 + DONE)
    assert toy.ended()["state"] == "succeeded"
    assert toy.rungs() == [0]


# who dies in between


def test_an_agent_killed_right_after_a_trip_has_not_lost_it(toy):
    """The trip is on disk as soon as it is heard; the next agent answers it, and no rung is begun twice."""
    toy.script(
        AWARE + "write(from_=newest())\n"
        "if rung == 0:\n"
        "    save(2); save(4)\n"
        "    trip(5, 4)\n"
        '    until(lambda: state()["failure"])\n'
        "    kill_agent()\n" + DONE
    )
    assert toy.ended()["state"] == "succeeded"
    assert toy.ledger()[2:] == [
        {"rung": 1, "mode": "bf16", "before": 4, "attempt": 2},
        {"from_": "step-2"},
    ]
    assert toy.record(3, "attempt")["previous"]["keeper"]["signal"] == signal.SIGKILL
    (event,) = toy.events("remedy")
    assert event["values"]["attempt"] == 1


def test_what_was_seen_of_an_agent_is_no_argument_of_the_next_one(toy):
    """Everybody on the machine can read those, and the end of a log is among it. It is no variable of the training either."""
    toy.script(
        AWARE + 'words = open("/proc/%d/cmdline" % os.getppid()).read().split("\\0")\n'
        'write(words=words[3:-1], has_variable="LAUNCH_SEEN" in os.environ)\n'
        "if rung == 0:\n"
        "    trip(5, 4)\n"
        '    until(lambda: state()["failure"])\n'
        "    kill_agent()\n" + DONE
    )
    assert toy.ended()["state"] == "succeeded"
    assert toy.ledger()[1::2] == [{"words": ["supervise", toy.run.path], "has_variable": False}] * 2
    assert toy.record(3, "attempt")["previous"]["keeper"]["signal"] == signal.SIGKILL


def test_an_agent_killed_right_after_the_last_rung_s_trip_is_no_reason_to_try_again(toy):
    """The next agent ends the run, with the class, and starts nothing."""
    toy.plan(modes=("fp32",))
    toy.script(AWARE + 'trip(5, 4)\nuntil(lambda: state()["failure"])\nkill_agent()\n')
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "nan-divergence")
    assert (ended["evidence"]["class"], toy.rungs()) == ("nan-divergence", [0])
    assert toy.record(3, "attempt")["previous"]["keeper"]["signal"] == signal.SIGKILL


def test_an_agent_killed_at_any_moment_of_the_change_begins_no_rung_twice(toy):
    """Killed as soon as the remedy is seen, and once more as soon as there is another folder."""
    toy.script(AWARE + "if rung == 0:\n    trip(5, 4)\n    sys.exit(1)\n" + DONE)
    keeper = toy.start()
    until(lambda: toy.record(2).get("remedy"), "the remedy")
    kill(toy, toy.record(2, "attempt"))
    until(lambda: toy.record(3, "attempt") or toy.state()["state"] in TERMINAL, "the next attempt")
    kill(toy, toy.record(3, "attempt"))
    toy.wait(keeper)
    rungs = toy.rungs()
    assert rungs.count(0) == 1
    assert set(rungs[1:]) <= {1}


def kill(toy, record):
    """SIGKILL an agent, if it is there."""
    pid = record.get("agent", {}).get("pid")
    if pid in processes_of(Path(toy.run.path)):
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            os.kill(pid, signal.SIGKILL)


def test_after_a_plain_crash_the_rung_stays_and_its_own_checkpoints_count(toy):
    """What the new rung saved behind the bound is good; the bound was for what the tripped one left."""
    toy.script(
        AWARE + "write(from_=newest())\n"
        "if rung == 0:\n"
        "    save(2); save(6)\n"
        "    trip(7, 4)\n"
        "    sys.exit(1)\n"
        'if values["attempt"] == 2:\n'
        "    save(6)\n"
        "    kill_agent()\n" + DONE
    )
    assert toy.ended()["state"] == "succeeded"
    assert toy.ledger()[2:] == [
        {"rung": 1, "mode": "bf16", "before": 4, "attempt": 2},
        {"from_": "step-2"},
        {"rung": 1, "mode": "bf16", "before": None, "attempt": 3},
        {"from_": "step-6"},
    ]


def test_a_rung_that_was_begun_after_an_agent_s_death_is_not_forgotten_at_the_next(toy):
    """Trip, SIGKILL, next rung, SIGKILL: the third attempt is on the second rung, as its record says."""
    toy.script(
        AWARE + "if rung == 0:\n"
        "    trip(5, 4)\n"
        '    until(lambda: state()["failure"])\n'
        "    kill_agent()\n"
        'if values["attempt"] == 2:\n'
        '    until(lambda: state()["consumed"])\n'
        "    kill_agent()\n" + DONE
    )
    assert toy.ended()["state"] == "succeeded"
    assert toy.rungs() == [0, 1, 1]


# who stops it in between


@mostly_long(("wish", "reason"), [("stop", "by-user"), ("cancel", "by-user-now")], ci=(0,))
def test_a_wish_that_comes_while_an_attempt_is_given_up_is_the_end(toy, wish, reason):
    """No next rung, no SIGTERM to what is given up, and what was spoilt is set aside all the same."""
    toy.script(
        AWARE + "signal.signal(signal.SIGTERM, lambda *_: write(sigterm=True))\n"
        "save(2); save(4)\n"
        "trip(5, 4)\n"
        "while True: time.sleep(1)\n"
    )
    keeper = toy.start()
    until(lambda: toy.record(2).get("failure"), "the trip")
    write_durably(toy.run.wish, wish)
    ended = toy.wait(keeper)
    assert (ended["state"], ended["reason"], ended["evidence"]["class"]) == (
        "stopped",
        reason,
        "nan-divergence",
    )
    assert toy.ledger()[1:] == []
    assert [path.name for path in Path(toy.run.checkpoints).glob("[!.]*")] == ["step-2"]


def test_a_wish_that_comes_before_the_next_attempt_has_begun_is_the_end(toy):
    """The remedy is on disk, and the agent dead: the next one reads the wish first."""
    toy.script(AWARE + "trip(5, 4)\nsys.exit(1)\n")
    leave_with_a_remedy(toy)
    write_durably(toy.run.wish, "stop")
    ended = toy.ended()
    assert (ended["state"], toy.rungs()) == ("stopped", [])


def leave_with_a_remedy(toy):
    """A folder as an agent leaves it that died between two attempts."""
    folder = toy.run.new_folder()
    write_durably(folder.attempt, json.dumps({"kind": "attempt", "attempt": 1, "rung": 0}))
    remedy = {
        "class": "nan-divergence",
        "changes": {"rung": 2},
        "resume_before": 4,
        "text": "the next rung",
    }
    folder.write_state(
        "resuming", "nan-divergence", began=True, consumed=["precision", "resume"], remedy=remedy, attempt=1
    )
    folder.release()


def test_a_remedy_outlives_an_attempt_that_never_began(toy):
    """An agent that dies between folder and command leaves rung and bound to the next."""
    toy.script(DONE)
    leave_with_a_remedy(toy)
    folder = toy.run.new_folder()
    write_durably(folder.attempt, json.dumps({"kind": "attempt", "attempt": 2, "changes": {"rung": 2}}))
    folder.release()
    toy.ended()
    assert toy.ledger() == [{"rung": 2, "mode": "fp32", "before": 4, "attempt": 2}]


def test_a_host_that_goes_down_while_an_attempt_is_given_up_finds_the_next_rung_later(toy):
    """SIGTERM to the agent: it leaves with the remedy on disk, and whoever comes back begins with it."""
    toy.script(AWARE + "if rung == 0:\n    trip(5, 4)\n    while True: time.sleep(1)\n" + DONE)
    keeper = toy.start()
    until(lambda: toy.record(2).get("failure"), "the trip")
    os.kill(toy.record(2, "attempt")["agent"]["pid"], signal.SIGTERM)
    assert toy.wait(keeper)["state"] == "succeeded"
    assert toy.record(2)["remedy"]["changes"] == {"rung": 1}
    assert toy.record(3, "attempt")["agent"]["pid"] != toy.record(2, "attempt")["agent"]["pid"]
    assert toy.rungs() == [0, 1]


def test_no_reader_ever_sees_the_run_as_interrupted_while_attempts_change(toy):
    """Without a keeper the agent's own locks alone say that it lives; somebody else would take the run over."""
    toy.plan(modes=("fp16",) * 12, attempts=99)
    toy.script(
        AWARE + f"until(lambda: os.path.exists({str(toy.home / 'gate')!r}))\ntrip(5, 4)\nsys.exit(1)\n"
    )
    keeper = toy.start()
    until(lambda: toy.rungs(), "the first attempt")
    keeper.kill()
    (toy.home / "gate").touch()
    seen = set()
    deadline = time.monotonic() + 120
    while not seen & set(TERMINAL):
        seen.add(toy.state()["state"])
        assert time.monotonic() < deadline
    assert toy.rungs() == list(range(12))
    assert seen <= {"running", "resuming", "preparing", "failed"}


# scripts that know nothing of us


NAN = "print({'loss': '0', 'grad_norm': 'nan', 'learning_rate': '0.0001'}, flush=True)\n"
GOOD = "print({'loss': '2.1', 'grad_norm': 'inf', 'learning_rate': '0.0001'}, flush=True)\n"


def test_a_log_that_shows_a_lost_loss_twice_ends_the_run_at_once(toy):
    """The script would go on for ever; the first of the lines is the proof."""
    toy.script(
        "signal.signal(signal.SIGTERM, lambda *_: write(sigterm=True))\n"
        + GOOD
        + NAN * 2
        + "time.sleep(1000)\n"
    )
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "nan-divergence")
    assert ended["evidence"]["line"] == "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '0.0001'}"
    assert "learning rate" in ended["evidence"]["mend"]
    assert "--adapt if not" in ended["evidence"]["mend"]
    assert toy.ledger()[1:] == []


def test_one_bad_line_between_good_ones_is_no_divergence(toy):
    """A scaler's first steps overflow: so does a norm, and a loss may once."""
    toy.script(GOOD * 3 + NAN + GOOD + NAN + GOOD)
    assert toy.ended()["reason"] == "exit-only"


def test_a_last_loss_that_is_nan_is_a_failure_behind_exit_status_0(toy):
    """One line is no divergence while it runs; as the last word it is."""
    toy.script(GOOD * 3 + NAN)
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "nan-divergence")
    assert "exit status 0" in ended["evidence"]["why"]


def test_a_caught_error_leaves_a_doubt_with_the_success(toy):
    """It may have been the end of the work, or not."""
    toy.script("import traceback\ntry: {}['x']\nexcept KeyError: traceback.print_exc()\n")
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("succeeded", "exit-only")
    assert (ended["evidence"]["doubt"]["class"], ended["evidence"]["doubt"]["line"]) == (
        "user-code-error",
        "KeyError: 'x'",
    )
    assert summary(toy.run, toy.state())["evidence"]["doubt"]["class"] == "user-code-error"


UNSCALE = 'ValueError("Attempting to unscale FP16 gradients.")'


def test_a_crash_of_a_known_class_is_told_with_its_line_and_its_mend(toy):
    """Instead of `exit-nonzero`."""
    toy.script(f"raise {UNSCALE}\n")
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "fp16-unscale")
    assert ended["evidence"]["line"] == "ValueError: Attempting to unscale FP16 gradients."
    assert "worker.prepare" in ended["evidence"]["mend"]
    assert toy.rungs() == [0]


def test_a_crash_of_a_known_class_begins_the_next_rung_of_a_script_that_takes_ours(toy):
    """Without a step trained nothing is done twice, so it need not have asked where to resume from."""
    toy.script(f'tell("consumed", knobs=["precision"])\nif rung == 0: raise {UNSCALE}\n' + DONE)
    assert toy.ended()["state"] == "succeeded"
    assert toy.rungs() == [0, 1]
    assert toy.record(2)["remedy"]["resume_before"] is None


@mostly_long(
    ("body", "reason"),
    [
        ("print('a tip: Attempting to unscale FP16 gradients'); print('step\\n' * 20)\n", "exit-only"),
        (
            "print('ValueError: Attempting to unscale FP16 gradients.')\nraise KeyError('x')\n",
            "exit-nonzero",
        ),
        (
            f"import traceback\ntry: raise {UNSCALE}\nexcept ValueError: traceback.print_exc()\n",
            "fp16-unscale",
        ),
        (
            f"import traceback\ntry: raise {UNSCALE}\nexcept ValueError: traceback.print_exc()\nraise KeyError('x')\n",
            "exit-nonzero",
        ),
        (
            f"import traceback\ntry: raise {UNSCALE}\nexcept ValueError: traceback.print_exc()\nsys.exit(3)\n",
            "fp16-unscale",
        ),
    ],
    ids=["printed", "printed, then another", "caught", "caught, then another", "caught, then left"],
    ci=(0, 1),
)
def test_words_that_are_not_what_ended_the_script_are_no_diagnosis(toy, body, reason):
    """What counts is the exception that nobody caught, or that ended the work."""
    toy.script(body)
    assert toy.ended()["reason"] == reason


# what is known afterwards

KEY = {"torch": "2.13.0+cpu", "model": None, "trainable": "ab", "precision": "cd"}
PROOF = f'tell("evidence", 20, proof={{"steps": 20, "loss_last": 0.5, "key": {KEY!r}}})\n'


def evidence(toy):
    """What lies in the host's cache."""
    return [
        json.loads(path.read_text()) for path in (toy.home / ".launch" / "hosts").glob("*/evidence/*.json")
    ]


def test_a_proof_is_kept_on_the_host_by_its_key(toy):
    """And written as any event; a later one of the same key takes its place."""
    toy.script(AWARE + PROOF + DONE)
    toy.ended()
    (kept,) = evidence(toy)
    assert (kept["key"], kept["card"], kept["failed"]) == (KEY, "cpu", None)
    assert kept["proof"]["loss_last"] == 0.5
    assert [one["step"] for one in toy.events("evidence") if "proof" in one.get("values", {})] == [20]


def test_a_trip_is_kept_as_what_its_precision_came_to(toy):
    """Behind the proof, in the same file."""
    toy.plan(modes=("fp16",))
    toy.script(AWARE + PROOF + "trip(40, 38)\nsys.exit(1)\n")
    toy.ended()
    (kept,) = evidence(toy)
    assert (kept["failed"], kept["proof"]["steps"]) == ("nan-divergence", 20)


def test_a_crash_that_its_precision_caused_is_kept_without_a_proof(toy):
    """With what is certain: of which plan the run was, and which precision was in force; the next rung adds nothing."""
    toy.plan(modes=("fp16", "fp32"))
    toy.script(f'tell("consumed", knobs=["precision"])\nif rung == 0: raise {UNSCALE}\n' + DONE)
    assert toy.ended()["state"] == "succeeded"
    (kept,) = evidence(toy)
    assert (kept["failed"], kept["proof"], kept["run"]) == ("fp16-unscale", None, toy.run.id)
    precision = precision_evidence.precision_digest(toy.record(2, "attempt")["precision"])
    assert kept["key"] == {"torch": None, "model": None, "trainable": None, "precision": precision}


def test_a_script_that_sets_its_own_precision_shows_nothing_of_ours(toy):
    """It may have failed in another one."""
    toy.script(f"raise {UNSCALE}\n")
    assert toy.ended()["reason"] == "fp16-unscale"
    assert evidence(toy) == []


def test_a_rehearsal_proves_nothing_of_a_card_and_says_what_it_is(toy):
    """In attempt, state and summary; nothing enters the cache."""
    toy.plan(rehearsed=True)
    toy.script(AWARE + PROOF + DONE)
    assert toy.ended()["rehearsed"] is True
    assert toy.record(2, "attempt")["rehearsed"] is True
    assert evidence(toy) == []


def test_a_proof_that_cannot_be_kept_costs_the_run_nothing(toy):
    """A file in the place of the folder: it is said, and the training goes on."""
    (toy.home / ".launch" / "hosts").write_text("")
    toy.script(AWARE + PROOF + DONE)
    assert toy.ended()["state"] == "succeeded"
    assert [one for one in toy.events("evidence") if "not-kept" in one.get("values", {})]


# the client's words


def test_a_client_shows_the_end_the_remedy_and_the_next_attempt(client):
    """Line by line as it happened; `ps` says what the run owes its values to, `--json` has an event of the kind."""
    toy = Toy(client.home)
    try:
        toy.script(AWARE + "if rung == 0:\n    save(4)\n    trip(6, 5)\n    sys.exit(1)\n" + DONE)
        toy.ended()
        out = client.seen("attach", RUN, "--host", "local")
        lines = [line.strip() for line in out.splitlines()]
        at = lines.index("! attempt 1 ended at step 6: nan-divergence  (the loss is not finite)")
        text = "precision fp16 over float32 → bf16 over float32, rung 2 of 3; resuming from step 4"
        assert lines[at + 1 : at + 3] == [f"remedy: {text}", "✓ attempt 2 running from step 4"]
        assert f"after nan-divergence in attempt 1: {text}" in client.ok("ps", "--host", "local")
        told = [
            json.loads(line) for line in client.ok("attach", RUN, "--host", "local", "--json").splitlines()
        ]
        assert not any(line.get("rehearsed") for line in told)
        row = json.loads(client.ok("ps", "--host", "local", "--json"))["runs"][0]
        assert (row["remedy"]["class"], row["remedy"]["step"]) == ("nan-divergence", 6)
    finally:
        toy.clear_away()


def test_a_client_shows_class_line_cause_and_mend_of_a_failed_run_and_that_it_was_rehearsed(client):
    """And the next command; in JSON the same, and `rehearsed` on every line of the run."""
    toy = Toy(client.home)
    try:
        toy.plan(rehearsed=True)
        toy.script('tell("consumed", knobs=["split"])\n' + GOOD + f"raise {UNSCALE}\n")
        toy.ended()
        done = client.run("attach", RUN, "--host", "local")
        assert done.returncode == 1
        for words in (
            "✗ failed",
            "fp16-unscale",
            "rehearsed on a CPU",
            "line   ValueError: Att",
            "why    a train",
            "mend   keep",
        ):
            assert words in done.stderr, words
        assert done.stderr.splitlines()[-1].strip() == "next     launch logs aaaa"
        for row in (client.ok("ps", "--host", "local"), client.ok("ps")):
            assert "CPU, rehearsed" in row
            assert "failed: fp16-unscale" in row
            assert "a trainable parameter is float16" in row
        assert json.loads(client.ok("ps", "--json"))["runs"][0]["rehearsed"] is True
        os.rename(client.runs, client.project / "elsewhere")
        told = client.run("attach", RUN, "--host", "local", "--json").stdout.splitlines()
        assert all(json.loads(line)["rehearsed"] for line in told)
        assert json.loads(told[-1])["evidence"]["class"] == "fp16-unscale"
        assert all(json.loads(line)["rehearsed"] for line in client.ok("metrics", RUN, "--json").splitlines())
    finally:
        toy.clear_away()


BEFORE_ITS_FIRST_LINE = """
import sys
from launcher.agent.training import attempts, command_watch
late = {"launcher.agent.logs.log_scanner", "launcher.agent.diagnosis.failures"} & {*sys.modules}
assert not late, late
"""


def test_an_attempt_begins_without_what_reads_its_log():
    """That takes as long to load as all else: the first line of the log has it loaded."""
    subprocess.run([sys.executable, "-c", BEFORE_ITS_FIRST_LINE], check=True, timeout=60)


# the time of a job


STARTS = """
tell("metric", step=%s[values["attempt"] - 1], loss=1.0)
os.kill(os.getppid(), signal.SIGUSR1)
time.sleep(1)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(1000)
"""
"""A start that reaches a step, is then told that the time of its job is nearly up, and ended a moment later."""


@pytest.mark.parametrize(
    ("begins", "reached", "made", "starts"),
    [
        pytest.param("", [24, 24, 25], 2, "a start of its job", id="begins anew"),
        pytest.param(
            'tell("metric", step=1, loss=1.0)\n',
            [24, 25, 26],
            2,
            "a start of its job",
            id="begins anew, on a faster node",
            marks=pytest.mark.long,
        ),
        pytest.param(
            AWARE,
            [24, 48, 40, 72, 70, 71],
            6,
            "2 starts of its job in a row",
            id="resumes",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_run_that_begins_anew_at_the_end_of_each_job_is_given_up(toy, begins, reached, made, starts):
    """It would never end, and burn its allocation. A script that resumes may have had a slow node, and gets one more start."""
    toy.plan(restart=True)
    toy.script(begins + STARTS % reached)
    ended = toy.ended()
    assert (ended["state"], ended["reason"], len(toy.ledger())) == ("failed", "no-progress", made)
    assert ended["evidence"]["why"].startswith(f"{starts} got no further than an earlier one")
    assert ended["evidence"]["why"].endswith("the run has used 1 node minute")
    assert "slurm.time" in ended["evidence"]["mend"]


def test_a_run_that_begins_anew_is_given_up_also_if_slurm_ends_its_script_first(toy):
    """At the limit of its time Slurm signals all processes of a job: the script may die before its agent asks it."""
    toy.plan(restart=True)
    itself = STARTS.replace("os.kill(os.getppid(), signal.SIGTERM)", "os.kill(os.getpid(), signal.SIGTERM)")
    toy.script(itself % [24, 24, 25])
    ended = toy.ended()
    assert (ended["state"], ended["reason"], len(toy.ledger())) == ("failed", "no-progress", 2)
