"""What Kaggle's account and the spool keep, and what of it `stop`, `rm` and `gc` leave; and what never travels there."""

import base64
import gzip
import json
import lzma
import os
import random
import string
import subprocess
import time

import pytest
from testbed.client import until

from launcher.backends.kaggle.kaggle_kernel import SOURCE_BYTES

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each test starts clients and a session"),
]
SESSION_HOURS = 0.004
LARGE = 2_000_000


def with_a_large_tree(account):
    """Give the project a file that no script can carry."""
    (account.client.project / "weights.bin").write_bytes(random.Random(1).randbytes(LARGE))


def datasets(account):
    return sorted(account.service.state.datasets)


def gc(account, *words):
    """What `launch gc` removes, by kind."""
    said = json.loads(account.client.ok("gc", "--json", "--host", "k", *words))
    return sorted(
        (item["kind"], item["path"]) for item in said["items"] if item["kind"] in ("kernel", "dataset")
    )


@pytest.mark.long
def test_stop_deletes_the_kernel_and_keeps_what_was_printed(kaggle_account):
    """What is lost is said. Nothing of it runs any more, and its record here ends with the user's word."""
    account = kaggle_account
    account.pause_at(5)
    process = account.client.start(*account.words())
    until(account.waits, "the pause")
    (run,) = account.runs()
    until(lambda: account.segment(run)["status"] == "running" and account.row(run)["step"] == 4, "its step")
    session = account.session(run)
    said = account.client.ok("stop", "--now", run)
    assert "stopped: by-user" in said
    assert "it was deleted to stop it" in said
    assert session.status == "CANCEL_ACKNOWLEDGED"
    assert account.kernels() == []
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1, out + err
    assert "stopped" in out + err
    assert [*account.run_dir(run).glob("record/*/events.jsonl")]
    assert "0.25" in account.client.ok("metrics", run)
    pulled = account.client.run("pull", run)
    assert "it was deleted to stop it" in pulled.stdout + pulled.stderr
    account.client.ok("rm", "--force", "--here", run)
    assert_nothing_is_left(account, run)


def assert_nothing_is_left(account, run):
    """No kernel, and no file of the spool that names the run."""
    gc(account)
    assert account.kernels() == []
    found = subprocess.run(
        ["sh", "-c", f"find . -path '*{run}*'; grep -rl --exclude=sweeps.jsonl {run} . || true"],
        cwd=account.spool(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == ""


@pytest.mark.long
def test_a_run_that_is_stopped_as_its_session_ends_keeps_its_outputs(kaggle_account):
    """It has succeeded by then: there is nothing to stop, and its kernel is not deleted before its files came home."""
    account = kaggle_account
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    assert "succeeded" in account.client.ok("stop", "--now", run)
    assert account.kernels() == [f"alice/launch-{run}-1"]
    account.client.ok("pull", run)
    account.judge(12, account.client.runs / run / "artifacts" / "model")
    assert account.kernels() == []


@pytest.mark.long
def test_a_tree_that_is_too_large_is_a_dataset_which_is_reused_and_goes_with_gc(kaggle_account):
    """One CreateDataset for two runs, of which one has two sessions. While a run needs it, gc leaves it."""
    account = kaggle_account
    with_a_large_tree(account)
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    first = account.detached()
    (dataset,) = datasets(account)
    assert gc(account) == []
    assert datasets(account) == [dataset]
    assert "succeeded" in account.client.seen("attach", first)
    account.assert_pushed_once(first, 2)
    account.judge(12, account.client.runs / first / "artifacts" / "model")
    account.go_on()
    account.ledger.unlink()
    said = account.client.seen(*account.words())
    assert "which already exists" in said
    assert len(account.service.calls("CreateDataset")) == 1
    (second,) = {*account.runs()} - {first}
    account.judge(12, account.client.runs / second / "artifacts" / "model")
    for line in account.service.calls("SaveKernel"):
        assert len(line["body"]["text"].encode()) <= SOURCE_BYTES
        assert line["body"]["datasetDataSources"] == [dataset]
    slug = dataset.partition("/")[2]
    assert gc(account, "--dry-run") == [("dataset", slug)]
    assert datasets(account) == [dataset]
    assert gc(account) == [("dataset", slug)]
    assert datasets(account) == []
    assert gc(account) == []


@pytest.mark.long
def test_a_dataset_that_somebody_deleted_is_made_again_for_the_next_session(kaggle_account):
    """The spool has what was in it."""
    account = kaggle_account
    with_a_large_tree(account)
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    process = account.client.start(*account.words())
    until(account.waits, "the pause")
    account.service.state.datasets.clear()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    (run,) = account.runs()
    account.assert_pushed_once(run, 2)
    assert len(account.service.calls("CreateDataset")) == 2


def test_gc_removes_what_this_spool_made_and_nothing_needs_and_nothing_else(kaggle_account):
    """Kernels that were kept go; those of a live run, of another client, and of the user stay."""
    account = kaggle_account
    account.host(keep_kernels=True)
    account.client.ok(*account.words())
    (ended,) = account.runs()
    account.ledger.unlink()
    account.pause_at(5)
    live = account.detached()
    other = account.copy("other")
    account.job(client=other)
    foreign = other.detached(*account.words())
    account.push_by_hand("launch-by-hand-1")
    account.push_by_hand("my-notebook")
    account.make_dataset_by_hand("launch-0123456789abcdef")
    before = account.kernels()
    unknown = json.loads(account.client.ok("gc", "--json", "--dry-run", "--host", "k"))["unknown"]
    others = {f"alice/launch-{foreign}-1", "alice/launch-by-hand-1"}
    assert {one["name"]: one["removal"] for one in unknown} == {
        ref: f"kaggle kernels delete {ref}" for ref in others
    }
    assert all(0 <= time.time() - one["created"] < 300 for one in unknown)
    assert "alice/launch-by-hand-1, 0 h old" in account.client.ok("gc", "--dry-run", "--host", "k")
    assert gc(account, "--dry-run") == [("kernel", f"alice/launch-{ended}-1")]
    assert account.kernels() == before
    assert gc(account) == [("kernel", f"alice/launch-{ended}-1")]
    kept = {
        f"alice/launch-{live}-1",
        f"alice/launch-{foreign}-1",
        "alice/launch-by-hand-1",
        "alice/my-notebook",
    }
    assert {*account.kernels()} == kept
    assert datasets(account) == ["alice/launch-0123456789abcdef"]
    account.go_on()


@pytest.mark.long
def test_gc_does_not_lose_outputs_that_did_not_come_home(kaggle_account):
    """The kernel of a run that ended while nobody looked holds the only copy."""
    account = kaggle_account
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    assert account.row(run)["state"] == "succeeded"
    assert gc(account) == []
    assert account.kernels() == [f"alice/launch-{run}-1"]
    account.client.ok("pull", run)
    assert account.kernels() == []


@pytest.mark.long
def test_a_removal_that_kaggle_does_not_answer_is_made_good_by_gc(kaggle_account):
    """The run is gone here; its kernel is on record until it is gone there."""
    account = kaggle_account
    account.host(keep_kernels=True)
    account.client.ok(*account.words())
    (run,) = account.runs()
    account.service.fail("DeleteKernel", "status", status=503)
    done = account.client.run("rm", "--force", run)
    assert "launch gc --host k" in done.stdout + done.stderr
    assert account.kernels() == [f"alice/launch-{run}-1"]
    assert gc(account) == [("kernel", f"alice/launch-{run}-1")]
    account.client.ok("rm", "--force", "--here", run)
    assert_nothing_is_left(account, run)


PLANTS = 50


def test_nothing_secret_reaches_kaggle_or_the_spool(kaggle_account):
    """Of 50 random values in variables, netrc, kaggle.json, .env and keys, none is in anything that was sent or kept."""
    account = kaggle_account
    dice = random.Random(os.urandom(8))
    values = ["".join(dice.choices(string.ascii_letters + string.digits, k=24)) for _ in range(PLANTS)]
    left = iter(values)
    client, home, project = account.client, account.client.home, account.client.project
    with_a_large_tree(account)
    for number in range(16):
        client.variables[f"SOME_{('KEY', 'TOKEN', 'SECRET', 'PASSWORD')[number % 4]}_{number}"] = next(left)
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"):
        client.variables[name] = next(left)
    (home / ".netrc").write_text(f"machine 127.0.0.1 login alice password {next(left)}\n")
    (home / ".netrc").chmod(0o600)
    (home / ".kaggle").mkdir()
    key = next(left)
    account.service.state.accounts[0].key = key
    (home / ".kaggle" / "kaggle.json").write_text(json.dumps({"username": "alice", "key": key}))
    (home / ".kaggle" / "kaggle.json").chmod(0o600)
    del client.variables["KAGGLE_USERNAME"], client.variables["KAGGLE_KEY"]
    for name in (".env", ".env.local", "id_ed25519", ".npmrc", ".pypirc"):
        (project / name).write_text(f"VALUE={next(left)}\n")
    (project / "sub").mkdir()
    (project / "sub" / ".env").write_text(
        "\n".join(f"V{number}={value}" for number, value in enumerate(left))
    )
    assert "succeeded" in client.seen(*account.words(), "--yes")
    roots = [account.service.ledger.parent, account.spool(), *client.runs.glob("[0-9]*")]
    for root in roots:
        pattern = "\n".join(values)
        found = subprocess.run(
            ["grep", "-rlaF", "-f", "-", str(root)],
            input=pattern,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (found.returncode, found.stdout) == (1, "")
    for line in account.service.calls("SaveKernel"):
        text = unpacked_text(line["body"]["text"])
        assert not [value for value in values if value.encode() in text]
    (archive,) = [path for path in account.service.ledger.parent.glob("datasets/**/*.tree")]
    unpacked = gzip.decompress(archive.read_bytes())
    assert b"weights.bin" in unpacked
    assert not [value for value in values if value.encode() in unpacked]


def unpacked_text(script):
    """A script with its payload as plain bytes."""
    text = script.partition('PAYLOAD = """')[2].partition('"""')[0]
    return script.encode() + lzma.decompress(base64.b85decode("".join(text.split())))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["no credentials", "a bad file", "no network"])
def test_without_credentials_or_a_network_a_command_says_so_at_once(kaggle_account, fault):
    """Exit 4, or 2 for a file that a person must mend; what has ended can be read all the same."""
    account = kaggle_account
    client = account.client
    client.ok(*account.words())
    (ended,) = account.runs()
    account.ledger.unlink()
    account.pause_at(5)
    live = account.detached()
    until(account.waits, "the pause")
    if fault == "no network":
        account.service.unplug()
    else:
        del client.variables["KAGGLE_USERNAME"], client.variables["KAGGLE_KEY"]
        if fault == "a bad file":
            (client.home / ".kaggle").mkdir()
            (client.home / ".kaggle" / "kaggle.json").write_text("{not json")
    code = 2 if fault == "a bad file" else 4
    for words in (account.words(), ["ps", "--host", "k"], ["stop", "--now", live]):
        began = time.monotonic()
        done = client.run(*words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert time.monotonic() - began < 5.0
        assert "\n  " in done.stderr or fault == "no network"
    for words in (["logs", ended], ["metrics", ended], ["ps"], ["attach", ended]):
        done = client.run(*words)
        assert done.returncode == 0, (words, done.stderr)
