"""A run that a job has made unreadable is one line. Its neighbours are listed, cleared and removed as ever."""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from testbed.client import channel_to
from testbed.stream import lines_of
from testbed.toy import recorded_run

from launcher.transport.client.run_reading import answers
from launcher.values.host import Host
from launcher.values.record import Summary

GOOD, BAD = "261122-good-aaaaaa", "261122-odd-bbbbbb"
DEEP = '{"state":' * 100_000 + "1" + "}" * 100_000
STATE = {"state": "failed", "time": 1.0}
PREPARED = {"kind": "prepare", "place_id": "x"}


def replace(path, text):
    Path(path).unlink(missing_ok=True)
    Path(path).write_text(text)


def pipe(path):
    Path(path).unlink(missing_ok=True)
    os.mkfifo(path)


def odd(**values):
    return json.dumps({**STATE, **values})


SPOILT = {
    "a state that is a pipe": lambda run: pipe(run.folder(1).state),
    "a state that is nested deeply": lambda run: replace(run.folder(1).state, DEEP),
    "a state of another shape": lambda run: replace(run.folder(1).state, '{"x":1}'),
    "a list": lambda run: replace(run.folder(1).state, "[1]"),
    "no JSON": lambda run: replace(run.folder(1).state, "{"),
    "a state that is a number": lambda run: replace(run.folder(1).state, odd(state=3)),
    "a step that is a text": lambda run: replace(run.folder(1).state, odd(step="x")),
    "evidence that is a list": lambda run: replace(run.folder(1).state, odd(evidence=[1])),
    "a remedy that is a number": lambda run: replace(run.folder(1).state, odd(remedy=3)),
    "a time beyond all clocks": lambda run: replace(run.folder(1).state, odd(time=1e300)),
    "a number of a million digits": lambda run: replace(run.folder(1).state, '{"step":' + "9" * 10**6 + "}"),
    "a state of many parts": lambda run: replace(run.folder(1).state, odd(evidence={"x": [[]] * 250_000})),
    "a state of many numbers": lambda run: replace(run.folder(1).state, odd(evidence={"x": [1] * 250_000})),
    "a state of a terabyte": lambda run: os.truncate(run.folder(1).state, 1 << 40),
    "a record that is a pipe": lambda run: pipe(run.folder(1).attempt),
    "a runtime that is a number": lambda run: replace(
        run.folder(1).attempt, json.dumps({**PREPARED, "runtime": 3})
    ),
    "a parent of another shape": lambda run: replace(
        run.folder(1).attempt, json.dumps({**PREPARED, "parent": {}})
    ),
    "a plan that is a pipe": lambda run: pipe(run.plan),
    "a plan of another shape": lambda run: replace(run.plan, '{"profile": 3}'),
    "a folder that is a file": lambda run: (
        Path(run.folder(1).path).rename(run.record + "/x"),
        replace(run.folder(1).path, ""),
    ),
}


def make(root, name):
    """A run that has succeeded, whose record a test spoils."""
    run = recorded_run(root, name, "succeeded", runtime={"kind": "native"})
    replace(run.plan, json.dumps({"job": "train", "steps": 3}))
    replace(run.wish, "run")
    return run


def test_an_unreadable_run_is_one_line(tmp_path):
    """It says why; a client can read the line; the other runs' lines are as they were, and nothing waits."""
    make(tmp_path, GOOD)
    names = {f"261122-odd-{number:06}": name for number, name in enumerate(SPOILT)}
    for run, name in names.items():
        SPOILT[name](make(tmp_path, run))
    with channel_to(Host(name="local", root=str(tmp_path))) as agent:
        began = time.monotonic()
        rows = {row["run"]: row for row in lines_of(agent, "runs")[0]}
        _, garbage = lines_of(agent, "gc", dry_run=True)
        sweep = agent.call("sweep", dry_run=True, runs=[GOOD, *names]).values
        found = answers(
            "box", agent.call("read", runs=[{"run": run, "cursors": {}} for run in names]), len(names)
        )
        reads = {run: found[number].values for number, run in enumerate(names)}
    assert time.monotonic() - began < 10
    assert rows.pop(GOOD)["state"] == "succeeded"
    for run, name in names.items():
        row = Summary.model_validate(rows.pop(run))
        assert row.evidence["unreadable"], name
        assert row.state in ("unreadable", "interrupted"), name
        assert isinstance(reads[run]["state"]["state"], str), name
        in_first_record = name in (
            "a record that is a pipe",
            "a runtime that is a number",
            "a parent of another shape",
        )
        assert run in garbage["unreadable"] or in_first_record, name
    assert not rows
    assert GOOD not in garbage["unreadable"]
    assert GOOD in sweep["ended"]


FORBIDDEN = """
import json, os, sys
from launcher.agent.record.rundir import Run
from launcher.agent.serving import serve
from launcher.agent.serving.session import ClientSession

class Wire:
    def write(self, message, payload=b""):
        pass

root, name, what = sys.argv[1:]
run = Run(os.path.join(root, "runs", name))
if what == "moved":
    os.rename(run.folder(1).path, os.path.join(run.record, "away"))
else:
    os.chmod({"record": run.record, "folder": run.last().path, "state": run.last().state}[what], 0)
session = ClientSession(root, Wire())
for verb, more in (("wish", {"wish": "cancel"}), ("remove", {"lose": "all"})):
    print(json.dumps(serve.answer(session, verb, {"run": name, **more}).values))
"""
DROP_BOUND, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2


def obey_modes():
    """Root may open anything; without these two it is as everybody."""
    for capability in (DAC_OVERRIDE, DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(DROP_BOUND, capability, 0, 0, 0)


@pytest.mark.parametrize("what", ["record", "folder", "state", "moved"])
def test_a_run_whose_job_has_changed_modes_is_stopped_and_removed(tmp_path, what):
    """A mode of 0 keeps its owner out, too, until he changes it. Or the job moved the first folder away: it looked unprepared."""
    run = recorded_run(tmp_path, BAD, "running", runtime={"kind": "native"})
    replace(run.plan, json.dumps({"job": "train"}))
    replace(run.prepared_record, Path(run.folder(1).attempt).read_text())
    replace(run.wish, "run")
    words = [sys.executable, "-c", FORBIDDEN, str(tmp_path), BAD, what]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        preexec_fn=obey_modes,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["state"] == "stopped"
    assert not os.path.lexists(run.path)


@pytest.mark.slow(reason="it starts five clients")
def test_ps_and_gc_show_the_line_and_a_stop_makes_the_run_one_that_ended(client):
    """It can be removed then, as any run."""
    make(client.home / ".launch", GOOD)
    run = make(client.home / ".launch", BAD)
    pipe(run.folder(1).state)
    listed = client.ok("ps", "--host", "local").splitlines()
    assert any("train" in line and "succeeded" in line for line in listed)
    (line,) = [line for line in listed if "unreadable" in line]
    assert "state.json is a pipe" in line
    assert f"{BAD} unreadable: state.json is a pipe" in client.ok("gc", "--host", "local")
    client.run("stop", "--now", BAD, "--host", "local")
    assert client.summary(BAD, "--host", "local")["state"] == "stopped"
    client.ok("rm", "--force", BAD, "--host", "local")
    assert not os.path.exists(run.path)
