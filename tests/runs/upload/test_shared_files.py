"""A large file that is sent with the code, natively as an ordinary user: once on the host, and no run changes another's."""

import os
import re

import pytest
from testbed.client import missing

pytestmark = [pytest.mark.testbed, pytest.mark.slow(reason="sends a file of 64 MiB, and starts several runs")]

SIZE = 64 << 20
READS = "import os; print('read', len(open('model.pt', 'rb').read()), os.path.islink('model.pt'))"
WRITES = "open('model.pt', 'r+b').write(b'changed')"
REPLACES = "import os\nopen('new', 'w').write('mine')\nos.replace('new', 'model.pt')\nos.replace('model.pt', '../artifacts/model')"


@pytest.fixture
def large(client, lab):
    """A project with a large file, for a host whose user is not root; nothing else is below that root."""
    if os.geteuid() != 0:
        missing("the host's user must be another one")
    lab.remove_root()
    with (client.project / "model.pt").open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.truncate(SIZE)
    return lab


def launch(client, script, *words):
    client.script(script)
    return client.run("--host", "A", *words, "--", "python", "train.py")


def used(lab):
    return int(lab.ssh("du", "-s", "-B1", "--apparent-size", str(lab.root)).split()[0])


def sums(lab):
    """The SHA-256 of every large file of the host's store."""
    words = ("-type", "f", "-size", "+1000k", "-exec", "sha256sum", "{}", "+")
    return {line.split()[0] for line in lab.ssh("find", f"{lab.root}/store", *words).splitlines()}


@pytest.mark.long
def test_runs_share_one_copy_and_none_changes_it(client, large):
    """Three runs need the room of one; who writes in place is refused and told the mend, which works."""
    done = launch(client, READS)
    assert done.returncode == 0, done.stderr
    assert f"read {SIZE} True" in client.ok("logs", "last")
    one_run = used(large)
    assert SIZE < one_run < SIZE * 1.2
    before = sums(large)

    done = launch(client, REPLACES)
    assert done.returncode == 0, done.stderr

    done = launch(client, WRITES)
    assert done.returncode == 1
    assert "shared-file-refused" in done.stderr
    assert """--set writable='["model.pt"]'""" in done.stderr
    assert used(large) < one_run * 1.1
    assert re.search(r" 1 of \d+ files sent", done.stderr)

    done = launch(client, WRITES, "--set", 'writable=["model.pt"]')
    assert done.returncode == 0, done.stderr
    assert used(large) > one_run + SIZE
    assert sums(large) == before

    kept = client.detached("--host", "A", "--", "python", "-c", READS)
    client.ok("attach", kept)
    runs = [path.name for path in client.runs.iterdir() if path.is_dir() and path.name[0].isdigit()]
    for run in runs:
        if run != kept:
            client.ok("rm", "--force", run)
    client.ok("gc", "--host", "A")
    assert large.ssh("sh", "-c", f"wc -c < {large.root}/runs/{kept}/work/code/model.pt").strip() == str(SIZE)
    client.ok("rm", kept)
    client.ok("gc", "--host", "A")
    assert used(large) < SIZE


def test_a_job_cannot_add_to_data_that_other_runs_share(client, lab):
    """Beside its data it may write, in its data it may not: the next run with that data sees what was sent."""
    (client.project / "ds").mkdir()
    (client.project / "ds" / "in.csv").write_text("1")
    client.script(
        "try:\n    open('../data/train/ds/pred.csv', 'w')\nexcept PermissionError as error:\n    print(error)\n"
    )
    job = 'name = "add"\ncommand = ["python3", "train.py"]\n[data]\ntrain = "./ds"\n'
    client.script(job, "add.toml")
    client.ok("--host", "A", "--job", "./add.toml")
    assert "Permission denied: '../data/train/ds/pred.csv'" in client.ok("logs", "last")
    assert lab.ssh("find", f"{lab.root}/store/data", "-name", "pred.csv") == ""
    client.ok("rm", "--yes", "last")
    client.ok("gc", "--host", "A")
    assert lab.ssh("find", f"{lab.root}/store/data", "-name", "in.csv") == ""
