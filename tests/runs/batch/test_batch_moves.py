"""A person moves a run of a batch to another host: it leaves the batch, which does not train it twice."""

import pytest
from testbed.client import until
from testbed.two_hosts import STEPS, TRAIN, two_hosts

pytestmark = pytest.mark.slow(reason="a run over SSH that goes on here")


@pytest.mark.long
def test_a_run_that_is_moved_leaves_its_batch(client, ssh_host):
    """While it is worked; its item ends, says where the run goes on, and is not begun again."""
    with two_hosts(client, ssh_host) as two:
        script = client.project / "train.py"
        script.write_text(TRAIN.format(ledger=str(two.path), pause=0.3, later=60, steps=STEPS))
        (client.project / "night.toml").write_text('host = "A"\njob = "job.toml"\n')
        process = client.start("batch", "night.toml")
        until(lambda: len(two.ledger()) >= 4, "four steps")
        (run,) = two.runs_on("A")
        client.ok("recover", run, "--host", "local")
        ((child, _),) = two.runs_on("local").items()
        _, said = process.communicate(timeout=180)
        assert process.returncode == 1, said
        again = client.run("batch", "resume", "--failed")
        assert again.returncode == 1
        assert "0 items are queued again" in again.stderr
        assert f"continues as {child[-6:]} on local" in again.stdout
        client.ok("attach", child)
        two.judge()
        assert [*two.everywhere()] == [run, child]
