"""The name of the cluster that a machine belongs to, where its programs have no file that says it."""

from testbed.client import until

from launcher.agent.liveness.slurm import slurm_programs
from launcher.agent.liveness.slurm.slurm_programs import cluster_name


def test_a_controller_that_answers_later_is_heard(tmp_path, monkeypatch):
    """One that did not answer at first must not have the runs of the cluster count as another's for as long as an agent lives."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/config 2>/dev/null || exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(slurm_programs, "_CONFIGURATIONS", ())
    monkeypatch.setattr(slurm_programs, "NAME_KEPT_S", 0.2)
    assert cluster_name() == ""
    (tmp_path / "config").write_text("ClusterName             = Hive\n")
    until(lambda: cluster_name() == "hive", "the name", timeout=10)
