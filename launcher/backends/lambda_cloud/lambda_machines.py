"""The facts expected of a machine rented at Lambda Cloud, for planning and checks before it costs anything.

Cards, memory and disk are those of the offer. The facts about its image are those read until DATE. Once the
machine runs it is probed like any other, and the plan is made again from its facts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from launcher.planning.placement import expected_card
from launcher.rental.offers import FOR_ARM, is_arm
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.renting import InstanceOffer
from launcher.values.facts import Engine, Facts, FileSystem
from launcher.values.host import Host
from launcher.values.plan import Finding, Plan
from launcher.values.profile import Profile

DATE = "2026-11-20"


class MachineImage(NamedTuple):
    """The assumed facts about Lambda Stack on Ubuntu, the image that machines boot. None was observed on a machine."""

    system: str
    driver: str
    driver_date: str
    docker: str


IMAGE = MachineImage(
    system="Ubuntu",
    driver="570.148.08",  # from one notebook, on gpu_1x_a100_sxm4; the image's version changes
    driver_date="2026-09-20",
    # That the image has Docker is known only from dstack's code, which uses it without installing it. No source
    # gives its version; this one stands for any that gives cards to containers.
    docker="24.0",
)


def expected_facts(host: Host, offer: InstanceOffer, profile: Profile) -> Facts:
    """Return the facts expected of a rented machine. Unknown ones are None or missing."""
    user = host.user or LambdaSettings.usual_user
    name = _probe_name(offer, profile)
    gpus = tuple(expected_card(profile, index, name, IMAGE.driver) for index in range(offer.cards))
    home = "/root" if user == "root" else f"/home/{user}"
    return Facts(
        host_id=f"expected-{host.name}",
        boot_id="",
        hostname=offer.type,
        user=user,
        platform="linux",
        machine="aarch64" if is_arm(offer) else "x86_64",
        cpus=offer.vcpus,
        memory_gb=offer.ram_gb or None,
        free_gb=offer.disk_gb or None,
        root=home + host.root[1:] if host.root.startswith("~/") else host.root,
        file_system=FileSystem(kind="expected"),
        python="python3",
        gpus=gpus,
        engines=(
            Engine(name="docker", program="docker", socket="/var/run/docker.sock", version=IMAGE.docker),
        ),
    )


def _probe_name(offer: InstanceOffer, profile: Profile) -> str:
    """Return the card name of a profile that is most like an offer's, e.g. of an A100 for SXM4 or for PCIe."""
    offered = {*re.findall(r"[A-Z0-9]+", f"{offer.type} {offer.title}".upper().replace("_", " "))}
    return max(profile.probe_names, key=lambda name: len(offered & {*re.findall(r"[A-Z0-9]+", name.upper())}))


def lambda_findings(plan: Plan, facts: Facts | None) -> list[Finding]:
    """Return notes about the facts that a plan for a machine not rented yet depends on."""
    if facts is None:
        return []
    driver = f"driver {IMAGE.driver} (as of {IMAGE.driver_date})"
    message = (
        f"{plan.host}: {facts.cards}, {IMAGE.system}, {driver} and Docker are expected, as of {DATE}: "
        "a machine can be probed only once it is rented"
    )
    mend = "it is probed first, and the rental ends at once if the plan cannot work on it"
    found = [Finding(level="note", code="expected-only", message=message, mend=mend)]
    if facts.machine == "aarch64":
        found.append(Finding(level="note", code="arm-processor", message=f"{plan.host}: {FOR_ARM}"))
    return found
