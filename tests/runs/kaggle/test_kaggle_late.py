"""A kernel that Kaggle has accepted and does not show yet, and a client that is killed before it does.

By the stand-in's own kernels and ledger, each kernel that was accepted is followed to its end, or deleted.
"""

import os
import random
import subprocess

import pytest
from testbed.client import until

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each round starts clients and a session"),
]
ROUNDS = range(int(os.environ.get("LAUNCH_LATE_KILLS", "1")))
"""`make late` asks for 20."""
SHOWS_S = 20.0
DENIALS = (403, 404, 401)
ANSWERS = ("answered", "lost", "held")
"""How the push is answered: at once, never, or not before the client is killed."""
ENDS = ("attach", "stop", "stop, then a list")


@pytest.mark.parametrize("number", ROUNDS)
def test_a_client_killed_before_its_kernel_shows_leaves_none_behind(kaggle_account, number, record_property):
    """The next command follows it, or a stop says that it cannot be deleted yet, and a later command does that."""
    account, client, dice = kaggle_account, kaggle_account.client, random.Random(number)
    denial = DENIALS[number % 3]
    answer, end = ANSWERS[(number + number // 3) % 3], ENDS[(number + number // 9) % 3]
    account.service.habits.shows_after_s, account.service.habits.missing_status = SHOWS_S, denial
    if answer != "answered":
        account.service.fail("SaveKernel", answer, wait_s=60.0)
    if end != "attach":
        account.pause_at(5)
    process = client.start(*account.words())
    until(account.pushes, "the push", 240)
    waited_s = dice.uniform(0.0, SHOWS_S * 0.4)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(waited_s)
    process.kill()
    process.communicate()
    (run,) = account.runs()
    ref = f"alice/launch-{run}-1"
    if end == "attach":
        assert "succeeded" in client.seen("attach", run)
        assert account.steps() == [*range(1, 13)]
    else:
        session = account.session(run)
        refused = client.run("stop", "--now", run)
        is_shown = refused.returncode == 0  # on a slow machine the kernel may show by now
        assert is_shown or (refused.returncode, f"does not show {ref} yet" in refused.stderr) == (4, True), (
            refused.stderr
        )
        until(lambda: account.service.state.is_shown(ref) or not account.kernels(), "that it shows")
        client.ok(*(("stop", "--now", run) if end == "stop" else ("ps", "--host", "k")))
        assert account.row(run)["state"] == "stopped"
        assert session.status == "CANCEL_ACKNOWLEDGED"
    assert account.pushes() == [f"{ref}/1"]
    assert account.kernels() == []
    deleted = [line for line in account.service.calls("DeleteKernel") if line["accepted"]]
    assert [line["body"]["kernelSlug"] for line in deleted] == [f"launch-{run}-1"]
    record_property("denied", str(denial))
    record_property("answer", answer)
    record_property("killed", f"{waited_s:.1f} s after the push")
    record_property("then", end)
    record_property("left", "0 of 1")
