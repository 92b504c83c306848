"""A backend's part in planning: check a job's settings for this kind of host, and complete its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from launcher.backends.kinds import host_kind
from launcher.errors import UsageError
from launcher.planning.host_resources import MACHINE, HostChecks, Resources
from launcher.planning.placement import requested_gpus
from launcher.values.job import OF_ONE_KIND
from launcher.values.plan import Finding

if TYPE_CHECKING:
    from launcher.backends.base.session_preview import SessionPreview
    from launcher.config.resolve import Task
    from launcher.config.resolved import Resolved
    from launcher.planning.software.wheels import WheelTable
    from launcher.upload.tree import CodeTree
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.job import Job
    from launcher.values.plan import Plan
    from launcher.values.profile import Profile

    PlanFor = Callable[[Profile, Facts], Plan | None]
    """Returns the plan of the same request for another card; None if the job cannot run on it as requested."""


class Planning:
    """The planning of a machine. It adds nothing to a plan."""

    needs_probe: ClassVar[bool] = False
    """Whether a plan for a named card also needs a probe."""

    has_dependencies: ClassVar[bool] = False
    """Whether a run may start after the end of another one on the same host."""

    kept: ClassVar[Mapping[str, str]] = {}
    """Keys of this kind's job table that a resumed run keeps from its parent, described for the user."""

    def read_command(self, task: Task, host: Host) -> Task:
        """Return a task with the settings that its command's script has for this kind of host.

        Raises BadFileError for a script that has wrong ones.
        """
        return task

    def check_task(self, task: Task, host: Host) -> None:
        """Raise UsageError for a job that uses the table of another kind of host."""
        for kind in OF_ONE_KIND:
            if host.kind == kind or getattr(task.job, kind) is None:
                continue
            changed = sorted(key for key in task.changed if key.partition(".")[0] == kind)
            where = f"--set {changed[0]}" if changed else f"{task.file or 'the job'}: [{kind}]"
            raise UsageError(
                f"{where}: {host.name} is not {host_kind(kind).title}\n"
                f'  if it is one   kind = "{kind}"  in [hosts.{host.name}] of launch.toml'
            )

    def refusals(self, job: Job, host: Host) -> tuple[Finding, ...]:
        """Return a refusal for each setting of a job that this host cannot meet.

        Called before secrets are requested.
        """
        return ()

    def task_findings(self, task: Task, host: Host) -> Iterator[Finding]:
        """Yield the findings about the time limit of one session or job, from the job's script."""
        yield from ()

    def image(self, job: Job, host: Host) -> str | None:
        """Return the image that the job names; nothing is installed in such an image."""
        return job.image

    def profile(self, profile: Profile, request: Resolved, facts: Facts | None) -> Profile:
        """Return the profile with the number of cards in --gpus.

        The profile of a CPU or Apple GPU is unchanged; `runs/launch/cards.py` refuses --gpus for it.
        """
        count, _ = requested_gpus(request.gpus, profile.count)
        return profile if profile.kind != "cuda" or count == profile.count else profile.of_cards(count)

    def resources(self, profile: Profile, request: Resolved, facts: Facts | None) -> Resources:
        """Return the resources for a run of this request, planned with this profile."""
        return MACHINE

    def limits(self, host: str, wanted: Resources, facts: Facts) -> Sequence[Finding]:
        """Return the findings about resources that the host can never give, whatever the rest of the plan is."""
        return ()

    def complete(self, plan: Plan, request: Resolved, facts: Facts | None, plan_for: PlanFor) -> Plan:
        """Complete a finished plan with the parts of this kind of host."""
        return plan

    def preview(self, plan: Plan, host: Host, place: str, tree: CodeTree) -> SessionPreview | None:
        """Return a preview of a plan's first session; None for a host without sessions.

        `place` is the id of the host. Raises UsageError for a file that cannot be read.
        """
        return None

    def changed(self, plan: Plan, job: Job) -> Plan:
        """Apply the changed settings of this kind of host to the plan of a resumed run; return the plan."""
        return plan

    def check(
        self,
        plan: Plan,
        facts: Facts | None,
        host: Host,
        wheels: WheelTable | None = None,
        cards: Iterable[Profile] = (),
    ) -> tuple[Finding, ...]:
        """Return the findings of the gate, including those of this kind of host."""
        from launcher.planning.gate import check  # a launch imports this while it waits for its host

        return check(plan, facts, host, wheels, cards, self.own_checks(plan, facts, host))

    def gpus_refusals(self, asked: str, plan: Plan) -> Sequence[Finding]:
        """Return a refusal if this kind of host does not let the user choose the cards `asked` with --gpus."""
        return ()

    def rows(self, plan: Plan) -> Sequence[tuple[str, str]]:
        """Return more rows for the plan's table: label and text."""
        return ()

    def job_script(self, plan: Plan, facts: Facts) -> str:
        """Return the script that the host's scheduler gets for a run; empty for a host without one."""
        return ""

    def environment(self, plan: Plan) -> str:
        """Return a description of the job's Python, or of the image that has it."""
        if (image := plan.image) is not None:
            if image.dockerfile is None:
                return f"python3 of {image.name}"
            software = f"   (torch {image.torch})" if image.torch else ""
            return f"the image {image.name}, built once on the host{software}"
        made = plan.environment
        if made is None:
            return plan.host_environment or "the Python found on the host"
        where = self.makes_environment(plan)
        return f"{made.name}, made once {where}   (Python {made.python}, torch {made.torch})"

    def makes_environment(self, plan: Plan) -> str:
        """Return the place where a plan's environment is built, in words."""
        return "on the host"

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return the checks that this kind of host adds to the gate."""
        if facts is None or not facts.has_slurm:
            return HostChecks()
        message = f"{plan.host}: this is a login node of a Slurm cluster, and the training runs on {facts.hostname} itself"
        mend = f'as a job of the cluster   kind = "slurm"   in [hosts.{plan.host}]'
        return HostChecks((Finding(level="note", code="slurm-login-node", message=message, mend=mend),))


def cannot_go_on(host: str, limit: str, mend: str) -> Finding:
    """Return the note that a run longer than `limit` ends at the limit, because its script cannot continue.

    The caller has checked that the job's script does not resume through the worker.
    """
    message = f"{host}: a run longer than {limit} ends as not-restartable: the script never calls worker.resume_from()"
    return Finding(level="note", code="cannot-go-on", message=message, mend=mend)
