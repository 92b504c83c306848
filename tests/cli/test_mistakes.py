"""Typical mistakes: what is said, with which exit code, and the command that is offered. None of them changes anything."""

import hashlib
import json
import re
import sys
import time

import pytest
from testbed.entries import know

ENDED, LIVE, TWIN = "261121-done-aaaa11", "261122-live-bbbb22", "261122-live-cccc33"
RUNS = {
    "261120-twice-dddd44": "failed",
    "261120-twice-eeee55": "running",
    "261120-twice-ffff66": "succeeded",
    ENDED: "succeeded",
    LIVE: "running",
    TWIN: "running",
}
FILES = {
    "launch.toml": '[hosts.lab]\naddress = "lab.invalid"\n[hosts.lambda]\naddress = "lambda.invalid"\n',
    "train.py": "print(1)\n",
    "my.toml": 'name = "x"\ncommand = ["python", "train.py"]\nsteps = 3\n[settings]\nrate = 0.1\n',
    "bad.toml": 'name = "x"\ncommand = ["python", "train.py"]\nstepz = 3\n',
    "broken.toml": 'name = "x\n',
    "host.toml": 'host = "lab"\n[host.lab]\naddress = "lab.invalid"\n',
    "wrong.toml": 'name = "x"\ncommand = "python train.py"\n',
    "notes.txt": "a\n",
    "wrong.env": "A=1\nB\n",
}
MISTAKES = {
    # the verb, and the order of words
    "sp": (2, "did you mean 'ps'?", "launch ps"),
    "attahc last": (2, "did you mean 'attach'?", "launch attach last"),
    "stauts": (2, "stauts is not a verb", "launch ps"),
    "status": (2, "status is not a verb", "launch ps"),
    "list": (2, "list is not a verb", "launch ps"),
    "queue": (2, "queue is not a verb", "launch ps --state reserved"),
    "squeue": (2, "squeue is not a verb of launch\n  next   launch ps\n", "launch ps --state reserved"),
    "sinfo": (2, "sinfo is not a verb", "launch probe --host HOST"),
    "--host lab --partition short -- true": (2, "no such option: --partition\n", "--set slurm.partition=…"),
    "--time 60 -- true": (2, "no such option: --time\n", "--set slurm.time=…"),
    "--mem=64G -- true": (2, "no such option: --mem", """--set 'slurm.extra=["--mem=64G"]'"""),
    "--array 0-3 -- true": (2, "no such option: --array", "launch batch FILE"),
    "ps --partition short": (2, "launch ps: no such option: --partition\n  see", "launch ps --help"),
    "ssh lab": (2, "ssh is not a verb", "launch shell RUN"),
    "kill last": (2, "kill is not a verb", "launch stop --now RUN"),
    "cancel last": (2, "cancel is not a verb", "launch stop RUN"),
    "version": (2, "version is not a verb", "launch --version"),
    "halp": (2, "halp is not a verb", "launch --help"),
    "help frobnicate": (2, "frobnicate is not a verb", "launch --help"),
    "p": (2, "p is not a verb", "or  launch probe"),
    "prof show t4": (2, "prof is not a verb", "launch profile show t4"),
    "--verison": (2, "no such option: --verison", "--version"),
    "ps --jsn": (2, "no such option: --jsn", "--json"),
    "python train.py": (2, "goes after --", "launch -- python train.py"),
    "train.py --lr 1": (2, "goes after --", "launch -- python train.py --lr 1"),
    "python train.py --lr 1 --host lab --detach": (
        2,
        "  next   launch --host lab --detach -- python train.py --lr 1\n",
        "     or  launch -- python train.py --lr 1 --host lab --detach     if the script has an option --host",
    ),
    "my.toml": (2, "my.toml is not a verb", "launch --job my.toml"),
    "lab": (2, "lab is not a verb", "launch --host lab"),
    "titan_rtx": (2, "titan_rtx is not a verb", "launch --profile titan_rtx"),
    "sft": (2, "sft is not a verb", "launch --job sft"),
    "aaaa11": (2, "aaaa11 is not a verb", "launch attach aaaa11"),
    "frobnicate": (2, "frobnicate is not a verb", "launch --help"),
    "--host lab python train.py": (2, "unexpected words: python train.py", "-- python train.py"),
    "--host lab ps": (2, "unexpected word: ps", "launch ps --host HOST"),
    "--host lab --": (2, "no command after --", "-- python train.py"),
    "image shw": (2, "Did you mean 'show'?", "launch image --help"),
    "profile titan_rtx": (2, "no such command 'titan_rtx'", "launch profile --help"),
    "ps last": (2, "launch ps: unexpected word: last", "launch ps --help"),
    "probe lab": (2, "launch probe: unexpected word: lab", "next   launch probe --host lab"),
    "gc --dry-run lab": (2, "launch gc: unexpected word: lab", "next   launch gc --dry-run --host lab"),
    "image list lab": (2, "launch image list: unexpected word: lab", "next   launch image list --host lab"),
    "drill me@lab.invalid": (
        2,
        "unexpected word: me@lab.invalid",
        "next   launch drill --host me@lab.invalid",
    ),
    "probe nolab": (2, "unexpected word: nolab", "if it is a host   launch probe --host nolab"),
    "hosts lab": (2, "launch hosts: unexpected word: lab", "launch probe --host lab"),
    "probe lab lambda": (2, "launch probe: unexpected words: lab lambda", "launch probe --help"),
    "probe --host lambda lab": (
        2,
        "launch probe: unexpected word: lab\n  that host",
        "launch probe --host lab",
    ),
    "run lab": (2, "unexpected word: lab", "launch --host lab"),
    "run train.py --lr 1": (2, "unexpected words: train.py --lr 1", "launch … -- python train.py --lr 1"),
    "--host lab train.py --lr=1 -x": (2, "goes after --, with its options", "-- python train.py --lr=1 -x"),
    "run --lr train.py": (2, "no such option: --lr", "launch run --help"),
    "exec done ls -la": (2, "must follow --", "launch exec done -- ls -la"),
    "exec done -la": (2, "no such option: -l", "launch exec --help"),
    "batch my.toml --lr 1": (2, "no such option: --lr", "launch batch begin --help"),
    "exec done ls": (2, "must follow --", "launch exec done -- ls"),
    "exec done --": (2, "must follow --", "launch exec done --"),
    # options
    "--nonsense": (2, "no such option: --nonsense", "launch run --help"),
    "-d -- true": (2, "no such option: -d (Possible options: --detach, --dry-run)", "launch run --help"),
    "attach --follow last": (2, "no such option: --follow\n", "launch attach --help"),
    "logs -n x": (2, "a whole number is expected", "launch logs --help"),
    "ps --hots lab": (2, "no such option: --hots", "launch ps --help"),
    "ps --limit 0": (2, "at least 1 is expected", "launch ps --help"),
    "ps --limit few": (2, "'--limit'", "launch ps --help"),
    "ps --limit": (2, "requires an argument", "launch ps --help"),
    "ps --state finished": (2, "unknown state 'finished'", "known: failed"),
    "ps --state succeded": (2, "did you mean 'succeeded'?", "known: failed"),
    "--host lab --host lambda": (2, "--host is given 2 times", "launch run --help"),
    "--wait soon": (2, "--wait soon: expected", "--wait 30m"),
    "--wait 30": (2, "--wait 30: expected", "--wait 30m"),
    "--gpus x": (2, "--gpus x", "--gpus 1"),
    "--color sometimes": (2, "--color sometimes: expected auto", ""),
    "--precision fp16-native": (2, "takes steps up to 55 times too large", "--precision auto"),
    "--precision bf17": (2, "'bf17' is not one of 'auto', 'bf16'", "launch run --help"),
    "--runtime magic": (2, "expected auto, docker, kaggle, native", ""),
    "--probe x.json": (2, "--probe needs --dry-run", "launch --dry-run --probe FILE"),
    "--dry-run --probe none.json": (2, "none.json: cannot be read", ""),
    "--env A -- true": (2, "expected NAME=VALUE", "-s A"),
    "--env =x -- true": (2, "-e: expected NAME=VALUE", "-e WANDB_MODE=offline"),
    "--env 1=x -- true": (2, "-e 1=…: 1 is not the name of a variable", ""),
    "shell done": (
        2,
        "a shell needs a terminal",
        "launch exec RUN -- COMMAND     runs one command without a terminal",
    ),
    "--secret NOPE -- true": (2, "secret NOPE: it is not set here", "export NOPE="),
    "--env-file none.env -- true": (2, "none.env: cannot be read", ""),
    "--env-file wrong.env -- true": (2, "line 2 names a variable that is not set here", ""),
    "--with == -- true": (2, "expected a requirement", ""),
    "--name Große -- true": (2, "expected small letters", ""),
    "--job my.toml -- python x": (2, "are two jobs", ""),
    # names and paths
    "--host lambada": (2, "did you mean 'lambda'?", "known: kaggle, lab, lambda, local"),
    "ps --host lambada": (2, "did you mean 'lambda'?", "known: kaggle, lab, lambda, local"),
    "--host me@lab.invalid:99999": (2, "port = 99999", ""),
    "--profile titan_rx": (2, "did you mean 'titan_rtx'?", "known: a100_40gb"),
    "--job sfft": (2, "did you mean 'sft'?", "known: distill, drill, sft"),
    "--job my": (2, "unknown job 'my'", "did you mean '--job my.toml'?"),
    "--job nope.toml": (2, "nope.toml: cannot be read: no such file", "launch --job sft"),
    "--job wrnog.toml": (2, "did you mean 'wrong.toml'?", "launch --job distill"),
    "--job bad.toml": (2, "unknown key 'stepz': did you mean 'steps'?   (line 3)", "allowed: name"),
    "--job broken.toml": (2, "broken.toml: is not TOML: a quote is not closed", "line 1"),
    "--job host.toml": (
        2,
        "this table has the name of a value above it",
        "the table of a host is   [hosts.NAME]",
    ),
    "--job wrong.toml": (2, "wrong.toml: command", "expected a list"),
    "--job notes.txt": (2, "unknown job 'notes.txt'", "known: distill, drill, sft"),
    "--job my.toml --set stpes=3": (2, "unknown key 'stpes': did you mean 'steps'?", "allowed: name"),
    "--job my.toml --set steps=many": (2, 'steps = "many": expected a whole number', ""),
    "--job my.toml --set steps": (2, "expected KEY=VALUE", "--set batch.global=32"),
    "--job my.toml --set settings.rat=3": (3, "did you mean 'rate'?", "declared: rate"),
    "--job my.toml --set code=nope": (2, "nope is not a folder", ""),
    "--job my.toml --set data.x=y": (2, "unknown key 'data.x'", "allowed: train, eval"),
    "--set slurm.time=4h -- true": (2, '--set slurm.time = "4h": expected a minute or more', ""),
    "--set slurm.mem=64G -- true": (2, "unknown key 'slurm.mem': write", 'extra = ["--mem=64G"]'),
    "--set slurm.cpus=8 -- true": (2, "unknown key 'slurm.cpus': write", 'extra = ["--cpus-per-task=8"]'),
    "--set slurm.partitoin=a -- true": (2, "did you mean 'partition'?", "allowed: partition"),
    "--set stpes=3 -- true": (2, "--set: unknown key 'stpes': did you mean 'steps'?", "settings.stpes=…"),
    "--set stpes=3 -- python train.py": (2, "unknown key 'stpes'\n", "--adapt --set steps=3"),
    "--set foo=1 -- python train.py": (2, "unknown key 'foo'\n", "-- python train.py --foo 1\n  all keys"),
    "--set dataset=x -- true": (
        2,
        "--set: unknown key 'dataset': did you mean 'data'?",
        "a setting of the script is   --set settings.dataset=…",
    ),
    "--job my.toml --set lr=1e-4": (2, "my.toml with --set: unknown key 'lr'\n  allowed: name", ""),
    "--set lr=1e-4 -- true": (
        2,
        "--set: unknown key 'lr'\n",
        "a setting of the script is   --set settings.lr=…",
    ),
    "--set precision=bf16 -- true": (2, "--set: unknown key 'precision'", "it is an option   --precision …"),
    "--set code=nope -- true": (2, '--set code = "nope": ', "nope is not a folder"),
    "--set model=./nope": (3, "does not exist here", "host:/PATH"),
    "-- python nope.py": (3, "'nope.py' does not exist in", "--set code="),
    "diagnose nofile.log": (2, "no file 'nofile.log', and no run", "launch ps"),
    # runs
    "stop": (2, "which run?", "launch stop last"),
    "rm": (2, "which run?", "launch rm last"),
    "cp": (2, "which run?", "launch cp last:PATH"),
    "cp done:out": (2, "DEST is missing", "launch cp --help"),
    "cp done .": (2, "expected RUN:PATH", "launch cp last:"),
    "stop twcie": (2, "no run 'twcie' here: did you mean 'twice'?", "launch ps"),
    "attach zzzz": (2, "no run 'zzzz' here", "launch ps --host HOST"),
    "stop live": (2, "'live' is the name of 2 runs: cccc33, bbbb22", "name one by its id"),
    "stop --now twice": (2, "'twice' is the name of 3 runs: eeee55, ffff66, dddd44", "launch stop eeee55  "),
    "attach twice": (2, "'twice' is the name of 3 runs: ffff66, eeee55, dddd44", "e.g. ffff66"),
    "stop 261122-": (2, "'261122-' matches 2 runs", "type more of an id"),
    "rerun done": (2, "its command line is not on record here", "launch resume aaaa11"),
    "rm last": (2, "name it, or add --yes", "launch rm cccc33"),
    "stop last": (2, "name it, or add --yes", "launch stop cccc33"),
    "extend last --hours 2": (2, "name it, or add --yes", "launch extend cccc33 --hours 2"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A project with hosts, jobs good and bad, and some runs on record. No mistake changes it, so that all share it."""
    from testbed.client import Client

    client = Client(tmp_path_factory.mktemp("mistakes"))
    for name, text in FILES.items():
        client.script(text, name)
    for run, state in RUNS.items():
        folder, plan = client.runs / run, json.dumps({"version": 1, "job": "x"}).encode()
        digest = hashlib.sha256(plan).hexdigest()
        know(run, client.runs, home=client.home, launched=time.time(), plan=digest)
        (folder / "0001").mkdir(parents=True)
        (folder / "0001" / "state.json").write_text(json.dumps({"state": state, "attempt": 1}))
        (folder / "plan.json").write_bytes(plan)
    return client


def tree(client):
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in sorted(client.project.rglob("*"))
        if not path.name.endswith(".lock")
    }


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_with_what_to_type(desk, line):
    """The exit code, what happened, the next command; nothing on standard output, nothing made."""
    code, said, command = MISTAKES[line]
    before = tree(desk)
    done = desk.run(*line.split())
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert command in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 6
    assert not re.search(r"Traceback|<class|Errno", done.stderr)
    assert tree(desk) == before


def test_there_are_sixty_of_them():
    """As many as were asked for, at least."""
    assert len(MISTAKES) >= 60


ENDS_EARLY = """
from launcher.cli import main
from launcher.config.lookup import Lookup
def aliases(lookup):
    raise EOFError("of something else")
Lookup.aliases = property(aliases)
main()
"""


def test_an_end_of_something_else_is_not_taken_for_the_end_of_the_input(client):
    """Then nobody knows what was done: it is shown as what it is, and not said to be nothing."""
    client.is_forked, client.program = False, [sys.executable, "-c", ENDS_EARLY]
    process = client.start("hosts")
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "EOFError: of something else" in err
    assert "nothing was done" not in err
