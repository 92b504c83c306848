"""Slurm: a run is a job of the cluster. The agent on the login node submits it; the agent in the job trains."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator, Sequence

from launcher.backends.base.making import alone
from launcher.backends.base.nested_channel import NestedChannel, serving
from launcher.backends.base.runtime import Say
from launcher.backends.machine.native_runtime import Native
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.base.text import printable
from launcher.errors import AgentError, ConnectionLostError, HostError, PortClosedError
from launcher.transport.agent_file import MAGIC
from launcher.transport.channel import AgentChannel, ByteStream, Socket
from launcher.transport.client.host_client import HostClient
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Plan, Submission
from launcher.values.record import RuntimeRecord, Summary, is_terminal

IN_JOB = "job"
NOT_SUBMITTED = "not-submitted"
"""The agent's error code for a job that Slurm refused."""
LIMIT_REACHED = "limit-reached"
"""The agent's error code for a job that Slurm refuses at present."""
_OF_OPTION = re.compile(r"\boption ['`]|\bInvalid --")
"""sbatch's messages for an unknown flag, or a flag with an invalid value."""
LOOK_S = 0.2
ENDING_S = 15.0
"""Seconds that a run may take to stop, beyond its grace: its agent ends processes that ignore the signal."""
AGAIN_S = 3.0
_QUEUED = ("reserved", "resuming")
"""States of a run whose job may be queued, so that a stop request must take it out of the queue."""
SILENT_S = 1.0
"""Seconds without an answer from Slurm after which a stop reports that. The agent has waited for one before."""
_FREED = ("-u", "SLURM_JOB_ID", "-u", "SLURM_JOBID", "-u", "SLURM_TIMELIMIT", "-u", "SLURM_DEBUG")
"""Arguments of `env` that make `srun` submit a new job even in an `salloc` shell.

The job's time limit and verbosity are then those of the flags of `srun`.
"""
_HAVE = MAGIC + b"have\n"
_READY = b"+"
"""The reply of the agent's relay once the port has accepted the connection."""


class SlurmRuntime(Native):
    """Runs as jobs of a cluster. The host client is that of the login node."""

    name = "slurm"
    has_own_loopback = True

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return a record for a cluster; `None` for any other host."""
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
        """Make the run's folder on the login node.

        No card is leased or recorded: Slurm assigns them to the job.
        """
        self._place = self.client.preparation.create(
            run, plan, self.record.kind, None, None, None, None, queues=False
        ).place
        return ()

    def provide(self, plan: Plan, say: Say) -> str:
        """Provide the plan's environment.

        It is built on the login node, or in a separate job on a compute node.
        """
        if plan.slurm is None or plan.slurm.build != IN_JOB or plan.environment is None:
            return super().provide(plan, say)
        name = plan.environment.name
        if self.client.making.has_environment(name):
            return f"{name}, already there"
        with (
            alone(self.client, f"job-environment-{name}", name, say),
            self._in_job(plan.slurm, say) as client,
        ):
            return self._provide_by(client, plan, plan.environment, say)

    @contextlib.contextmanager
    def _in_job(self, asked: Submission, say: Say) -> Iterator[HostClient]:
        """Yield a client of an agent on a compute node, in a job that lasts as long as the `with`.

        Raises HostError with Slurm's message if the job is refused. The agent uses the login node's host id,
        so that it builds the environment where the run will look for it.
        """
        host, place = self.client.host, self._place
        flags = [flag for flag in asked.flags if not flag.startswith(("--nodes=", "--gres="))]
        words = ["srun", *flags, "--nodes=1", "--ntasks=1", "--job-name=launch-environment", "--quiet"]
        command = ["env", f"LAUNCH_HOST_ID={place.host_id}", *serving(place)]
        # Output of srun itself comes first. Standard error of the agent is dropped.
        stream = self.client.open_program(
            [
                *("env", *_FREED, "sh", "-c", 'exec "$@" 2>&1', "sh"),
                *("python3", "-I", place.agent, "attended", *words),
                *("sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command),
            ]
        )
        with contextlib.closing(stream):
            _await_node(host, stream, say)
            with HostClient(AgentChannel(host, NestedChannel(host, stream, "job"))) as client:
                yield client

    def start_words(self, job_id: str | None) -> str:
        """Return the words for a job in Slurm's queue."""
        return f"its job {job_id} is in Slurm's queue"

    def is_limit(self, error: AgentError) -> bool:
        """Whether Slurm takes no more jobs of the user at present."""
        return error.code == LIMIT_REACHED

    def after_refusal(self, error: AgentError) -> str | None:
        """Return the command that shows the cluster's resources, or sbatch's options, for a job that Slurm refused."""
        if error.code != NOT_SUBMITTED:
            return None
        if _OF_OPTION.search(str(error)):
            return f"what sbatch takes   {self.client.by_hand('sbatch --help')}"
        return f"the cluster's facts   launch probe --host {error.host}"

    def stop(self, run: str, grace_s: float) -> bool:
        """Wait for the end of a run that was asked to stop. If it has a grace and exceeds it, cancel its job.

        Raises HostError if Slurm does not answer, because the run's end is unknown then.
        """
        began = asked = time.monotonic()
        while time.monotonic() < began + ENDING_S + grace_s:
            summary = next(iter(self.client.runs.summaries(run)), None)
            if summary is None or is_terminal(summary.state):
                return False
            if _is_silent(summary):
                if time.monotonic() > began + SILENT_S:
                    raise self._unanswered(summary)
            elif summary.state in _QUEUED and time.monotonic() > asked + AGAIN_S:
                # Slurm may have put the job back into the queue, where it receives no stop request.
                self.client.runs.wish(run, "stop" if grace_s else "cancel")
                asked = time.monotonic()
            time.sleep(LOOK_S)
        if grace_s:
            self.client.runs.wish(run, "stop", force=True)
        return False

    def _unanswered(self, summary: Summary) -> HostError:
        host = self.client.host
        said = (summary.evidence or {}).get("service")
        words = f"{host}: Slurm does not answer: {said}; the end of {summary.run} is not confirmed"
        later = "the request is on record: its job ends as it reads it or begins, or by the next launch or sweep there"
        return HostError(host, f"{words}\n  {later}\n  look again   launch ps --host {host}")

    @contextlib.contextmanager
    def inside(self, run: str) -> Iterator[HostClient]:
        """Yield a client of an agent on the first node of the run's job.

        Raises HostError with an alternative if the job is not running.
        """
        host = self.client.host
        link = NestedChannel(host, self._open_inside(run), "job")
        try:
            channel = AgentChannel(host, link)
        except ConnectionLostError as error:
            raise self._not_started(run, link) from error
        try:
            with HostClient(channel) as client:
                yield client
        except ConnectionLostError as error:
            self._entrance(run)  # raises the reason if the job has ended by now
            raise ConnectionLostError(host, str(error)) from error

    def open_port(self, run: str, port: int) -> Socket:
        """Open a stream to a TCP port on the first node of the run's job, which must be running."""
        stream, heard = self._open_inside(run, str(port)), b""
        while not heard.endswith(_HAVE + _READY):
            piece = stream.recv(1)
            if not piece:
                stream.close()
                words = f"{self.client.host}: no process listens on port {port} in the node of {run}"
                raise PortClosedError(self.client.host, words)
            heard += piece
        return stream

    def _open_inside(self, run: str, *words: str) -> Socket:
        return self.client.open_program([*self._entrance(run), *words])

    def _entrance(self, run: str) -> list[str]:
        """Return the command that starts an agent in the run's job.

        Raises HostError if the job is not running.
        """
        try:
            return self.client.runs.entrance(run)
        except AgentError as error:
            if error.code != "no-job":
                raise
            raise self._without_job(run, error) from error

    def _without_job(self, run: str, error: AgentError) -> HostError:
        host, short = self.client.host, run.rpartition("-")[2]
        words = f"{error}: no command can be started beside it"
        summary = next(iter(self.client.runs.summaries(run)), None)
        if summary is not None and is_terminal(summary.state):
            path = self.client.runs.location(run).path
            return HostError(
                host,
                f"{words}\n  its files are on the host   {self.client.by_hand(shlex.join(['ls', path]))}",
            )
        return HostError(host, f"{words}\n  follow it until it runs   launch attach {short}")

    def _not_started(self, run: str, link: NestedChannel) -> HostError:
        self._entrance(run)  # raises the reason if the job has ended by now
        said = printable(link.first.decode("utf-8", "replace").strip().rpartition("\n")[2])
        words = f"{self.client.host}: srun starts nothing beside {run}: {said or 'it said nothing'}"
        return HostError(
            self.client.host, f"{words}\n  try again   launch exec {run.rpartition('-')[2]} -- …"
        )


def _await_node(host: str, stream: ByteStream, say: Say) -> None:
    """Wait until a job has begun; its agent then prints an empty line.

    Raises HostError if Slurm refuses the job.
    """
    began, said, line = time.monotonic(), b"", b""
    stream.settimeout(1.0)
    while True:
        try:
            piece = stream.recv(1)
        except TimeoutError:
            say(f"a separate job waits for a node, {time.monotonic() - began:.0f} s so far")
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
    """Whether the state of a run is unknown because Slurm does not answer."""
    return "silent" in (summary.evidence or {})


RUNTIME = SlurmRuntime
