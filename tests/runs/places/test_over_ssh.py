"""Runs on a plain SSH host with an ordinary user: what the local ones promise, with OpenSSH as the witness."""

import json
import os
import shutil
import signal
import subprocess

import pytest
from testbed.cache import wheelhouse
from testbed.client import MIRRORED, missing, until
from testbed.missing_part import MissingPartError
from testbed.own_scripts import weights_come_home, write_scripts
from testbed.wheels import WheelServer

pytestmark = pytest.mark.testbed

COUNTS = "import time, launcher_worker as w\nfor i in range(1, {n} + 1):\n    time.sleep({s})\n    w.log(i, loss=1 / i)\nw.done({n})\n"
HELD = """
import os, time, launcher_worker as w
for i in range(1, 41):
    w.log(i, loss=1 / i)
    while i in (10, 20, 30) and not os.path.exists("go%d" % i):
        time.sleep(0.01)
w.done(40)
"""
"""It waits behind three of its steps until it is told to go on."""


def go_on(lab, run, *steps):
    """Let a run that is held train on from these steps."""
    lab.ssh("touch", *(f"{lab.root}/runs/{run}/work/code/go{step}" for step in steps))


def remote_sums(lab, run):
    """SHA-256 of the run's record on the host, by the host's own sha256sum."""
    said = lab.ssh(
        "sh",
        "-c",
        f"cd {lab.root}/runs/{run}/record && sha256sum {MIRRORED} && cd ../control && sha256sum plan.json",
    )
    return {line.split(None, 1)[1]: line.split()[0] for line in said.splitlines()}


def local_sums(client, run):
    said = subprocess.run(
        ["sh", "-c", f"sha256sum plan.json {MIRRORED}"],
        cwd=client.runs / run, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return {line.split(None, 1)[1]: line.split()[0] for line in said.splitlines()}


def left_on(lab):
    """Every process of the host's user that is ours by its words, as the host's own ps tells it."""
    lines = lab.ssh("ps", "-u", lab.user, "-o", "pid=,args=").splitlines()
    return [line for line in lines if "agent.pyz" in line or "train.py" in line]


def only_run(client):
    (run,) = [path.name for path in client.runs.glob("[0-9]*")]
    return run


def test_a_tree_arrives_as_it_is(client, lab):
    """Exec bits, links, unicode and odd names, empty and large files; what git ignores stays behind."""
    project = client.project
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / ".gitignore").write_text("ignored*\n")
    (project / "ignored.bin").write_text("stays")
    (project / "empty").touch()
    (project / "größe naïve 名前.txt").write_text("unicode")
    (project / "-rf $(touch pwned); 'q' \"d\"\n.txt").write_text("shell")
    (project / "tool.sh").write_text("#!/bin/sh\necho ran\n")
    (project / "tool.sh").chmod(0o755)
    (project / "deep" / "er").mkdir(parents=True)
    (project / "deep" / "er" / "f").write_text("deep")
    (project / "deep" / "link").symlink_to("../tool.sh")
    (project / "absolute").symlink_to(project / "empty")
    (project / "outside").symlink_to("/etc/passwd")
    large = os.urandom(9_000_001)
    (project / "large.bin").write_bytes(large)
    (project / "tracked").write_text("t")
    subprocess.run(["git", "add", "tracked", "tool.sh"], cwd=project, check=True)
    out = client.seen("--host", "A", "--", "sh", "-c", "./tool.sh && deep/link")
    assert "not sent: outside -> /etc/passwd" in out
    run = only_run(client)
    code = f"{lab.root}/runs/{run}/work/code"
    there = sorted(lab.ssh("sh", "-c", f"cd {code} && find . ! -type d -print0").split("\0")[:-1])
    wanted = ["./.gitignore", "./absolute", "./deep/er/f", "./deep/link", "./empty", "./large.bin",
              "./tool.sh", "./tracked", "./größe naïve 名前.txt", "./-rf $(touch pwned); 'q' \"d\"\n.txt"]  # fmt: skip
    assert there == sorted(wanted)
    for name in wanted:
        if not (project / name).is_symlink():
            digest = subprocess.run(
                ["sha256sum"], input=(project / name).read_bytes(), capture_output=True, check=True
            )
            assert lab.ssh("sh", "-c", 'sha256sum < "$1"', "_", f"{code}/{name}") == digest.stdout.decode()
    assert lab.ssh("readlink", f"{code}/absolute").strip() == "empty"
    assert lab.ssh("stat", "-c", "%a", f"{code}/tool.sh", f"{code}/tracked").split() == ["755", "644"]
    assert (client.runs / run / "0002" / "log.txt").read_text() == "ran\nran\n"


@pytest.mark.long
def test_a_client_killed_in_mid_run_costs_nothing_over_ssh(client, lab):
    """SIGKILL of the client, an empty client folder: `attach` catches up, byte for byte, in one attempt."""
    client.script(HELD)
    process = client.start("--host", "A", "--", "python", "train.py")
    until(lambda: list(client.runs.glob("*/0002/events.jsonl")), "the stream")
    process.kill()
    process.communicate()
    run = only_run(client)
    shutil.rmtree(client.runs)
    go_on(lab, run, 10, 20, 30)
    assert "succeeded" in client.seen("attach", "last", "--host", "A")
    assert local_sums(client, run) == remote_sums(lab, run)
    assert json.loads((client.runs / run / "0002" / "state.json").read_text())["attempt"] == 1
    assert not (client.runs / run / "0003").exists()


def test_a_cut_link_is_mended_without_a_person_and_the_run_does_not_notice(client, lab):
    """Every connection of the host's sshd is killed thrice in mid run; the mirror is whole all the same."""
    client.script(HELD)
    process = client.start("--host", "A", "--", "python", "train.py")

    def steps():
        return sum(path.read_bytes().count(b'"metric"') for path in client.runs.glob("*/0002/events.jsonl"))

    for wanted in (10, 20, 30):
        until(lambda wanted=wanted: steps() >= wanted, f"{wanted} steps in the mirror")
        lab.cut()
        go_on(lab, only_run(client), wanted)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert "the run is not affected" in err
    run = only_run(client)
    assert local_sums(client, run) == remote_sums(lab, run)
    assert steps() == 40


@pytest.mark.long
def test_an_agent_killed_on_the_host_is_brought_back_and_its_orphan_is_ended(client, lab):
    """The keeper works for an ordinary user over SSH as it does at home: unaware script, so the run ends and says so."""
    client.script("import time; print('up', flush=True); time.sleep(600)")
    run = client.detached("--host", "A", "--", "python", "train.py")
    pid = until(
        lambda: lab.ssh("pgrep", "-u", lab.user, "-f", "agent.pyz supervise", check=False).strip(),
        "the agent",
    )
    until(
        lambda: lab.ssh("cat", f"{lab.root}/runs/{run}/record/0002/log.txt", check=False),
        "the script's first word",
    )
    lab.ssh("kill", "-KILL", pid)
    done = client.run("attach", run)
    assert done.returncode == 1
    assert "not-restartable" in done.stderr
    until(lambda: not left_on(lab), "everything of ours to be gone")


@pytest.mark.long
@pytest.mark.parametrize(("words", "reason"), [((), "by-user"), (("--now",), "by-user-now")])
def test_stop_over_ssh_leaves_nothing_running(client, lab, words, reason):
    """Both kinds of stop return when the host's own ps shows nothing of the run."""
    client.script("import time; time.sleep(600)")
    run = client.detached("--host", "A", "--", "python", "train.py")
    until(lambda: any("train.py" in line for line in left_on(lab)), "the script")
    assert f"stopped: {reason}" in client.ok("stop", run, *words)
    assert not [
        line for line in left_on(lab) if "serve" not in line and "settle-run" not in line
    ]  # these are not the run's


def test_ctrl_c_in_a_stop_says_that_the_run_ends_all_the_same(client, lab):
    """The request is on the host already; only the wait for the end is over."""
    client.script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(600)"
    )
    run = client.detached("--host", "A", "--", "python", "train.py")
    until(lambda: "on" in client.ok("logs", run), "the script")
    wish = lab.root / "runs" / run / "control" / "wish"
    before = wish.read_bytes()
    stop = client.start("stop", run)
    until(lambda: wish.read_bytes() != before, "the request")
    stop.send_signal(signal.SIGINT)
    out, err = stop.communicate(timeout=180)
    assert stop.returncode == 130
    assert not out
    assert f"no longer waiting for the end of {run}" in err
    assert f"launch stop {run.rpartition('-')[2]}" in err
    client.ok("stop", "--now", run)


@pytest.mark.long
def test_ctrl_c_detaches_over_ssh(client, lab):
    """The interrupt is the client's affair; the run goes on and can be attached to."""
    client.script(HELD)
    process = client.start("--host", "A", "--", "python", "train.py")
    until(lambda: list(client.runs.glob("*/0002/events.jsonl")), "the stream")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0
    assert "detached; the run continues" in err
    go_on(lab, only_run(client), 10, 20, 30)
    assert "succeeded" in client.seen("attach", "last")


def test_ps_tells_the_runs_of_a_host_and_what_cannot_be_reached(client, lab, ssh_host):
    """A host that is down costs its rows' freshness, never the command."""
    client.script("import time; time.sleep(600)")
    run = client.detached("--host", "A", "--", "python", "train.py")
    assert client.summary(run, "--host", "A")["state"] == "running"
    record = client.index / run / "run.json"
    told = json.loads(record.read_text())
    record.write_text(json.dumps({**told, "host": {**told["host"], "port": 1}}))
    row = client.summary(run)
    assert "refuses the connection" in row["problem"]
    assert "unreachable" in client.ok("ps")
    record.write_text(json.dumps(told))
    client.ok("stop", run, "--now")


def away(client, run):
    """From now on the host of a run refuses the connection."""
    record = client.index / run / "run.json"
    told = json.loads(record.read_text())
    record.write_text(json.dumps({**told, "host": {**told["host"], "port": 1}}))


def test_ps_remembers_the_end_that_it_has_shown(client, lab):
    """It fetched no record of it: the host said it in one line, and does not answer any more."""
    client.script(COUNTS.format(n=3, s=0))
    run = client.detached("--host", "A", "--", "python", "train.py")
    until(lambda: client.summary(run)["state"] == "succeeded", "the end")
    seen = client.summary(run)
    away(client, run)
    assert client.summary(run) == {**seen, "reached": None}
    assert "unreachable" not in client.ok("ps")


def test_attach_shows_an_end_that_is_here_though_the_host_is_away(client, lab):
    """It waits for nothing: nothing more can come."""
    client.script(COUNTS.format(n=3, s=0))
    client.ok("--host", "A", "--", "python", "train.py")
    run = only_run(client)
    away(client, run)
    picture = client.runs / run / "loss.png"
    drawn = picture.stat().st_mtime_ns
    done = client.run("attach", run)
    assert done.returncode == 0, done.stderr
    assert "refuses the connection" in done.stderr
    assert "succeeded" in done.stderr
    assert "loss.png" in done.stderr
    assert picture.stat().st_mtime_ns == drawn  # nothing new came: it is not drawn again
    picture.unlink()
    client.ok("attach", run)
    assert picture.exists()


def test_a_run_that_was_removed_from_its_host_is_shown_and_does_not_go_on(client, lab):
    """Its end is on record here; what to type instead is said."""
    client.script(COUNTS.format(n=3, s=0))
    client.ok("--host", "A", "--", "python", "train.py")
    run = only_run(client)
    client.ok("rm", "--yes", run)
    done = client.run("attach", run)
    assert done.returncode == 0, done.stderr
    assert "removed from A" in done.stderr
    assert "succeeded" in done.stderr
    refused = client.run("recover", run)
    assert refused.returncode == 1
    assert "launch rerun" in refused.stderr


def test_the_host_is_probed_as_its_ordinary_user(client, lab):
    """`probe --json` is one object of a version, with the user that we log in as."""
    facts = json.loads(client.ok("probe", "--host", "A", "--json"))
    assert (facts["version"], facts["host"], facts["user"], facts["profile"]) == (1, "A", lab.user, "cpu")
    assert "profile  cpu" in client.ok("probe", "--host", "A")


def test_missing_packages_are_refused_before_anything_is_sent(client, lab):
    """The host's bare Python lacks torch: exit code 3, the interpreter's path, the key to set."""
    (client.project / "launch.toml").write_text(lab.table(environment="/usr/bin/python3"))
    done = client.run("--host", "A", "--job", "sft")
    assert done.returncode == 3
    assert "/usr/bin/python3 lacks torch" in done.stderr
    assert "set environment" in done.stderr


ENOUGH = ("--set", "steps=150", "--set", "batch.global=32", "--set", "settings.eval_limit=40")
"""A quarter of the examples of `make demo`: the base learns to answer in tags from these already."""


@pytest.fixture
def stocked(client, lab, say):
    """The SSH host, whose Python has nothing; what a job needs is in an index on loopback."""
    try:
        index = WheelServer(wheelhouse(say), address="127.0.0.1", has_bridge=False)
    except MissingPartError as error:
        missing(str(error))
    index.up()
    (client.home / "pip.conf").write_text(
        f"[global]\nindex-url = {index.index_url}\nextra-index-url =\nfind-links =\ntrusted-host = 127.0.0.1\n"
    )
    build = f'[hosts.A.build]\npip_conf = "{client.home}/pip.conf"\ntorch_index = ""\n'
    (client.project / "launch.toml").write_text(f"{lab.table()}\n{build}")
    yield lab
    index.down()
    lab.ssh("rm", "-rf", ".launch/envs")


@pytest.mark.long  # CI trains it on this machine, and makes smaller environments over SSH
@pytest.mark.training
def test_sft_trains_on_the_host_and_its_adapter_answers_fresh_prompts(client, stocked, copy_demo, demo):
    """The main job over SSH, in an environment that is made for it: its record's accuracy, and that of fresh prompts here."""
    lab = stocked
    copy_demo(demo_target := lab.root)
    subprocess.run(["chown", "-R", lab.user, str(demo_target)], check=os.geteuid() == 0)
    out = client.seen("--host", "A", "--job", "sft", *ENOUGH, timeout=600)
    assert "accuracy 1.00" in out or "accuracy 0.9" in out
    run = only_run(client)
    (env,) = lab.ssh("sh", "-c", "ls -d .launch/envs/*/*").split()
    asked = "import torch, peft; print(torch.__version__)"
    assert lab.ssh(f"{env}/bin/python", "-c", asked).startswith("2.13.0")
    assert local_sums(client, run) == remote_sums(lab, run)
    adapter = client.runs / run / "artifacts" / "adapter"
    theirs = lab.ssh(
        "sha256sum", f"{lab.root}/runs/{run}/work/artifacts/adapter/adapter_model.safetensors"
    ).split()[0]
    ours = subprocess.run(
        ["sha256sum", adapter / "adapter_model.safetensors"], capture_output=True, text=True, check=True
    )
    assert ours.stdout.split()[0] == theirs
    assert answers(adapter, next(demo.glob("demo-*/model")), next(demo.glob("demo-*/eval.jsonl"))) >= 0.9
    # In the same environment: scripts that know nothing of launch.
    write_scripts(client)
    code = f"{lab.root}/runs/{{}}/work/code/{{}}"
    weights_come_home(client, "A", lambda run, name: lab.ssh("sha256sum", code.format(run, name)).split()[0])
    assert len(lab.ssh("sh", "-c", "ls -d .launch/envs/*/*").split()) == 1


def answers(adapter, base, questions, count=40):
    """The share of fresh prompts that the adapter over its base answers rightly, by peft and transformers alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(adapter)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter
    ).eval()
    right = 0
    for line in questions.read_text().splitlines()[-count:]:
        row = json.loads(line)
        tokens = tokenizer(row["prompt"] + "\n", return_tensors="pt")  # as jobs/sft.py asks
        tokens.pop("token_type_ids", None)
        said = model.generate(
            **tokens, max_new_tokens=40, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
        text = tokenizer.decode(said[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
        right += text.strip() == f"<answer>{row['answer']}</answer>"
    return right / count


RESUMES = """
import os
import launcher_worker as w
was = w.resume_from()
begin = int(open(os.path.join(was, "step")).read()) if was else 0
open(os.path.expanduser("~/ledger"), "a").write(f"{begin} {w.knobs().steps}\\n")
for step in range(begin + 1, w.knobs().steps + 1):
    w.log(step, loss=1 / step)
    w.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
w.done(w.knobs().steps)
"""


@pytest.mark.long
def test_a_run_on_the_host_trains_on_there_for_a_client_that_has_nothing_of_it(client, lab):
    """By the host's own sha256sum and ledger: the parent's checkpoint, its code, and not one step twice."""
    client.script(RESUMES)
    job = 'name = "on"\ncommand = ["python", "train.py"]\nsteps = 4\nkeep_checkpoints = 9\n'
    client.script(job, "job.toml")
    lab.ssh("rm", "-f", "ledger")
    client.ok("--host", "A", "--job", "job.toml")
    parent = only_run(client)
    before = lab.ssh(
        "sh", "-c", f"cd {lab.root}/runs/{parent}/work && find code checkpoints -type f | xargs sha256sum"
    )
    shutil.rmtree(client.runs)
    (client.project / "train.py").unlink()
    said = client.seen("resume", parent, "--host", "A", "--set", "steps=7")
    assert f"continues {parent} from step 4" in said
    (child,) = {path.name for path in client.runs.glob("[0-9]*")} - {parent}
    assert lab.ssh("cat", "ledger") == "0 4\n4 7\n"
    script = f"cd {lab.root}/runs/{child}/work && find code checkpoints/step-4 -type f | xargs sha256sum"
    there = lab.ssh("sh", "-c", script).splitlines()
    assert len(there) >= 4
    assert set(there) <= set(before.splitlines())
    assert local_sums(client, child) == remote_sums(lab, child)
    assert len(local_sums(client, child)) >= 6
    lines = [json.loads(line) for line in client.ok("metrics", child, "--json").splitlines()]
    assert [(line["run"], line["step"]) for line in lines] == [
        (parent if step <= 4 else child, step) for step in range(1, 8)
    ]
    until(lambda: not left_on(lab), "the agent to leave")
