"""The ledger of rentals: on the disk before anything is asked for, safe for several processes, whole after any kill."""

import multiprocessing
import os
import stat

import pytest
from testbed.sim_clock import START

from launcher.errors import BadFileError, RefusedError
from launcher.rental.ledger import RentalLedger, new_nonce
from launcher.rental.renting import Intent, RentalState

READY, ENDING, ENDED = RentalState.READY, RentalState.ENDING, RentalState.ENDED


def intent(nonce="nonce-a", **values):
    about = {"provider": "lambda", "account": "lambda-1", "run": "261122-sft-k3f9w2", "client": "laptop"}
    price = {"type": "gpu_1x_a10", "region": "us-east-1", "cents_per_hour": 129}
    return Intent(**{**about, **price, "nonce": nonce, "time": START, "deadline": START + 3600, **values})


@pytest.fixture
def ledger(tmp_path):
    return RentalLedger(tmp_path / "data" / "rentals")


def test_a_rental_from_its_intent_to_its_cost(ledger, tmp_path):
    """Each step is read back by another process's ledger."""
    other = RentalLedger(tmp_path / "data" / "rentals")
    assert other.rentals() == ()
    lock = ledger.open(intent())
    assert other.rentals()[0].intent == intent()
    ledger.step("nonce-a", RentalState.LAUNCHED, START + 60, instance="i1")
    assert other.rental("nonce-a").cents_at(START + 601) == 24  # 11 minutes at $1.29 an hour, from the intent
    ledger.step("nonce-a", READY, START + 300)
    ledger.step("nonce-a", ENDING, START + 600, why="done")
    ended = ledger.step("nonce-a", ENDED, START + 661, cents=24)
    assert ended == other.rental("nonce-a")
    assert (ended.state, ended.instance, ended.launched, ended.ready, ended.ended) == (
        ENDED,
        "i1",
        START + 60,
        START + 300,
        START + 661,
    )
    assert (ended.cents, ended.why, ended.is_open) == (24, "done", False)
    lock.release()


def test_only_this_user_can_read_it(ledger, tmp_path):
    """It tells what was rented, by whom, for what."""
    ledger.open(intent()).release()
    for path in (tmp_path / "data" / "rentals").glob("*.jsonl"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "data" / "rentals").stat().st_mode) == 0o700


def test_steps_that_do_not_fit_change_nothing(ledger):
    """Nothing is ready after its end was begun, and nothing ends twice."""
    ledger.open(intent()).release()
    assert ledger.step("nonce-a", READY, START).state is RentalState.INTENT
    ledger.step("nonce-a", RentalState.LAUNCHED, START, instance="i1")
    assert ledger.step("nonce-a", RentalState.REFUSED, START).state is RentalState.LAUNCHED
    ledger.step("nonce-a", ENDING, START)
    assert ledger.step("nonce-a", READY, START).state is ENDING
    ledger.step("nonce-a", ENDED, START + 60, cents=3)
    assert ledger.step("nonce-a", ENDED, START + 999, cents=99).cents == 3


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_was_cut_off_does_not_count_and_spoils_none_after_it(ledger, tmp_path, cut):
    """Wherever the write broke off."""
    ledger.open(intent()).release()
    ledger.step("nonce-a", RentalState.LAUNCHED, START, instance="i1")
    path = tmp_path / "data" / "rentals" / "nonce-a.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "ending", "time": 1}'[: -cut or None])
    assert ledger.rental("nonce-a").state is RentalState.LAUNCHED
    assert ledger.step("nonce-a", READY, START + 5).state is READY
    assert ledger.rental("nonce-a").ready == START + 5


def test_an_intent_that_was_cut_off_was_never_acted_on(ledger, tmp_path):
    """So it is no rental. A file that this version cannot read is named: something may be paid for."""
    ledger.open(intent()).release()
    folder = tmp_path / "data" / "rentals"
    whole = (folder / "nonce-a.jsonl").read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (folder / "nonce-a.jsonl").write_bytes(whole[:length])
        assert ledger.rentals() == ledger.unreadable() == ()
    (folder / "nonce-a.jsonl").write_bytes(b'{"kind": "intent", "version": 99}\n')
    ledger.open(intent("nonce-b")).release()
    assert [one.nonce for one in ledger.rentals()] == ["nonce-b"]
    assert ledger.unreadable() == (folder / "nonce-a.jsonl",)
    with pytest.raises(BadFileError, match="nonce-a"):
        ledger.rental("nonce-a")


def test_a_later_version_s_lines_and_fields_are_read_over(ledger, tmp_path):
    """A week-long rental may be ended by an older client."""
    ledger.open(intent(colour="red")).release()
    path = tmp_path / "data" / "rentals" / "nonce-a.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "painted", "colour": "blue"}\n')
    assert ledger.step("nonce-a", RentalState.LAUNCHED, START, instance="i1").instance == "i1"


def test_nothing_is_rented_if_it_cannot_be_recorded(tmp_path):
    """The message says so, and what to do."""
    (tmp_path / "data").write_text("a file")
    with pytest.raises(RefusedError, match="nothing was rented"):
        RentalLedger(tmp_path / "data" / "rentals").open(intent())
    ledger = RentalLedger(tmp_path / "rentals")
    ledger.open(intent()).release()
    with pytest.raises(RefusedError, match="nothing was rented"):
        ledger.open(intent())  # the same nonce twice


def test_an_intent_is_on_the_disk_with_its_folders(ledger, tmp_path, monkeypatch):
    """The file, its folder, and the folders that were made for it are waited for."""
    synced, sync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda one: synced.append(os.readlink(f"/proc/self/fd/{one}")) or sync(one)
    )
    ledger.open(intent()).release()
    folder = tmp_path / "data" / "rentals"
    assert set(synced) == {str(folder / "nonce-a.jsonl"), str(folder), str(folder.parent), str(tmp_path)}
    assert synced.index(str(folder / "nonce-a.jsonl")) < synced.index(str(folder))


def test_a_rental_is_looked_after_as_long_as_its_process_lives(ledger, tmp_path):
    """Another process sees it, may not take it, and may once the first has ended."""
    context = multiprocessing.get_context("fork")
    opened, done = context.Event(), context.Event()

    def hold():
        lock = ledger.open(intent())
        opened.set()
        done.wait()
        os._exit(0 if lock else 1)

    child = context.Process(target=hold)
    child.start()
    assert opened.wait(30)
    assert ledger.is_held("nonce-a")
    assert ledger.take("nonce-a") is None
    child.kill()
    child.join()
    assert not ledger.is_held("nonce-a")
    lock = ledger.take("nonce-a")
    assert ledger.is_held("nonce-a")
    lock.release()


def _steps(folder, begin):
    begin.wait()
    ledger = RentalLedger(folder)
    ledger.step("nonce-a", RentalState.LAUNCHED, START, instance="i1")
    ledger.step("nonce-a", READY, START)
    ledger.step("nonce-a", ENDING, START)
    ledger.note_missing("nonce-a", START)
    ledger.note_extra("nonce-a", "i2")
    ledger.note_extra("nonce-a", "i2", 7)
    ledger.step("nonce-a", ENDED, START, cents=1)


def test_processes_that_do_the_same_do_it_once(ledger, tmp_path):
    """Six at the same time leave one line a step."""
    ledger.open(intent()).release()
    folder = tmp_path / "data" / "rentals"
    context = multiprocessing.get_context("fork")
    begin = context.Event()
    workers = [context.Process(target=_steps, args=(folder, begin)) for _ in range(6)]
    for worker in workers:
        worker.start()
    begin.set()
    for worker in workers:
        worker.join()
    kinds = sorted(line.split(b'"')[3] for line in (folder / "nonce-a.jsonl").read_bytes().splitlines())
    assert kinds == sorted(
        [b"intent", b"launched", b"ready", b"ending", b"missing", b"extra", b"extra", b"ended"]
    )
    assert ledger.rental("nonce-a").cents_at(START) == 8


def test_nonces_differ_and_can_stand_in_a_name():
    """Of 60 bits; a long run's name is cut, never the nonce."""
    nonces = {new_nonce() for _ in range(1000)}
    assert len(nonces) == 1000
    long = intent(nonce=new_nonce(), run=f"261122-{'x' * 26}-k3f9w2")
    assert len(long.name) <= 64
    assert long.name.endswith(f"-{long.nonce}")


def test_a_limit_is_raised_and_never_lowered(ledger, tmp_path):
    """Another process's ledger has it; who looks after it knows whether it will notice."""
    lock = ledger.open(intent())
    other = RentalLedger(tmp_path / "data" / "rentals")
    assert other.reads_limits("nonce-a")
    assert ledger.note_limit("nonce-a", START + 7200).intent.deadline == START + 7200
    assert ledger.note_limit("nonce-a", START + 1800).intent.deadline == START + 7200
    assert other.rental("nonce-a").intent.deadline == START + 7200
    (tmp_path / "data" / "rentals" / "nonce-a.beat").write_text("")  # as an older version's holder leaves it
    assert not other.reads_limits("nonce-a")
    lock.release()
    assert other.reads_limits("nonce-a")
