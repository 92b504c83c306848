"""`launch resume`: a run that has ended goes on as another one. Witnesses: a ledger outside the runs, sha256sum, the files."""

import json
import os
import signal
import subprocess

import pytest
from testbed.client import REPOSITORY, Client, processes_of, until
from testbed.drawn import drawn
from testbed.kept import Kept

from launcher.copy.local_copy import LocalCopy
from launcher.errors import BadFileError, UsageError
from launcher.metrics.ancestry import ancestors, joined
from launcher.runs.resume.resumed_plan import ResumeRequest, changed_plan, check_settings
from launcher.values.host import Host
from launcher.values.plan import Plan

pytestmark = pytest.mark.slow(reason="each test starts several clients and runs")

STEPS = """
import os, signal, sys, time
import launcher_worker as worker
knobs = worker.knobs()
steps, settings = knobs.steps, knobs.settings
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
ledger = open(settings["ledger"], "a", buffering=1)
print("begin", begin, file=ledger)
def write(folder, step):
    os.mkdir(os.path.join(folder, "deep"))
    open(os.path.join(folder, "step"), "w").write(str(step))
    open(os.path.join(folder, "deep", "weights"), "wb").write(os.urandom(4096))
for step in range(begin + 1, steps + 1):
    time.sleep(settings["pause"])
    print(step, file=ledger)
    worker.log(step, loss=1.0 / step)
    if step % knobs.save_every_steps == 0 or stopping:
        worker.save(step, lambda folder: write(folder, step))
    if stopping:
        sys.exit(0)
    if step == settings["fails_at"] and not os.path.exists(settings["ledger"] + ".mended"):
        sys.exit(3)
worker.log(steps, eval_loss=0.5)
worker.done(steps)
"""
JOB = """
name = "steps"
command = ["python", "train.py"]
steps = 12
save_every_steps = 5
keep_checkpoints = 9
[batch]
global = 8
[settings]
pause = 0.0
fails_at = 0
extra = ""
"""


@pytest.fixture
def aware(client):
    """A project whose job saves every fifth step, and keeps a ledger of what it trains outside its runs."""
    write_job(client)
    return client


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Such a project with a run of that job that has succeeded."""
    made = Kept(tmp_path_factory.mktemp("succeeded"))
    write_job(made.client)
    run = launched(made.client)
    made.keep()
    return made, run


@pytest.fixture
def succeeded(kept, monkeypatch):
    """That project and its run, as they were."""
    made, run = kept
    client = made.put_back()
    monkeypatch.setenv("XDG_DATA_HOME", str(client.home / ".local/share"))
    yield client, run
    client.end_commands()


def write_job(client):
    """A job that saves every fifth step, and keeps a ledger of what it trains outside its runs."""
    client.script(STEPS)
    client.script(JOB + f"ledger = {json.dumps(str(client.home / 'ledger'))}\n", "steps.toml")


def launched(client, *words):
    """Run the job to its end, whichever it is; return the run's id."""
    return ended(client, client.detached("--job", "steps.toml", *words))


def resumed(client, run, *words):
    """Resume a run, to its end; return the new run's id and what was said."""
    said = client.seen("resume", run, "--detach", *words)
    return ended(client, said.split()[-1]), said


def ended(client, run):
    """Wait for the end of a run, as its own files on the host tell it."""

    def is_over():
        last = max((roots(client) / run / "record").glob("[0-9]*/state.json"))
        return json.loads(last.read_text())["state"] in ("succeeded", "failed", "stopped")

    until(is_over, f"the end of {run}")
    return run


def refused(client, code, *words):
    """What is said to a resume that cannot be; nothing of it is left on the host or here."""
    there, mirrored = sorted(path.name for path in roots(client).iterdir()), here(client)
    done = client.run("resume", *words)
    assert done.returncode == code, done.stdout + done.stderr
    until(lambda: sorted(path.name for path in roots(client).iterdir()) == there, "the half-made run to go")
    assert here(client) == mirrored
    return done.stderr


def here(client):
    return {path.name for path in client.runs.glob("[0-9]*")}


def roots(client):
    return client.home / ".launch" / "runs"


def ledger(client):
    """What the training itself wrote, a list of steps for each time that it began, by where it began."""
    begun = []
    for line in (client.home / "ledger").read_text().splitlines():
        word, _, step = line.rpartition(" ")
        if word:
            begun.append((int(step), []))
        else:
            begun[-1][1].append(int(step))
    return begun


def sums(folder):
    """Every file below a folder with its SHA-256, by sha256sum."""
    words = "find . -type f -print0 | sort -z | xargs -0 -r sha256sum"
    done = subprocess.run(["sh", "-c", words], cwd=folder, capture_output=True, text=True, check=True)
    return {line.split(None, 1)[1]: line.split()[0] for line in done.stdout.splitlines()}


def plan_of(client, run):
    return json.loads((roots(client) / run / "control" / "plan.json").read_text())


def losses(client, run):
    """What `launch metrics` says of the loss: run and step of each point."""
    lines = [json.loads(line) for line in client.ok("metrics", run, "--json").splitlines()]
    return [(line["run"], line["step"]) for line in lines if line["name"] == "loss"]


def damage(path):
    """Turn one bit of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_run_that_has_succeeded_trains_on_and_its_parent_is_untouched(succeeded):
    """More steps from the newest checkpoint, the same plan but for them, one curve, and two runs that stand alone."""
    aware, parent = succeeded
    before = sums(roots(aware) / parent)
    said = refused(aware, 2, parent)
    assert "has succeeded" in said
    assert "--set steps=24" in said
    said = aware.seen("resume", parent, "--set", "steps=20")
    (child,) = here(aware) - {parent}
    assert ledger(aware) == [(0, list(range(1, 13))), (10, list(range(11, 21)))]
    after = sums(roots(aware) / parent)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) <= {"./control/contact.lock"}
    linked = sums(roots(aware) / child / "work" / "checkpoints" / "step-10")
    assert linked == sums(roots(aware) / parent / "work" / "checkpoints" / "step-10")
    assert set(linked) == {"./step", "./deep/weights", "./manifest.json"}
    assert {**plan_of(aware, parent), "steps": 20} == plan_of(aware, child)
    told = {"run": parent, "checkpoint": "step-10", "step": 10}
    assert (
        json.loads((roots(aware) / child / "record" / "0001" / "attempt.json").read_text())["parent"] == told
    )
    assert said.count(f"continues {parent} from step 10") == 1
    assert aware.seen("attach", child).count(f"continues {parent} from step 10") == 1
    for words in ((), ("--host", "local")):
        assert aware.summary(child, *words)["parent"] == told
        assert aware.summary(parent, *words)["parent"] is None
    expected = [(parent, step) for step in range(1, 11)] + [(child, step) for step in range(11, 21)]
    assert losses(aware, child) == expected
    assert losses(aware, parent) == [(parent, step) for step in range(1, 13)]
    assert [step for name, step, _ in drawn(aware.runs / child / "tensorboard") if name == "loss"] == list(
        range(1, 21)
    )
    assert "loss 1 → 0.05" in said


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_where_it_saved(aware):
    """Its last step is the one before the first of the new run: none is lost, none is trained twice."""
    run = aware.detached("--job", "steps.toml", "--set", "steps=100000", "--set", "settings.pause=0.02")
    until(lambda: (aware.home / "ledger").exists() and len(ledger(aware)[0][1]) > 6, "seven steps")
    assert "launch stop" in refused(aware, 1, run)
    aware.ok("stop", run)
    last = ledger(aware)[0][1][-1]
    child, _ = resumed(aware, run, "--set", f"steps={last + 3}", "--set", "settings.pause=0.0")
    assert ledger(aware)[1:] == [(last, [last + 1, last + 2, last + 3])]
    assert [step for _, step in losses(aware, child)] == list(range(1, last + 4))


@pytest.mark.long
def test_a_run_that_has_failed_goes_on_with_the_same_plan(aware):
    """Once what ended it is mended, no word more is needed; the attempts are counted anew. For scripts: the parent once."""
    run = launched(aware, "--set", "settings.fails_at=8", "--set", "attempts=1")
    assert aware.summary(run)["state"] == "failed"
    (aware.home / "ledger.mended").touch()
    lines = [json.loads(line) for line in aware.ok("resume", run, "--json").splitlines()]
    (told,) = [line for line in lines if line.get("kind") == "parent"]
    assert told["parent"] == {"run": run, "checkpoint": "step-5", "step": 5}
    assert (lines[-1]["kind"], lines[-1]["state"]) == ("end", "succeeded")
    child = lines[-1]["run"]
    assert ledger(aware) == [(0, list(range(1, 9))), (5, list(range(6, 13)))]
    assert plan_of(aware, run) == plan_of(aware, child)


def test_what_was_changed_is_in_force_and_the_global_batch_stays(succeeded):
    """Another micro-batch is another split of the same batch; a setting, a cadence, a name are what was asked."""
    aware, parent = succeeded
    words = (
        "steps=18",
        "save_every_steps=3",
        "keep_checkpoints=1",
        "batch.micro=2",
        "settings.extra='x'",
        "loader_workers=1",
    )
    child, _ = resumed(aware, parent, *(word for one in words for word in ("--set", one)), "--name", "more")
    assert "-more-" in child
    attempt = json.loads((roots(aware) / child / "record" / "0002" / "attempt.json").read_text())
    assert attempt["split"] == {"global_batch": 8, "ranks": 1, "micro_batch": 2, "accumulation": 4}
    assert (attempt["settings"]["extra"], attempt["settings"]["pause"]) == ("x", 0.0)
    assert (attempt["save_every_steps"], attempt["loader_workers"]) == (3, 1)
    kept = {path.name for path in (roots(aware) / child / "work" / "checkpoints").iterdir()}
    assert kept == {"step-18"}
    assert {path.name for path in (roots(aware) / parent / "work" / "checkpoints").iterdir()} == {
        "step-5",
        "step-10",
    }


SMALL_CARD = """
if knobs.split.micro_batch > 2:
    raise MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of "
        "23.64 GiB of which 1.19 GiB is free.")
print("micro", knobs.split.micro_batch, file=open(settings["ledger"] + ".micro", "a"))
"""


@pytest.mark.long
def test_what_mended_the_parent_holds_on_unless_it_is_set_anew(aware):
    """The new run does not begin with the batch that the card had no room for; who says so tries it again."""
    aware.script(STEPS.replace("stopping = []\n", f"stopping = []\n{SMALL_CARD}"))
    parent = launched(aware)
    child, said = resumed(aware, parent, "--set", "steps=15")
    assert "the remedies' changes to the plan stay in force: accumulation 4, micro_batch 2" in said
    again, said = resumed(aware, child, "--set", "steps=20", "--set", "batch.micro=4")
    assert "stay in force" not in said
    attempts = {run: aware.summary(run)["attempt"] for run in (parent, child, again)}
    assert attempts == {parent: 3, child: 1, again: 2}
    assert (aware.home / "ledger.micro").read_text() == "micro 2\n" * 3
    assert [begin for begin, _ in ledger(aware)] == [0, 10, 15]


LAB = Host(name="lab", address="lab")


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("seed=3", "order of its data"),
        ("batch.global=4", "global batch"),
        ("batch={global=4}", "global batch"),
        ("model='./m'", "model"),
        ("method='lora'", "weights"),
        ("data.train='./x'", "data"),
        ("code='.'", "code"),
        ("command=['x']", "command"),
        ("image='x'", "image"),
        ("requirements=['x']", "packages"),
        ("attention='sdpa'", "precisions"),
        ("secrets=['X']", "secrets"),
    ],
)
def test_what_a_checkpoint_hangs_on_is_not_changed(setting, word):
    """It says what is kept, and the command of a run that can have another."""
    with pytest.raises(UsageError) as caught:
        check_settings(["steps=20", setting], LAB)
    assert f"keeps {'its checkpoint' if word == 'model' else ''}" in str(caught.value)
    assert word in str(caught.value)
    assert f"launch --host lab --set {setting} …" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "stepz=3",
            ("unknown key 'stepz': did you mean 'steps'?", "allowed: checkpointing, steps, save_every_steps"),
        ),
        ("batch.mikro=3", ("unknown key 'batch.mikro': did you mean 'batch.micro'?",)),
        ("steps=many", ('--set: steps = "many": expected a whole number, got text',)),
        ("steps=0", ("--set: steps = 0: ",)),
        ("batch=3", ("--set: batch = 3: expected a table",)),
        ("settings.a=[1]", ("settings.a: expected text",)),
    ],
)
def test_a_wrong_key_or_value_is_told_as_a_jobs(setting, words):
    """With what is allowed; nobody was asked for it."""
    with pytest.raises(BadFileError) as caught:
        check_settings([setting], LAB)
    assert not [word for word in words if word not in str(caught.value)]


def test_a_mistake_is_told_before_a_host_is_asked(succeeded):
    """Exit code 2, no stage, no run."""
    aware, run = succeeded
    for words in (("--set", "stepz=3"), ("--set", "seed=3"), ("--set", "steps"), ("--name", "No Name")):
        done = aware.run("resume", run, *words)
        assert (done.returncode, done.stdout) == (2, "")
    assert "steps = 10 is not above 10" in refused(aware, 2, run, "--set", "steps=10")
    assert "a resumed run keeps its command" in refused(aware, 2, run, "--", "python", "train.py", "-v")
    assert here(aware) == {run}


def test_a_run_without_a_checkpoint_is_only_repeated_by_a_launch(aware):
    """So it is refused, with that command."""
    run = launched(aware, "--set", "settings.fails_at=3")
    said = refused(aware, 1, run)
    assert "left no checkpoint" in said
    assert f"start again   launch rerun {run[-6:]}\n" in f"{said}\n"
    (aware.index / run / "request.json").unlink()
    assert "start again   launch --host local" in refused(aware, 1, run)


def test_recover_of_a_run_that_has_ended_names_what_will_not_be_refused(succeeded):
    """`resume` where it has saved, `rerun` where it has not."""
    aware, saved = succeeded
    without = launched(aware, "--set", "settings.fails_at=3")
    for run, verb in ((without, "rerun"), (saved, "resume")):
        done = aware.run("recover", run)
        assert (done.returncode, done.stderr.split("   ")[-1].strip()) == (2, f"launch {verb} {run[-6:]}")


def test_a_script_that_never_resumed_is_not_begun_again(aware):
    """It saves, but would begin with the first step: nothing is done twice by us."""
    aware.script(STEPS.replace("worker.resume_from()", "None"))
    run = launched(aware)
    said = refused(aware, 1, run, "--set", "steps=20")
    assert f"the script of run {run} never called worker.resume_from(), and left no checkpoint" in said
    assert len(ledger(aware)) == 1


def test_a_damaged_checkpoint_is_passed_over_aloud(succeeded):
    """One bit of the newest: the one before is taken; of that too: there is none."""
    aware, run = succeeded
    damage(roots(aware) / run / "work" / "checkpoints" / "step-10" / "deep" / "weights")
    child, said = resumed(aware, run, "--set", "steps=15")
    assert "step-10 passed over: deep/weights has other contents" in said
    assert ledger(aware)[1:] == [(5, list(range(6, 16)))]
    assert losses(aware, child)[4:6] == [(run, 5), (child, 6)]
    (roots(aware) / run / "work" / "checkpoints" / "step-5" / "step").unlink()
    said = refused(aware, 1, run, "--set", "steps=15")
    assert "step-10 (deep/weights has other contents), step-5 (step: No such file" in said


def test_a_run_that_was_interrupted_has_not_ended(aware):
    """That is what `recover` is for; exit code 5."""
    run = aware.detached("--job", "steps.toml", "--set", "steps=100000", "--set", "settings.pause=0.02")
    until(lambda: (aware.home / "ledger").exists() and len(ledger(aware)[0][1]) > 6, "seven steps")
    for pid in processes_of(roots(aware) / run):
        os.kill(pid, signal.SIGKILL)
    until(lambda: aware.summary(run)["state"] == "interrupted", "the interruption")
    assert "launch recover" in refused(aware, 5, run)


@pytest.mark.long
def test_a_grandchild_stands_when_its_forebears_are_gone(succeeded):
    """Three runs are one curve; a child needs no parent, on the host or here, not even after `gc`."""
    aware, first = succeeded
    second, _ = resumed(aware, first, "--set", "steps=17")
    third, _ = resumed(aware, "last", "--set", "steps=22")
    assert [begin for begin, _ in ledger(aware)] == [0, 10, 15]
    expected = [(first, one) for one in range(1, 11)] + [(second, one) for one in range(11, 16)]
    expected += [(third, one) for one in range(16, 23)]
    assert losses(aware, third) == expected
    until((roots(aware) / third / "control" / "settled").exists, "that its end is settled")
    kept = sums(roots(aware) / third)
    aware.ok("rm", "--here", "--force", first)
    aware.ok("gc")
    assert losses(aware, third) == expected[10:]
    aware.ok("rm", "--here", "--force", second)
    aware.ok("gc")
    assert sums(roots(aware) / third) == kept
    assert losses(aware, third) == expected[15:]
    fourth, _ = resumed(aware, third, "--set", "steps=24")
    assert ledger(aware)[-1] == (20, [21, 22, 23, 24])
    assert sums(roots(aware) / fourth / "work" / "checkpoints" / "step-20") == sums(
        roots(aware) / third / "work" / "checkpoints" / "step-20"
    )


def test_the_code_is_the_one_that_was_sent(succeeded):
    """Not what somebody made of it on the host, nor what lies in the project by now."""
    aware, run = succeeded
    aware.script("raise SystemExit('not the code of that run')")
    (roots(aware) / run / "work" / "code" / "train.py").write_text("raise SystemExit('edited there')")
    child, _ = resumed(aware, run, "--set", "steps=14")
    assert (roots(aware) / child / "work" / "code" / "train.py").read_text() == STEPS


@pytest.mark.long
def test_what_the_store_has_lost_comes_from_the_parents_own_tree(aware):
    """As it was sent, or not at all."""
    aware.script("#!/bin/sh\n", "tool.sh")
    (aware.project / "tool.sh").chmod(0o755)
    (aware.project / "link").symlink_to("tool.sh")
    run = launched(aware)
    files = aware.home / ".launch" / "store" / "files"
    subprocess.run(["rm", "-r", files], check=True)
    child, _ = resumed(aware, run, "--set", "steps=14")
    code = roots(aware) / child / "work" / "code"
    assert sums(code) == sums(roots(aware) / run / "work" / "code")
    assert os.access(code / "tool.sh", os.X_OK)
    assert (code / "link").readlink().name == "tool.sh"
    subprocess.run(["rm", "-r", files], check=True)
    (roots(aware) / run / "work" / "code" / "train.py").write_text("edited")
    said = refused(aware, 1, run, "--set", "steps=14")
    assert "code/train.py" in said
    assert "not as it was sent" in said


@pytest.mark.parametrize("index", ["its own", pytest.param("the same", marks=pytest.mark.long)])
def test_another_client_resumes_with_nothing_but_the_hosts_name(aware, tmp_path, index):
    """It has neither the code nor a mirror; what it lacks of the parent it fetches, and the curve is whole.

    In another folder of the same user it takes the parent from the copy in the first one.
    """
    aware.script('[{"prompt": "a"}]', "train.jsonl")
    run = launched(aware, "--set", "data.train=./train.jsonl")
    other = Client(tmp_path / "other")
    other.home = aware.home
    if index == "its own":
        other.variables["XDG_DATA_HOME"] = str(tmp_path / "index")
    before = sums(roots(aware) / run / "work" / "data" / "train")
    child, _ = resumed(other, run, "--host", "local", "--set", "steps=15")
    assert ledger(aware)[-1] == (10, [11, 12, 13, 14, 15])
    assert losses(other, child) == [(run, one) for one in range(1, 11)] + [
        (child, one) for one in range(11, 16)
    ]
    assert sums(roots(aware) / child / "work" / "data" / "train") == before


@pytest.mark.long
def test_secrets_are_asked_of_this_client_again(aware, monkeypatch):
    """The parent's are erased; without them nothing is begun, with them the new run has them."""
    monkeypatch.setenv("MY_WORD", "opensesame")
    aware.script(STEPS + "open(settings['ledger'] + '.word', 'w').write(os.environ['MY_WORD'])\n")
    run = launched(aware, "--secret", "MY_WORD")
    monkeypatch.delenv("MY_WORD")
    assert "secret MY_WORD: it is not set here" in refused(aware, 2, run, "--set", "steps=15")
    monkeypatch.setenv("MY_WORD", "abracadabra")
    child, _ = resumed(aware, run, "--set", "steps=15")
    assert (aware.home / "ledger.word").read_text() == "abracadabra"
    assert not (roots(aware) / child / "record" / "secrets.env").exists()
    assert subprocess.run(["grep", "-r", "abracadabra", roots(aware) / child], check=False).returncode == 1


def test_another_webhook_brings_its_own_secret():
    """Its address is a secret that the parent did not have, beside those that it had."""
    golden = REPOSITORY / "tests" / "cases" / "sft_on_cpu" / "plan.json"
    parent = Plan.model_validate_json(golden.read_text()).model_copy(update={"secrets": ("HF_TOKEN",)})
    plan = changed_plan(parent, ResumeRequest(["on_end=https://x.invalid/$HOOK"]), None, LAB)
    assert (plan.on_end, plan.secrets) == (("https://x.invalid/$HOOK",), ("HF_TOKEN", "HOOK"))
    assert changed_plan(parent, ResumeRequest(["steps=9"]), None, LAB).secrets == parent.secrets


def test_ctrl_c_before_the_new_run_began_leaves_nothing(succeeded):
    """A large checkpoint takes a while to prove; exit code 130, and no trace once that is done."""
    aware, run = succeeded
    folder = roots(aware) / run / "work" / "checkpoints" / "step-10"
    manifest = json.loads((folder / "manifest.json").read_text())
    with (folder / "large").open("wb") as file:
        file.truncate(3 << 30)
    manifest["files"]["large"] = {"size": 3 << 30, "sha256": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    process = aware.start("resume", run, "--set", "steps=20")
    until(lambda: len(list(roots(aware).iterdir())) == 2, "the new run's folder")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 130, out + err
    (folder / "large").unlink()
    until(lambda: [path.name for path in roots(aware).iterdir()] == [run], "the half-made run to be removed")
    assert here(aware) == {run}


# the curve, whatever the records say


def mirrored(folder, run, steps, parent=None):
    """A mirror with a loss for each of some steps."""
    (folder / run / "0001").mkdir(parents=True)
    (folder / run / "0001" / "attempt.json").write_text(json.dumps({"time": 1.0, "parent": parent}))
    lines = [
        {"version": 1, "kind": "metric", "time": 1.0, "step": one, "values": {"loss": 1}} for one in steps
    ]
    (folder / run / "0001" / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return LocalCopy(run, folder)


def counted(local_copy):
    return [(run[-4:], point.step) for run, point in joined(local_copy)]


def test_an_ancestor_counts_up_to_the_earliest_step_that_was_gone_on_from(tmp_path):
    """A grandchild of an older checkpoint than its parent's; a child that had to begin anew replaces what it passes."""
    mirrored(tmp_path, "0101-a-aaaa", range(1, 11))
    mirrored(tmp_path, "0101-a-bbbb", range(9, 13), {"run": "0101-a-aaaa", "checkpoint": "c", "step": 8})
    early = mirrored(tmp_path, "0101-a-cccc", [5, 6], {"run": "0101-a-bbbb", "checkpoint": "c", "step": 4})
    assert counted(early) == [("aaaa", 1), ("aaaa", 2), ("aaaa", 3), ("aaaa", 4), ("cccc", 5), ("cccc", 6)]
    anew = mirrored(tmp_path, "0101-a-dddd", [1, 2], {"run": "0101-a-aaaa", "checkpoint": "c", "step": 3})
    assert counted(anew) == [("dddd", 1), ("dddd", 2), ("aaaa", 3)]


@pytest.mark.parametrize(
    "parent",
    [
        {"run": "0101-a-aaaa", "checkpoint": "c", "step": 1},
        {"run": "../../etc", "checkpoint": "c", "step": 1},
        {"run": "0101-a-zzzz", "checkpoint": "c", "step": 10**400},
        {"run": 1, "checkpoint": [], "step": "x"},
        "text",
        [None],
    ],
)
def test_a_parent_that_can_be_none_ends_nothing(tmp_path, parent):
    """Itself, a path, one that is not here, and what is no parent at all."""
    local_copy = mirrored(tmp_path, "0101-a-aaaa", [1, 2], parent)
    assert counted(local_copy) == [("aaaa", 1), ("aaaa", 2)]
    assert not [one for one in ancestors(local_copy) if one.local_copy.folder.exists()]
