"""Environments for jobs on a cluster: by the login node, or in a job where that may not make them."""

import pytest
from testbed.client import until

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize("build", ["login", "job"])
def test_an_environment_is_made_where_the_host_says(client, slurm, small_wheels, build):
    """The job finds it, whoever made it; a second launch uses it again. Slurm's account of jobs says who made it."""
    table = slurm.logins[0].table("hive")
    (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\nbuild = "{build}"\n')
    slurm.ssh("rm", "-rf", ".launch", "where")
    client.script("import small, os, sys; open(os.path.expanduser('~/where'), 'a').write(sys.prefix + '\\n')")
    (client.project / "job.toml").write_text(
        'name = "small"\ncommand = ["python", "train.py"]\nrequirements = ["small==1.0"]\n'
    )
    client.variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(small_wheels)}
    before = jobs_called(slurm, "launch-environment")
    out = client.run("--host", "hive", "--profile", "cpu", "--job", "job.toml")
    assert out.returncode == 0, out.stdout + out.stderr
    assert "made in" in out.stderr
    again = client.run("--host", "hive", "--profile", "cpu", "--job", "job.toml")
    assert ", there" in again.stderr, again.stderr
    until(lambda: len(slurm.ssh("cat", "where").split()) == 2, "both runs")
    assert len({*slurm.ssh("cat", "where").split()}) == 1
    assert jobs_called(slurm, "launch-environment") - before == (1 if build == "job" else 0)


def jobs_called(cluster, name):
    return len(cluster.ssh("squeue", "--me", "--states=all", "-h", f"--name={name}").splitlines())
