"""The five field reports as scripts that know nothing of launcher, started with `--rehearse` for the card in question.

As reported they fail as they were reported; with `--adapt` they train. The judge is the file into which a script itself writes its losses, and for
a crash the log.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.training

SCRIPTS = Path(__file__).parent
UNSCALE = "ValueError: Attempting to unscale FP16 gradients."
DTYPES = "RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16"


class Seed(NamedTuple):
    """A script with its words, the card, and what happens as reported: the class of the failure, and its line.

    `verdict` is what `launch explain` says of the precision that ran. A cast of the model in the middle of a training,
    and a model that was born in bf16, are not wrong by the card.
    """

    script: str
    card: str
    kind: str
    line: str = ""
    words: tuple[str, ...] = ()
    model: str = "small"
    verdict: str = "unsound"

    @property
    def name(self) -> str:
        """The script and its words."""
        return "-".join((self.script, *self.words))


SEEDS = [
    Seed("seed_000", "titan_rtx", "fp16-unscale", UNSCALE),
    Seed("seed_001", "titan_rtx", "fp16-unscale", UNSCALE),
    Seed("seed_001", "titan_rtx", "nan-divergence", words=("mended",)),
    Seed("seed_002", "l40s", "bf16-dtype-mismatch", DTYPES, verdict="as-wanted"),
    Seed("seed_003", "t4", "nan-divergence", model="wide", verdict="as-wanted"),
    Seed("seed_004", "p100", "fp16-unscale", UNSCALE),
    Seed("seed_004", "p100", "nan-divergence", words=("mended",)),
]


def started(client, seed, models, *words):
    """Launch a seed for its card on this CPU; give the process's end and the state of its run."""
    copied(client, seed, models)
    return launched(client, seed, *words)


def copied(client, seed, models):
    """Copy a seed and its model into the project."""
    for script in SCRIPTS.glob("s*.py"):
        shutil.copy(script, client.project)
    shutil.copytree(models / seed.model, client.project / "model")


def launched(client, seed, *words):
    """Launch the script of the project."""
    command = ("python", f"{seed.script}.py", "model", *seed.words)
    ledger = ("-e", f"LEDGER={client.project.parent / 'ledger'}", "-e", "OMP_NUM_THREADS=1")
    done = client.run(*ledger, "--profile", seed.card, "--rehearse", *words, "--", *command, timeout=300)
    (run,) = client.runs.glob("[0-9]*")
    folder = max(path for path in run.iterdir() if path.name.isdecimal())
    return done, folder, json.loads((folder / "state.json").read_text())


@pytest.mark.long  # the first page of the docs shows a script that fails so, and its line `adapt`
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_as_reported_it_fails_as_reported(client, models, seed):
    """Without a word of launcher in it, on a machine without a card."""
    done, folder, state = started(client, seed, models)
    assert done.returncode == 1, done.stderr
    assert (state["state"], state["reason"]) == ("failed", seed.kind)
    assert seed.line in (folder / "log.txt").read_text()
    ledger = client.project.parent / "ledger"
    if seed.line:
        assert not ledger.exists()
    command = f"--adapt -- python {seed.script}.py model"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("  adapt    launch ")]
    assert f" --profile {seed.card} --rehearse -e LEDGER=" in line
    assert line.endswith(" ".join([command, *seed.words]))
    explained = json.loads(client.ok("explain", "--json", "last"))
    assert explained["verdict"] == seed.verdict
    assert f"  adapt    {explained['next']}" == line
    if seed.verdict == "as-wanted":
        assert explained["sentence"].endswith(f"and it failed nevertheless ({seed.kind})")


LORA = ("--set", "method=lora")
ADAPTED = {"seed_000": LORA, "seed_001": (), "seed_002": (), "seed_003": LORA, "seed_004": ()}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(one, marks=() if one.script == "seed_004" else pytest.mark.long)
        for one in SEEDS
        if not one.words
    ],
    ids=lambda seed: seed.name,
)
def test_with_adapt_it_trains(client, models, seed):
    """The script is the same, byte for byte. By its own ledger every loss is finite, the last are far lower, the weights move."""
    done, folder, state = started(client, seed, models, "--adapt", *ADAPTED[seed.script])
    assert done.returncode == 0, done.stderr
    assert state["state"] == "succeeded"
    told = json.loads((client.project.parent / "ledger").read_text())
    losses = [float(loss) for loss in told["losses"]]
    assert len(losses) == 30
    assert all(map(math.isfinite, losses))
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert told["has_moved"]
    adapted = [line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("adapted: ")]
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    said = [event["values"]["adapted"] for event in events if "adapted" in (event.get("values") or {})]
    assert adapted
    assert [f"adapted: {line}" for line in said] == adapted
    assert state["attempt"] == (2 if seed.model == "wide" else 1)  # the next rung mends what overflows fp16


RULES = {
    "seed_000": "LC107",
    "seed_001": "LC101",
    "seed_002": "LC105",
    "seed_003": "LC110",
    "seed_004": "LC101",
}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(one, marks=() if one.script == "seed_004" else pytest.mark.long)
        for one in SEEDS
        if not one.words
    ],
    ids=lambda seed: seed.name,
)
def test_check_finds_the_bug_and_the_mended_script_trains(client, models, seed):
    """Without --adapt: the script itself is right then."""
    copied(client, seed, models)
    words = ("check", "--profile", seed.card, f"{seed.script}.py")
    found = client.run(*words)
    assert found.returncode == 1
    assert f" {RULES[seed.script]} " in found.stdout
    assert client.run(*words, "--fix").returncode == 0
    done, _, state = launched(client, seed)
    assert done.returncode == 0, done.stderr
    assert (state["state"], state["attempt"]) == ("succeeded", 1)
    told = json.loads((client.project.parent / "ledger").read_text())
    losses = [float(loss) for loss in told["losses"]]
    assert all(map(math.isfinite, losses))
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert told["has_moved"]


@pytest.mark.parametrize("script", ["seed_004", pytest.param("seed_003", marks=pytest.mark.long)])
def test_a_mend_of_what_concerns_the_card_alone_changes_no_loss_on_a_cpu(client, models, script):
    """Both scripts take float16 on a card only. The losses of the script and of the mended one are within 1 %."""
    (seed,) = (one for one in SEEDS if one.script == script and not one.words)
    copied(client, seed, models)
    before = losses_here(client, script)
    assert client.run("check", "--fix", "--profile", seed.card, f"{script}.py").returncode == 0
    after = losses_here(client, script)
    assert len(before) == 30
    assert after == pytest.approx(before, rel=0.01)


def losses_here(client, script):
    """Run a script without launcher; give the losses of its ledger."""
    ledger = client.project.parent / "ledger"
    environment = {**os.environ, "LEDGER": str(ledger), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, f"{script}.py", "model"]
    subprocess.run(command, cwd=client.project, env=environment, check=True, capture_output=True, timeout=300)
    return [float(loss) for loss in json.loads(ledger.read_text())["losses"]]


def test_a_command_that_runs_nothing_on_the_card_shows_nothing(client):
    """It ends with exit status 0, and its run has failed all the same: a rehearsal of nothing is not green."""
    client.script("import torch\nprint(torch.ones(2).sum())\n")
    done = client.run("--profile", "t4", "--rehearse", "--", "python", "train.py", timeout=300)
    assert done.returncode == 1
    (run,) = client.runs.glob("[0-9]*")
    state = json.loads((run / "0002" / "state.json").read_text())
    assert (state["reason"], state["evidence"]["exit"]) == ("not-rehearsable", 0)
