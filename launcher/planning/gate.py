"""The gate: finds the problems of a plan on a host before anything is sent.

Each finding either refuses the launch or is a note shown with it. Example: a plan for a T4 on a host that has
only an L40S is refused with `card-mismatch`; a card that another user's process shares gives the note
`gpu-shared`. The gate returns findings; the caller refuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Literal

from launcher.errors import RefusedError
from launcher.planning.alternatives import what_fits
from launcher.planning.host_resources import MACHINE_CHECKS, HostChecks
from launcher.planning.model_size_findings import model_on_cpu
from launcher.planning.placement import (
    cards_of,
    choose_gpus,
    describe_holders,
    engine,
    is_closed,
    is_exclusive,
    is_unavailable,
    requested_engines,
    requested_processes,
    strangers_on,
    unpickling_option,
    why_unusable,
)
from launcher.planning.precision.ladder import FAILED_BEFORE, MEASURED
from launcher.planning.precision.memory import (
    GB,
    Training,
    estimate,
    gb_words,
    teacher_bytes,
    usable_gb,
    usable_words,
)
from launcher.planning.precision.precision_history import why_failed
from launcher.planning.precision.quantizer import PACKAGE, quantizer_findings, saved_quantized_findings
from launcher.planning.precision.workload import workload_of
from launcher.planning.script.script import by_torchrun
from launcher.planning.software.image_plan import torch_for
from launcher.planning.software.installed_packages import unmet
from launcher.planning.software.wheel_choice import choose, objection, site
from launcher.planning.software.wheels import WheelTable
from launcher.values.facts import Facts, Gpu
from launcher.values.host import LOCAL, Host
from launcher.values.plan import Finding, Plan
from launcher.values.precision import numbers
from launcher.values.profile import Profile
from launcher.values.software.requirement import distribution

STARTS_RANKS = ("python", "python3", "torchrun", "accelerate")
SHOWN_PACKAGES = 5
FREE_GB_NEEDED = 1.0
FREE_INODES_NEEDED = 1000
IMAGE_GB = {"cuda": 10.0, "cpu": 3.0, "mps": 0.0}
"""The disk space in GB for an image or an environment with torch and for its build, rounded up. CUDA takes most of it."""
VENV_MEND = "sudo apt install python3-venv     there (Debian, Ubuntu; a Python that torch has wheels for), or install uv"
"""Commands after which a host can make environments."""
FAULTY_XIDS = {48, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 140}
"""The driver's errors (Xid) that point to the card, its memory or its bus. Errors 13, 31 and 43 point to a program."""


def check(
    plan: Plan,
    facts: Facts | None,
    host: Host = LOCAL,
    wheels: WheelTable | None = None,
    cards: Iterable[Profile] = (),
    own: HostChecks = MACHINE_CHECKS,
) -> tuple[Finding, ...]:
    """Return the findings for a plan on this host, refusals first. Without `facts`, return those that hold on any host.

    With `wheels`, an installed torch is checked against the card. `cards` are proposed if the plan's card
    does not suffice. `own` holds the checks of this kind of host. Messages contain no figures that change by
    the minute.
    """
    found = [
        *_ranks(plan, own),
        *_unpickled(plan),
        *_failed_precision(plan, facts),
        *_float16_weights(plan),
        *model_room(plan, cards),
        *saved_quantized_findings(plan),
        *_packages(plan),
        *_no_checkpoint(plan),
        *own.findings,
    ]
    if facts is not None:
        found += [*_card(plan, facts), *_runtime_findings(plan, facts, host, own), *room_findings(facts)]
        if not own.is_elsewhere:
            found += model_on_cpu(plan, facts, cards)
        is_torch_used = own.packages == "installed" or "torch" in map(distribution, plan.requirements)
        if wheels is not None and own.packages != "unknown" and is_torch_used:
            found += _installed_torch(plan, facts, wheels)
        if wheels is not None:
            found += _chosen_torch(plan, facts, wheels)
    return tuple(sorted(found, key=lambda finding: finding.level != "refuse"))


def _ranks(plan: Plan, own: HostChecks) -> list[Finding]:
    """Note a command that is started once for several cards, and must itself start a process for each."""
    ranks, program, use = plan.nodes[0].ranks, plan.command[0], plan.rank_use
    if (plan.profile.count == 1 and len(plan.nodes) == 1) or (use is None and program in STARTS_RANKS):
        return []
    if use is not None and use.kind != "started":
        return _one_process(plan, use.why, own) if use.kind == "none" else []
    once = "once on each node" if len(plan.nodes) > 1 else "once"
    cards = "1 card" if ranks == 1 else f"{ranks} cards"
    processes = "1 process" if ranks == 1 else f"{ranks} processes"
    message = f"'{program}' is started {once} and sees {cards}: it must start {processes} itself"
    if use is not None:
        return [Finding(level="note", code="one-process", message=f"{message}; {use.why}")]
    mend = "python, torchrun and accelerate are started for all of them"
    return [Finding(level="note", code="one-process", message=message, mend=mend)]


def _one_process(plan: Plan, why: str, own: HostChecks) -> list[Finding]:
    """Note a script that is one process on several cards; refuse it on several nodes: each would train all of it."""
    torchrun = by_torchrun(plan.command)
    more = f"if it shares its work among ranks   launch … -- {torchrun}" if torchrun else ""
    if len(plan.nodes) > 1:
        message = f"{why}: each of the {len(plan.nodes)} nodes would train all of it, into one folder"
        mend = "\n  ".join(filter(None, [own.one_node, more]))
        return [Finding(level="refuse", code="one-process", message=message, mend=mend)]
    message = f"'{plan.command[0]}' is started once and sees {plan.profile.count} cards: {why}"
    one_card = (
        "" if plan.allocation.how == "given" and not plan.rehearsed else "--gpus 1     gives it one card"
    )
    mend = "\n  ".join(filter(None, [one_card, more]))
    return [Finding(level="note", code="one-process", message=message, mend=mend)]


def _unpickled(plan: Plan) -> list[Finding]:
    """Note a torchrun command with which other users of the host can run code: its agents unpickle data from an open port."""
    option = unpickling_option(plan.command)
    if option is None:
        return []
    message = f"torchrun {option}: other users of the host can run code in this training"
    mend = f"leave out {option}: torchrun gets a free port, and a backend that unpickles nothing"
    return [Finding(level="note", code="unpickling-torchrun", message=message, mend=mend)]


def _packages(plan: Plan) -> list[Finding]:
    """Note the source of a job's packages if the job does not name them itself."""
    if plan.packages_from is None or not plan.requirements:
        return []
    where = "image" if plan.image is not None else "environment" if plan.environment is not None else None
    names = [*dict.fromkeys(map(distribution, plan.requirements))]
    shown = ", ".join(names[:SHOWN_PACKAGES]) + (
        f", +{len(names) - SHOWN_PACKAGES}" if len(names) > SHOWN_PACKAGES else ""
    )
    title = f"{where} from" if where else f"the Python of {plan.host} is used for"
    return [Finding(level="note", code="packages-from", message=f"{title} {plan.packages_from}: {shown}")]


def _no_checkpoint(plan: Plan) -> list[Finding]:
    """Note a job that removes its checkpoint before it writes the next one."""
    if plan.keep_checkpoints != 0:
        return []
    message = "keep_checkpoints = 0: a crash, a kill or a full disk while a checkpoint is written loses the training back to its beginning"
    mend = "--set keep_checkpoints=1     writes the next one beside it, which needs room for two"
    return [Finding(level="note", code="no-checkpoint", message=message, mend=mend)]


def _float16_weights(plan: Plan) -> list[Finding]:
    """Note the plan of an older version, with float16 weights: it continues unchanged."""
    if plan.ladder[0].mode != "fp16-native":
        return []
    message = "the plan is an older version's, with float16 weights: Adam's steps are up to 55 times too large there"
    mend = f"launch rerun RUN --host {plan.host}     starts again with the card's best precision"
    return [Finding(level="note", code="float16-weights", message=message, mend=mend)]


def _failed_precision(plan: Plan, facts: Facts | None) -> list[Finding]:
    """Note each precision that would come first if it had not failed on this host before. Name the run that failed."""
    records = facts.precision_evidence if facts is not None else ()
    failures = {
        record.precision: record
        for record in sorted(records, key=lambda record: record.time)
        if why_failed(record) and (record.card, record.method) == (plan.profile.name, plan.method)
    }
    run_of = {digest: f", run {record.run}" for digest, record in failures.items()}
    return [
        Finding(
            level="note",
            code="precision-failed-before",
            message=f"{rung.mode} {rung.why.partition('; ')[0]}{run_of.get(rung.digest, '')}",
            mend=f"--precision {rung.mode}     starts with it again",
        )
        for rung in plan.ladder
        if rung.why.startswith(FAILED_BEFORE) and plan.hands_out("precision")
    ]


def model_room(plan: Plan, cards: Iterable[Profile]) -> list[Finding]:
    """Report a training that does not fit on the card even in the smallest precision, which is then the first rung."""
    model, room, first = plan.model_facts, usable_gb(plan.profile), plan.ladder[0]
    if model is None or room is None or first.why.startswith(MEASURED):
        return []
    workload = workload_of(plan)
    training = Training(model, plan.method, workload)
    needed = estimate(training, first)
    if needed.total / GB <= room:
        return []
    again = " and activation checkpointing" if workload.is_checkpointed else ""
    taught = teacher_bytes(training, first)
    words = {name: f"{name} {gb_words(part)}" for name, part in needed._asdict().items()}
    words["weights"] += f", of which the teacher {gb_words(taught)}" if taught else ""
    parts = "; ".join(words.values()) if taught else ", ".join(words.values())
    student = " and its teacher" if taught else ""
    message = (
        f"the model's {model.billions:.1f} B parameters{student} need about {gb_words(needed.total)} GB in {first.title}"
        f" with a micro-batch of 1{again} ({parts}); {plan.profile.title}: {usable_words(plan.profile)}"
    )
    mend = (
        "\n  ".join(what_fits(plan, cards))
        or "no card with a profile holds it, and a model is not split among cards"
    )
    # The length of examples is known only if the job's settings set it and the script uses the plan's batch.
    is_length_known = plan.hands_out("split") and "max_length" in plan.settings
    least = estimate(training._replace(workload=workload._replace(tokens=1)), first)
    is_too_much = (needed if is_length_known else least).total / GB > room
    is_size_known = plan.takes_base or (plan.takes is None and plan.method == "full")
    is_certain = is_too_much and is_size_known and plan.verification is None
    level: Literal["refuse", "note"] = "refuse" if is_certain else "note"
    return [Finding(level=level, code="model-too-large", message=message, mend=mend)]


def _card(plan: Plan, facts: Facts) -> list[Finding]:
    if plan.rehearsed:
        return []
    profile = plan.profile
    names = ", ".join(dict.fromkeys(gpu.name for gpu in facts.gpus))
    has = names or "an Apple GPU"
    if facts.gpu_error and profile.kind == "cuda" and not facts.gpus:
        return [Finding(level="refuse", code="gpu-unreadable", message=f"{plan.host}: {facts.gpu_error}")]
    if profile.kind == "cuda":
        if len(choose_gpus(profile, facts, profile.count)) == profile.count:
            return [
                *_slices(plan, facts),
                *_held(plan, facts),
                *_contexts(plan, facts),
                *_health(plan, facts),
            ]
        wanted = f"a {profile.title}" if profile.count == 1 else profile.title
        has = has if profile.count == 1 else facts.cards or has
    elif profile.kind == "mps" and not facts.has_apple_gpu:
        wanted = "an Apple GPU"
    elif profile.kind == "cpu" and facts.gpu_error:
        message = f"{plan.host}: {facts.gpu_error}: the plan is for its CPU"
        return [Finding(level="note", code="gpu-unreadable", message=message)]
    elif profile.kind == "cpu" and facts.other_gpus and not facts.gpus:
        message = f"{plan.host} has {facts.other_gpus[0]}: plans are made for GPUs of NVIDIA and Apple, and this one is for the CPU"
        message += "\n  a script that decides its own precision can use it; runs, checkpoints and restarts work as anywhere"
        message += "\n  not supported for such a card: leases, a report of its holders, precision, memory estimates, and a matching torch"
        mend = f'set environment = "…" for {plan.host}: a venv whose torch is for this GPU'
        return [Finding(level="note", code="gpu-not-planned", message=message, mend=mend)]
    else:
        return []
    verb = "launch verify" if plan.verification is not None else "launch"
    if names or facts.has_apple_gpu:
        message = f"{plan.host} has {has}, not {wanted}"
        there = len(choose_gpus(profile, facts, profile.count))
        mend = (
            f"{verb} --host {plan.host} --gpus {there}     uses the host's own cards"
            if there
            else f"{verb} --host {plan.host}     uses the host's own card"
        )
    else:
        message = f"{plan.host} has no GPU that launcher sees; this plan is for {wanted}"
        mend = f"{verb} … --rehearse --profile {profile.name}     tries the plan on a CPU"
    return [Finding(level="refuse", code="card-mismatch", message=message, mend=mend)]


def _slices(plan: Plan, facts: Facts) -> list[Finding]:
    """Refuse several slices of cards (MIG): according to NVIDIA's MIG user guide, a process sees only one of them."""
    slices = [
        uuid for uuid in choose_gpus(plan.profile, facts, plan.profile.count) if uuid.startswith("MIG-")
    ]
    if not slices or plan.profile.count == 1:
        return []
    message = (
        f"{plan.host}: {plan.profile.title}: slices of cards (MIG) do not work together, a process sees one"
    )
    mend = f"launch --host {plan.host} --gpus {slices[0]}     takes one"
    return [Finding(level="refuse", code="gpu-slices", message=message, mend=mend)]


def _held(plan: Plan, facts: Facts) -> list[Finding]:
    """Report the cards' holders: refuse if too few cards accept a new context, note a card that would be shared."""
    cards, host = cards_of(plan.profile, facts), plan.host
    look = f"launch probe --host {host}     shows who holds what"
    if sum(not is_unavailable(gpu, facts) for gpu in cards) < plan.profile.count:
        taken = [gpu for gpu in cards if is_unavailable(gpu, facts)]
        if all(gpu.compute_mode == "prohibited" for gpu in taken):
            names = ", ".join(f"GPU {gpu.index}" for gpu in taken)
            message = f"{host}: {names}: compute mode prohibited: no process may use it"
            mend = f"sudo nvidia-smi -i {taken[0].index} -c DEFAULT     there, by its owner; {look}"
            return [Finding(level="refuse", code="gpu-prohibited", message=message, mend=mend)]
        lines = [f"{host}: its {plan.profile.title} accepts one process at a time, and a process holds it"]
        lines += [describe_holders(gpu, facts) for gpu in taken]
        return [Finding(level="refuse", code="gpu-busy-exclusive", message="\n  ".join(lines), mend=look)]
    chosen = choose_gpus(plan.profile, facts, plan.profile.count)
    return [
        Finding(level="note", code="gpu-shared", message=f"{holder.title} holds GPU {gpu.index}; left alone")
        for gpu in cards
        if gpu.uuid in chosen
        for holder in strangers_on(gpu)
    ]


def _contexts(plan: Plan, facts: Facts) -> list[Finding]:
    """Note a command that starts more processes than it has cards; refuse it if one of the cards is exclusive."""
    started, ranks = requested_processes(plan.command), plan.split.ranks
    chosen = choose_gpus(plan.profile, facts, ranks)
    exclusive = [gpu.index for gpu in facts.gpus if gpu.uuid in chosen and is_exclusive(gpu, facts)]
    if started is None or started <= ranks:
        return []
    cards = "card" if ranks == 1 else "cards"
    message = f"'{plan.command[0]}' would start {started} processes on {ranks} {cards}"
    if not exclusive:
        message += ": a process that takes its card by its rank finds none"
        has_enough = len(cards_of(plan.profile, facts)) >= started
        more = f"as many cards   --gpus {started}\n  " if has_enough else ""
        mend = f"{more}as many processes as cards, or leave it to us   -- python …"
        return [Finding(level="note", code="more-processes-than-cards", message=message, mend=mend)]
    message += f", and GPU {exclusive[0]} of {plan.host} accepts one process at a time"
    mend = (
        f"as many cards   --gpus {started}     or as many processes as cards, or leave it to us   -- python …"
    )
    return [Finding(level="refuse", code="too-many-contexts", message=message, mend=mend)]


def _health(plan: Plan, facts: Facts) -> list[Finding]:
    """Note errors of the chosen cards, cards that nvidia-smi has lost, and unknown holders."""
    found = []
    chosen = choose_gpus(plan.profile, facts, plan.profile.count)
    for gpu in facts.gpus:
        if gpu.uuid in chosen and (faults := card_faults(gpu)):
            message = f"{plan.host}: GPU {gpu.index} may be failing: {', '.join(faults)}"
            found.append(Finding(level="note", code="gpu-errors", message=message))
    if facts.gpu_error:
        message = f"{plan.host}: {facts.gpu_error}"
        found.append(Finding(level="note", code="gpu-lost", message=message))
    if facts.holders_error:
        message = f"{plan.host}: the processes on its cards are unknown: {facts.holders_error}"
        found.append(Finding(level="note", code="holders-unknown", message=message))
    return found


def card_faults(gpu: Gpu) -> list[str]:
    """Return the signs that a card is failing, in words."""
    faults = ["uncorrected ECC errors"] if gpu.ecc_errors else []
    return [
        *faults,
        *(f"Xid {code} in the kernel's log" for code in dict.fromkeys(gpu.xids) if code in FAULTY_XIDS),
    ]


def _environment_mend(name: str) -> str:
    return f'set environment = "…" for {name} in launch.toml: the folder of a venv with the packages, or the path of its python3'


def interpreter_findings(name: str, facts: Facts) -> list[Finding]:
    """Refuse a host whose Python for jobs cannot be used. `name` is the host's name in messages."""
    interpreter = facts.interpreter
    if interpreter is None or not interpreter.error:
        return []
    there = ", ".join(f"{one.path} {one.version}" for one in facts.pythons or ())
    message = f"{name}: {interpreter.path}: {interpreter.error}"
    message += f"\n  found on the host: {there}" if there else ""
    return [Finding(level="refuse", code="no-interpreter", message=message, mend=_environment_mend(name))]


def _environment(plan: Plan, facts: Facts) -> list[Finding]:
    interpreter = facts.interpreter
    if interpreter is None:
        return []
    if interpreter.error:
        return interpreter_findings(plan.host, facts)
    mend = _environment_mend(plan.host)
    found: list[Finding] = []
    found += quantizer_findings(plan, facts)
    lacks = unmet(plan.requirements, facts)
    missing = [name for name in lacks.missing if name != PACKAGE or plan.method != "qlora"]
    if lacks.differing and plan.environment is None:
        message = f"{plan.host}: {interpreter.path} has {'; '.join(lacks.differing)}: it is used as it is"
        found.append(Finding(level="note", code="packages-differ", message=message))
    if missing and plan.environment is None:
        message = f"{plan.host}: {interpreter.path} lacks {', '.join(missing)}"
        finding = Finding(level="refuse", code="missing-packages", message=message, mend=mend)
        found.append(
            _no_venv(finding, facts)
            if plan.host_environment is None and facts.pythons is not None
            else finding
        )
    needed = map(distribution, plan.requirements)
    if unasked := [name for name in needed if name not in interpreter.packages]:
        message = f"{plan.host}: the probe did not look for {', '.join(unasked)}; a launch does"
        found.append(Finding(level="note", code="packages-unknown", message=message))
    return found


def _chosen_torch(plan: Plan, facts: Facts, wheels: WheelTable) -> list[Finding]:
    """Return the notes on the torch that launcher chose, e.g. that it is the last with code for this card."""
    made = plan.image or plan.environment
    if made is None or made.torch is None or plan.rehearsed:
        return []
    chosen = torch_for(plan.requirements, site(facts).with_card(plan.profile), wheels)
    return [Finding(level="note", code="torch-chosen", message=note) for note in chosen.notes]


def _installed_torch(plan: Plan, facts: Facts, wheels: WheelTable) -> list[Finding]:
    """Refuse an installed torch whose build cannot run on the card. Only note it if the build is assumed to be PyPI's.

    On a host without a card, torch is not checked against a CUDA profile.
    """
    installed = (facts.interpreter.packages.get("torch") if facts.interpreter else None) or ""
    is_used = plan.image is None and plan.environment is None
    is_there = plan.profile.kind != "cuda" or bool(facts.gpus)
    if not (is_used and is_there and installed) or plan.rehearsed or facts.interpreter is None:
        return []
    version = numbers(facts.interpreter.version or "")
    place = site(facts).with_card(plan.profile, (version[0], version[1]) if len(version) > 1 else None)
    why = objection(wheels, place, installed)
    if why is None:
        return []
    message = f"{plan.host}: {facts.interpreter.path}: {why}"
    mend = f"{facts.interpreter.path} -m pip install …     a torch that runs there"
    with contextlib.suppress(RefusedError):
        chosen = choose(wheels, place)
        mend = f"{facts.interpreter.path} -m pip install torch=={chosen.torch} --index-url {chosen.url}"
    is_known = "+" in installed
    message += "" if is_known else ", if it is PyPI's build"
    return [Finding(level="refuse" if is_known else "note", code="torch-unfit", message=message, mend=mend)]


def _no_venv(missing: Finding, facts: Facts) -> Finding:
    """Return the refusal for a host that cannot make an environment with the missing packages."""
    there = {one.path: one for one in (facts.interpreter, *(facts.pythons or ())) if one is not None}
    lines = [f"{missing.message}, and no program on the host can make an environment with them"]
    for one in there.values():
        why = "no suitable torch has wheels for it" if one.has_ensurepip else "has no ensurepip"
        lines.append(f"{one.path} {one.version}: {why}")
    if facts.uv is None:
        lines.append("uv: not found")
    message = "\n  ".join(lines)
    return Finding(level="refuse", code="no-venv", message=message, mend=f"{VENV_MEND}\n  or {missing.mend}")


def logout_findings(name: str, facts: Facts) -> list[Finding]:
    """Note a host whose logind ends a run together with the session that started it."""
    if not facts.ends_with_logout:
        return []
    message = f"{name}: logind ends what {facts.user} leaves running at logout (KillUserProcesses=yes): a run may end with your connection"
    mend = f"its administrator sets KillExcludeUsers=root {facts.user} in /etc/systemd/logind.conf (lingering does not help); or --runtime docker"
    return [Finding(level="note", code="ends-with-logout", message=message, mend=mend)]


def _environment_room(plan: Plan, facts: Facts) -> list[Finding]:
    needed = IMAGE_GB["cpu" if plan.rehearsed else plan.profile.kind]
    if plan.environment is None or facts.room_gb is None or facts.room_gb >= needed:
        return []
    message = f"{facts.root} has less than {needed:g} GB free: if its environment must be made, that may fail"
    return [Finding(level="note", code="environment-room", message=message)]


def _runtime_findings(plan: Plan, facts: Facts, host: Host, own: HostChecks) -> list[Finding]:
    """Return the findings for the runtime: a container needs an engine, a native run needs the job's packages."""
    if plan.runtime == "docker":
        return [*engine_findings(plan.host, facts, host), *_image_room(plan, facts)]
    if own.packages != "there":
        return []
    of_packages = [*_environment(plan, facts), *_environment_room(plan, facts)]
    return of_packages if own.is_elsewhere else [*of_packages, *logout_findings(plan.host, facts)]


def engine_findings(name: str, facts: Facts, host: Host) -> list[Finding]:
    """Refuse a container on a host without a usable engine; note a container that runs as root.

    `name` is the host's name in messages.
    """
    if engine(host, facts) is not None:
        message = f"the container runs as root, because you are root on {name}: its files will belong to root"
        return [Finding(level="note", code="container-root", message=message)] if facts.user == "root" else []
    candidates = requested_engines(host, facts)
    wanted = f"no engine {host.engine}" if host.engine else "no container engine"
    lines = [
        f"{one.name} at {one.socket or one.program}: "
        + (why_unusable(one, host) or f"usable, but {name} has engine = {host.engine}")
        for one in facts.engines
    ]
    message = "\n  ".join([f"{name}: {wanted} that can be used", *(lines or ["found on the host: none"])])
    native = f"launch --host {name} --runtime native     runs without one"
    mends = []
    closed = [candidate.name for candidate in candidates if is_closed(candidate)]
    if "docker" in closed:
        mends.append(f"sudo usermod -aG docker {facts.user}     there, then log in again")
    if any(candidate.name == "podman" and candidate.error for candidate in candidates):
        mends.append("systemctl --user enable --now podman.socket     there")
    if closed:
        mends.append(f"sudo = true for {name} in launch.toml")
    mend = "\n  ".join([*(["; or ".join(mends)] if mends else []), native])
    return [Finding(level="refuse", code="no-engine", message=message, mend=mend)]


def _image_room(plan: Plan, facts: Facts) -> list[Finding]:
    needed = IMAGE_GB["cpu" if plan.rehearsed else plan.profile.kind]
    if plan.image is None or not plan.image.requirements or facts.free_gb is None or facts.free_gb >= needed:
        return []
    message = f"{facts.root} has less than {needed:g} GB free: if the engine keeps its images there, a build may fail"
    return [Finding(level="note", code="image-room", message=message)]


def room_findings(facts: Facts) -> list[Finding]:
    """Refuse a root that cannot be written, or has too little space."""
    disk, mend = facts.file_system, "free some space, or set root = …"
    if disk.error:
        message = f"{facts.root}: {disk.error}"
        return [Finding(level="refuse", code="root-unusable", message=message, mend=mend)]
    if facts.room_gb is not None and facts.room_gb < FREE_GB_NEEDED:
        message = f"{facts.root} has less than {FREE_GB_NEEDED:g} GB free"
        return [Finding(level="refuse", code="disk-full", message=message, mend=mend)]
    if disk.free_inodes is not None and disk.free_inodes < FREE_INODES_NEEDED:
        message = f"{facts.root} has room for less than {FREE_INODES_NEEDED} files"
        return [Finding(level="refuse", code="disk-full", message=message, mend=mend)]
    return []
