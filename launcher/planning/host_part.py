"""What a kind of host adds to a plan, and to what the gate checks. The defaults are those of a machine."""

from __future__ import annotations

from typing import Literal, NamedTuple

from launcher.values.plan import Finding, Submission


class HostChecks(NamedTuple):
    """What the gate takes from a kind of host: its own `findings`, and which of the others apply.

    `is_elsewhere`: the job runs on another machine than the one that was probed. `packages`: the job gets those that are
    `there` by the probe, or what it lacks is `installed` at each start, or they are `unknown`, in an image. `one_node` is
    what to type for a run on one node alone.
    """

    findings: tuple[Finding, ...] = ()
    is_elsewhere: bool = False
    packages: Literal["there", "installed", "unknown"] = "there"
    one_node: str = ""


MACHINE_CHECKS = HostChecks()


class Resources(NamedTuple):
    """What a run gets on a kind of host: how many nodes, and how it gets its `cards` there.

    `submission` becomes the plan's `slurm`, and `title` says it as a command. `is_in_image`: the job runs in an image, where
    no Python of the host's counts.
    """

    nodes: int = 1
    cards: Literal["leased", "given", "scheduled"] = "leased"
    submission: Submission | None = None
    title: str = ""
    is_in_image: bool = False


MACHINE = Resources()
