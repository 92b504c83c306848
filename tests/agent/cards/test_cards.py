"""The cards and who holds them: real processes hold simulated cards, and the probe tells each for what it is."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.cards import DRIVER, uuid_of
from testbed.client import is_gone, missing, until
from testbed.tables import mostly_long

from launcher.agent.cards import nvidia, other_vendors
from launcher.agent.diagnosis import diagnose
from launcher.agent.liveness.ownership import Owner
from launcher.agent.system import process
from launcher.values.facts import Gpu


def look(root="/nowhere"):
    """One look, as the client reads it."""
    told = nvidia.read_cards(str(root))
    return [Gpu.model_validate(gpu, strict=False) for gpu in told.pop("gpus")], told


def holders(root="/nowhere"):
    """Who holds the cards, by pid."""
    return {holder.pid: holder for gpu in look(root)[0] for holder in gpu.holders}


@contextlib.contextmanager
def running(words, **more):
    """A process for as long as this lasts; the table may still have its parent's name in the first moment."""
    with subprocess.Popen(words, **more) as process:
        try:
            yield process
        finally:
            process.kill()


def stranger(name="nobody"):
    """Another user's name."""
    if os.geteuid() != 0:
        missing("a second user needs root")
    return name


# what nvidia-smi tells


def test_all_that_is_asked_of_a_card_is_told(cards):
    """Mode, slices, errors and memory, beside what a plan needs."""
    cards.put("l40s", "t4")
    cards.change(
        0, compute_mode="Exclusive_Process", memory_used=812, ecc_errors_uncorrected_volatile_total=2
    )
    cards.change(1, mig_mode_current="Enabled", ecc_errors_uncorrected_volatile_total="[N/A]")
    (first, second), more = look()
    assert first == Gpu(
        index=0, uuid=uuid_of(0), name="NVIDIA L40S", capability="8.9", memory_mib=45372, memory_used_mib=812,
        driver=DRIVER, compute_mode="exclusive-process", ecc_errors=2,
    )  # fmt: skip
    assert (second.mig, second.ecc_errors, second.compute_mode) == (True, None, "default")
    assert more == {"gpu_error": None, "holders_error": None, "nvidia_mps": False}


@mostly_long(
    ("written", "mode"),
    [
        ("Default", "default"), ("Exclusive_Process", "exclusive-process"), ("E. Process", "exclusive-process"),
        ("exclusive process", "exclusive-process"), ("Prohibited", "prohibited"), ("[N/A]", None), ("New", None),
    ], ci=(1, 2, 6),
)  # fmt: skip
def test_a_compute_mode_is_known_however_it_is_written(cards, written, mode):
    """The query and the table of nvidia-smi have a word each."""
    cards.put(("l40s", {"compute_mode": written}))
    assert look()[0][0].compute_mode == mode


def test_what_is_not_told_is_none_and_the_card_is_there(cards):
    """As on laptops, under WSL and on cards without ECC or MIG."""
    cards.put("l40s")
    held = cards.hold(0)
    for words in ("[N/A]", "[Not Supported]", "N/A", "[Unknown Error]"):
        columns = ("compute_cap", "memory_total", "memory_used", "compute_mode", "pci_bus_id")
        cards.change(0, **dict.fromkeys(columns, words))
        (gpu,), more = look()
        assert (gpu.name, gpu.uuid, gpu.driver) == ("NVIDIA L40S", uuid_of(0), DRIVER)
        assert (gpu.capability, gpu.memory_mib, gpu.compute_mode) == (None, None, None)
        assert [holder.pid for holder in gpu.holders] == [held.pid]
        assert more["gpu_error"] is None
    cards.fail("compute-apps", "na")
    assert holders()[held.pid].memory_mib is None


def test_an_old_nvidia_smi_is_asked_for_what_it_knows(cards):
    """It names one field that it does not know, and refuses all."""
    cards.put("p100")
    cards.forget("compute_cap", "mig.mode.current", "used_memory")
    held = cards.hold(0)
    (gpu,), more = look()
    assert (gpu.name, gpu.memory_mib, gpu.capability, gpu.mig) == ("Tesla P100-PCIE-16GB", 16280, None, None)
    assert [(one.pid, one.memory_mib) for one in gpu.holders] == [(held.pid, None)]
    assert more["gpu_error"] is None


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A stand-in for the driver's library, which tells of the cards 0 and 1."""
    if shutil.which("cc") is None:
        missing("a C compiler")
    source = Path(__file__).parents[2] / "testbed" / "nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def test_what_nvidia_smi_does_not_tell_the_drivers_library_does(cards, library):
    """An old one knows no capability, and some report no memory."""
    cards.put("titan_rtx")
    cards.change(0, name="NVIDIA TITAN V", memory_total="[N/A]")
    cards.forget("compute_cap", "mig.mode.current")
    (gpu,), _ = look()
    assert (gpu.capability, gpu.memory_mib, gpu.uuid) == ("7.0", 12066, uuid_of(0))


def test_a_card_in_slices_is_its_slices_each_with_its_own_memory(cards, library):
    """What nvidia-smi tells of the whole card is not what a training gets. Who holds which slice it does not tell."""
    cards.put("p100", "a100_40gb")
    cards.change(1, mig_mode_current="Enabled")
    held = cards.hold(1)
    (whole, large, small), _ = look()
    assert (whole.name, whole.memory_mib) == ("Tesla P100-PCIE-16GB", 16280)
    assert (large.name, large.memory_mib, large.capability) == (
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968, "8.0",
    )  # fmt: skip
    assert (small.name, small.memory_mib, small.index) == ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 1)
    assert [holder.pid for holder in (*large.holders, *small.holders)] == [held.pid] * 2
    assert {large.uuid, small.uuid} < nvidia.listed()
    cards.change(1, mig_mode_current="Disabled")
    assert [gpu.uuid for gpu in look()[0]] == [uuid_of(0), uuid_of(1)]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            {"vendor": "0x1002", "device": "0x74a1", "mem_info_vram_total": "206141652992"},
            ["AMD GPU 1002:74a1 (206 GB)"],
        ),
        (
            {"vendor": "0x1002", "device": "0x1681", "mem_info_vram_total": "536870912"},
            [],
        ),  # a processor's own
        ({"vendor": "0x1002", "device": "0x744c"}, ["AMD GPU 1002:744c"]),  # another driver tells no memory
        ({"vendor": "0x8086", "device": "0x56c0"}, ["Intel GPU 8086:56c0"]),
        ({"vendor": "0x10de", "device": "0x2684"}, []),  # nvidia-smi tells of it
        ({}, []),
    ],
)
def test_gpus_of_other_makers_are_named(tmp_path, made, told):
    """By what Linux knows of them."""
    card = tmp_path / "sys/class/drm/card1"
    (tmp_path / "sys/devices/0000:83:00.0").mkdir(parents=True)
    for name, text in made.items():
        (tmp_path / "sys/devices/0000:83:00.0" / name).write_text(f"{text}\n")
    card.mkdir(parents=True)
    (card / "device").symlink_to(tmp_path / "sys/devices/0000:83:00.0")
    (tmp_path / "sys/class/drm/card1-DP-1").mkdir()
    assert other_vendors.list_gpus(str(tmp_path)) == told


@mostly_long(
    ("fault", "error"),
    [
        ("nvml", "(18): Failed to initialize NVML: Driver/library version mismatch"),
        ("lost", "(15): Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost."),
        ("unknown", "0000:02:00.0: Unknown Error"),
        ("hang", "did not answer in 2 s"),
    ],
    ci=(1, 3),
)
def test_a_query_that_fails_costs_its_own_answer(cards, monkeypatch, fault, error):
    """Cards without holders say that the holders are not known; no card says why there is none."""
    monkeypatch.setattr(nvidia, "SMI_TIMEOUT_S", 2)
    cards.put("l40s")
    cards.hold(0)
    cards.fail("compute-apps", fault)
    (gpu,), more = look()
    assert (gpu.holders, more["gpu_error"]) == ((), None)
    assert error in more["holders_error"]
    cards.fail("gpu", fault)
    found, more = look()
    assert (found, more["holders_error"]) == ([], None)
    assert error in more["gpu_error"]


def test_a_lost_card_is_told_beside_those_that_are_there(cards):
    """With nvidia-smi's own words; whether it says so in a line or in a cell."""
    cards.put("l40s", "l40s")
    cards.change(0, lost=True)
    (gpu,), more = look()
    assert gpu.uuid == uuid_of(1)
    assert "GPU is lost" in more["gpu_error"]
    row = "1, [GPU is lost], [GPU is lost], [GPU is lost]"
    found = nvidia.read_answer(("index", "uuid", "name", "compute_cap"), 0, row, "")
    assert nvidia.read_card(found.rows[0], {}) is None
    assert found.error == f"nvidia-smi: GPU {row.replace(',', '')}"


def test_no_nvidia_smi_is_no_card_and_no_error(monkeypatch, tmp_path):
    """As on most machines."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.read_cards("/nowhere") == {"gpus": [], "gpu_error": None}


CELLS = st.text(max_size=12) | st.sampled_from(["0", "7", "[N/A]", "Enabled", "00000000:3B:00.0", uuid_of(0)])


@given(st.text() | st.lists(CELLS, min_size=2, max_size=12).map(",".join), st.integers(0, 9))
def test_any_line_of_nvidia_smi_is_data(line, code):
    """A line is a card or none; it is never an error of ours, and what is a number is one."""
    answer = nvidia.read_answer(nvidia._FIELDS, code, line, "")
    for row in answer.rows:
        found = nvidia.read_card(row, {})
        assert found is None or Gpu.model_validate(found).index >= 0


# what the kernel tells


def test_the_drivers_errors_are_those_of_the_card_in_that_place(cards, tmp_path, monkeypatch):
    """The latest, by bus and device, however many digits the domain has."""
    cards.put("l40s", "l40s")
    lines = ["6,1,0,-;NVRM: Xid (PCI:0000:03:00): 13, pid=77, name=python, Graphics Exception"] * 9
    lines += ["4,2,0,-;NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.", "4,3,0,-;usb 1-1: Xid 5"]
    (tmp_path / "kmsg").write_text("\n".join(lines))
    monkeypatch.setattr(nvidia, "KERNEL_LOG", str(tmp_path / "kmsg"))
    first, second = look()[0]
    assert (first.xids, second.xids) == ((), (13,) * 7 + (79,))


def test_a_kernel_log_that_may_not_be_read_is_no_error(monkeypatch):
    """It is root's alone on most hosts; this machine's own is read where it may be."""
    nvidia._kernel_log()
    monkeypatch.setattr(nvidia, "KERNEL_LOG", "/nowhere")
    assert nvidia._xids() == {}


def test_the_mps_daemon_is_known_by_its_name_and_by_its_folder(tmp_path, monkeypatch):
    """Either: processes may be hidden, and the folder may be another one."""
    monkeypatch.setattr(nvidia, "MPS_FOLDER", str(tmp_path / "missing"))
    assert not nvidia.has_mps()
    shutil.copy("/bin/sleep", tmp_path / "nvidia-cuda-mps-control")
    with running([tmp_path / "nvidia-cuda-mps-control", "1000"]):
        until(nvidia.has_mps, "the daemon")
    assert not nvidia.has_mps()
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert nvidia.has_mps()


# who holds them


def test_a_holder_is_told_with_user_command_age_and_memory(cards):
    """As the process table has them, another user's too; a card that nobody holds has none."""
    cards.put("l40s", "l40s")
    mine, other = cards.hold(0, 1200), cards.hold(0, 70, user=stranger())
    (held, free), _ = look()
    assert (held.is_held, free.is_held, held.memory_used_mib) == (True, False, 1271)
    found = {holder.pid: holder for holder in held.holders}
    assert set(found) == {mine.pid, other.pid}
    assert (found[other.pid].user, found[mine.pid].user) == ("nobody", "root")
    assert found[mine.pid].command == f"/usr/bin/python3 -B {cards.folder}/holder.py 1200"
    assert (found[mine.pid].memory_mib, found[other.pid].memory_mib) == (1200, 70)
    stat = Path(f"/proc/{mine.pid}/stat").read_text().rpartition(")")[2].split()
    assert (found[mine.pid].start, found[mine.pid].state) == (stat[19], stat[0])
    said = subprocess.run(["ps", "-o", "etimes=", "-p", str(mine.pid)], capture_output=True, check=True)
    assert found[mine.pid].age_s == pytest.approx(int(said.stdout), abs=5)
    assert (found[mine.pid].ownership, found[mine.pid].container, found[mine.pid].means) == (
        "stranger",
        None,
        None,
    )


def test_an_exclusive_card_refuses_the_second_and_a_prohibited_one_all(cards):
    """In CUDA's own words, which `launch diagnose` knows; in default mode the second one is let in."""
    cards.put(("l40s", {"compute_mode": "Exclusive_Process"}), ("t4", {"compute_mode": "Prohibited"}), "t4")
    first = cards.hold(0)
    for index in (0, 1):
        refused = cards.start(index)
        _, said = refused.communicate()
        assert refused.returncode == 1
        last = said[said.index("torch.AcceleratorError") :].splitlines()[0]
        assert last == "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
        assert diagnose.diagnose(said.encode()).name == "gpu-busy-exclusive"
    cards.hold(2)
    cards.hold(2)
    assert [len(gpu.holders) for gpu in look()[0]] == [1, 0, 2]
    first.kill()
    first.wait()
    cards.hold(0)


def test_a_stopped_holder_holds_and_is_told_so(cards):
    """It looks idle, and nobody else can have the card."""
    cards.put(("l40s", {"compute_mode": "Exclusive_Process"}))
    held = cards.hold(0)
    os.kill(held.pid, signal.SIGSTOP)
    until(lambda: process.find(held.pid).letter == "T", "the stop")
    found = holders()[held.pid]
    assert (found.state, "its owner can" in found.means) == ("T", True)
    assert cards.start(0).wait() == 1
    os.kill(held.pid, signal.SIGCONT)
    until(lambda: holders()[held.pid].means is None, "the going on")


def test_a_dead_holder_that_nobody_collects_holds_nothing(cards):
    """Its contexts end with it, whatever killed it; a zombie that is named all the same is told for what it is."""
    cards.put(("l40s", {"compute_mode": "Exclusive_Process"}))
    held = cards.hold(0)
    os.kill(held.pid, signal.SIGKILL)
    until(lambda: is_gone(held.pid), "the death")
    assert process.find(held.pid).letter == "Z"
    assert holders() == {}
    row = {"gpu_uuid": uuid_of(0), "pid": str(held.pid), "used_memory": "9", "process_name": "python"}
    ((_, told),) = nvidia._holders("/nowhere", [row])
    assert (told["state"], told["command"]) == ("Z", "python")
    assert "its parent has to collect it" in told["means"]
    assert not Gpu(index=0, uuid="u", name="n", holders=(told,)).is_held


def test_a_forked_child_holds_nothing_of_its_parents(cards):
    """The context is its parent's: the card is free when that has gone, though the child lives."""
    cards.put(("l40s", {"compute_mode": "Exclusive_Process"}))
    code = (
        f"import sys, os, time; sys.path.insert(0, {str(cards.folder)!r}); import context; context.open_context()\n"
        "print(os.fork(), flush=True); time.sleep(1000)"
    )
    words = ["/usr/bin/python3", "-B", "-c", code]
    with running(words, env=cards.env(0), stdout=subprocess.PIPE, text=True) as parent:
        child = max(int(parent.stdout.readline()), int(parent.stdout.readline()))
        try:
            assert set(holders()) == {parent.pid}
            parent.kill()
            parent.wait()
            assert not is_gone(child)
            assert holders() == {}
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_that_waits_for_a_driver_hides_no_other(cards, monkeypatch):
    """The memory of such a process cannot be read before the driver answers: what lies there is not waited for."""
    cards.put("l40s")
    stuck, other = cards.hold(0), cards.hold(0)
    gone, real, command = threading.Event(), process.find, nvidia._command

    def find(pid):
        found = real(pid)
        if pid == stuck.pid:
            found.letter = "D"
        return found

    def hang(pid):
        return gone.wait() if pid == stuck.pid else command(pid)

    def owners_of(_root, pids):
        hang(*pids)
        return {pid: Owner("ours-live", "r") for pid in pids}

    monkeypatch.setattr(process, "find", find)
    monkeypatch.setattr(nvidia, "_command", hang)
    monkeypatch.setattr(nvidia.ownership, "owners_of", owners_of)
    found = holders()
    gone.set()
    assert (found[stuck.pid].state, found[stuck.pid].ownership) == ("D", "stranger")
    assert found[stuck.pid].command == "/usr/bin/python3"
    assert "it cannot be ended before that answers" in found[stuck.pid].means
    assert (found[other.pid].ownership, found[other.pid].means) == ("ours-live", None)


def test_a_holder_of_another_pid_namespace_is_told_as_far_as_nvidia_smi_does():
    """Its pid means nothing in the table that is seen."""
    with subprocess.Popen(["true"]) as past:
        pass
    row = {"gpu_uuid": "u", "pid": str(past.pid), "used_memory": "70", "process_name": "py\x1b[31mthon"}
    ((uuid, told),) = nvidia._holders("/nowhere", [row])
    assert (uuid, told["state"], told["user"], told["start"]) == ("u", None, None, None)
    assert (told["command"], told["memory_mib"], told["ownership"]) == ("py [31mthon", 70, "stranger")
    assert "another pid namespace" in told["means"]


def test_a_command_line_is_bounded_and_steers_no_terminal():
    """It is a stranger's text."""
    with running(["sleep", "1000"]) as plain:
        until(lambda: nvidia._command(plain.pid) == "sleep 1000", "its words")
    text = nvidia.printable("\x1b]0;title\x07" + "x" * 900 + "\u202e")
    assert len(text) <= nvidia.MAX_CHARS
    assert text.isprintable()


HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (f"0::/system.slice/docker-{HEX}.scope\n", HEX[:12]),
        (f"12:pids:/docker/{HEX}\n0::/\n", HEX[:12]),
        (f"0::/kubepods.slice/pod1.slice/cri-containerd-{HEX}.scope\n", HEX[:12]),
        (f"0::/user.slice/user-1000.slice/libpod-{HEX}.scope/container\n", HEX[:12]),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", None),
        (f"0::/system.slice/{HEX}0.scope\n", None),
    ],
)
def test_a_container_is_known_by_its_cgroup(text, short):
    """Docker's, containerd's and podman's names, in both versions of cgroups."""
    found = nvidia._CONTAINER.search(text)
    assert (found[1][:12] if found else None) == short


REAL = """
import ctypes, time
cuda, device, made = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), device), flush=True)
time.sleep(1000)
"""


@pytest.mark.gpu
def test_a_real_card_is_told_as_its_own_tool_tells_it_with_who_holds_it():
    """All columns are known to a real nvidia-smi; a real context is a holder until its process ends."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA card here")
    query = ["nvidia-smi", "--query-gpu=uuid,name,compute_cap", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    gpus, more = look()
    assert [f"{gpu.uuid}, {gpu.name}, {gpu.capability}" for gpu in gpus] == said
    assert (more["gpu_error"], more["holders_error"]) == (None, None)
    assert all(gpu.compute_mode and gpu.memory_mib and gpu.memory_used_mib is not None for gpu in gpus)
    with running([sys.executable, "-c", REAL], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "0\n"
        found = holders()
        if holder.pid not in found:
            pytest.skip("nvidia-smi tells no pids of this namespace, as in a container")
        assert found[holder.pid].state in "RS"
    until(lambda: holder.pid not in holders(), "the end of its context")
