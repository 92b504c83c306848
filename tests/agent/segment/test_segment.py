"""A segment of a run in a service, run by the real agent: from its payload to its outputs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from testbed.cards import Cards
from testbed.client import is_gone, until
from testbed.segment import RUN, STEPS, record_of
from testbed.tables import mostly_long

from launcher.agent.liveness import run_state
from launcher.agent.record import secret
from launcher.agent.segment.segment import deadlines_of
from launcher.values.record import RunState

pytestmark = pytest.mark.slow(reason="each is a session of its own, most with an environment")

T4 = {"names": ["Tesla T4"], "memory_mib": [14000, 16500], "count": 2, "title": "2 x T4 16 GB", "plan": None}


def files_below(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if not found.is_dir())


def assert_spooled(segments, number):
    """Fail unless the spool has the record of a segment, byte for byte; return that."""
    kernel = record_of(segments.kernel(number))
    assert {path: record_of(segments.run).get(path) for path in kernel} == kernel
    return kernel


def test_a_run_finishes_and_the_spool_has_all_of_its_record(segments):
    """What is kept at the end is what the run wrote: no code as it was sent, no token, no lock."""
    segments.prepare()
    segments.payload(1)
    assert segments.session(1) == 0
    assert segments.ledger() == [*range(1, STEPS + 1)]
    assert segments.state(1)["state"] == "succeeded"
    segments.fed(1)
    kernel = assert_spooled(segments, 1)
    assert {Path(path).parts[1] for path in kernel} == {"0002"}
    kept = files_below(segments.of(1, "working"))
    below = f"launch/runs/{RUN}/"
    assert {path.removeprefix(below).split("/")[0] for path in kept} == {"record", "work"}
    assert {path.removeprefix(below + "work/").split("/")[0] for path in kept if "/work/" in path} == {
        "artifacts",
        "checkpoints",
    }
    assert run_state.state_of(segments.run)["state"] == "succeeded"
    assert RunState.model_validate(run_state.state_of(segments.run))


def test_the_outputs_complete_the_spool(segments):
    """Artifacts and checkpoints come with them; the record was there already."""
    segments.prepare()
    segments.payload(1)
    segments.session(1)
    segments.fed(1)
    settled = segments.settled(1)
    assert settled.replaced == ()
    assert settled.refused == {}
    assert not [path for path in settled.filled if path.startswith("record/")]
    assert (Path(segments.run.artifacts) / "adapter" / "weights").read_bytes() == b"trained" * 10000
    assert segments.settled(1) == ((), (), {})


def test_a_tree_may_lie_among_the_inputs(segments):
    """Wherever the service puts it, by its name and its contents."""
    segments.prepare()
    segments.payload(1, tree=True)
    assert segments.session(1) == 0
    assert segments.state(1)["state"] == "succeeded"


def test_at_its_deadline_a_run_saves_and_the_next_segment_goes_on_from_there(segments):
    """No step is lost, and none is trained twice."""
    segments.prepare(waits_at=7)
    segments.payload(1, session_s=12.0)
    began = time.monotonic()
    assert segments.session(1) == 0
    assert time.monotonic() - began < 12
    assert segments.ledger() == [*range(1, 8)]
    assert (segments.state(1)["state"], segments.state(1)["reason"]) == ("resuming", "session-limit")
    segments.fed(1)
    segments.settled(1)
    segments.go_on(2)
    assert segments.session(2) == 0
    assert segments.ledger() == [*range(1, STEPS + 1)]
    assert segments.state(2)["state"] == "succeeded"
    segments.fed(2)
    assert_spooled(segments, 2)
    assert run_state.state_of(segments.run)["state"] == "succeeded"
    assert "took" in segments.printed(2)


def test_the_next_segment_trusts_checkpoints_that_its_client_never_had(segments):
    """The client resumed without them, so that its own folder does not name them as sealed."""
    segments.prepare(waits_at=7)
    segments.payload(1, session_s=12.0)
    segments.session(1)
    segments.fed(1)
    segments.go_on(2)
    assert segments.session(2) == 0
    assert segments.ledger() == [*range(1, STEPS + 1)]


def test_what_a_run_changed_in_its_code_goes_with_it(segments):
    """A new file and a changed one; what is as it was sent comes with the payload."""
    segments.code |= {"notes.txt": b"as sent\n", "kept.txt": b"as sent\n", "notes/deep/same.txt": b"same\n"}
    segments.code["train.py"] += (
        b"\nopen('notes.txt', 'a').write('changed\\n'); open('new.txt', 'w').write('new\\n')\n"
        b"os.makedirs('__pycache__', exist_ok=True); open('__pycache__/x.pyc', 'w').write('x')\n"
    )
    segments.prepare()
    segments.payload(1)
    assert segments.session(1) == 0
    assert files_below(Path(segments.kernel(1).code)) == ["new.txt", "notes.txt"]
    segments.fed(1)
    segments.settled(1)
    assert (Path(segments.run.code) / "notes.txt").read_text() == "as sent\nchanged\n"


def test_what_does_not_leave_in_time_is_killed(segments):
    """A training that ignores the request: the session ends before its limit all the same."""
    segments.prepare(waits_at=3, ignores_sigterm=True)
    segments.payload(1, session_s=12.0)
    plan = segments.of(1, "payload") / "run" / "control" / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "stop_grace_s": 600.0}))
    began = time.monotonic()
    process = segments.start(1)
    pid = until(lambda: _training_of(segments.kernel(1)), "the training")
    assert process.wait(60) == 0
    assert time.monotonic() - began < 14
    assert is_gone(pid)
    segments.fed(1)
    assert run_state.state_of(segments.run)["state"] == "interrupted"


def _training_of(run):
    for folder in reversed(run.numbers()) if os.path.isdir(run.record) else ():
        events = Path(run.folder(folder).events)
        lines = events.read_text().splitlines() if events.exists() else []
        for line in lines:
            if "pid" in json.loads(line)["values"]:
                return json.loads(line)["values"]["pid"]
    return None


def test_a_killed_agent_is_mended_by_the_keeper(segments):
    """As everywhere: in a folder of its own, which the spool gets too."""
    segments.prepare(waits_at=7)
    segments.payload(1)
    process = segments.start(1)
    until(lambda: 7 in segments.ledger(), "the seventh step")
    folder = segments.kernel(1).folder(2)
    until(lambda: folder.read_state().get("checkpoint") == 5, "the agent to have heard of it")
    os.kill(folder.read_attempt()["agent"]["pid"], signal.SIGKILL)
    until(lambda: segments.ledger()[-1] == 7 and len(segments.ledger()) > 7, "the second attempt")
    Path(f"{segments.ledger_path}.go").touch()
    assert process.wait(60) == 0
    assert segments.state(1)["state"] == "succeeded"
    segments.fed(1)
    assert_spooled(segments, 1)
    assert segments.run.numbers() == [1, 2, 3]


def test_the_service_may_end_a_session_early(segments):
    """SIGTERM to the first process is a request to save."""
    segments.prepare(waits_at=7)
    segments.payload(1)
    process = segments.start(1)
    until(lambda: 7 in segments.ledger(), "the seventh step")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert segments.state(1)["reason"] == "session-limit"


# the machine


@pytest.fixture
def cards(tmp_path):
    """Cards that are listed, where a segment finds their program."""
    made = Cards(tmp_path / "cards")
    yield made
    made.close()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An environment that has pip alone. To make it takes as long as four sessions."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def python(bare, tmp_path):
    """A Python of its own, into which a segment may install."""
    shutil.copytree(bare, tmp_path / "venv", symlinks=True)
    return str(tmp_path / "venv" / "bin" / "python")


def variables(cards):
    return {"PATH": f"{cards.folder}{os.pathsep}{os.environ['PATH']}"}


def failed(segments, listed=None, **orders):
    """Run a segment that must fail before it trains; return its end as the spool has it, and how long it took."""
    segments.prepare()
    segments.payload(1, **orders)
    began = time.monotonic()
    assert segments.session(1, variables(listed) if listed else None) == 0
    took_s = time.monotonic() - began
    segments.fed(1)
    state = run_state.state_of(segments.run)
    assert segments.ledger() == []
    assert RunState.model_validate(state)
    return state, took_s


@mostly_long(
    ("came", "words"),
    [
        (["p100"], "1 x Tesla P100-PCIE-16GB (16280 MiB)"),
        (["t4"], "1 x Tesla T4 (15360 MiB)"),
        ([("t4", {"memory.total": 8192}), ("t4", {"memory.total": 8192})], "2 x Tesla T4 (8192 MiB)"),
        ([], "no card"),
    ],
    ids=["another card", "too few", "too small", "none"],
    ci=(0, 3),
)
def test_a_run_does_not_train_on_cards_that_were_not_meant(segments, cards, came, words):
    """It has failed well within a minute, with what came and what was meant; never on the CPU instead."""
    cards.put(*came)
    state, took_s = failed(segments, cards, cards=[T4])
    assert (state["state"], state["reason"]) == ("failed", "wrong-card")
    assert words in state["evidence"]["line"]
    assert "2 x T4 16 GB" in state["evidence"]["why"]
    assert took_s < 30


def test_cards_that_cannot_be_read_are_none(segments, cards):
    """The driver's own words are the evidence."""
    cards.put("t4", "t4")
    cards.fail("gpu", "nvml")
    state, _ = failed(segments, cards, cards=[T4])
    assert state["reason"] == "wrong-card"
    assert "Driver/library version mismatch" in state["evidence"]["line"]


def test_the_cards_that_came_change_the_plan(segments, cards, python):
    """The first that is allowed and here; the run is on record with its cards, and sees no others."""
    segments.code["train.py"] += b"\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'])\n"
    cards.put("t4", "t4", "p100")
    p100 = {
        "names": ["Tesla P100-PCIE-16GB"],
        "memory_mib": None,
        "count": 1,
        "title": "P100",
        "plan": {"steps": 3},
    }
    segments.prepare()
    segments.payload(1, cards=[{**T4, "count": 3}, p100])
    assert segments.start(1, variables(cards), python).wait(120) == 0
    assert segments.ledger() == [1, 2, 3]
    uuid = "GPU-00000002-0000-4000-8000-000000000000"
    attempt = json.loads(Path(segments.kernel(1).folder(2).attempt).read_text())
    assert attempt["runtime"]["gpus"] == [uuid]
    assert f"sees {uuid}" in Path(segments.kernel(1).folder(2).log).read_text()


def test_a_requirement_that_is_lacking_needs_internet(segments):
    """Those that are there need none; nor does one for another system."""
    state, _ = failed(
        segments,
        requirements=["pytest>=1", "no-such-package-of-ours==1.0", "pip", "other; sys_platform == 'win32'"],
    )
    assert (state["state"], state["reason"]) == ("failed", "missing-dependency")
    assert state["evidence"]["line"] == "no-such-package-of-ours==1.0"


TORCH = """
__version__ = {version!r}
class version:
    cuda = "12.8"
class _C:
    _cuda_getArchFlags = staticmethod(lambda: {architectures!r})
"""


def wheels_in(folder, made):
    """Wheels of a name, a version and the text of a module; the folder is an index for pip's --find-links."""
    import base64
    import hashlib
    import zipfile

    folder.mkdir()
    for name, version, text in made:
        files = {
            f"{name}.py": text,
            f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        digests = [
            (
                path,
                base64.urlsafe_b64encode(hashlib.sha256(data.encode()).digest()).rstrip(b"=").decode(),
                len(data),
            )
            for path, data in files.items()
        ]
        record = "".join(f"{path},sha256={digest},{size}\n" for path, digest, size in digests)
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, data in {**files, f"{name}-{version}.dist-info/RECORD": record}.items():
                wheel.writestr(path, data)
    return {"PIP_FIND_LINKS": str(folder), "PIP_NO_INDEX": "1"}


def test_what_is_lacking_is_installed_and_torch_stays(segments, python, tmp_path):
    """With pip, whose lines are printed."""
    segments.code["train.py"] += b"\nimport launch_toy_needs\nprint('has', launch_toy_needs.word)\n"
    index = wheels_in(tmp_path / "wheels", [("launch_toy_needs", "1.5", "word = 'it'")])
    segments.prepare()
    segments.payload(1, requirements=["launch_toy_needs>=1"], internet=True)
    assert segments.start(1, index, python).wait(120) == 0
    assert segments.state(1)["state"] == "succeeded"
    assert "has it" in Path(segments.kernel(1).folder(2).log).read_text()
    assert "pip: Successfully installed launch_toy_needs-1.5" in segments.printed(1).replace(
        "-needs-", "_needs-"
    )


def test_a_requirement_that_pip_cannot_install_ends_the_run(segments, python, tmp_path):
    """With pip's own error as the evidence."""
    index = wheels_in(tmp_path / "wheels", [("launch_toy_needs", "1.5", "word = 'it'")])
    segments.prepare()
    segments.payload(1, requirements=["launch_toy_needs>=2"], internet=True)
    assert segments.start(1, index, python).wait(120) == 0
    segments.fed(1)
    state = run_state.state_of(segments.run)
    assert (state["state"], state["reason"]) == ("failed", "missing-dependency")
    assert "No matching distribution found for launch_toy_needs>=2" in state["evidence"]["line"].replace(
        "-", "_"
    )


@pytest.mark.parametrize(
    ("wheel", "internet", "reason"),
    [
        ([{"capability": "6.0", "requirement": "torch==2.7.1", "index": "http://127.0.0.1:9"}], True, None),
        pytest.param([{"capability": "6.0", "requirement": "torch==2.7.1", "index": "http://127.0.0.1:9"}], False, "no-kernel-image", marks=pytest.mark.long),
        pytest.param([{"capability": "9.0", "requirement": "torch==2.7.1", "index": "http://127.0.0.1:9"}], True, "no-kernel-image", marks=pytest.mark.long),
    ],
    ids=["installed", "no internet", "no wheel"],
)  # fmt: skip
def test_a_torch_without_code_for_the_card_is_replaced_or_ends_the_run(
    segments, cards, python, tmp_path, wheel, internet, reason
):
    """Before it trains: its first kernel would have failed."""
    made = [
        ("torch", version, TORCH.format(version=version, architectures=architectures))
        for version, architectures in (("2.10.0", "sm_70 sm_75 compute_90"), ("2.7.1", "sm_50 sm_60 sm_70"))
    ]
    index = wheels_in(tmp_path / "wheels", made)
    words = [python, "-m", "pip", "install", "-q", "torch==2.10.0"]
    subprocess.run(words, env={**os.environ, **index}, check=True)
    cards.put("p100")
    p100 = {"names": ["Tesla P100-PCIE-16GB"], "memory_mib": None, "count": 1, "title": "P100", "plan": None}
    segments.prepare()
    segments.payload(1, cards=[p100], torch=wheel, internet=internet)
    assert segments.start(1, {**index, **variables(cards)}, python).wait(120) == 0
    state = segments.state(1)
    if reason is None:
        assert state["state"] == "succeeded"
        assert "installing torch==2.7.1" in segments.printed(1)
    else:
        assert (state["state"], state["reason"]) == ("failed", reason)
        assert "2.10.0" in state["evidence"]["line"]
        assert segments.ledger() == []


# payloads


def test_an_archive_that_is_not_there_is_said_and_on_record(segments):
    """The exit status says too that this session has done nothing."""
    segments.prepare()
    segments.payload(1, tree=True)
    (archive,) = segments.of(1, "inputs").rglob("*.tree")
    archive.write_bytes(archive.read_bytes()[:-1])
    assert segments.session(1) == 1
    assert "its contents are not those that were sent" in segments.printed(1)
    segments.fed(1)
    state = run_state.state_of(segments.run)
    assert (state["state"], state["reason"]) == ("failed", "never-started")


@mostly_long("text", ["", "{}", '{"version":2}', None], ci=(1, 3))
def test_a_damaged_payload_is_said(segments, text):
    """Without a traceback; there is no record that it could be put on."""
    segments.prepare()
    segments.payload(1)
    orders = segments.of(1, "payload") / "segment.json"
    orders.unlink() if text is None else orders.write_text(text)
    assert segments.session(1) == 1
    assert segments.printed(1).startswith("launch: this session cannot begin: ")


def test_secrets_are_no_output(segments):
    """Even of a run that has not ended: the next segment brings them again."""
    segments.prepare(waits_at=7)
    secret.write(segments.run, b'{"HF_TOKEN": "hf_abcdefghijkl"}')
    segments.payload(1, session_s=12.0)
    assert segments.session(1) == 0
    assert segments.state(1)["reason"] == "session-limit"
    texts = [path.read_bytes() for path in segments.of(1, "working").rglob("*") if path.is_file()]
    assert not [text for text in texts if b"hf_abcdefghijkl" in text]
    assert "hf_abcdefghijkl" not in segments.printed(1)


@pytest.mark.parametrize(
    ("session_s", "grace_s", "save_s", "kill_s"),
    [(30600.0, 30.0, 30450.0, 30585.0), (100.0, 30.0, 75.0, 90.0), (16.0, 5.0, 12.0, 14.4)],
)
def test_the_deadlines_leave_time_to_save_but_at_most_a_quarter(session_s, grace_s, save_s, kill_s):
    """Seconds since the script began."""
    assert deadlines_of(0.0, session_s, grace_s) == (save_s, pytest.approx(kill_s))
