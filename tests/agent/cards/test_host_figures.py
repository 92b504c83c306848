"""The host's own figures: what is read from nvidia-smi and the kernel, and that one program reports the cards of a run."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from testbed.cards import uuid_of
from testbed.client import is_gone, until
from testbed.toy import Toy

from launcher.agent.cards.card_samples import CardSamples, read_row
from launcher.agent.record.files import write_durably
from launcher.agent.system.host_samples import (
    HostSamples,
    cpu_percent,
    read_cgroup,
    read_cpu_times,
    read_meminfo,
)
from launcher.agent.training.host_watch import HostWatch

WAITS = """
while not os.path.exists(os.path.join({home!r}, "over")):
    time.sleep(0.05)
tell("done", 9)
"""
FULL = {"use_percent": 97, "memory_gb": 15.84, "power_w": 179.3, "temperature_c": 67}


# what nvidia-smi prints


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("GPU-6f1b2c3d-0001-4000-8000-00000000000a, 97, 15109, 179.26, 67", FULL),  # P100, driver 580
        ("GPU-6f1b2c3d-0001-4000-8000-00000000000a, 97, 15109, 179.26, 67\r", FULL),
        ("GPU-6f1b2c3d-0001-4000-8000-00000000000a, 0, 0, 25.40, 31", dict.fromkeys(FULL, 0) | {"power_w": 25.4, "temperature_c": 31}),
        ("GPU-1, 12, 802, [Not Supported], 48", {"use_percent": 12, "memory_gb": 0.84, "temperature_c": 48}),  # GeForce, driver 375
        ("GPU-1, [Not Supported], 802, [Not Supported], 48", {"memory_gb": 0.84, "temperature_c": 48}),  # Quadro K, driver 367
        ("GPU-1, [N/A], 24, 51.42, 31", {"memory_gb": 0.03, "power_w": 51.4, "temperature_c": 31}),  # A100 in slices
        ("GPU-1, [N/A], [Insufficient Permissions], 51.42, 31", {"power_w": 51.4, "temperature_c": 31}),  # A slice in a container
        ("GPU-1, 3, [N/A], 11.30, 44", {"use_percent": 3, "power_w": 11.3, "temperature_c": 44}),  # GB10: shared memory
        ("GPU-1, 100, 81079, 699.87, 71", {"use_percent": 100, "memory_gb": 85.02, "power_w": 699.9, "temperature_c": 71}),  # H100
        ("GPU-1, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]", {}),
        ("GPU-1, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]", {}),
        ("GPU-1, [GPU requires reset], 1, [Unknown Error], 30", {"memory_gb": 0.0, "temperature_c": 30}),
        ("GPU-1, ERR!, N/A, , -1", {}),
        ("GPU-1, 4294967295, 1e9, nan, inf", {}),  # nothing that a card can have
    ],
)  # fmt: skip
def test_a_row_gives_the_figures_that_are_numbers_and_never_a_zero_for_the_others(line, figures):
    """Lines of several cards, with old drivers and new."""
    uuid, found = read_row(line)
    assert (uuid, found) == (line.partition(",")[0], figures)


@pytest.mark.parametrize(
    "line",
    [
        "", "No devices were found", "GPU-1, 97, 15109, 179.26", "0, 97, 15109, 179.26, 67", "GPU-1, 9, 1, 2, 3, 4",
        "uuid, utilization.gpu [%], memory.used [MiB], power.draw [W], temperature.gpu",
        "Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        'Field "power.draw" is not a valid field to query.',
        "Tue Nov 22 14:00:00 2026: XID 79 on GPU 0, a, b, c, d",
    ],
)  # fmt: skip
def test_a_line_that_is_no_row_gives_nothing(line):
    """Errors are printed between the rows, and a loop prints those of the driver too."""
    assert read_row(line) is None


# what the kernel says


def test_the_use_of_the_cpus_is_that_between_two_readings():
    """Guests are counted once, waiting for a disk is no use, and a count that goes back is no negative use."""
    before = read_cpu_times("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3 4\n")
    after = read_cpu_times("cpu  160 0 120 900 20 0 0 0 60 0\n")
    assert cpu_percent(before, after) == 40.0
    assert cpu_percent(after, before) is None
    assert cpu_percent(before, before) is None
    assert cpu_percent(None, after) is None
    assert cpu_percent(before, before._replace(busy=before.busy - 5, total=before.total + 10)) == 0.0
    assert [read_cpu_times(text) for text in ("", "cpu  1 2 3\n", "intr 1 2 3 4 5\n", "cpu a b c d e\n")] == [
        None
    ] * 4


def test_memory_in_use_is_what_no_program_could_be_given():
    """The host's own, or a container's without the file cache that can be dropped."""
    assert (
        read_meminfo("MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n")
        == 600 * 1024
    )
    assert read_meminfo("MemTotal:  1000 kB\nMemFree: 10 kB\n") is None  # a kernel before 3.14
    assert read_meminfo("") is None
    assert read_cgroup("5000", "anon 100\ninactive_file 2000\nactive_file 7\n") == 3000
    assert read_cgroup("5000", "inactive_file 1\ntotal_inactive_file 4000\n") == 1000  # version 1
    assert read_cgroup("5000", "") == 5000
    assert read_cgroup("max", "") is None


# a run


@pytest.fixture
def toy(tmp_path):
    """A run on this machine that waits until it may end; what it leaves is ended."""
    made = Toy(tmp_path)
    made.script(WAITS.format(home=str(made.home)))
    yield made
    made.clear_away()


def give_cards(toy, *indices):
    """Let the run have these cards."""
    path = toy.run.folder(1).attempt
    record = json.loads(Path(path).read_text())
    record["runtime"]["gpus"] = [uuid_of(index) for index in indices]
    write_durably(path, json.dumps(record))


def finish(toy, keeper):
    """Let the training end, and wait for the run's end."""
    (toy.home / "over").touch()
    return toy.wait(keeper)


def read(samples):
    """Read what there is; return False at the end of the program."""
    try:
        return samples.read()
    except BlockingIOError:
        return True


def by_hand(line):
    """The figures of a simulated card, worked out apart from the product."""
    _, use, mebibytes, watts, degrees = line.split(", ")
    return {
        **({"use_percent": int(use)} if use != "[N/A]" else {}),
        "memory_gb": pytest.approx(int(mebibytes) * 1024 * 1024 / 1e9, abs=0.006),
        "power_w": pytest.approx(float(watts), abs=0.051),
        "temperature_c": int(degrees),
    }


def card_of(event, number):
    """The figures of one card in an event."""
    prefix = f"gpu{number}."
    return {
        name.removeprefix(prefix): value for name, value in event["values"].items() if name.startswith(prefix)
    }


@pytest.mark.long
@pytest.mark.slow(reason="a run of 12 s")
def test_one_program_reports_the_run_s_own_cards_and_ends_with_it(toy, cards, monkeypatch):
    """Each event has what the cards reported at one moment; a lost card and a column without a number are absent."""
    monkeypatch.setenv("OTHER_SECRET", "value-of-it")
    cards.put("t4", "l40s", "a100_80gb")
    cards.loop(0.3)
    give_cards(toy, 2, 1)  # the first card of the run is not the first of nvidia-smi
    toy.plan(secrets=["OTHER_SECRET"])
    write_durably(toy.run.secrets, json.dumps({"OTHER_SECRET": "value-of-it"}))
    keeper = toy.start()
    changes = iter(range(1, 10_000))

    def has_events(count):
        number = next(changes)
        cards.change(
            1, utilization_gpu=number % 100, memory_used=number * 7, power_draw=f"{number}.25", temperature_gpu=number % 90
        )  # fmt: skip
        cards.change(2, utilization_gpu="[N/A]", memory_used=number * 3)
        return len(toy.events("host")) >= count

    until(lambda: has_events(2), "two events")
    (pid,) = {report["pid"] for report in cards.reported()}
    cards.change(1, lost=True)
    until(lambda: has_events(3), "an event without the lost card")
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"LAUNCH_TOKEN=toy" in variables
    assert not any(word.startswith(b"OTHER_SECRET=") for word in variables)
    assert finish(toy, keeper)["state"] == "succeeded"
    assert is_gone(pid)
    assert {report["pid"] for report in cards.reported()} == {pid}
    lines = [line for report in cards.reported() for line in report["lines"] if line.startswith("GPU-")]
    for event in toy.events("host"):
        assert {"cpu_percent", "memory_gb", "disk_free_gb"} <= event["values"].keys()
        assert card_of(event, 2) == {}
        assert card_of(event, 0) in [by_hand(line) for line in lines if line.startswith(uuid_of(2))]
    others = [by_hand(line) for line in lines if line.startswith(uuid_of(1))]
    with_both = [event for event in toy.events("host") if card_of(event, 1)]
    assert len(with_both) >= 2
    assert all(card_of(event, 1) in others for event in with_both)
    assert len({json.dumps(event["values"]) for event in with_both}) == len(with_both)
    assert not card_of(toy.events("host")[-1], 1)
    assert toy.events("metric") == []
    assert not any(event["values"].get("ended") for event in toy.events("evidence"))


@pytest.mark.parametrize("victims", [["agent"], ["keeper", "agent"]])
def test_the_program_ends_when_the_agent_is_killed(toy, cards, victims):
    """At once, although its next report would come much later."""
    cards.put("t4")
    cards.loop(1000.0)
    give_cards(toy, 0)
    keeper = toy.start()
    until(cards.reported, "the first report")
    pid = cards.reported()[0]["pid"]
    pids = {"keeper": keeper.pid, "agent": toy.record(2, "attempt")["agent"]["pid"]}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    until(lambda: is_gone(pid), "the end of nvidia-smi")
    if victims == ["agent"]:
        toy.wait(keeper)
    else:
        keeper.wait(30)


@pytest.mark.slow(reason="figures come every few seconds")
def test_a_run_without_a_card_has_the_figures_of_the_host_and_asks_for_no_card(toy, cards):
    """They are no metric, no step and no sign that the script uses the worker; `df` and `free` say the same."""
    cards.put("t4")
    keeper = toy.start()
    until(lambda: toy.events("host"), "an event")
    free = int(subprocess.check_output(["df", "-B1", "--output=avail", toy.home]).split()[1])
    total, *_, available = map(int, subprocess.check_output(["free", "-b"]).splitlines()[1].split()[1:])
    finish(toy, keeper)
    values = toy.events("host")[0]["values"]
    assert values.keys() == {"cpu_percent", "memory_gb", "disk_free_gb", "log_bytes"}
    assert values["memory_gb"] == pytest.approx((total - available) / 1e9, abs=2.0)
    assert values["disk_free_gb"] == pytest.approx(free / 1e9, abs=2.0)
    assert 0.0 <= values["cpu_percent"] <= 100.0
    assert values["log_bytes"] >= 0
    assert cards.reported() == []
    assert toy.events("host")[0]["step"] is None


@pytest.mark.parametrize("percent", [0, 3])
def test_a_card_in_use_is_use_of_the_run_until_that_was_asked(cards, tmp_path, percent):
    """A process that waits for its card uses neither the processor nor a file."""
    cards.put(("t4", {"utilization.gpu": percent}))
    cards.loop(1000.0)
    samples = CardSamples([uuid_of(0)], os.environ)
    recorded = []
    account = SimpleNamespace(record=lambda _kind, values: recorded.append(values), log_bytes=0)
    streams = SimpleNamespace(listen=lambda _stream, _take: None, forget=lambda _stream: None)
    watch = HostWatch(account, HostSamples(str(tmp_path)), samples)
    watch.turn(streams)
    until(lambda: read(samples) and samples.has_report, "a report", every=0.01)
    until(lambda: watch.turn(streams) or recorded, "the figures", every=0.01)
    watch.end(streams)
    assert recorded[0]["gpu0.use_percent"] == percent
    assert watch.take_card_use() is (percent > 0)
    assert not watch.take_card_use()


def test_a_program_that_ends_is_started_again_later_and_only_a_few_times(cards, monkeypatch):
    """A driver that was replaced under the run ends it each time."""
    cards.put("t4")
    cards.fail("gpu", "nvml")
    monkeypatch.setattr("launcher.agent.cards.card_samples.PAUSE_S", 0.0)
    samples = CardSamples([uuid_of(0)], os.environ)
    for _ in range(4):
        assert samples.start() is not None
        until(lambda: not read(samples), "its end", every=0.01)
        samples.end()
        assert samples.pids == []
    assert samples.start() is None
    assert samples.take() == {}
    assert len(cards.reported()) == 4


def test_between_two_starts_there_is_a_pause(cards):
    """A program that cannot run must not cost anything."""
    cards.put("t4")
    cards.fail("gpu", "nvml")
    samples = CardSamples([uuid_of(0)], os.environ)
    assert samples.start() is not None
    samples.end()
    assert samples.start() is None


@pytest.mark.usefixtures("cards")
def test_nothing_is_started_for_a_run_without_cards_or_on_a_host_without_the_program(monkeypatch, tmp_path):
    """Neither is an error."""
    assert CardSamples([], os.environ).start() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert CardSamples([uuid_of(0)], os.environ).start() is None


def test_errors_of_the_driver_between_two_reports_are_no_figures(cards):
    """The real program prints them while it waits."""
    cards.put("t4")
    cards.loop(1000.0, between=("XID 79 on GPU 0000:02:00.0, a, b, c, d", ""))
    samples = CardSamples([uuid_of(0)], os.environ)
    samples.start()
    until(lambda: read(samples) and samples.has_report, "a report", every=0.01)
    found = samples.take()
    samples.end()
    assert found == {
        "gpu0.use_percent": 0, "gpu0.memory_gb": 0.0, "gpu0.power_w": 25.4, "gpu0.temperature_c": 31
    }  # fmt: skip


@pytest.mark.gpu
def test_a_real_card_reports_in_a_loop_into_a_pipe():
    """Each report arrives when it is made, and has figures that the same tool gives when asked once."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA card here")
    ask = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    uuid = subprocess.check_output(ask, text=True).split()[0]
    samples = CardSamples([uuid], os.environ)
    output = samples.start()
    assert output is not None
    arrived = []
    deadline = time.monotonic() + 60
    while len(arrived) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
        assert read(samples)
        if samples.has_report:
            arrived.append((time.monotonic(), samples.take()))
    (pid,) = samples.pids
    samples.end()
    assert is_gone(pid)
    assert len(arrived) == 3
    assert 8 < arrived[2][0] - arrived[1][0] < 14
    assert all({"gpu0.memory_gb", "gpu0.temperature_c"} <= figures.keys() for _, figures in arrived)
