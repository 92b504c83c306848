"""Environments for jobs on a cluster: by the login node, or in a job where that may not make them."""

import shutil
import signal

import pytest
from testbed.client import until
from testbed.kept import CLEAR_ROOT

pytestmark = pytest.mark.testbed


@pytest.mark.long
@pytest.mark.parametrize("build", ["login", "job"])
def test_an_environment_is_made_where_the_host_says(client, slurm, small_wheels, build):
    """The job finds it, whoever made it; a second launch uses it again. Slurm's account of jobs says who made it."""
    table = slurm.logins[0].table("hive")
    conf = client.home / "pip.conf"
    conf.write_text("[global]\nno-index = true\nfind-links = /home/ada/wheels\n")
    making = f'[hosts.hive.build]\nwhere = "{build}"\npip_conf = "{conf}"\ntorch_index = ""\n'
    (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\n{making}')
    slurm.ssh("sh", "-c", f"rm -rf where; {CLEAR_ROOT}")
    shutil.rmtree(slurm.homes / "ada" / "wheels", ignore_errors=True)
    shutil.copytree(small_wheels, slurm.homes / "ada" / "wheels")  # nodes have a /tmp of their own
    for path in (slurm.homes / "ada" / "wheels").rglob("*"):
        path.chmod(0o644)
    (slurm.homes / "ada" / "wheels").chmod(0o755)
    client.script("import small, os, sys; open(os.path.expanduser('~/where'), 'a').write(sys.prefix + '\\n')")
    (client.project / "job.toml").write_text(
        'name = "small"\ncommand = ["python", "train.py"]\nrequirements = ["small==1.0"]\n'
    )
    before = jobs_called(slurm, "launch-environment")
    out = client.run("--host", "hive", "--profile", "cpu", "--job", "job.toml")
    assert out.returncode == 0, out.stdout + out.stderr
    assert "made in" in out.stderr
    again = client.run("--host", "hive", "--profile", "cpu", "--job", "job.toml")
    assert ", already there" in again.stderr, again.stderr
    until(lambda: len(slurm.ssh("cat", "where").split()) == 2, "both runs")
    assert len({*slurm.ssh("cat", "where").split()}) == 1
    assert jobs_called(slurm, "launch-environment") - before == (1 if build == "job" else 0)


def jobs_called(cluster, name):
    return len(cluster.ssh("squeue", "--me", "--states=all", "-h", f"--name={name}").splitlines())


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_client_that_goes_takes_the_job_for_its_environment_with_it(client, slurm, ending):
    """It waits in the queue, and neither it nor what waits for it on the login node is left."""
    table = slurm.logins[0].table("hive")
    making = '[hosts.hive.build]\nwhere = "job"\ntorch_index = ""\n'
    (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\n{making}')
    slurm.ssh("sh", "-c", CLEAR_ROOT)
    client.script("pass")
    (client.project / "job.toml").write_text(
        'name = "small"\ncommand = ["python", "train.py"]\nrequirements = ["small==1.0"]\n'
    )

    def queued():
        return slurm.controller.enter("squeue", "--noheader", "--name=launch-environment", "-o", "%i %T")

    with slurm.drained(*slurm.nodes):
        started = client.start("--host", "hive", "--profile", "cpu", "--job", "job.toml")
        until(queued, "the job for the environment")
        assert "PENDING" in queued()
        started.send_signal(ending)
        started.communicate(timeout=180)
        until(lambda: not queued(), "an empty queue")
        until(lambda: not slurm.logins[0].enter("pgrep", "srun", check=False), "no srun on the login node")
