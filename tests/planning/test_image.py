"""Images: a value made of profile, job and base alone. `pytest --rewrite-cases` writes the golden Dockerfiles anew."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from testbed.profiles import profile

from launcher.backends.registry import backend_of
from launcher.base.resources import data_folder
from launcher.config.resolve import wheels
from launcher.errors import BadFileError, RefusedError
from launcher.planning.assembly import plan
from launcher.planning.software.image_plan import Sources, context, image, pinned, torch_for
from launcher.planning.software.recipe import buildkit, classic
from launcher.planning.software.wheel_choice import HostSoftware, TorchTarget
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.parsing import build
from launcher.values.profile import Profile
from launcher.values.software.image import CA_BUNDLE_AT, Build, BuildOptions

REPOSITORY = Path(__file__).parents[2]
CASES = sorted(path for path in (REPOSITORY / "tests" / "cases").iterdir() if path.name != "sft_on_kaggle")
"""All but the one whose host has an image of its own."""
TEMPLATE = (data_folder("images") / "Dockerfile").read_text()
WHEELS = wheels()
SOURCES = Sources(TEMPLATE, WHEELS)
TORCH = WHEELS.tested
PINS = dict(line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().split())
SECRET = "hunter2"
CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def job(*requirements, **more):
    written = {"name": "x", "command": ["a"], "requirements": list(requirements), **more}
    return build(Job, written, file="it.toml")


def made(name="p100", *requirements, base="python:3", template=TEMPLATE, **more):
    return image(profile(name), job(*requirements, **more), Build(base=base), Sources(template, WHEELS))


def told(*args):
    """Everything that a docker client could show of a build: all but the secrets."""
    return "".join(map(repr, args))


@pytest.mark.parametrize("case", [one for one in CASES if "mps" not in one.name], ids=lambda case: case.name)
def test_an_image_is_its_golden_file(case, request):
    """The same inputs give the same Dockerfile, today and next year, for every card of ours."""
    wanted = tomllib.loads((case / "case.toml").read_text())
    one = build(Job, wanted["job"], file=str(case))
    written = image(profile(wanted["profile"]), one, Build(), SOURCES).dockerfile
    golden = case / "Dockerfile"
    if request.config.getoption("--rewrite-cases"):
        golden.write_text(written)
    assert written == golden.read_text()


@pytest.mark.parametrize("case", [one for one in CASES if "mps" not in one.name], ids=lambda case: case.name)
def test_a_dockerfile_does_nothing_that_hadolint_knows_to_be_wrong(case):
    """No rule is left out."""
    words = [
        Path(sys.executable).with_name("hadolint"),
        "--no-color",
        "--config",
        os.devnull,
        case / "Dockerfile",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_equal_inputs_give_one_name_and_any_content_another():
    """Twice the same, in any order; another base, template, requirement or card's build is another image."""
    first = made("p100", "torch", "peft")
    assert first == made("p100", "peft", "torch") == made("p100", "torch", "peft", "torch>=2.6")
    others = (
        made("p100", "torch", "peft", "numpy"),
        made("p100", "torch", "peft==0.18"),
        made("p100", "torch", "peft", base="debian@sha256:" + "0" * 64),
        made("p100", "torch", "peft", template=f"{TEMPLATE}\n"),
        made("cpu", "torch", "peft"),
    )
    tags = {one.name.partition(":")[2] for one in (first, *others)}
    assert len(tags) == 1 + len(others)
    assert first.name.startswith("launcher/p100:")
    assert all(re.fullmatch(r"[0-9a-f]{12}", tag) for tag in tags)


def test_settings_and_credentials_are_no_part_of_a_name():
    """A host behind a mirror builds the very image that another one builds."""
    settings = Build(
        base="python:3", network="host", pip_conf="/a", ca_bundle="/b", proxy=True, torch_index="https://x/y"
    )
    assert image(profile("p100"), job("torch"), settings, SOURCES) == made("p100", "torch")


def test_code_is_no_part_of_a_name():
    """An edited script, command or setting changes no image."""
    assert made("l40s", "torch", command=["b"], steps=3, settings={"a": 1}) == made("l40s", "torch")


def test_the_label_is_the_names_digest_and_comes_last():
    """Whoever finds an image can tell what it is; layers before it are kept when it changes."""
    one = made("p100", "torch")
    last = one.dockerfile.rstrip().splitlines()[-1]
    assert re.fullmatch(rf"LABEL launcher\.image={one.name.partition(':')[2]}[0-9a-f]{{52}}", last)


@pytest.mark.parametrize("name", ["a..b", "a-", "a._b", "titan_rtx", "x__y"])
def test_any_profiles_name_makes_an_images_name(name):
    """Docker is stricter about separators than we are; a wrong name could not be built."""
    card = Profile(name=name, title="X", kind="cpu")
    assert image(card, job(), Build(), SOURCES).name.startswith("launcher/")


def test_torch_is_one_version():
    """Where a job leaves it open, the one that was chosen, which is what constraints.txt pins; else the job's own."""
    assert PINS["torch"] == TORCH
    assert pinned(["torch>=2.6"], TORCH) == (f"torch=={TORCH}",)
    assert pinned(["torch==2.9.1"], TORCH) == ("torch==2.9.1",)
    assert pinned(["Torch[opt-einsum]"], TORCH) == (f"Torch[opt-einsum]=={TORCH}",)
    assert pinned(["torch @ https://x/t.whl"], TORCH) == ("torch @ https://x/t.whl",)
    assert pinned(["torch==2.13.*"], TORCH) == (f"torch=={TORCH}",)
    assert (
        torch_for(["torch>=2.6", "Torch<2.9", "peft"], TorchTarget(profile("l40s")), WHEELS).torch == "2.8.0"
    )
    with pytest.raises(RefusedError, match=r"torch<1\.0 cannot run on L40S"):
        torch_for(["torch<1.0"], TorchTarget(profile("l40s")), WHEELS)


def test_our_own_jobs_name_the_versions_that_are_tested():
    """What an image holds does not hang on the day; only torch is left to the card."""
    for path in (data_folder("jobs")).glob("*.toml"):
        for one in map(Requirement, tomllib.loads(path.read_text()).get("requirements", [])):
            wanted = "" if one.name == "torch" else f"=={PINS[one.name]}"
            assert str(one.specifier) == wanted, f"{path.name}: {one}"


def test_a_job_that_needs_a_package_gets_torch_and_one_that_needs_none_gets_nothing():
    """Peft would bring a torch of its own choice: that of another card."""
    assert pinned(["peft"], TORCH) == (f"torch=={TORCH}", "peft")
    assert pinned([], TORCH) == ()


def test_torch_and_its_kin_come_from_one_index_and_the_rest_later():
    """Torchvision of another CUDA than torch's breaks at import."""
    files = context(made("l40s", "transformers", "torchvision", "torch"))
    assert files["torch.txt"] == f"torch=={TORCH}\ntorchvision\n".encode()
    assert files["requirements.txt"] == b"transformers\n"


def test_the_build_hangs_on_the_card_and_on_the_hosts_driver():
    """An image says which it was made for; without a driver it is one that most load."""
    card, one = profile("titan_rtx"), job("torch")
    found = {
        driver: image(card, one, Build(), SOURCES, HostSoftware(driver))
        for driver in (None, "525.60.13", "580.65.06")
    }
    assert [image.torch for image in found.values()] == ["2.13.0+cu126", "2.13.0+cu126", "2.13.0+cu130"]
    assert "whl/cu130" in found["580.65.06"].dockerfile
    assert found[None] == found["525.60.13"] != found["580.65.06"]
    assert made("p100", "torch").requirements == ("torch==2.14.1",)


def test_a_torch_of_ones_own_and_one_that_is_not_for_linux():
    """What a URL holds is its writer's to say; a marker that Linux does not meet leaves the choice to us."""
    assert made("l40s", "torch @ https://x/torch-2.12.0.whl").torch is None
    found = made("l40s", 'torch; sys_platform == "darwin"', "peft")
    assert f"torch=={TORCH}" in found.requirements


@pytest.mark.parametrize(
    ("base", "torch"), [("python:3.9-slim", "2.8.0"), ("lab/python:3.12", "2.13.0"), ("lab/ours:1", "2.13.0")]
)
def test_a_base_of_an_older_python_gets_a_torch_that_has_wheels_for_it(base, torch):
    """Where its name says which it is."""
    assert made("l40s", "torch", base=base).requirements == (f"torch=={torch}",)


def test_apples_gpu_is_in_no_container():
    """The message says why, and what to do."""
    with pytest.raises(RefusedError, match=r"no container sees an Apple GPU.*\n.*--runtime native"):
        made("mps")


def test_an_image_of_ones_own_is_used_as_it_is():
    """Nothing is built or installed."""
    own = made("l40s", "torch", image="lab.example.org:5000/team/train:v1")
    assert (own.name, own.dockerfile, own.requirements) == ("lab.example.org:5000/team/train:v1", None, ())


REFERENCES = {
    "good": ["a", "a/b", "a:1", "h.x:50/a/b__c:T_1.x", "a@sha256:" + "0" * 64, "a:1@sha256:" + "f" * 64],
    "bad": ["", "A", "a b", "a:", "a\nRUN x", "a\n", "-a", "a@sha256:0", "a/", "../a", "a$(x)", "a:" + "x" * 129, "x" * 300],
}  # fmt: skip


@pytest.mark.parametrize("written", REFERENCES["good"])
def test_a_reference_of_an_image_is_taken(written):
    """With a registry, a tag, a digest."""
    assert job(image=written).image == Build(base=written).base == written


@pytest.mark.parametrize("written", REFERENCES["bad"])
def test_what_is_no_reference_is_named(written):
    """It would reach a Dockerfile and an engine's address."""
    with pytest.raises(BadFileError, match=r"it\.toml: image = .*expected an image"):
        job(image=written)


BAD_REQUIREMENTS = [
    "torch\nRUN evil", "torch\n", "torch\r", "-r /etc/passwd", "--index-url=https://x", "$(touch x)", "`x`", "torch; x",
    "torch # note", "./here", "x @ ./here", "x @ file:///etc", "x @ https://h/a\\", "x @ https://${TOKEN}/a", "a b", "",
    "torch && x", "torch; sys_platform == 'a #b'",
]  # fmt: skip


@pytest.mark.parametrize("written", BAD_REQUIREMENTS)
def test_a_requirement_that_could_be_read_otherwise_is_named(written):
    """File, key and value are in the message."""
    with pytest.raises(BadFileError) as caught:
        job("numpy", written)
    assert str(caught.value).startswith("it.toml: requirements.1 = ")


@given(st.text(max_size=30) | st.sampled_from(BAD_REQUIREMENTS).flatmap(lambda bad: st.just(f"numpy{bad}")))
def test_no_requirement_becomes_anything_but_one_line_of_one_file(written):
    """Whatever is written is refused by file and key, or stands as one line that pip reads as written."""
    try:
        one = made("cpu", written)
    except (BadFileError, RefusedError) as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert refusal.startswith(("it.toml: requirements.0 ", "requirement '"))
        return
    files = context(one)
    lines = [*files["torch.txt"].decode().splitlines(), *files["requirements.txt"].decode().splitlines()]
    assert lines == list(one.requirements)
    assert {Requirement(line).name.lower() for line in lines} == {"torch", Requirement(written).name.lower()}
    assert "RUN" not in "".join(lines) or "RUN" in Requirement(written).name  # a package may be called so
    rest = one.dockerfile.splitlines()[:-1]
    assert rest == made("cpu").dockerfile.splitlines()[:-1], "no requirement is in the Dockerfile"


@pytest.mark.parametrize("written", [f"x @ https://me:{SECRET}@h/a", f"x @ git+https://{SECRET}@h/a", f"x @ https://h/a?token={SECRET}"])  # fmt: skip
def test_a_credential_in_a_requirement_is_refused_without_its_value(written):
    """A plan is on record; the message is on a screen."""
    with pytest.raises(BadFileError, match=r"requirements\.0 holds a .*pip_conf") as caught:
        job(written)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "written", ["git+https://h:8443/a/b@v1", "https://h/a@b/c.whl", "https://h/a.whl#sha256=00"]
)
def test_what_only_looks_like_a_credential_is_taken(written):
    """A port, a tag of git, an @ in a path."""
    assert made("cpu", f"x @ {written}").requirements[1] == f"x @ {written}"


@pytest.mark.parametrize(
    ("template", "said"),
    [("", "no FROM line"), ("RUN x", "no FROM line"), ("FROM @base@\nRUN @bsae@", "unknown word @bsae@")],
)
def test_a_template_that_is_none_is_told(template, said):
    """The user's own may be anything."""
    with pytest.raises(BadFileError, match=said):
        made("cpu", template=template)


FULL = BuildOptions(
    f"[global]\nindex-url = https://me:{SECRET}@h/simple\ncert = {CA_BUNDLE_AT}\n",
    CERTIFICATE,
    {"https_proxy": f"http://me:{SECRET}@p:1"},
    "host",
    "https://h/torch",
)
PLAIN = FULL._replace(
    pip_conf=f"[global]\nindex-url = https://h/simple\ncert = {CA_BUNDLE_AT}\n[install]\ntrusted-host = h\nfind_links =\n  https://a\n  https://b\n[list]\nformat = json\n",
    proxies={"https_proxy": "http://p:1"},
)


def test_buildkit_is_handed_credentials_as_secrets_alone():
    """Neither the context nor an argument but Docker's own proxies, which no history keeps, holds one."""
    recipe = buildkit(made("p100", "torch"), FULL)
    assert set(recipe.secrets) == {"pip_conf", "ca_bundle"}
    assert set(recipe.arguments) == {"TORCH_INDEX", "https_proxy"}
    assert SECRET not in told(recipe.files, recipe.arguments["TORCH_INDEX"])
    for name in recipe.secrets:
        assert recipe.files["Dockerfile"].count(f"--mount=type=secret,id={name}".encode()) == 2


def test_nothing_that_is_given_to_a_build_shows_itself():
    """A traceback or a log that prints a value prints names."""
    assert SECRET not in told(FULL, buildkit(made("p100", "torch"), FULL))
    assert "pip_conf" in repr(FULL)


def test_without_settings_a_build_is_handed_its_files_alone():
    """Secrets are optional in every step."""
    recipe = buildkit(made("p100", "torch"), BuildOptions())
    assert (recipe.files, recipe.arguments, recipe.secrets) == (context(made("p100", "torch")), {}, {})
    assert classic(made("p100", "torch"), BuildOptions()).arguments == {}


def test_the_classic_builder_is_handed_settings_as_arguments():
    """It knows no secrets: options that hold no credential are declared and passed, certificates copied."""
    recipe = classic(made("p100", "torch"), PLAIN)
    text = recipe.files["Dockerfile"].decode()
    assert "--mount" not in text
    assert recipe.arguments == {
        "TORCH_INDEX": "https://h/torch",
        "https_proxy": "http://p:1",
        "PIP_INDEX_URL": "https://h/simple",
        "PIP_CERT": CA_BUNDLE_AT,
        "PIP_TRUSTED_HOST": "h",
        "PIP_FIND_LINKS": "https://a https://b",
    }
    declared = set(re.findall(r"^ARG (\w+)$", text, re.MULTILINE))
    assert declared == {name for name in recipe.arguments if name.startswith("PIP_")}
    assert f"\nCOPY ca_bundle {CA_BUNDLE_AT}\n" in text
    assert recipe.files["ca_bundle"] == CERTIFICATE
    assert recipe.secrets == {}


@pytest.mark.parametrize("how", [buildkit, classic])
def test_both_builders_run_what_a_shell_can_read(how):
    """Every RUN is well-formed once its mounts are taken off; settings never stand in it."""
    text = how(made("p100", "torch", "peft"), PLAIN).files["Dockerfile"].decode()
    steps = re.findall(r"^RUN ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert len(steps) == 2
    for step in steps:
        line = re.sub(r"--mount=\S+\s+(\\\n\s*)?", "", step)
        assert line.startswith("test ")
        assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pip_conf": f"[global]\nindex-url = https://me:{SECRET}@h/s"}, "pip_conf: index-url holds a user or password"),
        ({"pip_conf": f"[install]\nextra-index-url =\n  https://a\n  https://{SECRET}@h/s"}, "pip_conf: extra-index-url"),
        ({"pip_conf": f"[global]\nindex-url = https://h/s?api_key={SECRET}"}, "pip_conf: index-url holds a token"),
        ({"pip_conf": f"[global]\nhub-token = {SECRET}"}, "pip_conf: hub-token holds a password or token"),
        ({"proxies": {"http_proxy": f"http://me:{SECRET}@p"}}, "proxy: http_proxy holds a user or password"),
    ],
)  # fmt: skip
def test_the_classic_builder_is_handed_no_credential(change, said):
    """It is named, never repeated; the way out is BuildKit."""
    with pytest.raises(RefusedError, match=said) as caught:
        classic(made("p100", "torch"), BuildOptions()._replace(**change))
    assert SECRET not in str(caught.value)
    assert "buildx" in str(caught.value)


def test_a_plan_has_an_image_in_a_container_and_there_alone():
    """The plan's JSON tells what would be built."""
    host = Host(name="there", address="there", build=Build(base="python:3"))
    native = plan(profile("p100"), host, job("torch"))
    contained = plan(profile("p100"), host, job("torch"), runtime="docker", sources=SOURCES)
    assert (native.runtime, native.image) == ("native", None)
    assert contained.image == made("p100", "torch")
    for one, image_of in ((native, contained.image), (contained, None)):
        with pytest.raises(ValueError, match="only there"):
            type(one).model_validate({**one.model_dump(), "image": image_of})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param(
            {}, f"the image {made('p100', 'torch').name}, built once on the host   (torch ", id="built"
        ),
        pytest.param({"image": "lab/team:v1"}, "python3 of lab/team:v1", id="supplied"),
    ],
)
def test_a_dry_run_names_the_image(more, words):
    host = Host(name="there", address="there", build=Build(base="python:3"))
    contained = plan(profile("p100"), host, job("torch", **more), runtime="docker", sources=SOURCES)
    assert backend_of(host).planning.environment(contained).startswith(words)
