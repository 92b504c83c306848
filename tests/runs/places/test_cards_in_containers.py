"""How an engine is asked for cards: by NVIDIA's hook or CDI, as it lists or accepts them. Witness: the engine's own `inspect`."""

import json
import tempfile
from pathlib import Path

import pytest
from testbed.cards import Cards, uuid_of
from testbed.cdi_engine import CdiEngine
from testbed.engine import BASE

pytestmark = [pytest.mark.testbed, pytest.mark.long]

UUID, OTHER = uuid_of(0), uuid_of(1)
JOB = f'name = "own"\ncommand = ["true"]\nimage = "{BASE}"\n'
HOOK = {"Driver": "nvidia", "DeviceIDs": [UUID], "Capabilities": [["gpu"]]}


def cdi(*names):
    return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={name}" for name in names]}


@pytest.fixture(scope="module")
def cards(engine):
    """Two cards of the machine."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    made = Cards(folder)
    made.put("titan_rtx", "titan_rtx")
    with made.on(engine.machine.homes / "ada"):
        yield made
    made.close()


@pytest.fixture
def hook(engine, cards):
    """The engine with NVIDIA's hook on its PATH, and without the runtime of that name."""
    with engine.handing_on(cards, has_runtime=False):
        yield engine


@pytest.fixture
def box(client, engine, cards):
    """The project of a job that needs a card; what it leaves is removed."""
    (client.project / "job.toml").write_text(JOB)
    yield engine
    for name in engine.docker("ps", "-aq").split():
        engine.docker("rm", "-f", name)
    engine.machine.ssh("rm", "-rf", ".launch/runs")


def launch(client, box, **table):
    (client.project / "launch.toml").write_text(box.machine.table("dock", runtime="docker", **table))
    return client.run("--host", "dock", "--job", "./job.toml", "--profile", "titan_rtx", "--gpus", UUID)


def granted(engine):
    """What the engine gave to the run's container, and nothing else is left: no container, no image of a trial."""
    (name,) = engine.docker("ps", "-aq").split()
    assert engine.docker("images", "--quiet", "--filter", "label=launcher.check") == ""
    return json.loads(engine.docker("inspect", name))[0]["HostConfig"]["DeviceRequests"]


def test_an_engine_with_the_hook_alone_hands_on_the_card(client, box, hook):
    """No list of the engine shows the hook; a trial does."""
    info = json.loads(hook.docker("info", "--format", "{{json .}}"))
    assert "nvidia" not in info["Runtimes"]
    done = launch(client, hook)
    assert done.returncode == 0, done.stderr
    (request,) = granted(hook)
    assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", [UUID])


def test_an_engine_without_any_way_is_refused_before_a_run_is_made(client, box):
    """It names the package to install; the trial's container and image are gone."""
    done = launch(client, box)
    assert done.returncode == 3
    assert "neither NVIDIA's hook nor CDI devices of them" in done.stderr
    assert "install nvidia-container-toolkit" in done.stderr
    assert box.docker("ps", "-aq") == ""
    assert box.docker("images", "--quiet", "--filter", "label=launcher.check") == ""
    assert box.machine.ssh("sh", "-c", "ls .launch/runs || true") == ""


@pytest.mark.parametrize(
    ("api", "devices", "asked"),
    [
        ("1.50", {"0": UUID, "1": OTHER, UUID: UUID, OTHER: OTHER, "all": UUID}, [cdi(UUID)]),
        ("1.50", {"0": UUID, "1": OTHER, "all": UUID}, [cdi("0")]),
        ("1.50", {}, [HOOK, HOOK]),
        ("1.47", {"0": UUID, UUID: UUID}, [cdi(UUID), cdi(UUID)]),
        ("1.47", {"0": UUID}, [cdi(UUID), cdi("0"), cdi("0")]),
        ("1.47", {}, [cdi(UUID), cdi("0"), HOOK, HOOK]),
    ],
    ids=["listed by UUID", "listed by index", "none listed", "by UUID", "by index", "no devices"],
)
def test_cdi_devices_are_taken_as_the_engine_has_them(client, box, hook, api, devices, asked):
    """Those that it lists (API 1.50), else those that it accepts; where it has none, NVIDIA's hook."""
    names = {f"nvidia.com/gpu={name}": uuid for name, uuid in devices.items()}
    path = Path(f"/proc/{hook.machine.pid}/root/run/cdi.sock")
    with CdiEngine(path, hook.socket, api, names) as newer:
        done = launch(client, hook, engine="/run/cdi.sock")
        assert done.returncode == 0, done.stderr
    assert newer.requests == asked
    (request,) = granted(hook)
    assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", [UUID])
