"""The parts of a plan and of the gate that depend on the kind of host. The defaults are those of a machine."""

from __future__ import annotations

from typing import Literal, NamedTuple

from launcher.values.plan import Finding, Submission


class HostChecks(NamedTuple):
    """The gate's inputs from a kind of host: its own `findings`, and the checks that apply.

    `is_elsewhere`: the job runs on another machine than the probed one. `packages`: `there` if the job gets
    the probed packages, `installed` if each start installs the missing ones, `unknown` if they are in an
    image. `one_node` is the option for a run on one node.
    """

    findings: tuple[Finding, ...] = ()
    is_elsewhere: bool = False
    packages: Literal["there", "installed", "unknown"] = "there"
    one_node: str = ""


MACHINE_CHECKS = HostChecks()


class Resources(NamedTuple):
    """A run's resources on a kind of host: the number of `nodes`, and how the run gets its `cards`.

    `submission` becomes the value `slurm` of the plan, and `title` shows the submission as a command.
    `is_in_image`: the job runs in an image, so no Python of the host is relevant.
    """

    nodes: int = 1
    cards: Literal["leased", "given", "scheduled"] = "leased"
    submission: Submission | None = None
    title: str = ""
    is_in_image: bool = False


MACHINE = Resources()
