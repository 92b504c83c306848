"""Whether a machine is a login node of a Slurm cluster, by what lies on it: no program is started."""

import pytest

from launcher.agent.liveness.slurm import slurm_programs
from launcher.agent.liveness.slurm.slurm_programs import is_login_node


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder of programs, with an sbatch that may not be started, and a configuration."""
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ntouch {tmp_path}/was-started\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=hive\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(slurm_programs, "_CONFIGURATIONS", (str(tmp_path / "slurm.conf"),))
    monkeypatch.setattr(slurm_programs, "_FOLDERS", ())
    return tmp_path


def test_sbatch_and_a_configuration_make_a_login_node(machine):
    assert is_login_node()
    assert not (machine / "was-started").exists()


def test_a_configuration_may_be_where_a_variable_says(machine, monkeypatch):
    (machine / "slurm.conf").rename(machine / "other.conf")
    assert not is_login_node()
    monkeypatch.setenv("SLURM_CONF", str(machine / "other.conf"))
    assert is_login_node()


def test_programs_alone_make_none(machine):
    """They are installed on many machines that belong to no cluster."""
    (machine / "slurm.conf").unlink()
    assert not is_login_node()


def test_a_configuration_alone_makes_none(machine):
    (machine / "sbatch").unlink()
    assert not is_login_node()


def test_a_compute_node_within_a_job_is_none(machine, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert not is_login_node()


@pytest.mark.parametrize(
    ("cgroups", "expected"),
    [
        ("0::/system.slice/slurmstepd.scope/job_17/step_extern/user/task_special\n", False),
        ("9:memory:/slurm/uid_1000/job_17/step_extern\n", False),
        ("0::/user.slice/user-1000.slice/session-4.scope\n", True),
    ],
)
def test_a_session_that_slurm_has_adopted_into_a_job_is_none(machine, monkeypatch, cgroups, expected):
    """It came by ssh, and has no variables of the job's."""
    monkeypatch.setattr(slurm_programs, "read_text", lambda _path: cgroups)
    assert is_login_node() == expected
