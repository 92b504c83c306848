"""Resolve the names and files of a request to values, before any host is contacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import ValidationError

from launcher.backends.base.probing import CardRequest, HostCards
from launcher.backends.registry import backend_of
from launcher.config import env_file, job_variables, local_model, resolve, secret_values
from launcher.config.lookup import Lookup
from launcher.config.resolved import Resolved
from launcher.copy.request import Request
from launcher.errors import UsageError
from launcher.planning.placement import requested_gpus
from launcher.runs.launch import package_sources
from launcher.runs.launch.dependencies import runs_before
from launcher.runs.rented.api_key_guard import check_key_is_not_sent
from launcher.values.facts import Facts
from launcher.values.job import Job

AUTO: Literal["auto"] = "auto"


def understand(request: Request, lookup: Lookup | None = None) -> Resolved:
    """Resolve names and files to values; nothing is sent. Raises UsageError and its subclasses.

    Pass one `lookup` with many requests to read shared files only once.
    """
    lookup = lookup or Lookup()
    host = lookup.host(request.host)
    if request.runtime is not None:
        host = resolve.with_runtime(host, request.runtime)
    name = request.profile or host.profile or lookup.project.profile or AUTO
    profiles = () if name == AUTO else lookup.profiles_meant(name)
    variables = job_variables.assigned(request.variables)
    task = resolve.task(request.job, request.words, request.settings, request.name, variables, lookup)
    given, named = env_file.read_all(request.env_files), {*variables, *request.secrets}
    job, values = secret_values.with_file(task.job, given, named)
    job = secret_values.with_names(_with_outputs(job, request.outputs), request.secrets)
    task = package_sources.with_packages(task._replace(job=job), host, request.packages)
    if request.rehearses and not profiles:
        raise UsageError(
            "--rehearse tries a card's plan on a CPU: name the card   --profile titan_rtx --rehearse"
        )
    backend = backend_of(host)
    task = backend.planning.read_command(task, host)
    backend.planning.check_task(task, host)
    rehearsed_on = lookup.profile("cpu") if request.rehearses else None
    requested_gpus(request.gpus, 1)
    cards = CardRequest(profiles, name, request.gpus, request.rehearses, request.allows_substitute)
    machine = backend.probing.choose(host, cards, lookup)
    profiles = machine.profiles if machine is not None else profiles
    model, teacher = local_model.read_here(task), local_model.read_teacher(task)
    return Resolved(
        host,
        profiles,
        task,
        request.precision,
        model,
        rehearsed_on,
        request.gpus,
        values,
        teacher,
        machine,
        after=runs_before(request.after, host),
    )


def _with_outputs(job: Job, patterns: Sequence[str]) -> Job:
    """Return a job with additional output patterns. Raises UsageError for an invalid pattern."""
    try:
        return Job.model_validate({**dict(job), "outputs": (*job.outputs, *patterns)})
    except ValidationError as error:
        raise UsageError("--output: expected a pattern as in a .gitignore, e.g. --output 'out/'") from error


def secrets_for(resolved: Resolved) -> Mapping[str, str]:
    """Return the secrets of a launch by name.

    Raises UsageError for a secret that is not set or cannot be hidden, or that must not be sent to the host.
    """
    host, job = resolved.host, resolved.job
    secrets = secret_values.values(job, resolved.values)
    if backend_of(host).running.rental(host) is not None:
        check_key_is_not_sent(host.name, job, secrets)
    return secrets


def there(resolved: Resolved, facts: Facts) -> HostCards:
    """Return the cards that a request gets on its host, from the probe's facts.

    Raises UnknownNameError, or RefusedError, for cards that no profile names.
    """
    rehearses = resolved.rehearsed_on is not None
    asked = CardRequest(resolved.profiles, gpus=resolved.gpus, rehearses=rehearses)
    return backend_of(resolved.host).probing.cards(resolved.host, resolved.job, asked, facts, Lookup())
