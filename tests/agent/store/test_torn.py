"""A trainer killed at every single write of a checkpoint, by a tracer outside of it: what is left is whole or is nothing."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from testbed import trainer
from testbed.client import missing
from testbed.toy import Toy

pytestmark = pytest.mark.slow(reason="traces a trainer and kills it at every single write")

STEPS, EVERY = 12, 3
CALLS = "mkdir,rename,fsync,write,unlink,unlinkat,rmdir"


@pytest.fixture(scope="module", autouse=True)
def _strace():
    if shutil.which("strace") is None:
        missing("strace is not installed")


def trained(home: Path, options: str) -> Toy:
    """A run whose first attempt is traced with these options, and no other."""
    home.mkdir()
    toy = Toy(home)
    split = {"global_batch": trainer.GLOBAL_BATCH, "ranks": 1, "micro_batch": 4, "accumulation": 1}
    once, python = shlex.quote(str(home / "once")), shlex.quote(sys.executable)
    script = (
        f"export PYTHONDONTWRITEBYTECODE=1; if mkdir {once} 2>/dev/null; then exec strace -f -y -o {home}/trace {options} "
        f'{python} train.py "$@"; else exec {python} train.py "$@"; fi'
    )
    command = ["sh", "-c", script, "sh", str(home / "samples"), "0"]
    toy.plan(command=command, steps=STEPS, save_every_steps=EVERY, keep_checkpoints=2, split=split)
    (Path(toy.run.code) / "train.py").write_text(trainer.source())
    try:
        state = toy.ended()
    finally:
        toy.clear_away()
    assert state["state"] == "succeeded", state
    trainer.judge(home / "samples", Path(toy.run.artifacts, "model"), STEPS, EVERY)
    return toy


@pytest.mark.long
def test_a_kill_at_any_write_of_a_checkpoint_costs_no_sample(tmp_path):
    """From the folder's making to the removal of the oldest one: the run ends well, from the right checkpoint."""
    trained(tmp_path / "whole", f"-e trace={CALLS}")
    lines = (tmp_path / "whole" / "trace").read_text().splitlines()
    calls = [(call, [verb_of(one) for one in lines[:place]].count(call)) for place, call in places_of(lines)]
    assert len(calls) > 15  # the third save: three files, their folder, the name, and the first one's end
    again = set()
    for call, before in calls:
        home = tmp_path / f"{call}-{before}"
        toy = trained(home, f"-e trace={CALLS} -e inject={call}:signal=KILL:when={before + 1}")
        assert "killed by SIGKILL" in (home / "trace").read_text()
        again.add(trainer.attempts(home / "samples")[1][0])
        left = {path.name for path in Path(toy.run.checkpoints).iterdir()}
        assert left == {"step-9", "step-12"}, (call, before, left)
    assert again == {6, 9}  # before the seal from the one before, after it from the new one


def verb_of(line: str) -> str:
    """The name of the call."""
    return re.sub(r"^\d+\s+(\w+)\(.*", r"\1", line)


def places_of(lines: list[str]) -> list[tuple[int, str]]:
    """The calls of the third save: from the folder's making to the end of what it removes."""
    first = next(place for place, line in enumerate(lines) if "mkdir" in line and "step-9" in line)
    last = max(place for place, line in enumerate(lines) if "dropped-step-3" in line)
    return [(place, verb_of(lines[place])) for place in range(first, last + 1)]


def test_the_manifest_is_the_last_to_be_written_and_all_is_on_the_disk_by_then(tmp_path):
    """Each file is synced, then the folder, then the manifest is; only then has the checkpoint its name."""
    trained(tmp_path / "run", f"-e trace={CALLS}")
    lines = (tmp_path / "run" / "trace").read_text().splitlines()
    of_three = [line for line in lines if ".step-3.new" in line and "write(" not in line]
    names = [re.sub(r'.*checkpoints/([^">]*)[">].*', r"\1", line) for line in of_three]
    hidden = ".step-3.new"
    assert list(zip(map(verb_of, of_three), names, strict=True)) == [
        ("mkdir", hidden),
        ("fsync", f"{hidden}/model.bin"),
        ("fsync", f"{hidden}/trainer.json"),
        ("fsync", hidden),
        ("fsync", f"{hidden}/manifest.json.tmp"),
        ("rename", f"{hidden}/manifest.json"),
        ("fsync", hidden),
        ("rename", "step-3"),
    ]
