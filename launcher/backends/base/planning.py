"""What shared code asks of a backend for a plan: what a task may ask for there, and what a plan has more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from launcher.backends.kinds import host_kind
from launcher.errors import UsageError
from launcher.planning.host_part import MACHINE, HostChecks, Resources
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
    """Returns the plan of the same request for another card; None if the job cannot run on it as it was asked for."""


class Planning:
    """A machine's answers: a plan has nothing of its own."""

    needs_probe: ClassVar[bool] = False
    """Whether even the ladder of a named card is better for a probe."""

    kept: ClassVar[Mapping[str, str]] = {}
    """The keys of its own table in a job that a resumed run keeps from its parent, with what each stands for."""

    def check_task(self, task: Task, host: Host) -> None:
        """Raise UsageError for a job whose keys this kind of host does not have."""
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
        """Return what a job cannot have there, before its secrets are asked for."""
        del job, host
        return ()

    def task_findings(self, task: Task, host: Host) -> Iterator[Finding]:
        """Yield what the user must know of how long a run may last there at once, by the job's script."""
        del task, host
        yield from ()

    def image(self, job: Job, host: Host) -> str | None:
        """Return the image that a job names itself, in which nothing is installed."""
        del host
        return job.image

    def profile(self, profile: Profile, request: Resolved, facts: Facts | None) -> Profile:
        """Return the profile of as many cards as --gpus asks for; a CPU and Apple's GPU are one, which the checks of --gpus say."""
        del facts
        count, _ = requested_gpus(request.gpus, profile.count)
        return profile if profile.kind != "cuda" or count == profile.count else profile.of_cards(count)

    def resources(self, profile: Profile, request: Resolved, facts: Facts | None) -> Resources:
        """Return what a run of a request gets, for a plan with this profile."""
        del profile, request, facts
        return MACHINE

    def limits(self, host: str, wanted: Resources, facts: Facts) -> Sequence[Finding]:
        """Return why a host can never give these resources, whatever the rest of the plan is."""
        del host, wanted, facts
        return ()

    def complete(self, plan: Plan, request: Resolved, facts: Facts | None, plan_for: PlanFor) -> Plan:
        """Return a plan with what this kind of host adds to it once it is made."""
        del request, facts, plan_for
        return plan

    def preview(self, plan: Plan, host: Host, place: str, tree: CodeTree) -> SessionPreview | None:
        """Return what the first session of a plan would be, in a place of this id; None where there are no sessions.

        Raises UsageError for a file that cannot be read.
        """
        del plan, host, place, tree
        return None

    def changed(self, plan: Plan, job: Job) -> Plan:
        """Return the plan of a run that goes on, with the changes of its job that are for this kind of host alone."""
        del job
        return plan

    def check(
        self,
        plan: Plan,
        facts: Facts | None,
        host: Host,
        wheels: WheelTable | None = None,
        cards: Iterable[Profile] = (),
    ) -> tuple[Finding, ...]:
        """Return the findings of the gate, with those of this kind of host."""
        from launcher.planning.gate import check  # a launch loads it while its host is waited for

        return check(plan, facts, host, wheels, cards, self.own_checks(plan, facts, host))

    def gpus_refusals(self, asked: str, plan: Plan) -> Sequence[Finding]:
        """Return the refusal of a value of --gpus where nobody can choose so, whatever cards there are."""
        del asked, plan
        return ()

    def rows(self, plan: Plan) -> Sequence[tuple[str, str]]:
        """Return what a plan shows more, each with its label."""
        del plan
        return ()

    def environment(self, plan: Plan) -> str:
        """Return which Python the job gets."""
        made = plan.environment
        if made is None:
            return plan.host_environment or "the Python found on the host"
        where = self.makes_environment(plan)
        return f"{made.name}, made once {where}   (Python {made.python}, torch {made.torch})"

    def makes_environment(self, plan: Plan) -> str:
        """Return where a plan's environment is made."""
        del plan
        return "on the host"

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return what the gate takes from this kind of host."""
        del host
        if facts is None or not facts.has_slurm:
            return HostChecks()
        message = f"{plan.host}: this is a login node of a Slurm cluster, and the training runs on {facts.hostname} itself"
        mend = f'as a job of the cluster   kind = "slurm"   in [hosts.{plan.host}]'
        return HostChecks((Finding(level="note", code="slurm-login-node", message=message, mend=mend),))


def cannot_go_on(host: str, limit: str, following: str) -> Finding:
    """Return the note that a run that is longer than some limit cannot go on in what follows, by the job's script."""
    message = (
        f"{host}: the script never asks worker.resume_from(): a run that is longer than {limit} cannot go on in the "
        f"next {following}, and ends as not-restartable"
    )
    mend = "have it save and resume through launcher_worker     or let it begin anew   --set restart=true"
    return Finding(level="note", code="cannot-go-on", message=message, mend=mend)
