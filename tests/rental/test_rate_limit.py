"""The pace of calls: all clients of a machine share it, whatever becomes of them, and the stand-in counts each violation."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from testbed import lambda_client
from testbed.client import until

import launcher
from launcher.base.clock import SystemClock
from launcher.rental import rate_limit
from launcher.rental.rate_limit import MAX_WAIT_S, RateLimit, back_off_s, usual_pace

DRIVER = [sys.executable, lambda_client.__file__]


def drive(stand_in, key, folder, *words):
    path = os.pathsep.join(sys.path)
    words = [*DRIVER, stand_in.base, key, str(folder), *words]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow(reason="four processes import the client")
def test_fifty_launches_at_once_break_no_rate(lambda_service, key, tmp_path, sim_clock):
    """By threads of this process and of four others; launches are 12 s apart, and other calls go on between them."""
    others = [drive(lambda_service, key, tmp_path, "launch=10") for _ in range(4)]
    api = lambda_client.service(lambda_service.base, key, tmp_path)
    listing = threading.Thread(target=lambda: [api.instances() for _ in range(20)])
    listing.start()
    lambda_client.launch_many(api, 10)
    listing.join()
    assert [other.wait() for other in others] == [0] * 4
    for other in others:
        other.stdout.close()
    api.close()
    times = sorted(line["time"] for line in lambda_service.of("launch"))
    assert len(times) == len(lambda_service.alive()) == 50
    assert lambda_service.state.violations == []
    assert times[-1] - times[0] >= 49 * 12 - 1e-3
    assert times[-1] - times[0] < 49 * 12 + 100  # nobody waits for more than the pace


def test_a_launch_says_that_it_waits(lambda_service, key, tmp_path, sim_clock):
    """For the rest of the twelve seconds, and as soon as another client has the turn; then that it waits no more."""
    apis = [lambda_client.service(lambda_service.base, key, tmp_path, sim_clock) for _ in range(2)]
    said = []
    for api in apis:
        api.waits = said.append
    lambda_client.launch_many(apis[0], 1)
    assert said == [0.0]
    lambda_client.launch_many(apis[0], 1)
    assert said[1:] == [12.0, 0.0]
    del said[:]
    apis[0].waits = lambda _wait_s: None
    with lambda_service.holding("launch"):
        first = threading.Thread(target=lambda_client.launch_many, args=(apis[0], 1))
        first.start()
        until(lambda: len(lambda_service.of("launch")) == 3, "the first launch")
        second = threading.Thread(target=lambda_client.launch_many, args=(apis[1], 1))
        second.start()
        until(lambda: said, "a word")
    first.join()
    second.join()
    assert (said[0], said[-1]) == (12.0, 0.0)
    for api in apis:
        api.close()


def test_clients_that_do_not_share_a_pace_are_counted(lambda_service, key, tmp_path, sim_clock):
    """The witness sees violations of both rates."""
    apis = [lambda_client.service(lambda_service.base, key, tmp_path / name, sim_clock) for name in "ab"]
    for api in apis:
        lambda_client.launch_many(api, 1)
        api.close()
    assert {what for what, _ in lambda_service.state.violations} == {"request", "launch"}


def test_a_service_that_enforces_its_rates_refuses_none_of_ours(lambda_service, lambda_api, key, tmp_path):
    """Launches and lists in turn."""
    lambda_service.state.habits.enforces_rates = True
    for _ in range(3):
        lambda_client.launch_many(lambda_api, 1)
        lambda_api.instances()
    assert len(lambda_service.of("launch")) == 3
    assert lambda_service.state.violations == []


def test_a_client_that_was_killed_in_the_middle_of_its_call_is_waited_for(tmp_path, sim_clock):
    """Its mark says that a call was under way, so the next one comes a whole spacing after now; the lock went with it."""
    ready = tmp_path / "ready"
    child = os.fork()
    if child == 0:
        with RateLimit(tmp_path / "pace", "x", sim_clock).turn(is_launch=True):
            ready.touch()
            signal.pause()
    try:
        until(ready.exists, "the call")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    sim_clock.sleep(5)
    before = sim_clock.now()
    with RateLimit(tmp_path / "pace", "x", sim_clock).turn(is_launch=True):
        assert 12 <= sim_clock.now() - before <= 13


@pytest.mark.parametrize("text", ["", "[", "7", "[1e99, 1e99, false]", "[1, 2]"])
def test_a_file_that_was_cut_off_or_is_of_another_time_delays_and_does_not_stop(tmp_path, sim_clock, text):
    """A clock that was set back makes nobody wait for a year."""
    (tmp_path / "pace").mkdir()
    (tmp_path / "pace" / "x.requests").write_text(text)
    before = sim_clock.now()
    with RateLimit(tmp_path / "pace", "x", sim_clock).turn():
        assert sim_clock.now() - before <= MAX_WAIT_S


def test_whoever_was_refused_holds_off_all_others(tmp_path, sim_clock):
    """Until the time that the refusal asked for."""
    with RateLimit(tmp_path / "pace", "x", sim_clock).turn() as turn:
        turn.hold_off(100)
    before = sim_clock.now()
    with RateLimit(tmp_path / "pace", "x", sim_clock).turn():
        assert sim_clock.now() - before == pytest.approx(100)
    before = sim_clock.now()
    with RateLimit(tmp_path / "pace", "x", sim_clock).turn():
        assert sim_clock.now() - before == pytest.approx(1)


def test_other_calls_are_not_held_up_by_a_launch_that_waits(tmp_path, sim_clock):
    """A launch that waits its 12 seconds has only the lock of launches."""
    pace = RateLimit(tmp_path / "pace", "x", sim_clock)
    with pace.turn(is_launch=True):
        pass
    with (tmp_path / "pace" / "x.launches").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pace.turn():
            pass


class Highest:
    """Draws the highest number each time."""

    def uniform(self, _low, high):
        """Draw a number."""
        return high


def test_back_offs_grow_to_a_limit_and_are_as_long_as_asked():
    """10, 20, 40, 80, 120, 120, and a little more."""
    assert [back_off_s(count, None, Highest()) for count in range(1, 7)] == [11, 21, 41, 81, 121, 121]
    assert back_off_s(1, 300, Highest()) == 301


def test_nothing_that_rents_waits_by_another_clock_than_it_is_given():
    """So no test waits for a boot, a list or a spacing."""
    rents = re.compile(r"launcher\.rental\.(renter|reconcile|ledger|provider|rate_limit)|values\.clock")
    texts = {
        path.name: path.read_text()
        for path in Path(launcher.__file__).parent.rglob("*.py")
        if rents.search(path.read_text())
    }
    assert texts.keys() >= {"renter.py", "reconcile.py", "lambda_cloud.py", "rental_lease.py"}
    assert [name for name, text in texts.items() if "time.sleep" in text or "from time import" in text] == []


def test_this_machine_s_clock_tells_how_long_it_has_been_up():
    """Also while it slept, which is what /proc/uptime says; and it sleeps."""
    clock = SystemClock()
    before = clock.now()
    clock.sleep(0.001)
    assert clock.now() > before
    assert abs(before - float(Path("/proc/uptime").read_text().split()[0])) < 5


def test_the_usual_pace_lies_in_this_user_s_state(tmp_path, sim_clock, monkeypatch):
    """One for each service, whichever key is used."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for base in ("https://cloud.lambda.ai/api/v1", "http://127.0.0.1:8080/api/v1"):
        with usual_pace(base, sim_clock).turn():
            pass
    names = sorted(path.name for path in (tmp_path / "launch" / "pace").iterdir())
    assert names == ["127.0.0.1-8080-api-v1.requests", "cloud.lambda.ai-api-v1.requests"]


def test_a_client_that_was_stopped_in_its_turn_holds_others_for_a_while_only(
    tmp_path, sim_clock, monkeypatch
):
    """As by Ctrl-Z: one of the others may have to end what costs money."""
    monkeypatch.setattr(rate_limit, "STUCK_S", 0.2)
    pace = RateLimit(tmp_path, "lambda", sim_clock)
    with pace.turn(), pace.turn():
        pass


def test_a_pace_that_cannot_be_kept_lets_calls_through(tmp_path, sim_clock):
    """Nothing can be written there; calls keep their distance to each other."""
    (tmp_path / "file").write_text("")
    pace = RateLimit(tmp_path / "file" / "pace", "lambda", sim_clock)
    before = sim_clock.now()
    for _ in range(2):
        with pace.turn(is_launch=True):
            pass
    assert sim_clock.now() - before >= 24
