"""The facts expected of a machine rented at Lambda Cloud, for planning and checks before it costs anything.

Cards, memory and disk are those of the offer. The facts about its image are those read until DATE. Once the
machine runs it is probed like any other, and the plan is made again from its facts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from launcher.backends.lambda_cloud.lambda_cloud_host import LambdaCloudHost
from launcher.planning.placement import expected_card
from launcher.rental.offers import FOR_ARM, is_arm
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.renting import InstanceOffer
from launcher.values.facts import Engine, Facts, FileSystem
from launcher.values.host import Host
from launcher.values.plan import Finding, Plan
from launcher.values.profile import Profile

DATE = "2026-11-28"


class MachineImage(NamedTuple):
    """The assumed facts about an image family of Lambda Stack. None was observed on a machine."""

    system: str
    driver: str
    driver_date: str


IMAGES = {
    # One notebook, on gpu_1x_a100_sxm4. The versions of a family change.
    "lambda-stack-22-04": MachineImage("Ubuntu 22.04", "570.148.08", "2026-09-20"),
    "lambda-stack-24-04": MachineImage("Ubuntu 24.04", "580.105.08", "2026-11"),
}
DEFAULT = "lambda-stack-22-04"
"""The family that a machine boots if the table names none, and whose older driver is assumed for other images."""
DOCKER = "24.0"
"""A version of Docker that gives cards to containers.

Only dstack's code shows that the images have Docker: it uses it without installing it.
"""


def image_of(host: Host) -> MachineImage:
    """Return the assumed facts of the image in a host's table."""
    named = host.lambda_cloud.image if isinstance(host, LambdaCloudHost) else None
    return IMAGES.get(named or DEFAULT, IMAGES[DEFAULT])


def expected_facts(host: Host, offer: InstanceOffer, profile: Profile) -> Facts:
    """Return the facts expected of a rented machine. Unknown ones are None or missing."""
    user = host.user or LambdaSettings.usual_user
    name, image = _probe_name(offer, profile), image_of(host)
    gpus = tuple(expected_card(profile, index, name, image.driver) for index in range(offer.cards))
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
        engines=(Engine(name="docker", program="docker", socket="/var/run/docker.sock", version=DOCKER),),
    )


def _probe_name(offer: InstanceOffer, profile: Profile) -> str:
    """Return the card name of a profile that is most like an offer's, e.g. of an A100 for SXM4 or for PCIe."""
    offered = {*re.findall(r"[A-Z0-9]+", f"{offer.type} {offer.title}".upper().replace("_", " "))}
    return max(profile.probe_names, key=lambda name: len(offered & {*re.findall(r"[A-Z0-9]+", name.upper())}))


def lambda_findings(plan: Plan, facts: Facts | None, host: Host) -> list[Finding]:
    """Return notes about the facts that a plan for a machine not rented yet depends on."""
    if facts is None:
        return []
    image = image_of(host)
    driver = f"driver {image.driver} (as of {image.driver_date})"
    message = (
        f"{plan.host}: {facts.cards}, {image.system}, {driver} and Docker are expected, as of {DATE}: "
        "a machine can be probed only once it is rented"
    )
    mend = "it is probed first, and the rental ends at once if the plan cannot work on it"
    found = [Finding(level="note", code="expected-only", message=message, mend=mend)]
    if facts.machine == "aarch64":
        found.append(Finding(level="note", code="arm-processor", message=f"{plan.host}: {FOR_ARM}"))
    return found
