"""A job with its user's own rights, natively: the agent is not its tool. In a container: test_containers.py."""

import json

import pytest
from testbed.client import until

HOSTILE = """
import json, os, time
run = os.path.dirname(os.path.dirname(os.getcwd()))
keys = os.path.expanduser("~/.ssh/authorized_keys")
pid = os.getpid()
for number in range(max(1, pid - 2000), pid + 58000):
    os.symlink(keys, os.path.join(run, "control", "wish.%d.tmp" % number))
for name in ("state.json", "attempt.json"):
    for number in range(max(1, pid - 500), pid + 500):
        os.symlink(keys, os.path.join(run, "record", "0002", "%s.%d.tmp" % (name, number)))
heartbeat = os.path.join(run, "record", "0002", "heartbeat")
os.link(keys, heartbeat + ".new")
os.rename(heartbeat + ".new", heartbeat)
os.rename(os.path.join(run, "work", "artifacts"), os.path.join(run, "work", "away"))
os.symlink(os.path.dirname(keys), os.path.join(run, "work", "artifacts"))
open("ready", "w").close()
while True:
    time.sleep(0.1)
"""


@pytest.mark.slow(reason="a run, a stop and a pull")
def test_a_native_job_makes_no_tool_of_the_agent(client):
    """Links with the names of temporary files, another file's second name, and artifacts/ that leads to the keys."""
    keys = client.home / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    keys.write_text("a key\n")
    client.script(HOSTILE)
    run = client.detached("--", "python", "train.py")
    folder = client.home / ".launch" / "runs" / run
    until(lambda: (folder / "work/code/ready").exists(), "the job's links")
    client.run("stop", "--now", run)
    rows = json.loads(client.ok("ps", "--json", "--host", "local"))["runs"]
    assert [row["state"] for row in rows] == ["stopped"]
    client.run("pull", run, "--all")
    assert keys.read_text() == "a key\n"
    assert not list(client.runs.rglob("authorized_keys"))
