"""The places that the contract is tested on, each with a witness that is not the launcher's own code.

To add a place: write a fixture here that yields a `Place`, name it in `PLACES`, and list in `cannot` what it cannot do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from testbed.cache import Say
from testbed.client import REPOSITORY, Client, missing, processes_of
from testbed.engine import BASE, Engine, Podman
from testbed.fork_server import ForkServer
from testbed.kaggle_service import KaggleService
from testbed.kaggle_state import Habits
from testbed.lambda_cloud import LambdaCloud, lambda_cloud_for
from testbed.lambda_machines import Instances
from testbed.machine import remove_bridge
from testbed.missing_part import MissingPartError
from testbed.slurm_cluster import SlurmCluster
from testbed.sshd import SshHost

from launcher.backends.kaggle.kaggle import Account
from launcher.backends.kaggle.kaggle_host import KaggleSettings

HERE = Path(__file__).parent
TESTBED = pytest.mark.testbed
PLACES = (
    pytest.param("local", marks=pytest.mark.long),  # the toy runs on this machine too
    pytest.param("ssh_native", marks=TESTBED),
    pytest.param("ssh_docker", marks=TESTBED),
    pytest.param("ssh_podman", marks=(TESTBED, pytest.mark.long)),  # CI: the rootless one
    pytest.param("ssh_rootless_podman", marks=TESTBED),
    pytest.param("toy"),
    pytest.param("kaggle", marks=TESTBED),
    pytest.param("slurm_job", marks=TESTBED),
    pytest.param("lambda_native", marks=TESTBED),
    pytest.param("lambda_container", marks=(TESTBED, pytest.mark.long)),  # CI: test_renting_containers.py
)
"""The names of the fixtures below; `place` of test_contract.py takes each in turn."""


def _leaving(*names: str) -> tuple[ParameterSet, ...]:
    """Return the places; these are left to `make long`."""
    return tuple(
        pytest.param(*one.values, marks=(*one.marks, pytest.mark.long)) if one.values[0] in names else one
        for one in PLACES
    )


HOSTS = _leaving("lambda_native", "ssh_docker", "ssh_podman")
"""The places for a test in which a rented machine and a host of containers behave like any other host behind SSH."""
OTHER_CLIENTS = _leaving("lambda_native", "ssh_docker", "ssh_podman", "kaggle")
"""The places for a test with a second client. At Kaggle, runs/kaggle/test_kaggle_stopping.py stops a run from another one."""


def _no_sums(run: str) -> dict[str, str]:
    del run
    return {}


@dataclass
class Place:
    """A client and one place where its runs are kept.

    `on_host` runs a command there as the user, by plain ssh or directly, and returns what it printed. It fails if the
    command fails, unless it gets `check=False`.
    """

    client: Client
    host: str
    """The name that `--host` takes."""
    root: str
    """The launcher's folder on the host."""
    on_host: Callable[..., str]
    alive: Callable[[str], list[str]]
    """Returns the processes or containers of a run that are alive."""
    kept: Callable[[str], list[str]]
    """Returns what the place keeps of a run outside its folder, dead or alive, e.g. a container."""
    words: tuple[str, ...] = ()
    """Further words of `launch`, e.g. `--runtime toy`."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """What this place cannot do, by the name of the test after `test_`, and why."""
    left: Callable[[str], dict[str, str]] = _no_sums
    """Returns the same of what the run itself has left elsewhere, of which `root` has only copies."""
    ledger: str = ""
    """Where the training writes its ledger, if not in the cache below `root`."""
    names_machine: Callable[[], str] | None = None
    """Returns the name that `--host` takes for runs that are there, if it is another than that for a launch."""

    @property
    def place(self) -> str:
        """The host that verbs of a run name."""
        return self.names_machine() if self.names_machine is not None else self.host

    def sums(self, run: str) -> dict[str, str]:
        """Return the SHA-256 of each file in a run's folder on the host, by the host's own sha256sum; of none that goes meanwhile."""
        script = f"cd {self.root}/runs/{run} && {{ find . -type f -exec sha256sum {{}} +; true; }}"
        return {**_by_path(self.on_host("sh", "-c", script)), **self.left(run)}

    def mirrored_sums(self, run: str) -> dict[str, str]:
        """Return the SHA-256 of each file in the client's copy of a run."""
        script = "find . -type f -exec sha256sum {} +; true"
        done = subprocess.run(
            ["sh", "-c", script], cwd=self.client.runs / run, check=True, capture_output=True
        )
        return _by_path(done.stdout.decode())

    def traces(self, run: str) -> list[str]:
        """Return the paths below the launcher's folder on the host that name a run, or files that mention it."""
        script = f"cd {self.root} && {{ find . -path './*{run}*'; grep -rl --exclude=sweeps.jsonl {run} . || true; }} | sort -u"
        return self.on_host("sh", "-c", script).split()


def _by_path(text: str) -> dict[str, str]:
    return {line[66:]: line[:64] for line in text.splitlines()}


def _nothing(run: str) -> list[str]:
    del run
    return []


def _here(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout


@pytest.fixture
def local(client: Client) -> Place:
    """This machine, as a process under a keeper."""
    root = client.home / ".launch"
    return Place(
        client=client,
        host="local",
        root=str(root),
        on_host=_here,
        alive=lambda run: [str(pid) for pid in processes_of(root / "runs" / run)],
        kept=_nothing,
    )


@pytest.fixture(scope="session")
def toy_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the launcher with a further backend: a package, its agent's part, and a line in the table of kinds."""
    folder = tmp_path_factory.mktemp("toy")
    for name in ("launcher", "profiles", "jobs", "images"):
        shutil.copytree(REPOSITORY / name, folder / name)  # with its compiled code, see pytest_configure
    package = folder / "launcher" / "backends"
    shutil.copytree(HERE / "toy", package / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    table = package / "kinds.py"
    line = '    "toy": Package("launcher.backends.toy", ("toy",)),\n}\n'
    table.write_text(table.read_text().replace("}\n", line, 1))
    liveness = folder / "launcher" / "agent" / "liveness" / "toy"
    liveness.mkdir()
    (liveness / "__init__.py").touch()
    shutil.copy(HERE / "toy_agent.py", liveness / "toy_liveness.py")
    return folder


@pytest.fixture(scope="session")
def toy_server(toy_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """The process from which that launcher's commands are forked."""
    server = ForkServer(str(tmp_path_factory.mktemp("toy-server")), PYTHONPATH=str(toy_package))
    yield server
    server.end()


@pytest.fixture
def toy(local: Place, toy_package: Path, toy_server: ForkServer) -> Place:
    """This machine as a host of the toy's kind, by a launcher that has it."""
    local.client.variables["PYTHONPATH"] = str(toy_package)
    local.client.server = toy_server
    (local.client.project / "launch.toml").write_text('[hosts.pit]\nkind = "toy"\n')
    local.host = "pit"
    local.kept = lambda run: [str(path) for path in (local.client.home / ".launch-toy").glob(f"{run}*")]
    return local


@pytest.fixture
def ssh_native(client: Client, lab: SshHost) -> Place:
    """A host behind a plain sshd, as a process under a keeper."""

    def alive(run: str) -> list[str]:
        lines = lab.ssh("ps", "-u", lab.user, "-o", "pid=,args=").splitlines()
        return [line for line in lines if run in line or ".py" in line.split(None, 1)[1]]

    return Place(
        client=client,
        host="A",
        root=str(lab.root),
        on_host=lab.ssh,
        alive=alive,
        kept=_nothing,
    )


@pytest.fixture
def ssh_docker(client: Client, engine: Engine) -> Iterator[Place]:
    """A host behind sshd, in a container of its Docker Engine."""
    (client.project / "launch.toml").write_text(
        f'{engine.machine.table("dock", user="ada", runtime="docker")}\n[hosts.dock.build]\nbase = "{BASE}"\n'
    )
    label = "label=launcher.run="
    yield Place(
        client=client,
        host="dock",
        root="/home/ada/.launch",
        on_host=engine.machine.ssh,
        alive=lambda run: engine.docker("ps", "-q", "--filter", label + run).split(),
        kept=lambda run: engine.docker("ps", "-aq", "--filter", label + run).split(),
    )
    for container in engine.docker("ps", "-aq").split():
        engine.docker("rm", "-f", container)
    engine.machine.ssh("rm", "-rf", ".launch/runs")


def _in_podman(client: Client, podman: Podman, root: str) -> Iterator[Place]:
    user = podman.user
    table = podman.machine.table("dock", user=user, runtime="docker", engine="podman")
    (client.project / "launch.toml").write_text(f'{table}\n[hosts.dock.build]\nbase = "{BASE}"\n')
    label = "label=launcher.run="
    yield Place(
        client=client,
        host="dock",
        root=root,
        on_host=lambda *words, check=True: podman.machine.ssh(*words, user=user, check=check),
        alive=lambda run: podman.docker("ps", "-q", "--filter", label + run).split(),
        kept=lambda run: podman.docker("ps", "-aq", "--filter", label + run).split(),
    )
    podman.clear()
    podman.machine.ssh("rm", "-rf", ".launch/runs", user=user)


@pytest.fixture
def ssh_podman(client: Client, podman: Podman) -> Iterator[Place]:
    """Root's login on a host behind sshd, in a container of root's Podman."""
    yield from _in_podman(client, podman, "/root/.launch")


@pytest.fixture
def ssh_rootless_podman(client: Client, rootless_podman: Podman) -> Iterator[Place]:
    """A host behind sshd, in a container of its user's own Podman."""
    yield from _in_podman(client, rootless_podman, "/home/rae/.launch")


@pytest.fixture
def kaggle(client: Client, tmp_path: Path) -> Iterator[Place]:
    """An account of Kaggle's stand-in, which runs each pushed script in a root of its own. What it left is the witness."""
    habits = Habits(python=sys.executable)
    with KaggleService(tmp_path / "service", habits) as service:
        service.account()
        client.variables |= {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "key-of-alice"}
        settings = KaggleSettings(api=service.base)
        (client.project / "launch.toml").write_text(
            f'[hosts.k]\nkind = "kaggle"\napi = "{service.base}"\naccelerator = "None"\nkeep_kernels = true\n'
        )

        def alive(run: str) -> list[str]:
            sessions = [kernel.versions[-1].session for kernel in service.state.kernels.values()]
            return [session.folder.name for session in sessions if not session.is_over]

        def left(run: str) -> dict[str, str]:
            """Return the SHA-256 of each file of a run that its sessions have left, a later one over an earlier one."""
            sums = {}
            for kernel in service.state.kernels.values():
                folder = kernel.versions[-1].session.folder / "working" / "launch" / "runs" / run
                if folder.is_dir():
                    sums |= _by_path(
                        _here("sh", "-c", f"cd {folder} && find . -type f -exec sha256sum {{}} +")
                    )
            return sums

        spool = client.home / ".local" / "share" / "launch" / "spool" / Account(settings, "alice").place
        yield Place(
            client=client,
            host="k",
            root=str(spool),
            on_host=_here,
            alive=alive,
            kept=lambda run: [name for name in service.state.kernels if run in name],
            ledger=str(tmp_path / "ledger"),
            left=left,
            cannot={
                "a_stopped_run_has_saved_and_its_child_continues": "a session of Kaggle's can only be deleted, with what it has saved",
                "stop_now_does_not_wait": "likewise",
            },
        )


@pytest.fixture
def slurm_job(client: Client, slurm: SlurmCluster) -> Iterator[Place]:
    """A cluster behind its login node, as a job on a compute node; its own queue is the witness."""
    table = slurm.logins[0].table("hive")
    (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\npartition = "batch"\n')

    def jobs(run: str) -> list[str]:
        rows = slurm.ssh("squeue", "--me", "--noheader", "--format=%i %T %j %k").splitlines()
        return [row for row in rows if run in row]

    yield Place(
        client=client,
        host="hive",
        root="/home/ada/.launch",
        on_host=slurm.ssh,
        alive=jobs,
        kept=jobs,
        words=("--profile", "cpu"),
    )
    slurm.ssh("rm", "-rf", ".launch/runs")


def _on_rented_machines(cloud: LambdaCloud, **more: object) -> Place:
    """A machine rented for each launch, and kept; `more` are keys of the plain host that is named for it."""
    machines = cloud.instances

    def on_host(*words: str, check: bool = True) -> str:
        return machines.newest.ssh(*words, check=check) if machines.machines else ""

    def there() -> str:
        cloud.name_machine("there", **more)
        return "there"

    def alive(run: str) -> list[str]:
        lines = on_host("ps", "-u", "ubuntu", "-o", "pid=,args=").splitlines()
        return [line for line in lines if run in line or "train.py" in line]

    return Place(
        client=cloud.client,
        host="rented",
        root="/home/ubuntu/.launch",
        on_host=on_host,
        alive=alive,
        kept=_nothing,
        names_machine=there,
    )


@pytest.fixture
def lambda_native(lambda_cloud: LambdaCloud) -> Place:
    """A machine rented from Lambda Cloud's stand-in for each launch, and kept, as a process under a keeper."""
    lambda_cloud.table(keep=True, profile="a100_40gb")
    return _on_rented_machines(lambda_cloud)


@pytest.fixture
def lambda_container(client: Client, tmp_path: Path, say: Say) -> Iterator[Place]:
    """The same, in a container of the machine's Docker Engine, which is set up for it."""

    def docker(*words: str) -> list[str]:
        engine = cloud.instances.newest.engine
        assert engine is not None
        return engine.docker(*words).split()

    try:
        with lambda_cloud_for(client, tmp_path, lambda service: Instances(service, say=say)) as cloud:
            cloud.table(keep=True, profile="a100_40gb", runtime="docker", build={"base": BASE})
            place = _on_rented_machines(cloud, runtime="docker", sudo=True)
            label = "label=launcher.run="
            place.alive = lambda run: docker("ps", "-q", "--filter", label + run)
            place.kept = lambda run: docker("ps", "-aq", "--filter", label + run)
            yield place
    except MissingPartError as error:
        missing(str(error))
    finally:
        remove_bridge()
