"""Fixtures: a client of its own for each test, this machine as a host, and an SSH host for the session."""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from testbed.cache import demo_parts, wheelhouse
from testbed.cards import Cards
from testbed.client import IS_REQUIRED, REPOSITORY, Client, missing, processes_of
from testbed.engine import Engine, RootlessEngine, engine_in_a_machine
from testbed.machine import Machine, remove_bridge
from testbed.sshd import MissingPartError, SshHost
from testbed.wheels import WheelServer, make_torch, make_wheel

# No test is timed. CI tries the same examples every time; a person's run tries new ones.
hypothesis.settings.register_profile("ours", deadline=None, derandomize=IS_REQUIRED)
hypothesis.settings.load_profile("ours")

# Beside another worker a training on every core would wait for the other one's at each step.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it starts with `&` ignore Ctrl-C, and our clients would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client with an empty home; whatever its runs left alive on this machine is ended afterwards."""
    person = Client(tmp_path)
    yield person
    for run in (person.home / ".launch" / "runs").glob("*"):
        for pid in processes_of(run):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def ssh_host() -> Iterator[SshHost]:
    """An sshd on loopback with an ordinary user, up for the session."""
    host = SshHost(
        Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    )  # pytest's own folders are closed to that user
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
    """Two hosts of their own, up for the session: pids, names, networks, ids and users apart."""
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
    """Tell the person something at once, past pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def tell(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    return tell


@pytest.fixture(scope="session")
def engine(say: Callable[[str], None]) -> Iterator[Engine]:
    """A Docker Engine with the base image, in a machine of its own, up for the session; see engine_in_a_machine."""
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
    """An engine of user rae's own in the same machine, with the base image, which her docker client uses."""
    try:
        made = RootlessEngine(engine_machine, "rae")
        made.start()
        made.load_base()
        made.become_default()
    except MissingPartError as error:
        missing(str(error))
    yield made
    made.stop_gracefully()


@pytest.fixture(scope="session")
def wheels(say: Callable[[str], None]) -> Iterator[WheelServer]:
    """An index with torch and its kin for the base image's Python, on the bridge."""
    try:
        server = WheelServer(wheelhouse(say))
    except MissingPartError as error:
        missing(str(error))
    server.up()
    yield server
    server.down()


@pytest.fixture(scope="session")
def small_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel `small`, and one that stands for torch: a build of them takes seconds."""
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
def small_disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    if os.geteuid() != 0:
        missing("a small file system of its own needs root")
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    """Simulated cards of this machine, none at first; their nvidia-smi stands first on PATH."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)  # other users hold cards too
    made = Cards(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def demo(say: Callable[[str], None]) -> Path:
    """The demo model and data; a cache folder to copy from."""
    pytest.importorskip("torch")
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


_ON_THE_BRIDGE = {
    "contract/test_contract.py", "hosts/test_behind.py", "hosts/test_hops.py", "runs/test_bad_links.py", "runs/test_containers.py",
    "runs/test_engine_ways.py", "runs/test_images.py", "runs/test_kills.py", "runs/test_leftovers.py",
    "runs/test_machines.py", "runtimes/test_container.py", "runtimes/test_engine.py", "testbed/test_engine.py",
}  # fmt: skip
"""Files whose tests stand machines up: these share one bridge and its addresses, so they run one after the other."""
_LONG = (
    "bridge", "jobs/test_field_reports.py", "runs/test_over_ssh.py", "jobs/test_poisoned.py", "jobs/test_crashes.py",
    "runs/test_leases.py", "runs/test_local.py", "runs/test_following.py", "runs/test_resume.py",
    "jobs/test_rungs.py", "cli/test_terminal.py", "runs/test_cleaning.py", "remote/test_attempts.py",
    "runs/test_hard_places.py", "runs/test_sweep.py", "jobs/test_ranks.py",
)  # fmt: skip
"""What takes longest, longest first: whoever came to it last would be waited for."""


def _unit(path: str) -> str:
    """What a file below tests/ is run with: itself, or all that need the bridge."""
    return "bridge" if path in _ON_THE_BRIDGE else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each of `pytest -n 2`'s workers whole files, and the files on the bridge to one of them.

    Not by xdist's marks for groups: they need a node's id to be written, which pytest 9.2 forbids.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # by the number of tests, which puts the longest of few tests last

    class ByFile(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid.partition("::")[0].removeprefix("tests/"))

    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the launcher once, as an installation does: else each of the thousands of clients may do it anew.

    Where no bytecode is written (PYTHONDONTWRITEBYTECODE) that is half of a client's time. Held against the source's
    content, not its age: a mutant may be as old and as long as what it replaces.
    """
    if not hasattr(config, "workerinput"):
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(REPOSITORY / "launcher", quiet=2, invalidation_mode=mode)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hold the list of those files against what their tests use; let what takes longest begin first."""
    paths = {item: item.path.relative_to(REPOSITORY / "tests").as_posix() for item in items}
    for item, path in paths.items():
        if {"machines", "pair", "engine", "wheels"} & set(getattr(item, "fixturenames", ())):
            assert path in _ON_THE_BRIDGE, f"{path} uses machines: name it in tests/conftest.py"
    places = {unit: place for place, unit in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(_unit(paths[item]), len(places)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let golden files be written anew on purpose."""
    parser.addoption(
        "--rewrite-cases", action="store_true", help="write the golden plans of tests/cases anew"
    )
