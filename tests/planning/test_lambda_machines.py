"""What is expected of a rented machine: its cards, its image, and that the gate passes a sane plan for it."""

import pytest
from testbed.profiles import profiles

from launcher.backends.lambda_cloud.lambda_cloud_host import LambdaCloudHost
from launcher.backends.lambda_cloud.lambda_machines import DATE, expected_facts
from launcher.backends.registry import backend_of
from launcher.config.resolve import image_sources, wheels
from launcher.planning.assembly import plan
from launcher.planning.placement import runtime
from launcher.planning.software.environment_plan import environment
from launcher.rental.offers import profile_of
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.renting import InstanceOffer
from launcher.values.host import Host
from launcher.values.job import Job

KNOWN = profiles()
TYPES = {
    "gpu_1x_a100": ("A100", 40),
    "gpu_8x_a100_80gb_sxm4": ("A100", 80),
    "gpu_1x_h100_pcie": ("H100", 80),
    "gpu_2x_h200": ("H200", 141),
}


def host(**values):
    return LambdaCloudHost(name="lambda", lambda_cloud=LambdaSettings(max_hours=8), **values)


def found(name="gpu_1x_a100", **changes):
    card, memory_gb = TYPES.get(name, ("A100", 40))
    about = {
        "title": card,
        "card": card,
        "memory_gb": memory_gb,
        "cards": int(name[4]),
        "cents_per_hour": 199,
    }
    offer = InstanceOffer(**{"type": name, **about, "vcpus": 30, "ram_gb": 200, "disk_gb": 512, **changes})
    return offer, profile_of(offer, KNOWN.values())


def job(**values):
    return Job(name="sft", command=("python", "train.py"), **values)


def checked(asked, one, place):
    facts = expected_facts(place, *one)
    kind = runtime(one[1], place, asked, facts)
    sources = image_sources() if kind == "docker" else None
    made = environment(one[1], asked, place, facts, wheels()) if kind == "native" else None
    planned = plan(one[1], place, asked, "auto", kind, sources, environment=made)
    return planned, {
        finding.code: finding for finding in backend_of(place).planning.check(planned, facts, place, wheels())
    }


CARDS = {
    "gpu_1x_a100": "1 x NVIDIA A100-PCIE-40GB",
    "gpu_8x_a100_80gb_sxm4": "8 x NVIDIA A100-SXM4-80GB",
    "gpu_1x_h100_pcie": "1 x NVIDIA H100 PCIe",
    "gpu_2x_h200": "2 x NVIDIA H200",
}
"""The form of a card is that of its type."""


@pytest.mark.parametrize("name", TYPES)
def test_the_gate_passes_a_sane_plan_for_all_cards_of_a_type(name):
    """In a container, since Docker is assumed to be there; what is only expected is said with its date."""
    one = found(name)
    planned, said = checked(job(requirements=("torch", "peft==0.19.1")), one, host())
    assert [code for code, finding in said.items() if finding.level == "refuse"] == []
    assert (planned.runtime, planned.split.ranks) == ("docker", one[0].cards)
    assert f"as of {DATE}" in said["expected-only"].message
    assert CARDS[name] in said["expected-only"].message


def test_a_job_without_a_container_passes_too():
    """What its Python has is not known before, so nothing is refused for it."""
    planned, said = checked(job(requirements=("torch",)), found(), host(runtime="native"))
    assert planned.runtime == "native"
    assert [code for code, finding in said.items() if finding.level == "refuse"] == []


def test_the_note_is_for_what_is_not_rented_yet():
    """A rented machine is a plain one, which was probed."""
    one = found()
    facts = expected_facts(host(), *one)
    planned = plan(one[1], host(), job())
    rented = Host(name="lambda", address="192.0.2.7", user="ubuntu")
    assert "expected-only" not in {
        finding.code for finding in backend_of(rented).planning.check(planned, facts, rented)
    }
    assert "expected-only" not in {
        finding.code for finding in backend_of(host()).planning.check(planned, None, host())
    }


def test_what_the_offer_says_is_expected_and_what_nobody_says_is_unknown():
    facts = expected_facts(host(user="root", root="~/runs"), *found())
    assert (facts.cpus, facts.memory_gb, facts.free_gb, facts.root) == (30, 200, 512, "/root/runs")
    bare = expected_facts(host(), *found(ram_gb=0, disk_gb=0))
    assert (bare.memory_gb, bare.free_gb, bare.user, bare.root) == (
        None,
        None,
        "ubuntu",
        "/home/ubuntu/.launch",
    )
    assert facts.interpreter is None


def test_a_type_with_an_arm_processor_gets_its_wheels():
    assert expected_facts(host(), *found()).machine == "x86_64"
    assert expected_facts(host(), *found("gpu_1x_gh200")).machine == "aarch64"
