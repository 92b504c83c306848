"""The service's time, as its answers tell it: shared by all commands, whatever the wall clock says, and whatever a `Date` says."""

import json
import random
import time
from email.utils import formatdate

import pytest
from testbed import lambda_client
from testbed.sim_clock import START, Computer, SimClock

from launcher.agent.system import process
from launcher.base.clock import SystemClock
from launcher.errors import ServiceError
from launcher.rental.service_clock import ASK_AGAIN_S, ServiceClock

DAY = 86_400.0
DATES = [
    "Mon, 01 Jan 99999999999 00:00:00 GMT",
    "Mon, 01 Jan 9999 23:59:59 GMT",
    "Mon, 01 Jan 0001 00:00:00 GMT",
    "Mon, 01 Jan 0001 00:00:00 -0000",
    "Mon, 01 Jan 1970 00:00:00 GMT",
    "Mon, 31 Feb 2026 00:00:00 GMT",
    "Mon, 01 Jan 2026 24:00:00 GMT",
    "Mon, 01 Jan 2026 23:59:60 GMT",
    "Mon, 00 Xyz 2026 00:00:00 GMT",
    "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
    "Mon, 01 Jan 2024 00:00:00 +9999",
    f"Mon, 01 Jan 2024 00:00:00 +{'9' * 5000}",
    "Mon, 99999999999999999999 Jan 2024 0:0:0 GMT",
    "1 Jan 2024 99:99:99",
    "9" * 5000,
    "-1",
    "1e400",
    "nan",
    "inf",
    "\xb2\xb3",
    ", , , ,",
    "(((((" * 200,
    "x",
    "",
]


@pytest.fixture
def computer(tmp_path, sim_clock, monkeypatch):
    """This process is on a computer of its own."""
    for owner, name in (
        (time, "time"),
        (time, "clock_gettime"),
        (SystemClock, "sleep"),
        (process, "boot_id"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    made = Computer(tmp_path / "computer")
    made.become(sim_clock)
    return made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "service-time.json"


def test_all_commands_of_a_boot_have_the_same_time_whatever_the_wall_clock_says(computer, sim_clock, path):
    """The first one has asked; another process needs no answer of its own."""
    first = ServiceClock(path)
    first.note(START + 7)
    for wrong_by_s in (-10 * 3600, 10 * 3600, -1e9, 1e9):
        computer.set_wall(wrong_by_s)
        sim_clock.sleep(100)
        passed_s = sim_clock.now() - START
        for clock in (first, ServiceClock(path)):
            assert clock.is_known
            assert clock.now() == clock.likely() == pytest.approx(START + 7 + passed_s)


def test_a_date_that_lags_behind_or_is_absurd_changes_nothing(computer, sim_clock, path):
    """An answer was long on its way, a proxy has kept it, or a clock there is years ahead. A little ahead is the truth."""
    clock = ServiceClock(path)
    clock.note(START)
    for date in (START - 1, START - 10 * DAY, 0.0, START + 31 * DAY, START + 1e9):
        clock.note(date)
        assert clock.now() == START
    clock.note(START + 3600)  # the computer was a virtual machine that stood still
    assert ServiceClock(path).now() == START + 3600


def test_after_a_reboot_the_service_is_asked(computer, sim_clock, path):
    """Its answer counts, and not the wall clock, which was set meanwhile."""
    ServiceClock(path).note(START)
    sim_clock.sleep(DAY)
    computer.set_wall(-10 * 3600)
    computer.reboot(sim_clock.now())
    clock, asked = ServiceClock(path), []
    assert not clock.is_known
    clock.learn(lambda: (asked.append(1), clock.note(START + DAY)))
    clock.learn(lambda: asked.append(2))
    assert (asked, clock.now(), ServiceClock(path).now()) == ([1], START + DAY, START + DAY)


def test_until_the_service_answers_its_last_date_is_where_the_time_begins(computer, sim_clock, path):
    """It goes on from there by the boot clock, and is corrected by the answer. A table shows the wall clock, if that is later."""
    ServiceClock(path).note(START)
    sim_clock.sleep(DAY)
    computer.reboot(sim_clock.now())
    clock, asked = ServiceClock(path), []

    def silent():
        asked.append(sim_clock.now())
        raise ServiceError("lambda", "silent", "no answer")

    for _ in range(5):
        clock.learn(silent)
    assert len(asked) == 1
    assert (clock.now(), clock.likely()) == (START, START + DAY)
    sim_clock.sleep(ASK_AGAIN_S)
    clock.learn(silent)
    assert len(asked) == 2
    computer.set_wall(-30 * DAY)
    assert clock.now() == clock.likely() == START + ASK_AGAIN_S
    clock.note(START + DAY + ASK_AGAIN_S)
    assert clock.now() == START + DAY + ASK_AGAIN_S


def test_without_any_date_the_wall_clock_is_read_once_in_a_boot(computer, sim_clock, path):
    """By all commands together: the time that passes is that of the boot clock."""
    assert ServiceClock(path).now() == START
    computer.set_wall(-10 * 3600)
    sim_clock.sleep(100)
    clock = ServiceClock(path)
    assert (clock.now(), clock.is_known) == (START + 100, False)


def test_a_table_asks_nobody_and_writes_nothing(computer, sim_clock, path):
    """Who never rents has no file."""
    assert ServiceClock(path).likely() == START
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b"7",
        b"null",
        b'["a", 1]',
        b'["b", NaN, 1, false]',
        b'["b", 1e999, 0, false]',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_a_file_that_is_damaged_is_as_none(computer, sim_clock, path, text):
    """It is written anew with the next answer."""
    path.parent.mkdir()
    path.write_bytes(text)
    clock = ServiceClock(path)
    assert not clock.is_known
    assert clock.now() == START
    clock.note(START + 5)
    assert ServiceClock(path).now() == START + 5


def test_a_disk_that_refuses_the_file_leaves_the_time_to_each_process(computer, sim_clock, tmp_path):
    """It knows what it was told."""
    (tmp_path / "file").write_text("in the way")
    clock = ServiceClock(tmp_path / "file" / "service-time.json")
    clock.note(START + 5)
    assert clock.now() == START + 5


def drawn_dates():
    """Return dates that are damaged at random, the same each time."""
    dice, found = random.Random(21), []
    for _ in range(300):
        text = list(formatdate(dice.choice([0, START, 4e9, 2.5e11]), usegmt=dice.random() < 0.5))
        for _ in range(dice.randrange(4)):
            text[dice.randrange(len(text))] = dice.choice(
                ["9" * dice.randrange(30), "-", "+", "GMT", "\xb2", " ", ":", ""]
            )
        found.append("".join(text).strip())
    return found


def test_no_date_of_a_service_is_more_than_data(lambda_service, key, tmp_path):
    """Whatever stands in `Date` or `Retry-After`, the call is answered, and the time stays where it can be."""
    clock, heard = SimClock(tmp_path / "clock"), []
    api = lambda_client.service(lambda_service.base, key, tmp_path, clock)
    api.hears = heard.append
    for text in (*DATES, *drawn_dates()):
        lambda_service.date = text
        assert api.instances() == ()
        lambda_service.fail("keys", "status", status=503, headers={"Retry-After": text})
        with pytest.raises(ServiceError) as caught:
            api.ssh_keys()
        assert caught.value.retry_s is None or 0 <= caught.value.retry_s <= DAY
    api.close()
    assert all(1_577_836_800 <= date < 4_133_980_800 for date in heard)
    lambda_service.date = formatdate(START, usegmt=True)
    del heard[:]
    assert api.instances() == ()
    assert heard == [START]


def test_a_call_waits_its_turn_and_no_longer_though_the_clock_was_set_back(
    computer, lambda_service, key, tmp_path, sim_clock
):
    """The pace goes by the boot clock: a wait of a second is none of ten hours."""
    from launcher.rental.providers.lambda_cloud import log_in
    from launcher.rental.rate_limit import RateLimit

    pace = RateLimit(tmp_path / "pace", "lambda", SystemClock())
    api = log_in({"LAMBDA_API_KEY": key}, tmp_path, pace, lambda_service.base)
    for hours in (0, -10, 10, -1000):
        computer.set_wall(hours * 3600)
        before = sim_clock.now()
        api.instances()
        assert sim_clock.now() - before <= 1
    computer.reboot(sim_clock.now())
    before = sim_clock.now()
    api.instances()
    assert sim_clock.now() - before <= 1
    assert json.loads((tmp_path / "pace" / "lambda.requests").read_text())
    api.close()
