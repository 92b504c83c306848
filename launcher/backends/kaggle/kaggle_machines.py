"""Kaggle's machines: the cards for each accelerator name, and the facts expected before a session.

Nothing can be probed before a session. The facts are those read on DATE, and the kernel checks the card that
it gets. Example: `NvidiaTeslaT4` is two T4, the profile t4x2; `NvidiaTeslaP100` is retired, and gives two T4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from launcher.backends.kaggle.kaggle_host import KaggleSettings
from launcher.backends.kaggle.kaggle_kernel import NO_ACCELERATOR
from launcher.errors import RefusedError
from launcher.planning.placement import expected_card
from launcher.values.facts import Facts, FileSystem, Gpu, Interpreter, PrecisionEvidence
from launcher.values.parsing import unknown_name
from launcher.values.plan import Finding, MachineChoice, Plan
from launcher.values.profile import Profile

DATE = "2026-11-22"
DEFAULT = "NvidiaTeslaT4"


class Machine(NamedTuple):
    """The cards of a `machineShape`: their number, and their names as nvidia-smi reports them.

    `profiles` names launcher's profiles for all the cards, the smallest first: several if the size of the
    memory is unknown. `memory_gb` is that of one card, None if unknown. `open_to` says which accounts get the
    machine.
    """

    shape: str
    profiles: tuple[str, ...]
    names: tuple[str, ...]
    cards: int
    memory_gb: float | None
    capability: str | None
    open_to: Literal["everyone", "some"]


class Retired(NamedTuple):
    """A retired name that the service still accepts, and the machine that it gives instead, without a message."""

    shape: str
    instead: str
    profiles: tuple[str, ...]
    why: str


_P100 = "Kaggle has retired the P100: a push that asks for it succeeds, and runs on two T4"
_TPU = "a job of launcher trains on CUDA cards or a CPU, not on a TPU"

MACHINES = (
    # kaggle-cli's docs/kernels.md of 2.2.5 ("available as of Sep 2026") and PR #1198: a single T4 is not
    # offered.
    Machine("NvidiaTeslaT4", ("t4x2",), ("Tesla T4",), 2, 16, "7.5", "everyone"),
    # The same list, "only available to participants of specific competitions, and some only to Kaggle
    # admins". It does not give the number of cards. Four L4 is the number known from competitions; for the
    # others, one is assumed.
    Machine("NvidiaL4", ("l4_24gb",), ("NVIDIA L4",), 4, 24, "8.9", "some"),
    Machine("NvidiaL4X1", ("l4_24gb",), ("NVIDIA L4",), 1, 24, "8.9", "some"),
    Machine("NvidiaTeslaA100", ("a100_40gb", "a100_80gb"), ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), 1, None, "8.0", "some"),
    Machine("NvidiaH100", ("h100",), ("NVIDIA H100 80GB HBM3",), 1, 80, "9.0", "some"),
    Machine("NvidiaRtxPro6000", ("rtx_pro_6000_blackwell_96gb",), ("NVIDIA RTX PRO 6000 Blackwell Server Edition",), 1, 96, "12.0", "some"),
    Machine(NO_ACCELERATOR, ("cpu",), (), 0, None, None, "everyone"),
)  # fmt: skip
RETIRED = (
    # _RETIRED_ACCELERATORS of kaggle 2.2.5, whose push only warns.
    Retired("NvidiaTeslaP100", "NvidiaTeslaT4", ("p100",), _P100),
    Retired("TpuV38", "TpuV5E8", (), _TPU),
    Retired("Tpu1VmV38", "TpuV5E8", (), _TPU),
    Retired("TpuV232", NO_ACCELERATOR, (), _TPU),
    Retired("TpuV2256", NO_ACCELERATOR, (), _TPU),
)
TPUS = ("TpuV5E8", "TpuV6E8")
_FOR_EVERYONE = (
    *(name for one in MACHINES if one.open_to == "everyone" and one.cards for name in one.profiles),
    *(name for one in RETIRED for name in one.profiles),
)
"""The profiles of cards that any account may get, or could get until they were retired."""


class SessionImage(NamedTuple):
    """The facts about the image of sessions, with their dates. A fact that is None is unknown.

    `pythons` are those that a session may have, the likeliest first.
    """

    date: str
    pythons: tuple[str, ...]
    torch: str | None
    torch_date: str
    cpus: int
    memory_gb: float
    free_gb: float


IMAGE = SessionImage(
    date="2026-10",  # two users saw 3.13; Kaggle/docker-python@78aaa43 of 2026-08-12 has 3.12
    pythons=("3.13", "3.12"),
    torch="2.10.0+cu128",  # kaggle-cli#1151; its architectures are those of images/torch.toml: 7.0 and newer
    torch_date="2026-09-06",  # a user
    cpus=4,  # dated copies of kaggle.com/docs/notebooks, the newest of 2026-09-24
    memory_gb=29,
    free_gb=20,
)


def choose_machine(
    host: str,
    settings: KaggleSettings,
    named: Sequence[Profile],
    known: Mapping[str, Profile],
    *,
    allow_substitute: bool = False,
    rehearses: bool = False,
) -> MachineChoice:
    """Return the machine for an account's settings and the named profiles, if any.

    With `allow_substitute`, the run may get other cards than the named ones. The plan for retired cards is
    then one for their replacement, and the choice also has the profiles of all cards that the service gives,
    or gave, to everyone. A rehearsal gets a session without an accelerator, whose hours are not counted.
    Raises RefusedError with the next command for a machine that the service does not offer, and
    UnknownNameError for an unknown accelerator.
    """
    if rehearses:
        return MachineChoice(NO_ACCELERATOR, (*named, known["cpu"])[:1])
    if settings.accelerator is not None:
        machine, retired = _by_shape(host, settings.accelerator)
    elif named:
        machine, retired = _by_profile(host, named)
    else:
        machine, retired = _machine(DEFAULT), None
    if retired is not None and not allow_substitute:
        raise RefusedError(
            f"{host}: {retired.why}\n"
            f"  plan for that   launch --host {host} --profile {machine.profiles[0]}\n"
            "  or allow it     --allow-substitute"
        )
    fitting = _profiles_of(machine, known.values())
    if named and retired is None:
        fitting = tuple(profile for profile in named if fits(profile, machine))
        if not fitting:
            raise _mismatch(host, settings, named[0], machine)
    if not fitting:
        names = " or ".join(machine.names)
        raise RefusedError(
            f"{host}: {machine.shape} is {machine.cards} x {names}, which no profile names\n"
            f'  write profiles/NAME.toml with count = {machine.cards} and probe_names = ["{machine.names[0]}"]; '
            "`launch profile show t4x2` is an example"
        )
    notes = [*_substituted(host, machine, retired), *_not_for_all(host, machine)]
    if allow_substitute and machine.cards:
        fitting += tuple(known[name] for name in _FOR_EVERYONE if known[name] not in fitting)
    return MachineChoice(machine.shape, fitting, tuple(notes))


def fits(profile: Profile, machine: Machine) -> bool:
    """Whether a profile, launcher's or the user's, is for all the cards of a machine."""
    if profile.kind != "cuda":
        return profile.kind == "cpu" and not machine.cards
    memory_mib = machine.memory_gb * 1024 if machine.memory_gb is not None else None
    is_alike = (profile.count, profile.capability) == (machine.cards, machine.capability)
    return is_alike and any(profile.is_reported_as(name, memory_mib) for name in machine.names)


def shape_for(profile: Profile) -> str | None:
    """Return the accelerator to request for a profile's cards; None if the service has none."""
    return next((machine.shape for machine in MACHINES if fits(profile, machine)), None)


def planned_machine(plan: Plan) -> MachineChoice | None:
    """Return the machine for the sessions of a recorded plan; None for a plan without sessions."""
    if plan.session is None or plan.session.machine not in [one.shape for one in MACHINES]:
        return None
    return MachineChoice(plan.session.machine, (plan.profile,))


def expected_facts(
    place: str, shape: str, profile: Profile, evidence: tuple[PrecisionEvidence, ...] = ()
) -> Facts:
    """Return the facts expected in a session, for a plan and its checks. The kernel checks them again.

    `place` is the id of the account's runs. The cards are those of the profile. `evidence` has the precision
    results of earlier runs in the account.
    """
    machine = _machine(shape)
    gpus: list[Gpu] = []
    if machine.cards:
        name = next((name for name in machine.names if name in profile.probe_names), profile.probe_names[0])
        gpus = [expected_card(profile, index, name) for index in range(profile.count)]
    packages = {"torch": IMAGE.torch} if IMAGE.torch is not None else {}
    return Facts(
        host_id=place,
        boot_id="",
        hostname="kaggle",
        user="root",
        platform="linux",
        machine="x86_64",
        cpus=IMAGE.cpus,
        memory_gb=IMAGE.memory_gb,
        free_gb=IMAGE.free_gb,
        root="/kaggle/working",
        file_system=FileSystem(kind="expected"),
        python=IMAGE.pythons[0],
        gpus=tuple(gpus),
        interpreter=Interpreter(path="python", version=IMAGE.pythons[0], packages=dict(packages)),
        precision_evidence=evidence,
    )


def _machine(shape: str) -> Machine:
    return next(machine for machine in MACHINES if machine.shape == shape)


def _offered() -> str:
    """Return the profiles that every account can get."""
    return " or ".join(
        f"--profile {machine.profiles[0]}" for machine in MACHINES if machine.open_to == "everyone"
    )


def _by_shape(host: str, shape: str) -> tuple[Machine, Retired | None]:
    """Return the machine of an accelerator's name, and the retired entry that it replaces, if any."""
    retired = next((one for one in RETIRED if one.shape == shape), None)
    if shape in TPUS or (retired is not None and retired.why == _TPU):
        raise RefusedError(f"{host}: accelerator {shape}: {_TPU}\n  available   {_offered()}")
    if retired is not None:
        return _machine(retired.instead), retired
    names = [machine.shape for machine in MACHINES]
    if shape not in names:
        raise unknown_name("accelerator", shape, names, looked_in=f"Kaggle's as of {DATE}")
    return _machine(shape), None


def _by_profile(host: str, named: Sequence[Profile]) -> tuple[Machine, Retired | None]:
    """Return the first machine with the cards of a named profile, or the replacement of retired ones."""
    for machine in MACHINES:
        if any(fits(profile, machine) for profile in named):
            return machine, None
    first = named[0]
    if retired := next((one for one in RETIRED if first.name in one.profiles), None):
        return _machine(retired.instead), retired
    alike = next((one for one in MACHINES if {*first.probe_names} & {*one.names}), None)
    if alike is not None and alike.profiles:
        words = f"{host} gives {alike.cards} x {alike.names[0]} or none, not {first.title}"
        raise RefusedError(f"{words}\n  all of them   launch --host {host} --profile {alike.profiles[0]}")
    raise RefusedError(f"{host} has no {first.title}\n  available   {_offered()}")


def _substituted(host: str, machine: Machine, retired: Retired | None) -> tuple[Finding, ...]:
    if retired is None:
        return ()
    message = (
        f"{host}: {retired.why}: {machine.shape} is asked for, and the plan is for {machine.profiles[0]}"
    )
    return (Finding(level="note", code="card-substituted", message=message),)


def _profiles_of(machine: Machine, known: Iterable[Profile]) -> tuple[Profile, ...]:
    """Return the profiles that cover all cards of a machine: launcher's in their order, else the user's."""
    fitting = {}
    for profile in known:
        is_one_card = profile.kind == "cuda" and profile.count == 1 and machine.cards
        all_cards = profile.of_cards(machine.cards) if is_one_card else profile
        if fits(all_cards, machine):
            fitting[profile.name] = all_cards
    ours = tuple(fitting[name] for name in machine.profiles if name in fitting)
    return ours or tuple(fitting.values())[:1]


def _mismatch(host: str, settings: KaggleSettings, profile: Profile, machine: Machine) -> RefusedError:
    has = f"{machine.cards} x {machine.names[0]}" if machine.cards else "no card"
    words = f'{host}: accelerator = "{settings.accelerator}" is {has}, not {profile.title}'
    shape = shape_for(profile)
    if shape is None:
        return RefusedError(f"{words}\n  available   {_offered()}")
    return RefusedError(f'{words}\n  leave it out of the host\'s table, or write   accelerator = "{shape}"')


def _not_for_all(host: str, machine: Machine) -> tuple[Finding, ...]:
    if machine.open_to == "everyone":
        return ()
    message = (
        f"{host}: Kaggle gives {machine.shape} to some accounts only, e.g. to participants of a competition"
    )
    return (Finding(level="note", code="not-for-everyone", message=message),)
