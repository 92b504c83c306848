"""Fixtures: a client for each test, this machine as a host, an SSH host and machines for the session."""

from __future__ import annotations

import compileall
import gc
import importlib.util
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import platformdirs
import pytest
from testbed.cache import demo_parts, wheelhouse
from testbed.cards import Cards
from testbed.client import IS_REQUIRED, REPOSITORY, Client, kill_all_of, missing
from testbed.durations import Durations
from testbed.engine import Engine, Podman, RootlessEngine, engine_in_a_machine
from testbed.kaggle_account import KaggleAccount, habits
from testbed.kaggle_service import KaggleService
from testbed.lambda_cloud import LambdaCloud, lambda_cloud_for
from testbed.machine import Machine, remove_bridge
from testbed.missing_part import MissingPartError
from testbed.slurm_cluster import SlurmCluster, slurm_cluster
from testbed.sshd import SshHost
from testbed.toy import Toy
from testbed.wheels import WheelServer, make_torch, make_wheel

# Hypothesis times no test. CI tries the same examples every time; a person's run tries new ones.
hypothesis.settings.register_profile("ours", deadline=None, derandomize=IS_REQUIRED)
hypothesis.settings.load_profile("ours")

# Two workers that train on all cores at once would wait for each other at each step.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell makes a background job ignore Ctrl-C, and the clients that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# To look for cycles among the objects of 10,000 tests takes a quarter of their collection, and finds none.
gc.disable()


REAL_INDEX = Path(platformdirs.user_data_dir("launch")) / "runs"


def index_of_tests() -> list[str]:
    """The runs of tests in the index of whoever runs them: it names a copy below the folder for temporary files."""
    return [
        path.parent.name
        for path in REAL_INDEX.glob("*/run.json")
        if f'"{tempfile.gettempdir()}/' in path.read_text()
    ]


@pytest.fixture(autouse=True, scope="session")
def real_index_is_left_alone() -> Iterator[None]:
    """No test enters a run into the index of whoever runs the tests."""
    before = index_of_tests()
    yield
    assert index_of_tests() == before


@pytest.fixture(autouse=True)
def own_index(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a test does in this process has an index of its own; with the fixture `client`, the one of that client's home."""
    folder = tmp_path_factory.getbasetemp() / "indexes" / f"{abs(hash(request.node.nodeid)):x}"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))


@pytest.fixture(scope="session", autouse=True)
def own_files_are_trusted(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests write is trusted where they use the launcher in their own process; `Client` says so for its commands."""
    os.environ["LAUNCH_TRUST"] = str(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def handler_of_ctrl_c_is_left_alone() -> Iterator[None]:
    """A test that changes it, as a command's `main` does, would have a later one end the whole worker."""
    yield
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.default_int_handler


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client with an empty home, whose index what the test does in this process has too.

    Its commands and its runs' processes that are left on this machine are ended afterwards.
    """
    person = Client(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(person.home / ".local/share"))
    yield person
    person.end_commands()
    for run in (person.home / ".launch" / "runs").glob("*"):
        kill_all_of(run)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    """A run on this machine, made by hand; what it leaves is ended."""
    made = Toy(tmp_path)
    yield made
    made.clear_away()


@pytest.fixture
def listed_cards(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Put so many TITAN RTX into this machine, as far as the client's nvidia-smi says; nothing holds or refuses them."""
    folder = client.home / "bin"
    folder.mkdir()
    monkeypatch.setitem(client.variables, "PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(count: int) -> None:
        rows = [f"echo '{n}, GPU-card-{n}, NVIDIA TITAN RTX, 7.5, 24576, 580.65'" for n in range(count)]
        (folder / "nvidia-smi").write_text("\n".join(["#!/bin/sh", *rows, ""]))
        (folder / "nvidia-smi").chmod(0o755)

    return put


@pytest.fixture(scope="session")
def ssh_host() -> Iterator[SshHost]:
    """An sshd on loopback with an ordinary user, up for the session."""
    # Not below pytest's own folders: that user may not enter them.
    host = SshHost(Path(tempfile.mkdtemp(prefix="launch-testbed-")))
    try:
        host.up()
        yield host
    except MissingPartError as error:
        missing(str(error))
    finally:
        host.down()
        shutil.rmtree(host.folder)


@pytest.fixture(scope="session")
def machines() -> Iterator[tuple[Machine, Machine]]:
    """Two hosts, up for the session, each with its own pids, names, network, ids and users."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    first, second = (Machine(name, number, folder / name) for name, number in (("outer", 40), ("inner", 41)))
    try:
        for machine in (first, second):
            machine.make()
            machine.up()
        yield first, second
    except MissingPartError as error:
        missing(str(error))
    finally:
        for machine in (first, second):
            machine.kill()
        remove_bridge()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Show a message at once, in spite of pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def tell(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    return tell


@pytest.fixture(scope="session")
def engine(say: Callable[[str], None]) -> Iterator[Engine]:
    """A Docker Engine with the base image in its own machine, up for the session; see engine_in_a_machine."""
    try:
        with engine_in_a_machine("dock", 42, say) as made:
            yield made
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def engine_machine(engine: Engine) -> Machine:
    """The machine of that engine."""
    return engine.machine


@pytest.fixture(scope="session")
def rootless_engine(engine_machine: Machine) -> Iterator[RootlessEngine]:
    """User rae's rootless engine in the same machine, with the base image; her docker client uses it."""
    try:
        made = RootlessEngine(engine_machine, "rae")
        made.start()
        made.load_base()
        made.become_default()
    except MissingPartError as error:
        missing(str(error))
    yield made
    made.stop_gracefully()


def _podman(machine: Machine, user: str) -> Iterator[Podman]:
    try:
        made = Podman(machine, user)
        made.start()
        made.load_base()
    except MissingPartError as error:
        missing(str(error))
    yield made


@pytest.fixture(scope="session")
def podman(engine_machine: Machine) -> Iterator[Podman]:
    """Root's Podman in the same machine, with the base image."""
    yield from _podman(engine_machine, "root")


@pytest.fixture(scope="session")
def rootless_podman(engine_machine: Machine) -> Iterator[Podman]:
    """User rae's Podman in the same machine, with the base image."""
    yield from _podman(engine_machine, "rae")


@pytest.fixture(scope="session")
def wheels(say: Callable[[str], None]) -> Iterator[WheelServer]:
    """A package index with torch and related packages for the base image's Python, on the bridge."""
    try:
        server = WheelServer(wheelhouse(say))
    except MissingPartError as error:
        missing(str(error))
    server.up()
    yield server
    server.down()


@pytest.fixture(scope="session")
def small_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel `small` and a stand-in for torch's: a build with them takes seconds."""
    folder = tmp_path_factory.mktemp("small-wheels")
    make_torch(folder, "2.13.0+cpu")
    make_wheel(folder, "small", "1.0")
    return folder


@pytest.fixture
def lab(client: Client, ssh_host: SshHost) -> SshHost:
    """The SSH host, named `A` in the client's project."""
    (client.project / "launch.toml").write_text(ssh_host.table())
    return ssh_host


@pytest.fixture
def kaggle_account(client: Client, tmp_path: Path) -> Iterator[KaggleAccount]:
    """An account of Kaggle's stand-in, and a project that trains there; see KaggleAccount."""
    with KaggleService(tmp_path / "service", habits()) as service:
        yield KaggleAccount(client, service, tmp_path)


@pytest.fixture
def lambda_cloud(client: Client, tmp_path: Path) -> Iterator[LambdaCloud]:
    """An account of Lambda Cloud's stand-in with machines, and a project that trains there; see LambdaCloud."""
    try:
        with lambda_cloud_for(client, tmp_path) as made:
            yield made
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def slurm_for_all() -> Iterator[SlurmCluster]:
    """A Slurm cluster of two login nodes and two compute nodes, up for the session; with accounting only for `make slurm`."""
    try:
        with slurm_cluster(has_accounting="LAUNCH_SLURM_ACCOUNTS" in os.environ) as made:
            yield made
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture
def slurm(slurm_for_all: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's Slurm cluster; the jobs that a test leaves there are ended."""
    yield slurm_for_all
    slurm_for_all.clear()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 5.3 MiB: an agent with its compiled code takes 3.3 MiB."""
    if os.geteuid() != 0:
        missing("a small file system of its own needs root")
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5440k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    """Simulated cards of this machine, none at first. Their nvidia-smi is first on PATH."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)  # other users hold cards too
    made = Cards(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def demo(say: Callable[[str], None]) -> Path:
    """A cache folder with the demo model and data."""
    if importlib.util.find_spec("torch") is None:  # looked for, not imported: that takes seconds
        pytest.skip("torch is not installed")
    try:
        return demo_parts(say)
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture
def copy_demo(demo: Path) -> Callable[[Path], None]:
    """Put the demo's model and data into a root's cache."""

    def put(root: Path) -> None:
        shutil.copytree(demo, root / "cache", dirs_exist_ok=True)

    return put


_TESTBED = {
    "ssh_host",
    "machines",
    "engine",
    "rootless_engine",
    "wheels",
    "ssh_native",
    "ssh_docker",
    "podman",
    "rootless_podman",
    "lambda_cloud",
    "boxed",
    "slurm_for_all",
}
_TRAINING = {"demo"}
"""Fixtures that mark each test that uses them as `testbed` or `training`."""
_BRIDGED = {"machines", "pair", "engine", "podman", "rootless_podman", "wheels", "boxed"}
"""Fixtures that need the bridge between machines, which has one set of addresses."""
_ON_THE_BRIDGE = {
    "fixtures/record_runs.py", "transport/test_behind.py", "transport/test_hops.py", "runs/recover/test_bad_links.py", "runs/batch/test_batches_everywhere.py", "runs/places/test_containers.py",
    "runs/places/test_engine_ways.py", "runs/recover/test_faults.py", "runs/places/test_images.py", "runs/recover/test_kills.py", "runs/stop/test_leftovers.py",
    "runs/places/test_machines.py", "runs/places/test_cards_in_containers.py", "runs/places/test_podman.py", "runs/recover/test_power_cut.py", "runs/rental/test_renting_containers.py", "backends/test_container.py", "backends/test_engine.py", "testbed/test_engine.py",
}  # fmt: skip
"""The files with such tests. They run one after the other, in one worker, which starts each machine once."""
_WITH_LIBRARIES = (
    "jobs/", "seeds/", "worker/", "runs/recover/test_observed.py", "runs/metrics/test_host_figures_shown.py", "runs/metrics/test_tensorboard.py",
)  # fmt: skip
"""The folders and files of tests that import torch and transformers, which takes 8 s of processor time: one worker does it for all."""
_LONGEST_FIRST = (
    "bridge", "libraries", "docs/test_blocks.py", "contract/test_contract.py", "agent/training/test_mending.py", "agent/segment/test_segment.py",
    "transport/test_held.py", "cli/test_lambda_words.py", "runs/rental/test_renting_promises.py", "runs/safe/test_trust.py", "runs/copy/test_recorded_runs.py",
    "runs/slurm/test_slurm_planning.py", "runs/places/test_local.py", "runs/recover/test_resume.py", "runs/batch/test_batches.py", "agent/cards/test_host_figures.py",
    "agent/training/test_attempts.py", "transport/test_ssh.py", "runs/places/test_over_ssh.py", "runs/rental/test_renting.py", "agent/liveness/test_silence.py",
    "runs/move/test_moving.py", "runs/copy/test_coming_home.py", "cli/test_terminal.py", "runs/stop/test_sweep.py", "runs/stop/test_cards.py",
    "trainings/test_trainings.py", "runs/move/test_abandoning.py", "runs/slurm/test_slurm_verbs.py", "runs/kaggle/test_kaggle_clients.py",
    "runs/places/test_environments.py", "runs/recover/test_recovering.py", "cli/test_kaggle_words.py", "runs/safe/test_hostile_clone.py",
    "runs/follow/test_following.py", "runs/stop/test_cleaning.py", "runs/batch/test_batch_rents.py", "rental/test_rental_kills.py", "runs/stop/test_leases.py",
    "cli/test_shells.py", "cli/test_compare.py", "runs/copy/test_hostile_copies.py", "runs/rental/test_renting_newcomers.py", "runs/places/test_hard_places.py",
    "cli/test_json.py", "programs/test_programs.py", "runs/follow/test_exec.py", "runs/check/test_verifying.py", "agent/store/test_succession.py",
    "runs/rental/test_renting_keepers.py", "runs/copy/test_index.py", "runs/kaggle/test_kaggle_upkeep.py", "runs/stop/test_exclusive.py", "cli/test_hosts.py",
    "runs/slurm/test_slurm_nodes.py", "cli/test_streams.py", "runs/stop/test_always_stoppable.py", "runs/follow/test_on_a_line.py", "runs/plan/test_job_check.py",
    "transport/test_line.py", "runs/slurm/test_slurm_faults.py", "agent/training/test_trials.py", "runs/copy/test_checkpoint_pulling.py", "cli/test_probe.py",
    "agent/cards/test_cards.py", "runs/rental/test_renting_moves.py", "fuzz/test_fuzz.py",
)  # fmt: skip
"""The groups that take longest, longest first, so that the workers end at the same time."""


def _group(nodeid: str) -> str:
    """Return what a test is run together with: its file, `bridge`, or `libraries`."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    is_bridged = path in _ON_THE_BRIDGE or any(
        place in nodeid
        for place in ("[ssh_docker", "[ssh_podman", "[ssh_rootless_podman", "[lambda_container")
    )
    return "bridge" if is_bridged else "libraries" if path.startswith(_WITH_LIBRARIES) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give whole groups to each worker of `pytest -n 2`.

    xdist's own marker for groups does not work with pytest 9.2, which forbids it to change a test's id.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # it orders by the number of tests, not by their time

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

        def remove_node(self, node: object) -> str | None:
            """Hand out what a worker that died has not run, and return the test in which it died.

            xdist would hand out that test again, and whole groups that are done, and wait for these for ever.
            """
            groups = self.assigned_work.pop(node)
            left = {name: tests for name, tests in groups.items() if not all(tests.values())}
            if not left:
                return None
            tests = next(iter(left.values()))
            crashed: str = next(test for test, is_done in tests.items() if not is_done)
            tests[crashed] = True
            self.workqueue.update((name, tests) for name, tests in left.items() if not all(tests.values()))
            for other in set(self.assigned_work) & set(self.registered_collections):
                self._reschedule(other)
            return crashed

    return ByGroup(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the launcher once, as an installation does, so that not every client that a test starts compiles it.

    Where PYTHONDONTWRITEBYTECODE is set, compiling is half of a client's time. Bytecode is checked by the source's hash,
    not by its time: a mutant may have the time and the size of the file that it replaces.
    """
    if not hasattr(config, "workerinput"):
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(REPOSITORY / "launcher", quiet=2, invalidation_mode=mode)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, check what the markers and lists above claim, and put the longest groups first."""
    for item in items:
        path = item.path.relative_to(REPOSITORY / "tests").as_posix()
        fixtures = set(getattr(item, "fixturenames", ()))
        assert not fixtures & _BRIDGED or path in _ON_THE_BRIDGE, (
            f"{path} uses machines: name it in tests/conftest.py"
        )
        if fixtures & _TESTBED:
            item.add_marker(pytest.mark.testbed)
        if fixtures & _TRAINING:
            item.add_marker(pytest.mark.training)
        for marker in item.iter_markers("slow"):
            assert marker.kwargs.get("reason"), f"{item.nodeid}: slow(reason=...) says why it takes long"
    places = {group: place for place, group in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(_group(item.nodeid), len(places)))


def pytest_collection_finish() -> None:
    """Look for cycles again, but not among what was collected."""
    gc.freeze()
    gc.enable()


_durations = Durations()


def pytest_runtest_logstart() -> None:
    """Count a test's CPU seconds from here."""
    _durations.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the CPU seconds with the report of each phase, to the process that collects the reports."""
    report = yield
    _durations.measure(report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add what a phase took."""
    _durations.add(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep how pytest ended: `.ci/run` asks, and make does not say it. Keep each test's seconds, for `make durations`."""
    cache = getattr(session.config, "cache", None)  # it can be switched off
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("launcher/exit", int(exitstatus))
        is_whole = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
        _durations.save(cache, is_whole=is_whole)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the golden files anew."""
    parser.addoption(
        "--rewrite-cases", action="store_true", help="write the golden plans of tests/cases anew"
    )
