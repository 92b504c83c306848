"""A preview of each item of a batch on each of its hosts.

Items share one probe of a host if their probes would be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from launcher.backends.registry import backend_of
from launcher.batch.input.batch_draft import Draft
from launcher.batch.input.batch_file import Batch
from launcher.config.lookup import Lookup
from launcher.copy.request import Request
from launcher.errors import HostError, LaunchError
from launcher.rental.renting import dollars
from launcher.runs.launch.dry_run import Preview, preview
from launcher.runs.launch.resolved_request import understand
from launcher.runs.run_client import connect
from launcher.values.facts import Facts
from launcher.values.job import Job
from launcher.values.plan import Finding


class ItemPreview(NamedTuple):
    """An item on a host: its preview, or the problem that prevents one.

    `is_silent`: the host does not answer, and the plan depends on its facts.
    """

    draft: Draft
    host: str
    preview: Preview | None
    problem: str | None = None
    is_silent: bool = False


def previews(batch: Batch) -> Iterator[ItemPreview]:
    """Yield each item on each of its hosts, host by host."""
    lookup = Lookup()
    for host in dict.fromkeys(host for draft in batch.drafts for host in draft.hosts):
        probed: dict[Any, Facts | None] = {}
        silence: HostError | None = None
        for draft in batch.drafts:
            if host not in draft.hosts:
                continue
            request, facts = draft.request._replace(host=host, name=draft.name, after=()), None
            try:
                try:
                    facts = None if silence is not None else _facts(request, probed, lookup)
                except HostError as error:
                    silence = error
                found = _refuse_above_budget(
                    batch.rules.max_cost, host, preview(request, facts, lookup, silence, is_of_batch=True)
                )
            except LaunchError as error:
                yield ItemPreview(draft, host, None, str(error), is_silent=isinstance(error, HostError))
            else:
                yield ItemPreview(draft, host, found)


def _refuse_above_budget(max_cost: float | None, host: str, found: Preview) -> Preview:
    """Add a refusal to a preview if the item's machine may cost more than the budget of the whole batch."""
    if found.rental is None or max_cost is None or found.rental.cost.largest <= round(max_cost * 100):
        return found
    cost = dollars(found.rental.cost.largest)
    words = f"{host}: this item may cost {cost}, above the batch's max_cost = {max_cost:g}"
    finding = Finding(level="refuse", code="beyond-max-cost", message=words)
    return found._replace(findings=(*found.findings, finding))


def _facts(request: Request, probed: dict[Any, Facts | None], lookup: Lookup) -> Facts | None:
    """Return the facts of a host for a job.

    None for a backend that uses expected facts, where a probe is impossible.
    """
    resolved = understand(request, lookup)
    host = resolved.host
    if backend_of(host).probing.is_expected_only:
        return None
    probe_key = _probe_key(resolved.job)
    if probe_key not in probed:
        with connect(host) as client:
            probed[probe_key] = backend_of(host).probing.probe(client, host, resolved.job)
    return probed[probe_key]


def _probe_key(job: Job) -> Any:
    """Return the properties of a job on which its probe depends."""
    return job.command[0], job.requirements, job.image, job.model, job.teacher
