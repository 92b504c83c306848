"""A container's configuration, as a value: what no engine of the testbed can show."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.agent import compiled_code
from launcher.backends.machine.docker.container import (
    CODE,
    STOP_SLACK_S,
    EngineFacts,
    cards_refused,
    compiling,
    container,
    listed_way,
)
from launcher.config import resolve
from launcher.config.lookup import Lookup
from launcher.planning.assembly import plan
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.reported.engine_access import AgentCode, RunLocation

UUIDS = ("GPU-1111", "GPU-2222")
BY_UUID = ("nvidia.com/gpu=GPU-1111", "nvidia.com/gpu=GPU-2222")
BY_INDEX = ("nvidia.com/gpu=3", "nvidia.com/gpu=1")
PLACE = RunLocation(
    path="/home/ada/.launch/runs/1121-x-aaaa", home="/home/ada/.launch/runs/1121-x-aaaa/work/home", agent="/home/ada/.launch/agent/0/agent.pyz", host_id="0" * 16,
    root="h:/home/ada/.launch", user="ada", uid=1000, gid=1000, groups=(1000, 27, 44),
    read=("/home/ada/.launch/agent/0", "/data"), written=("/home/ada/.launch/cache",),
)  # fmt: skip


PLAIN = EngineFacts()


def configured(engine=PLAIN, place=PLACE, code=None, **job):
    card = Lookup().profile("cpu")
    one = plan(
        card,
        Host(name="lab", address="lab"),
        Job(name="x", command=("a",), **job),
        "auto",
        "docker",
        resolve.image_sources(),
    )
    return container(one, "1121-x-aaaa", 1, place, engine, None, code)


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        (EngineFacts(runtimes=("runc", "nvidia")), "hook"),
        (EngineFacts(runtimes=("nvidia",), cdi_devices=None), "hook"),
        (EngineFacts(runtimes=("nvidia",), cdi_devices=BY_UUID), "hook"),
        (EngineFacts(runtimes=("nvidia",), cdi_devices=BY_UUID, is_rootless=True), "CDI device by UUID"),
        (EngineFacts(runtimes=("nvidia",), is_rootless=True), "hook"),
        (EngineFacts(cdi_devices=BY_UUID + BY_INDEX), "CDI device by UUID"),
        (EngineFacts(cdi_devices=BY_INDEX), "CDI device by index"),
        (EngineFacts(cdi_devices=BY_INDEX[:1]), None),
        (EngineFacts(cdi_devices=BY_UUID[:1]), None),
        (EngineFacts(cdi_devices=("vendor.com/net=0",)), None),
        (EngineFacts(cdi_devices=None), None),
        (EngineFacts(), None),
    ],
)
def test_an_engine_s_lists_show_how_it_hands_on_cards(engine, way):
    """All cards of the plan in one way; `None`: its lists do not show it, and a trial must."""
    assert listed_way(engine, UUIDS, {"GPU-1111": 3, "GPU-2222": 1}) == way


def test_a_part_of_a_card_has_no_index():
    """Its CDI device has a UUID, or it cannot be asked for."""
    assert listed_way(EngineFacts(cdi_devices=BY_INDEX), ("MIG-1",), {}) is None
    assert (
        listed_way(EngineFacts(cdi_devices=("nvidia.com/gpu=MIG-1",)), ("MIG-1",), {}) == "CDI device by UUID"
    )


def test_podman_is_refused_cards_by_name():
    """It would ignore the request, and the job would train on a CPU."""
    assert "container of Podman" in str(cards_refused("lab", EngineFacts(is_podman=True)))


@pytest.mark.parametrize(
    ("engine", "uid", "user", "groups"),
    [
        (EngineFacts(), 1000, "1000:1000", ["27", "44"]),
        (EngineFacts(), 0, "0:1000", ["27", "44"]),
        (EngineFacts(is_rootless=True), 1000, "0:0", None),
    ],
)
def test_it_runs_as_who_launched_it(engine, uid, user, groups):
    """With the groups that let them read the host's data; a rootless engine maps its root to that very user."""
    told = configured(engine, place=PLACE.model_copy(update={"uid": uid}))
    assert told["User"] == user
    assert told["HostConfig"].get("GroupAdd") == groups


@pytest.mark.parametrize(
    ("engine", "user"), [(EngineFacts(), "1000:1000"), (EngineFacts(is_rootless=True), "0:0")]
)
def test_an_image_that_compiles_the_agent_sees_nothing_else(engine, user):
    """It writes to the folder of what it has compiled, and may not change the agent, which other images run."""
    agent, folder = PLACE.agent, "/home/ada/.launch/agent/0/images/1"
    seen = compiling(AgentCode(agent=agent, folder=folder, uid=1000, gid=1000, there=False), engine)
    assert (seen.user, seen.variables) == (user, (f"{compiled_code.FOLDER}={folder}",))
    writable = {mount["Source"]: not mount["ReadOnly"] for mount in seen.mounts}
    assert writable == {folder: True, "/home/ada/.launch/agent/0": False}


def test_a_run_s_container_is_told_what_its_image_has_compiled():
    """It is never among what the container may write to."""
    plan_and_more = configured()
    assert not any(one.startswith(f"{CODE}=") for one in plan_and_more["Env"])
    with_code = configured(code="/home/ada/.launch/agent/0/images/1")
    assert f"{CODE}=/home/ada/.launch/agent/0/images/1" in with_code["Env"]
    assert with_code["HostConfig"]["Mounts"] == plan_and_more["HostConfig"]["Mounts"]


def test_the_engine_waits_longer_than_the_job_s_own_grace():
    """Else it would kill a run that is saving."""
    assert configured(stop_grace_s=120.0)["StopTimeout"] == 120 + STOP_SLACK_S


def test_shared_memory_is_generous_and_never_less_than_a_gigabyte():
    """It is taken only as it is used."""
    assert configured(EngineFacts(memory_bytes=64 << 30))["HostConfig"]["ShmSize"] == 32 << 30
    assert configured(EngineFacts(memory_bytes=0))["HostConfig"]["ShmSize"] == 1 << 30


@settings(max_examples=20)
@given(secrets=st.lists(st.from_regex(r"KEY_[A-Z_]{0,10}", fullmatch=True), max_size=3, unique=True))
def test_no_variable_of_the_job_s_is_in_the_configuration(secrets):
    """The names of secrets are in the plan, their values nowhere: the agent inside reads them from the run."""
    names = {one.split("=")[0] for one in configured(secrets=tuple(secrets))["Env"]}
    assert names == {"HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "LAUNCH_HOST_ID"}
