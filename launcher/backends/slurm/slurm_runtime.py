"""Slurm: a run is a job of the cluster, which the agent on the login node submits; the agent in the job trains."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator, Sequence

from launcher.backends.base.inside import Inside, serving
from launcher.backends.base.making import alone
from launcher.backends.base.runtime import Say
from launcher.backends.machine.native_runtime import Native
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.base.text import printable
from launcher.errors import AgentError, ConnectionLostError, HostError, NobodyListensError
from launcher.transport.agent_file import MAGIC
from launcher.transport.channel import AgentChannel, ByteStream, Socket
from launcher.transport.client.agent_desk import AgentClient
from launcher.transport.client.desk import HostClient
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Plan, Submission
from launcher.values.record import RuntimeRecord, Summary, is_terminal

IN_JOB = "job"
NOT_SUBMITTED = "not-submitted"
"""The agent's code for a job that Slurm has refused."""
_OF_OPTION = re.compile(r"\boption ['`]|\bInvalid --")
"""What sbatch says of a flag that it does not know, or whose value it cannot read."""
LOOK_S = 0.2
ENDING_S = 15.0
"""How much longer than its grace a run may take to stop by itself: its agent ends what ignores it."""
AGAIN_S = 3.0
_QUEUED = ("reserved", "resuming")
"""The states of a run whose job may be in the queue, from which a wish takes it."""
SILENT_S = 5.0
"""How long Slurm may be silent before somebody who stops a run hears of that."""
_FREED = ("-u", "SLURM_JOB_ID", "-u", "SLURM_JOBID", "-u", "SLURM_TIMELIMIT", "-u", "SLURM_DEBUG")
"""Lets `srun` make a job of its own in a shell of `salloc` too, with the limits and the silence that it is told."""
_HAVE = MAGIC + b"have\n"
_READY = b"+"
"""What the agent's relay says once the port has answered."""


class SlurmRuntime(Native):
    """Runs as jobs of a cluster. The host's desk is that of its login node."""

    name = "slurm"
    has_own_loopback = True

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return a record for a cluster; `None` for any other host."""
        del facts
        return RuntimeRecord(kind=cls.name) if isinstance(host, SlurmHost) else None

    def create(
        self,
        run: str,
        plan: Plan,
        gpus: Sequence[str],
        count: int | None = None,
        *,
        any_of: Sequence[str] = (),
        queues: bool = False,
    ) -> tuple[str, ...]:
        """Make the run's folder on the login node. No card is leased, and none on record: Slurm gives them to the job."""
        del gpus, count, any_of, queues
        self._place = self.desk.preparation.create(
            run, plan, self.record.kind, None, None, None, None, queues=False
        ).place
        return ()

    def provide(self, plan: Plan, say: Say) -> str:
        """Make sure that the plan's environment is there; what makes it is the login node, or a job of its own."""
        if plan.slurm is None or plan.slurm.build != IN_JOB or plan.environment is None:
            return super().provide(plan, say)
        name = plan.environment.name
        if self.desk.making.has_environment(name):
            return f"{name}, there"
        with alone(self.desk, f"job-environment-{name}", name, say), self._in_job(plan.slurm, say) as desk:
            return self._provide_by(desk, plan, plan.environment, say)

    @contextlib.contextmanager
    def _in_job(self, asked: Submission, say: Say) -> Iterator[HostClient]:
        """Yield a desk on a compute node, in a job that lasts as long. Raises HostError with Slurm's words for a refusal.

        Its agent takes itself for the login node's, so that what it makes is where the run will look for it.
        """
        host, place = self.desk.host, self._place
        flags = [flag for flag in asked.flags if not flag.startswith(("--nodes=", "--gres="))]
        words = ["srun", *flags, "--nodes=1", "--ntasks=1", "--job-name=launch-environment", "--quiet"]
        command = ["env", f"LAUNCH_HOST_ID={place.host_id}", *serving(place)]
        # What srun itself says comes first, and what the agent may say to nobody does not come.
        stream = self.desk.open_program(
            [
                *("env", *_FREED, "sh", "-c", 'exec "$@" 2>&1', "sh"),
                *("python3", "-I", place.agent, "attended", *words),
                *("sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command),
            ]
        )
        with contextlib.closing(stream):
            _await_node(host, stream, say)
            with AgentClient(AgentChannel(host, Inside(host, stream, "job"))) as desk:
                yield desk

    def start_words(self, job_id: str | None) -> str:
        """Return that the job waits for its turn."""
        return f"its job {job_id} is in Slurm's queue"

    def after_refusal(self, error: AgentError) -> str | None:
        """Return where the cluster says what it has, or sbatch what it takes."""
        if error.code != NOT_SUBMITTED:
            return None
        if _OF_OPTION.search(str(error)):
            return f"what sbatch takes   {self.desk.by_hand('sbatch --help')}"
        return f"what the cluster has   launch probe --host {error.host}"

    def stop(self, run: str, grace_s: float) -> bool:
        """Wait for the end of a run that was asked to stop. After its grace, if it has one, its job is cancelled.

        Raises HostError if Slurm does not answer, so that nobody can say whether the run has ended.
        """
        began = asked = time.monotonic()
        while time.monotonic() < began + ENDING_S + grace_s:
            summary = next(iter(self.desk.runs.summaries(run)), None)
            if summary is None or is_terminal(summary.state):
                return False
            if _is_silent(summary):
                if time.monotonic() > began + SILENT_S:
                    raise self._unanswered(summary)
            elif summary.state in _QUEUED and time.monotonic() > asked + AGAIN_S:
                # Slurm has put its job back into the queue meanwhile, where it hears of no wish.
                self.desk.runs.wish(run, "stop" if grace_s else "cancel")
                asked = time.monotonic()
            time.sleep(LOOK_S)
        if grace_s:
            self.desk.runs.wish(run, "stop", force=True)
        return False

    def _unanswered(self, summary: Summary) -> HostError:
        host = self.desk.host
        said = (summary.evidence or {}).get("service")
        words = f"{host}: Slurm does not answer: {said}; {summary.run} ends as soon as its job hears of the wish, or begins"
        return HostError(host, f"{words}\n  look again   launch ps --host {host}")

    @contextlib.contextmanager
    def inside(self, run: str) -> Iterator[HostClient]:
        """Yield a desk in the first node of the run's job. Raises HostError that says what there is instead."""
        host = self.desk.host
        link = Inside(host, self._open_inside(run), "job")
        try:
            channel = AgentChannel(host, link)
        except ConnectionLostError as error:
            raise self._not_started(run, link) from error
        try:
            with AgentClient(channel) as desk:
                yield desk
        except ConnectionLostError as error:
            self._entrance(run)  # raises why, if its job has ended meanwhile
            raise ConnectionLostError(host, str(error)) from error

    def open_port(self, run: str, port: int) -> Socket:
        """Open a stream to a TCP port in the first node of the run's job, which must be running."""
        stream, heard = self._open_inside(run, str(port)), b""
        while not heard.endswith(_HAVE + _READY):
            piece = stream.recv(1)
            if not piece:
                stream.close()
                words = f"{self.desk.host}: nobody listens on port {port} in the node of {run}"
                raise NobodyListensError(self.desk.host, words)
            heard += piece
        return stream

    def _open_inside(self, run: str, *words: str) -> Socket:
        return self.desk.open_program([*self._entrance(run), *words])

    def _entrance(self, run: str) -> list[str]:
        """Return the words of a program that is an agent in the run's job. Raises HostError if the job does not run."""
        try:
            return self.desk.runs.entrance(run)
        except AgentError as error:
            if error.code != "no-job":
                raise
            raise self._without_job(run, error) from error

    def _without_job(self, run: str, error: AgentError) -> HostError:
        host, short = self.desk.host, run.rpartition("-")[2]
        words = f"{error}: no command can be started beside it"
        summary = next(iter(self.desk.runs.summaries(run)), None)
        if summary is not None and is_terminal(summary.state):
            path = self.desk.runs.location(run).path
            return HostError(
                host, f"{words}\n  its files are there   {self.desk.by_hand(shlex.join(['ls', path]))}"
            )
        return HostError(host, f"{words}\n  follow it until it runs   launch attach {short}")

    def _not_started(self, run: str, link: Inside) -> HostError:
        self._entrance(run)  # raises why, if its job has ended meanwhile
        said = printable(link.first.decode("utf-8", "replace").strip().rpartition("\n")[2])
        words = f"{self.desk.host}: srun starts nothing beside {run}: {said or 'it said nothing'}"
        return HostError(self.desk.host, f"{words}\n  try again   launch exec {run.rpartition('-')[2]} -- …")


def _await_node(host: str, stream: ByteStream, say: Say) -> None:
    """Wait until a job has begun, which begins with an empty line. Raises HostError if Slurm refuses it."""
    began, said, line = time.monotonic(), b"", b""
    stream.settimeout(1.0)
    while True:
        try:
            piece = stream.recv(1)
        except TimeoutError:
            say(f"a job of its own waits for a node, {time.monotonic() - began:.0f} s so far")
            continue
        if piece == b"\n" and not line:
            return
        if not piece:
            words = printable((said + line).decode(errors="replace")).strip() or "srun ended without a word"
            raise HostError(host, f"{host}: no job for the environment: {words}")
        line += piece
        if piece == b"\n":
            said, line = said + line, b""


def _is_silent(summary: Summary) -> bool:
    """Whether nobody can say what became of a run, because Slurm does not answer."""
    return "silent" in (summary.evidence or {})


RUNTIME = SlurmRuntime
