"""What is fed with generated cases: each takes a seed and a folder, and raises nothing but a LaunchError."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz import file_streams, toml_files
from launcher.agent.host import slurm_facts
from launcher.agent.liveness import run_state
from launcher.agent.liveness.slurm import queue_position, slurm_jobs
from launcher.agent.logs import log_scanner
from launcher.agent.record import strict_json
from launcher.agent.record.rundir import Run
from launcher.agent.verbs.summary import line_of
from launcher.backends.kaggle import kaggle_log
from launcher.backends.kaggle.kaggle_credentials import KaggleLogin
from launcher.backends.kaggle.kaggle_kernel import KernelRef, NewKernel
from launcher.backends.kaggle.kaggle_service import KaggleService
from launcher.base.clock import SystemClock
from launcher.config import command_check, job_check
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event
from launcher.copy.request import Request
from launcher.errors import LaunchError
from launcher.planning.assembly import plan as make_plan
from launcher.rental.providers.lambda_cloud import LambdaAccount
from launcher.rental.providers.lambda_credentials import LambdaKey
from launcher.rental.rate_limit import RateLimit
from launcher.runs.follow.summaries import remembered
from launcher.runs.launch.resolved_request import understand
from launcher.transport.channel import AgentReply
from launcher.transport.http import service_wire
from launcher.upload import loading
from launcher.values.record import RunState, Summary

RUN = "0101-x-abcd"


def toml(seed: int, folder: Path) -> None:
    """Read a generated file as the project's settings, as a job, as a profile, and as a script's own packages."""
    os.chdir(folder)
    text = toml_files.text(seed)
    for name in ("launch.toml", "job.toml", "pyproject.toml", "profiles/x.toml"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            text
            if name == ("launch.toml", "job.toml", "pyproject.toml", "profiles/x.toml")[seed % 4]
            else _PLAIN[name]
        )
    # A profile costs the reading of all of ours: one case in four, and every second one of a generated profile.
    profile = ("x", None)[seed // 4 % 2] if seed % 4 == 3 else ("cpu", None, None)[seed // 4 % 3]
    request = Request(job="job.toml", profile=profile)
    with contextlib.suppress(LaunchError):
        resolved = understand(request)
        loaded = loading.load(resolved.task)
        list(job_check.findings(resolved.task))
        list(command_check.findings(resolved.job, loaded.selection))
        for profile in resolved.profiles:
            make_plan(profile, resolved.host, resolved.job, "auto", "native", None)


_PLAIN = {
    "launch.toml": "",
    "job.toml": 'name = "x"\ncommand = ["python", "train.py"]\n',
    "pyproject.toml": "[project]\nname = 'x'\n",
    "profiles/x.toml": "",
}


def _anything(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if depth < 5 and kind < 0.2:
        return [_anything(draw, depth + 1) for _ in range(draw.randrange(4))]
    if depth < 5 and kind < 0.45:
        return {draw.choice(_NAMES): _anything(draw, depth + 1) for _ in range(draw.randrange(5))}
    return draw.choice(_SCALARS)


_NAMES = (
    *("run", "state", "reason", "attempt", "step", "loss", "time", "evidence", "values", "kind", "version", "rank", "parts"),
    *("path", "offset", "size", "last", "is_full", "job", "steps", "profile", "parent", "checkpoint", "trouble", "what", "card"),
    *("", "\ud800", "x" * 3000, "__class__", "diagnosis", "class", "line", "mend", "remedy", "plan", "secrets", "runtime"),
)  # fmt: skip
_SCALARS = (
    *(None, True, False, 0, -1, 1, 7, 10**400, -(2**63) - 1, 1.5, 1e308, float("inf"), float("nan"), "", "nan", "\ud800", "\0"),
    *("running", "failed", "succeeded", "interrupted", "metric", "state", "../../x", "/etc/passwd", "\x1b]0;x\x07", "x" * 5000),
    *("0001/log.txt", "0001/events.jsonl", "plan.json", "0001/state.json", RUN, [[[[]]]], {}),
)  # fmt: skip


def event(seed: int, _folder: Path) -> None:
    """Read a generated line of events.jsonl: an object, torn, or bytes of any kind."""
    draw = random.Random(seed)
    line = json.dumps({"version": 1, "kind": "metric", **_table(draw)}).encode()
    if draw.random() < 0.3:
        at = draw.randrange(len(line))
        line = line[:at] + bytes([draw.randrange(256)]) + line[at + draw.randrange(3) :]
    if draw.random() < 0.02:
        line = draw.choice([b"[", b'{"values":', b"9", b'"']) * draw.choice([50, 5000, 100_000])
    parse_event(line)


def _table(draw: random.Random) -> dict[str, Any]:
    return {draw.choice(_NAMES): _anything(draw) for _ in range(draw.randrange(9))}


def record(seed: int, folder: Path) -> None:
    """Read a mirror whose files, and whose entry in the index, hold generated records."""
    draw = random.Random(seed)
    local_copy = LocalCopy(RUN, folder)
    place = local_copy.folder / "0001"
    for made in (place, index.place(RUN)):
        made.mkdir(parents=True, exist_ok=True)
    for path in (
        local_copy.folder / "plan.json",
        index.place(RUN) / "run.json",
        place / "attempt.json",
        place / "state.json",
    ):
        content = json.dumps(_anything(draw) if draw.random() < 0.2 else _table(draw))
        if draw.random() < 0.1:
            content = content[: draw.randrange(len(content) + 1)]
        if draw.random() < 0.01:
            content = "[" * draw.choice([60, 2000, 100_000])
        path.write_text(content)
    with contextlib.suppress(LaunchError):
        remembered(local_copy)
    with contextlib.suppress(LaunchError):
        local_copy.whole_plan()
    with contextlib.suppress(LaunchError):
        local_copy.host()


def answer(seed: int, folder: Path) -> None:
    """Take a generated answer to `read`, and generated summaries."""
    draw = random.Random(seed)
    payload = draw.randbytes(draw.choice([0, 3, 40]))
    values = {"state": _table(draw), **_table(draw)}
    if draw.random() < 0.5:
        values["parts"] = [
            {
                "path": draw.choice(_SCALARS),
                "offset": draw.choice([0, 1, -1, "0"]),
                "size": draw.choice([0, 3, 40, 1 << 70]),
            }
            for _ in range(draw.randrange(3))
        ]
    local_copy = LocalCopy(RUN, folder)
    with contextlib.suppress(LaunchError):
        local_copy.sync.apply(AgentReply(values, payload))
    for kind in (RunState, Summary):
        with contextlib.suppress(ValueError):
            kind.lenient(values)


def job_record(seed: int, folder: Path) -> None:
    """Have the agent list a run whose folders hold what a job wrote there, and read its line as a client does."""
    draw = random.Random(seed)
    run = Run(str(folder / "runs" / RUN))
    run.make()
    first = run.new_folder()
    first.release()
    for path, sample in (
        (run.plan, {"job": "x", "steps": 3, "profile": {"title": "x"}, "secrets": []}),
        (
            run.prepared_record,
            {"kind": "prepare", "place_id": "x", "runtime": {"kind": "native", "gpus": []}, "time": 1.0},
        ),
        (first.attempt, {"kind": "train", "place_id": "x", "runtime": {"kind": "native", "gpus": ["GPU-1"]}}),
        (
            first.state,
            {
                "state": draw.choice(["running", "failed"]),
                "step": 3,
                "evidence": {},
                "remedy": {},
                "time": 1.0,
            },
        ),
        (first.heartbeat, {"monotonic_s": 1.0, "step": 3, "loss": 1.0, "grace_s": 3.0}),
    ):
        table: dict[str, Any] = {**sample}
        for name in draw.sample([*sample, *_NAMES], draw.choice([0, 0, 1, 2])):
            table[name] = _anything(draw)
        content = json.dumps(table)
        if draw.random() < 0.05:
            content = draw.choice(
                [content[: draw.randrange(len(content))], "[" * 5000, "null", "\0" * 9, "9" * 5000]
            )
        Path(path).write_text(content)
    line = line_of(run, run_state.state_of(run))
    with contextlib.suppress(ValueError):
        Summary.lenient(json.loads(strict_json.encode(line)))
    run.cards()
    first.nodes()


_FIELDS = (
    *("metadata", "blob", "id", "title", "currentVersionNumber", "source", "status", "failureMessage", "files", "fileName", "url", "log"),
    *("nextPageToken", "name", "size", "kernels", "ref", "timeUsed", "totalTimeAllowed", "quotaRefreshTime", "gpuQuota", "message", "code"),
    *("token", "createUrl", "active", "username", "userName", "expiresIn", "error", "data", "instance_type", "regions_with_capacity_available"),
    *("price_cents_per_hour", "description", "gpu_description", "specs", "vcpus", "memory_gib", "gpus", "ip", "region", "tags", "stream_name"),
)  # fmt: skip
_WORDS = (
    *("3600s", "9" * 400 + "s", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "https://x", "alice/launch-x-1", 2**53),
    *("END_OF_LOG", "1x A100 (" + "9" * 400 + " GB SXM4)", "gpu_1x_a100", "0", 1e999, "tok"),
)  # fmt: skip


def _said(draw: random.Random, depth: int = 0) -> Any:
    """Draw what a service says: its own fields, with values of any kind."""
    kind = draw.random()
    if depth < 4 and kind < 0.15:
        return [_said(draw, depth + 1) for _ in range(draw.randrange(4))]
    if depth < 4 and kind < 0.5:
        return {draw.choice(_FIELDS): _said(draw, depth + 1) for _ in range(draw.randrange(7))}
    return draw.choice(_WORDS) if kind < 0.75 else draw.choice(_SCALARS)


def _body(draw: random.Random) -> bytes:
    """Draw a body: mostly an object, else one that is nested, long, torn or no JSON."""
    if draw.random() < 0.1:
        return draw.choice(
            [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"NaN", b"\xff", b"", b'"\\ud800"', b"null"]
        )
    values = {draw.choice(_FIELDS): _said(draw) for _ in range(draw.randrange(9))}
    body = json.dumps(values if draw.random() < 0.7 else {"data": draw.choice([values, [values]])}).encode()
    return body[: draw.randrange(len(body) + 1)] if draw.random() < 0.05 else body


class _Wire:
    """A service that answers each call with something that was drawn."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def ask(self, *_call: object) -> service_wire.ServiceReply:
        """Answer."""
        status = self._draw.choice([200, 200, 200, 200, 400, 403, 404, 500])
        return service_wire.ServiceReply(status, "application/json", _body(self._draw))

    def post(self, *_call: object) -> service_wire.ServiceReply:
        """Answer."""
        return self.ask()

    @contextlib.contextmanager
    def get(self, *_call: object, **_limits: float) -> Iterator[_Body]:
        """Answer with a log."""
        yield _Body(self._draw)


class _Body:
    """A log that was drawn, in pieces."""

    status = 200

    def __init__(self, draw: random.Random) -> None:
        self.kind = draw.choice(["text/event-stream", "application/json"])
        events = [_body(draw) for _ in range(draw.randrange(4))]
        is_live = self.kind.startswith("text")
        whole = b"".join(b"data: %s\n" % event for event in events) + b"data: END_OF_LOG\n"
        self._body, self._size = (
            whole if is_live else b"[%s]" % b",".join(events),
            draw.choice([1, 7, 65_536]),
        )

    def pieces(self) -> Iterator[bytes]:
        """Yield it; a long one in pieces that are not tiny."""
        size = self._size if len(self._body) < 1000 else 65_536
        yield from (self._body[at : at + size] for at in range(0, len(self._body), size))


def service_answer(seed: int, folder: Path) -> None:
    """Ask Kaggle and Lambda, which answer anything, all that is ever asked."""
    draw = random.Random(seed)
    wire: Any = _Wire(draw)
    kaggle, ref = (
        KaggleService(KaggleLogin("oauth", "x", "x", "alice"), wire),
        KernelRef("alice", "launch-x-1"),
    )
    pace = RateLimit(folder, "x", SystemClock(), request_s=0.0, launch_s=0.0)
    rented = LambdaAccount(LambdaKey("x", "x"), wire, pace)
    (folder / "data").write_text("x")
    for ask in (
        lambda: kaggle.find(ref),
        lambda: list(kaggle.kernels("x")),
        lambda: kaggle.status(ref).status,
        lambda: list(kaggle.outputs(ref)),
        lambda: kaggle.push(NewKernel(ref=ref, source="x", machine="None", timeout_s=60)),
        lambda: kaggle.delete(ref),
        lambda: kaggle.quota().title,
        lambda: kaggle.dataset_status("x").is_ready,
        kaggle.owner,
        lambda: kaggle.renewed().user,
        lambda: [*kaggle_log.follow(kaggle, ref, pause_s=0.0)],
        rented.offers,
        rented.instances,
        lambda: rented.instance("x"),
        lambda: rented.terminate("x"),
        rented.ssh_keys,
        rented.file_systems,
        rented.images,
        rented.firewalls,
    ):
        with contextlib.suppress(LaunchError):
            ask()


_NUMBERS = (
    "0",
    "9" * 30,
    "9" * 5000,
    "1" * 400,
    "²",
    "٣",
    "-1",
    "1e999",
    "infinite",
    "4+",
    "1-02:03:04",
    "9" * 5000 + ":00",
    "",
)


def program_answer(seed: int, _folder: Path) -> None:
    """Read what Slurm's programs may print, and lines of logs with figures of any kind."""
    draw = random.Random(seed)
    number = functools.partial(draw.choice, _NUMBERS)
    text = "\n".join(
        draw.choice(_LINES).replace("#", "%s").replace("%s", number(), 1).replace("%s", number())
        for _ in range(5)
    )
    for read in (
        slurm_jobs.parse_queue,
        slurm_jobs.parse_started,
        slurm_jobs.parse_shown,
        slurm_jobs.makes_way,
        slurm_jobs.restarts,
        slurm_jobs.reason_of_end,
        slurm_jobs.parse_history,
        queue_position.parse_line,
        slurm_facts.parse_config,
        slurm_facts.parse_nodes,
        slurm_facts.parse_gres,
        slurm_facts.parse_queue,
        slurm_facts.parse_accounts,
    ):
        read(text)
    slurm_jobs.limit_s(text, ("gpu",))
    for time in _NUMBERS:
        slurm_jobs.seconds_of(time), slurm_jobs.asked_s(time)
    for job in slurm_jobs.parse_queue(text):
        slurm_jobs.judge(job, has_begun=draw.random() < 0.5)
    scanner = log_scanner.LogScanner()
    scanner.feed(text.encode())
    scanner.finish()


_LINES = (
    *("#|RUNNING|Priority|#|gres/gpu:#|#|node1|launch 0101-x-abcd", "#|gpu|#|Resources", "JobId=# JobState=RUNNING Restarts=# RunTime=# TimeLimit=#"),
    *("PartitionName=gpu Default=YES DefaultTime=# MaxTime=#", "gpu:a100:#(S:0-1)", "node1|gpu*|#|#|#|gpu:t4:#|idle|#", "#|COMPLETED|0:#|#"),
    *("Epoch #/#", "100%|####| #/# [00:01<00:00, #it/s, loss=#]", "{'loss': #, 'epoch': #}", "step #: loss #", "epoch,loss\n#,#", "Step\tTraining Loss\n#\t#"),
    *(" #/# ━━━━ 1s 5ms/step - loss: #", "| epoch   # |   #/ 2983 batches | loss  # |", "Train Epoch: # [#/60000 (1%)]\tLoss: #"),
)  # fmt: skip


SUBJECTS: dict[str, Callable[[int, Path], None]] = {
    "TOML files": toml,
    "events": event,
    "records": record,
    "job's records": job_record,
    "host answers": answer,
    "service answers": service_answer,
    "program answers": program_answer,
    **file_streams.SUBJECTS,
}
