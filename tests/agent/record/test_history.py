"""A root with hundreds of runs: what a question about one of them, or about all, reads. Counted by the files that are opened."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from testbed.ended_run import EndedRun
from testbed.history import repeat
from testbed.tables import mostly_long

from launcher.agent.cards import lease
from launcher.agent.host import garbage, leftovers
from launcher.agent.liveness import ownership
from launcher.agent.record.rundir import Run
from launcher.agent.serving import cursors
from launcher.agent.system import process, token_processes
from launcher.agent.verbs import run_lines, summary_cache
from launcher.agent.verbs.run_lines import RunFilter

COUNT = 300
FIRST = "261122-train-k3f9w2"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A root with one run that ended and 300 copies of it, some of which were interrupted; the ids, newest first."""
    root = tmp_path_factory.mktemp("root")
    EndedRun(root, FIRST)
    return root, [FIRST, *repeat(root / "runs" / FIRST, COUNT, interrupted_every=100)]


@pytest.fixture
def history(built, monkeypatch):
    """That root, whose files count as old, without anything kept of it."""
    monkeypatch.setattr(summary_cache, "SETTLED_S", -1.0)
    root, ids = built
    for path in (root / "hosts").rglob("summaries-*"):
        path.unlink()
    return root, ids


class Opened(list):
    """The paths of the files and folders that were opened."""

    def of(self, run):
        """Those of one run."""
        return [path for path in self if f"/runs/{run}/" in f"{path}/"]


@pytest.fixture
def opened(monkeypatch):
    """Write down what this process opens from now on."""
    paths = Opened()

    def note(function):
        def call(*args, **more):
            descriptor = function(*args, **more)
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            return descriptor

        return call

    monkeypatch.setattr(os, "open", note(os.open))
    return paths


def listed(root, **choice):
    return [
        json.loads(line) for group in run_lines.chosen_lines(str(root), RunFilter(**choice)) for line in group
    ]


def by_run(lines):
    return {line["run"]: line for line in lines}


def test_a_second_listing_opens_nothing_of_the_runs_that_ended(history, opened):
    """And says the same. What has not ended is read each time."""
    root, ids = history
    first = listed(root)
    assert {line["run"] for line in first} == {*ids}
    del opened[:]
    assert listed(root) == first
    live = [line["run"] for line in first if line["state"] == "interrupted"]
    assert len(live) == 3
    assert len(opened) - sum(len(opened.of(run)) for run in live) < 10


CHANGES = {
    "its state": lambda run: run.last().write_state("failed", "exit-nonzero"),
    "a folder after its last": lambda run: (folder := run.new_folder(), folder.write_state("stopped"), folder.release()),
    "its plan": lambda run: Path(run.plan).write_text('{"job": "another"}'),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen_in_the_next_listing(history, change):
    """What is kept of a run counts as long as the run is as it was."""
    root, ids = history
    before = by_run(listed(root))
    run = ids[list(CHANGES.values()).index(change) + 1]
    change(Run(str(root / "runs" / run)))
    after = by_run(listed(root))
    assert after.pop(run) != before.pop(run)
    assert after == before


@mostly_long("cut", [0, 1, 50, 333, 5000], ci=(0, 3))
def test_a_torn_or_foreign_file_of_kept_lines_costs_only_time(history, cut):
    """Whatever is in it, the listing is the one that the records give."""
    root, _ = history
    right = listed(root)
    (kept,) = (root / "hosts").rglob("summaries-*")
    whole = kept.read_bytes()
    for data in (
        whole[:-cut] if cut else b"",
        whole[cut:],
        whole[: cut * 7] + os.urandom(cut) + whole[cut * 7 :],
    ):
        kept.write_bytes(data)
        assert listed(root) == right
        assert listed(root) == right


def test_what_is_kept_is_shown_and_decides_nothing(history):
    """A line that says `succeeded` of a run that has not ended does not make it one for `gc`."""
    root, _ = history
    listed(root)
    live = next(line["run"] for line in listed(root) if line["state"] == "interrupted")
    run = Run(str(root / "runs" / live))
    cache = summary_cache.SummaryCache(str(root))
    cache.keep(
        live, summary_cache.CachedSummary("succeeded", cache.marks_of(run), '{"run":"x","state":"succeeded"}')
    )
    cache.save()
    survey = garbage.Survey(str(root), "none")
    survey.look(lambda _count: None)
    assert live in survey.unended


def test_the_file_of_kept_lines_is_rewritten_when_most_of_it_is_stale(history, monkeypatch):
    """It does not grow for ever with runs that are gone."""
    root, ids = history
    monkeypatch.setattr(summary_cache, "MAX_STALE", 10)
    cache = summary_cache.SummaryCache(str(root))
    for _ in range(9):
        for run in ids[:20]:
            cache.keep(run, summary_cache.CachedSummary("succeeded", "x=1", "{}"))
        cache.save()
        cache = summary_cache.SummaryCache(str(root))
    (kept,) = (root / "hosts").rglob("summaries-*")
    cache.keep(ids[0], summary_cache.CachedSummary("succeeded", "x=1", "{}"))
    cache.save()
    assert kept.read_bytes().count(b"\tsucceeded") <= 61


def test_a_question_about_one_run_reads_only_that_run(history, opened):
    """Of 300."""
    root, ids = history
    (line,) = run_lines.lines_of(str(root), [ids[7]])
    assert json.loads(line)["run"] == ids[7]
    assert len(opened.of(ids[7])) == len(opened) < 60


def test_a_choice_is_made_before_anything_is_read(history, opened):
    """By the start of an id or of its last part, by age: the newest of 300 are not looked for in all of them."""
    root, ids = history
    word = ids[5].rpartition("-")[2][:5]
    assert [line["run"] for line in listed(root, like=word)] == [ids[5]]
    assert {line["run"] for line in listed(root, like=ids[9])} == {ids[9]}
    name = ids[9].partition("-")[2].rpartition("-")[0]
    assert ids[9] in {line["run"] for line in listed(root, like=name)}
    del opened[:]
    assert [line["run"] for line in listed(root, most=20)] == ids[:20]
    assert len({run for run in ids if opened.of(run)}) <= 20 + run_lines.GROUP
    assert len(listed(root, states=["interrupted"])) == 3
    assert len(listed(root, states=["interrupted", "failed"], most=2)) == 2
    assert listed(root, like="nothing") == []


def test_a_process_is_known_by_its_token_without_a_look_at_other_runs(history, opened):
    """A launch asks this several times."""
    root, ids = history
    run = Run(str(root / "runs" / ids[3]))
    token = ownership.new_token(run)
    Path(run.token).write_text(token)
    attempt = json.loads(Path(run.folder(1).attempt).read_text())
    Path(run.folder(1).attempt).write_text(json.dumps({**attempt, "boot_id": process.boot_id()}))
    table = [
        ownership.ProcessEntry(1000 + number, 1, "1", "S", os.geteuid(), one)
        for number, one in enumerate(
            [token, f"{ids[4]}:{'0' * 32}", f"{ids[5]}", "261122-gone-aaaaaa:0", None]
        )
    ]
    del opened[:]
    assert ownership.claims(str(root), table) == {token: ownership.Claim(ids[3], is_needed=False)}
    assert not [run for run in ids if opened.of(run) and run not in ids[3:6]]


def test_a_sweep_opens_no_run_that_has_its_code(history, opened, monkeypatch):
    """Each launch sweeps. Other tests of this machine may have processes with tokens of other roots."""
    root, ids = history
    other = ownership.ProcessEntry(1000, 1, "1", "S", os.geteuid(), f"261122-other-aaaaaa:{ids[0]}")
    monkeypatch.setattr(token_processes, "read_table", lambda: [other])
    leftovers.sweep(str(root), dry_run=True)
    assert not [path for path in opened if "/runs/" in path]


def test_garbage_is_looked_for_in_one_reading_of_each_run(history, opened):
    """Its plan, its manifest, its state; and what is the same in all is taken apart once."""
    root, ids = history
    heard = []
    survey = garbage.Survey(str(root), "none")
    survey.look(heard.append)
    assert sum(heard) == len(ids)
    assert len(survey.unended) == 3
    names = [os.path.basename(path) for path in opened if os.path.isfile(path)]
    assert {name: names.count(name) for name in ("plan.json", "manifest.json")} == {
        "plan.json": len(ids),
        "manifest.json": len(ids),
    }
    del opened[:]
    survey.look(heard.append)
    assert not opened


def repeated_record(run, folders, **record):
    """Make the next folders of a run, all with the same large record: it takes room on the disk once."""
    large = Path(run.record) / "large"
    large.write_text(json.dumps({"state": "running", **record}))
    number = run.numbers()[-1]
    for folder in map(run.folder, range(number + 1, number + 1 + folders)):
        os.mkdir(folder.path)
        os.link(large, folder.state)
        os.link(large, folder.attempt)
    return large.stat().st_size


def test_what_a_job_repeats_in_many_folders_is_not_read_each_time(history, opened):
    """It could otherwise hold up every listing and every launch of its root for hours."""
    root, ids = history
    run = Run(str(root / "runs" / ids[12]))
    repeated_record(run, 200, evidence={"class": "x" * 3_000_000})
    del opened[:]
    assert len(listed(root)) == len(ids)
    garbage.Survey(str(root), "none").look(lambda _count: None)
    assert ownership.is_of_this_boot(run) is False
    assert lease.is_over(run)
    records = [path for path in opened.of(ids[12]) if path.endswith(".json") and "/record/" in path]
    assert len(records) < 20


def test_a_reader_gets_many_large_records_in_pieces(history):
    """Neither the agent nor its client holds all of them at once."""
    root, ids = history
    run = Run(str(root / "runs" / ids[13]))
    size = repeated_record(run, 20, evidence={"class": "x" * 3_000_000})
    known, rounds = {}, 0
    while True:
        answer, payload = cursors.read(run, {"cursors": known})
        assert len(payload) <= cursors.MAX_ANSWER_BYTES + size
        at = 0
        for part in answer["parts"]:
            data, at = payload[at : at + part["size"]], at + part["size"]
            known[part["path"]] = {"offset": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        rounds += 1
        if not answer["is_full"]:
            break
    assert rounds > 10
    assert sum(path.endswith("state.json") for path in known) == len(run.numbers())


def test_a_run_that_says_too_much_does_not_hide_the_others(history):
    """A job may write megabytes of evidence into its record: its line is short, and says so."""
    root, ids = history
    run = Run(str(root / "runs" / ids[11]))
    run.last().write_state("failed", "exit-nonzero", evidence={"class": "x" * 7_000_000})
    lines = by_run(listed(root))
    assert len(lines) == len(ids)
    assert lines[ids[11]]["state"] == "failed"
    assert "too long" in lines[ids[11]]["evidence"]["unreadable"]
    assert (
        max(len(line) for group in run_lines.chosen_lines(str(root), RunFilter()) for line in group) < 1 << 16
    )
