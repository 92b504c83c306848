"""How long whoever stops a run of a cluster waits for Slurm, by stand-ins for its desk and for the clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from launcher.backends.slurm import slurm_runtime
from launcher.errors import HostError
from launcher.values.record import RuntimeRecord, Summary

RUN = "261126-cluster-aaaaaa"
QUESTION_S, WISH_S = 1.5, 17.0
"""How long an agent waits for a silent Slurm, to list a run, and for its refusal of an order."""


class SilentCluster:
    """A cluster whose Slurm answers nobody, and a clock that runs while it is asked."""

    name = "hive"

    def __init__(self):
        self.runs = self
        self.host = "hive"
        self.now_s = 0.0
        self.wishes = []

    def summaries(self, run):
        """Return the run as one that nobody can say anything about."""
        self.now_s += QUESTION_S
        return [Summary(run=run, state="reserved", evidence={"service": "squeue is late", "silent": True})]

    def wish(self, run, wish, *, force=False):
        """Note the wish."""
        self.now_s += WISH_S
        self.wishes.append((run, wish, force))

    def sleep(self, seconds):
        """Let the clock run."""
        self.now_s += seconds


@pytest.mark.parametrize("grace_s", [0.0, 30.0], ids=["--now", "with a grace"])
def test_a_slurm_that_is_silent_is_named_soon(monkeypatch, grace_s):
    """Before the wish is repeated, which would wait for Slurm again."""
    cluster = SilentCluster()
    clock = SimpleNamespace(monotonic=lambda: cluster.now_s, sleep=cluster.sleep)
    monkeypatch.setattr(slurm_runtime, "time", clock)
    with pytest.raises(
        HostError, match=r"Slurm does not answer: squeue is late; the end of .* is not confirmed"
    ):
        slurm_runtime.SlurmRuntime(cluster, RuntimeRecord(kind="slurm")).stop(RUN, grace_s)
    assert cluster.wishes == []
    assert cluster.now_s < 2
