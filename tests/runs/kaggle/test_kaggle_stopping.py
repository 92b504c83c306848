"""A run that is stopped between two sessions stays stopped, for every client of the account, and loses nothing."""

import pytest

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each test starts clients and a session"),
]
SESSION_HOURS = 0.004


def interrupted(account):
    """A run whose first session has ended at its limit, with a checkpoint that nobody has brought home."""
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    return run


@pytest.mark.long
def test_a_run_that_is_stopped_between_sessions_leaves_no_kernel_and_keeps_its_checkpoint(kaggle_account):
    """It is not asked whether what is here may be lost; and an empty home finds nothing to go on with."""
    account = kaggle_account
    run = interrupted(account)
    row = account.row(run)
    assert row["state"] == "interrupted"
    assert row["evidence"] == {"service": "its session has ended"}
    said = account.client.ok("stop", run)
    assert "stopped: by-user" in said
    assert "is lost" not in said
    assert account.kernels() == []
    assert [*account.run_dir(run).glob("work/checkpoints/*/trainer.json")]
    assert account.row(run)["state"] == "stopped"
    other = account.copy("other")
    assert run not in other.ok("ps", "--host", "k")
    account.assert_pushed_once(run, 1)


@pytest.mark.long
def test_a_client_that_knew_a_run_does_not_revive_it_after_another_has_stopped_it(kaggle_account):
    """Its copy says interrupted still; the kernel is gone, and nothing is pushed from there."""
    account = kaggle_account
    run = interrupted(account)
    other = account.copy("other")
    assert account.row(run, other)["state"] == "interrupted"
    account.client.ok("stop", "--now", run)
    account.hurry(other)
    refused = other.run("attach", run, "--host", "k")
    assert (refused.returncode, "another client continued or stopped the run" in refused.stderr) == (
        1,
        True,
    ), refused.stderr
    account.assert_pushed_once(run, 1)


def test_a_run_is_stopped_from_another_home_and_its_checkpoint_comes_there_first(kaggle_account):
    account = kaggle_account
    run = interrupted(account)
    other = account.copy("other")
    assert account.row(run, other)["state"] == "interrupted"
    other.ok("stop", "--now", run, "--host", "k")
    assert account.kernels() == []
    assert [*account.run_dir(run, other).glob("work/checkpoints/*/trainer.json")]


@pytest.mark.long
def test_kernels_that_cannot_be_deleted_are_named_and_go_with_the_next_stop(kaggle_account):
    """A service that is away while the outputs come: nothing is deleted before they are here."""
    account = kaggle_account
    run = interrupted(account)
    assert account.row(run)["state"] == "interrupted"
    account.service.fail("DeleteKernel", "status", status=503, times=1000)
    said = account.client.run("stop", run)
    assert said.returncode != 0
    assert f"launch stop {run.rpartition('-')[2]}" in said.stderr
    assert account.kernels() == [f"alice/launch-{run}-1"]
    account.service.faults.clear()
    assert "stopped" in account.client.ok("stop", run)
    assert account.kernels() == []


@pytest.mark.long
def test_a_script_that_cannot_resume_gets_no_second_session_and_its_follower_learns_why(kaggle_account):
    """The end of its session is no word of a checkpoint, of a stop by anybody, or of files that only were newer at the end."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.client.script("import time\nprint('at work', flush=True)\ntime.sleep(300)\n")
    followed = account.client.run("--host", "k", "--", "python", "train.py")
    said = followed.stdout + followed.stderr
    assert "never calls worker.resume_from()" in said
    assert "stopping" not in said
    assert "it cannot continue in another one" in said
    assert "not-restartable" in said
    assert "next one" not in said.partition("at its limit")[2]
    assert "differs from its printed copy" not in said
    assert followed.returncode == 1
    (run,) = account.runs()
    account.assert_pushed_once(run, 1)
    assert "resume_from" in account.client.ok("diagnose", run)
