"""Environments as values: from the same table as images, for a Python that the host has or that uv brings."""

import json

import pytest
from testbed.profiles import profile

from launcher.config.resolve import wheels
from launcher.errors import RefusedError
from launcher.planning.assembly import changed, job_of
from launcher.planning.assembly import plan as make_plan
from launcher.planning.gate import check
from launcher.planning.software.environment_plan import (
    build_variables,
    environment,
    environment_files,
    has_no_index,
    maker_of,
)
from launcher.planning.software.image_plan import Sources, context, image
from launcher.planning.software.wheel_choice import HostSoftware
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.parsing import build
from launcher.values.software.image import Build, BuildOptions

TABLE = wheels()
UV = {"path": "/home/ada/.local/bin/uv", "version": "0.9.1"}
TITAN = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA TITAN RTX", "memory_mib": 24220, "driver": "550.90"}


def job(*requirements):
    return build(Job, {"name": "x", "command": ["a"], "requirements": list(requirements)}, file="it.toml")


def python(version, path=None, *, has=True):
    return {"path": path or f"/usr/bin/python{version}", "version": f"{version}.2", "has_ensurepip": has}


def facts(own, *others, lacks=("torch",), **more):
    """A host whose own Python lacks some packages, with other Pythons."""
    told = {
        "host_id": "h",
        "boot_id": "b",
        "hostname": "n",
        "user": "ada",
        "platform": "linux",
        "machine": "x86_64",
        "cpus": 8,
        "free_gb": 100.0,
        "root": "/r",
        "python": own["version"],
        "pythons": list(others),
    }
    interpreter = {**own, "packages": dict.fromkeys(lacks)}
    return build(Facts, {**told, "interpreter": interpreter, **more}, file="facts")


def made(there, *requirements, card="titan_rtx", host=None):
    wanted = requirements or ("torch", "peft")
    return environment(profile(card), job(*wanted), host or Host(name="lab"), there, TABLE)


HOST = facts(python("3.12"), gpus=[TITAN])


def test_it_is_of_the_torch_that_an_image_would_have():
    """Torch, its build, its index, the pins and their order are those of the image for the same card and driver."""
    one = made(HOST)
    other = image(
        profile("titan_rtx"),
        job("torch", "peft"),
        Build(),
        Sources("FROM @base@\n@torch_index@", TABLE),
        HostSoftware("550.90"),
    )
    assert (one.torch, one.requirements) == (other.torch, other.requirements)
    assert one.torch_index in other.dockerfile
    assert one.torch.startswith(f"{TABLE.tested}+cu12")
    files, secrets = environment_files(one, BuildOptions())
    assert files == {name: text for name, text in context(other).items() if name != "Dockerfile"}
    assert secrets == {}


def test_its_name_changes_with_its_content_alone():
    """Not with order, path of the interpreter, host, or settings; with requirements, build and Python's minor version."""
    name = made(HOST).name
    build_table = Build(pip_conf="/a", ca_bundle="/b", torch_index="https://x/y")
    same = (
        made(HOST, "peft", "torch>=2.6"),
        made(facts(python("3.12", "/opt/python/bin/python3"), gpus=[TITAN])),
        made(HOST, host=Host(name="other", build=build_table)),
    )
    assert {one.name for one in same} == {name}
    others = (made(HOST, "torch", "numpy"), made(HOST, card="cpu"), made(facts(python("3.11"), gpus=[TITAN])))
    assert len({name, *(one.name for one in others)}) == 4


@pytest.mark.parametrize(
    ("there", "kind", "program", "minor"),
    [
        (facts(python("3.12"), python("3.11"), uv=UV), "venv", "/usr/bin/python3.12", "3.12"),
        (facts(python("3.12", has=False), python("3.11"), uv=UV), "venv", "/usr/bin/python3.11", "3.11"),
        (facts(python("3.8"), python("3.11"), uv=UV), "venv", "/usr/bin/python3.11", "3.11"),
        (facts(python("3.11", has=False), uv=UV), "uv", "/usr/bin/python3.11", "3.11"),
        (facts(python("3.8"), uv=UV), "uv", "3.12", "3.12"),
        (facts(python("3.9")), "venv", "/usr/bin/python3.9", "3.9"),
    ],
    ids=["own", "another", "own is too old", "uv over a Python", "uv brings one", "an older torch"],
)
def test_what_makes_it_is_the_first_that_can_with_a_python_for_the_torch(there, kind, program, minor):
    """The host's own Python, another one, uv with one that is there, uv with one that it brings; else an older torch."""
    one = made(there)
    maker = maker_of(one, there, BuildOptions())
    assert (one.python, maker.kind, maker.interpreter) == (minor, kind, program)
    assert maker.program == (program if kind == "venv" else UV["path"])
    assert one.torch.startswith(TABLE.tested) is (minor != "3.9")


def test_none_is_made_where_none_is_needed():
    """No requirements; an `environment`, whatever it lacks; a Python that has them all; a host that was not asked."""
    assert environment(profile("cpu"), job(), Host(name="lab"), HOST, TABLE) is None
    assert made(HOST, host=Host(name="lab", environment="~/venv")) is None
    has_all = HOST.model_copy(
        update={
            "interpreter": HOST.interpreter.model_copy(update={"packages": {"torch": "2.9", "peft": "1"}})
        }
    )
    assert made(has_all) is None
    assert made(HOST.model_copy(update={"interpreter": None})) is None


def test_a_torch_that_the_card_cannot_run_is_refused_as_for_an_image():
    """With the nearest one that could."""
    with pytest.raises(RefusedError, match="nearest that can"):
        made(facts(python("3.12")), "torch==2.13.0+cu130", card="p100")


def test_a_mac_gets_plain_pypi_s():
    """No index of a build."""
    one = made(facts(python("3.12"), platform="darwin", machine="arm64"), card="mps")
    assert (one.torch, one.torch_index) == (TABLE.tested, None)


def planned(there, *, of_host=None):
    host = Host(name="lab", environment=of_host)
    wanted = job("torch")
    one = environment(profile("cpu"), wanted, host, there, TABLE)
    return make_plan(profile("cpu"), host, wanted, environment=one), host


def test_a_plan_names_it_and_the_gate_lets_it_pass():
    """What the host's Python lacks is no matter then; a plan's JSON reads back."""
    plan, host = planned(facts(python("3.12")))
    assert plan.environment is not None
    assert check(plan, facts(python("3.12")), host) == ()
    assert json.loads(plan.to_json())["environment"]["python"] == "3.12"
    assert type(plan).model_validate_json(plan.to_json()) == plan


def test_a_resumed_run_keeps_it():
    """Its packages are its parent's, whatever the host's own Python has by now."""
    plan, _ = planned(facts(python("3.12")))
    again = changed(plan, job_of(plan).model_copy(update={"steps": 9}), ["steps"], "lab")
    assert (again.steps, again.environment) == (9, plan.environment)


def test_a_host_where_none_can_be_made_is_refused_with_what_it_has_and_the_mend():
    """Every Python with why not, and that there is no uv."""
    there = facts(python("3.11", has=False), python("3.7", has=True))
    wanted = build(Job, {"name": "x", "command": ["a"], "requirements": ["torch==2.13.0"]}, file="it.toml")
    assert environment(profile("cpu"), wanted, Host(name="lab"), there, TABLE) is None
    plan = make_plan(profile("cpu"), Host(name="lab"), wanted)
    (finding,) = check(plan, there)
    assert (finding.level, finding.code) == ("refuse", "no-venv")
    assert "/usr/bin/python3.11 3.11.2: has no ensurepip" in finding.message
    assert "/usr/bin/python3.7 3.7.2: no suitable torch has wheels for it" in finding.message
    assert "uv: not found" in finding.message
    assert all(word in finding.mend for word in ("python3-venv", "uv", "environment = "))


def test_an_env_that_lacks_packages_is_refused_as_ever():
    """What a person named is not replaced."""
    plan, host = planned(facts(python("3.12")), of_host="~/venv")
    assert [one.code for one in check(plan, facts(python("3.12")), host)] == ["missing-packages"]


def test_a_small_disk_and_logind_s_habit_are_noted():
    """Both are notes: the environment may be there, and the connection may outlive the run."""
    plan, host = planned(facts(python("3.12")))
    found = check(plan, facts(python("3.12"), free_gb=1.5, ends_with_logout=True), host)
    assert [(one.level, one.code) for one in found] == [
        ("note", "environment-room"),
        ("note", "ends-with-logout"),
    ]
    assert "KillExcludeUsers=root ada" in found[1].mend


def test_pip_s_settings_reach_uv_in_its_own_words():
    """uv fetches pip, and reads no pip.conf; proxies go along."""
    conf = "[global]\nindex-url = https://x/simple\nfind-links = /a\n  /b\ntimeout = 3\n[install]\ntrusted-host = x\n"
    assert not has_no_index(BuildOptions(pip_conf=conf))
    assert has_no_index(BuildOptions(pip_conf=conf + "no-index = true\n"))
    told = build_variables(BuildOptions(pip_conf=conf, proxies={"https_proxy": "http://p:1"}))
    assert told == {
        "https_proxy": "http://p:1",
        "UV_DEFAULT_INDEX": "https://x/simple",
        "UV_FIND_LINKS": "/a,/b",
        "UV_INSECURE_HOST": "x",
    }


@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        ("torch", True),
        ("torch>=2.6", True),
        ("torch==2.7.1", True),
        ("torch<2.7", False),
        ("nosuch", False),
        ('nosuch; sys_platform == "win32"', True),
        ('nosuch; python_version < "3.12"', True),
        ('nosuch; platform_machine == "x86_64"', False),
        ("own", True),
    ],
)
def test_a_host_whose_python_meets_the_requirements_needs_none(requirement, is_met):
    """By version, and by what a marker says of that host; a version that nobody can read is taken as it is."""
    versions = {"torch": "2.7.1+cu128", "nosuch": None, "own": "1.0.mine-x"}
    has = {name: version for name, version in versions.items() if requirement.startswith(name)}
    there = facts(python("3.12"), gpus=[TITAN])
    there = there.model_copy(update={"interpreter": there.interpreter.model_copy(update={"packages": has})})
    wanted = requirement if requirement != "own" else "own>=2"
    assert (made(there, wanted) is None) == is_met


def test_a_plan_says_where_its_packages_are_from():
    """One note, in the head and in a dry run; none where the job names them."""
    names = [f"p{number}" for number in range(8)]
    environment_ = made(facts(python("3.12"), lacks=names, gpus=[TITAN]), *names)
    common = (profile("titan_rtx"), Host(name="lab"), job(*names))
    there = make_plan(*common, environment=environment_, packages_from="requirements.txt")
    (note,) = [one for one in check(there, None) if one.code == "packages-from"]
    assert note.message == "environment from requirements.txt: p0, p1, p2, p3, p4, +3"
    assert [one for one in check(make_plan(*common), None) if one.code == "packages-from"] == []


@pytest.mark.parametrize(
    ("version", "pip_conf", "ca_bundle", "fills"),
    [
        ("0.9.1", None, None, True),
        ("0.5.31", None, None, False),
        ("", None, None, False),
        ("0.13.9", "[global]\nindex-url = https://h/simple\nextra-index-url = https://g\n", None, True),
        ("0.13.9", "[global]\nno-index = true\nfind-links = /w\ntimeout = 9\n", None, True),
        ("0.13.9", "[global]\nclient-cert = /x.pem\n", None, False),
        ("0.13.9", "[install]\nconstraint = /x.txt\n", None, False),
        ("0.13.9", "[global]\ncert = /opt/ca\n", b"ca", True),
        ("0.13.9", "[global]\ncert = /opt/ca\n", None, False),
    ],
)
def test_uv_fills_it_unless_pips_settings_need_pip(version, pip_conf, ca_bundle, fills):
    """Where a recent uv is there; a setting that it does not know is pip's. The plan is the same."""
    there = facts(python("3.12"), uv={**UV, "version": version})
    maker = maker_of(made(there), there, BuildOptions(pip_conf=pip_conf, ca_bundle=ca_bundle))
    assert (maker.kind, maker.program, maker.uv) == (
        "venv",
        "/usr/bin/python3.12",
        UV["path"] if fills else None,
    )
    assert made(there) == made(facts(python("3.12")))
