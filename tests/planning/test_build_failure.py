"""Why a build failed: real lines of pip, BuildKit and the classic builder, and what is said of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import missing
from testbed.wheels import WheelServer, make_wheel

from launcher.planning.software.build_failure import Indexes, build_failure, indexes
from launcher.values.software.image import BuildOptions

TORCHS = "https://torch.example.org/cu126"
ASKED = Indexes(TORCHS, has_pip_conf=True)

CASES = {
    "no such version": (
        "ERROR: Could not find a version that satisfies the requirement nosuch==9 (from versions: none)",
        "one of the requirements is in no index of this build",
        "job's requirements",
    ),
    "no such torch": (
        "ERROR: No matching distribution found for torch==2.13.0",
        "the index of torch's builds does not have this version (asked: https://torch.example.org/cu126)",
        'torch_index = ""',
    ),
    "torch's index out of reach": (
        "WARNING: Retrying after connection broken by 'NewConnectionError: Failed to establish a new connection': /whl/cpu/torch/",
        "cannot be reached from there (asked: https://torch.example.org/cu126)",
        'torch_index = ""',
    ),
    "no such package, by uv": (
        "  cause: Because nosuch was not found in the package registry and you require nosuch>9, we can conclude that your requirements are",
        "one of the requirements is in no index of this build",
        "job's requirements",
    ),
    "no torch at all, by uv": (
        "  cause: Because torch was not found in the package registry and you require torch==2.13.0, we can conclude that your requirements are unsatisfiable.",
        "the index of torch's builds does not have torch (asked: https://torch.example.org/cu126)",
        'torch_index = ""',
    ),
    "torch's index out of reach, by uv": (
        "error: Failed to fetch: http://torch.example.org/cu126/torch/ cause: tcp connect error",
        "cannot be reached from there (asked: https://torch.example.org/cu126)",
        'torch_index = ""',
    ),
    "no such build of torch, by uv": (
        "  Because torch==2.13.0+cpu was not found in the package registry and you require torch==2.13.0+cpu, we can conclude",
        "the index of torch's builds does not have torch (asked: https://torch.example.org/cu126)",
        'torch_index = ""',
    ),
    "no such version, by uv": (
        "  cause: Because there is no version of einops==99 and you require einops==99, we can conclude that your requirements are unsatisfiable.",
        "one of the requirements is in no index of this build",
        "job's requirements",
    ),
    "no such torch, by uv": (
        "  cause: Because there is no version of torch==2.13.0 and you require torch==2.13.0, we can conclude that your requirements are unsatisfiable.",
        "the index of torch's builds does not have this version (asked: https://torch.example.org/cu126)",
        'torch_index = ""',
    ),
    "conflict, by uv": (
        "  cause: Because you require einops==0.8.0 and einops==0.8.1, we can conclude that your requirements are unsatisfiable.",
        "exclude each other",
        "fewer pins",
    ),
    "certificate, by uv": ("  cause: invalid peer certificate: UnknownIssuer", "certificate", "ca_bundle"),
    "no name, by uv": (
        "  cause: dns error: failed to lookup address information: Name or service not known",
        "cannot be reached",
        "proxy = true",
    ),
    "another Python": (
        "ERROR: Ignored the following versions that require a different python version: 2.3.0 Requires-Python >=3.11",
        "does not support the base's Python",
        "base = … for lab",
    ),
    "conflict": (
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution/",
        "exclude each other",
        "fewer pins",
    ),
    "full disk": (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "no space left",
        "launch image prune --host lab",
    ),
    "full disk of the engine": (
        "failed to register layer: write /usr/lib/libtorch_cuda.so: no space left on device",
        "no space left",
        "launch gc --host lab",
    ),
    "no python": ("/bin/sh: 4: python3: not found", "has no python3", "base = …"),
    "no pip": ("/usr/bin/python3: No module named pip", "has no pip", "base = …"),
    "certificate": (
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))",
        "certificate",
        "ca_bundle",
    ),
    "login": ("ERROR: HTTP error 403 while getting x: 403 Client Error: Forbidden for url", "refuses access", "pip_conf"),
    "no network": (
        "WARNING: Retrying after connection broken by 'NewConnectionError: Failed to establish a new connection'",
        "cannot be reached",
        'network = "host"',
    ),
    "no name": ("dial tcp: lookup registry-1.docker.io: no such host", "cannot be reached", "proxy = true"),
    "rate": ("toomanyrequests: You have reached your pull rate limit.", "limits the requests", "another registry"),
    "base": (
        "ERROR: failed to solve: lab/py:9: pull access denied, repository does not exist",
        "base image cannot be pulled",
        "can pull",
    ),
    "compiler": ("error: command 'gcc' failed: No such file or directory", "must be compiled", "-devel"),
    "nvcc": ("OSError: CUDA_HOME environment variable is not set.", "must be compiled", "has a wheel"),
    "memory": ("process did not complete successfully: exit code: 137", "killed", "more memory"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_causing_line_is_found_among_others(name):
    """With what it means and what to do, whatever stands before and behind."""
    line, what, mend = CASES[name]
    around = [f"#9 12.3 Collecting package-{number}" for number in range(30)]
    found = build_failure([*around, line, *around, "ERROR: failed to build: see above"], "lab", ASKED)
    assert found.lines == (line,)
    assert what in found.what
    assert mend in found.mend


@pytest.mark.parametrize("name", [name for name in CASES if "torch" in name])
def test_a_host_whose_own_pip_has_a_mirror_is_told_to_take_torch_from_it(name):
    """Its pip.conf is the host's, so launch does not know of it."""
    found = build_failure([CASES[name][0]], "hive", Indexes(TORCHS, has_pip_conf=False))
    assert found.mend.startswith('torch_index = "" in [hosts.hive.build]: torch then comes from the index of')
    other = build_failure([CASES["no such version"][0]], "hive", Indexes(TORCHS, has_pip_conf=False))
    assert "torch_index" not in other.mend


def test_of_several_the_one_that_causes_the_others_is_told():
    """A full disk makes pip find nothing; each line once, and no more than a few."""
    lines = ["ERROR: No matching distribution found for x", *["[Errno 28] No space left on device"] * 3]
    found = build_failure(lines, "lab", ASKED)
    assert found.lines == ("[Errno 28] No space left on device",)
    many = [f"ERROR: No matching distribution found for x{number}" for number in range(9)]
    assert len(build_failure(many, "lab", ASKED).lines) == 5


def test_a_connection_that_was_tried_again_is_no_cause():
    """It came through; what failed came later."""
    retried = "WARNING: Retrying after connection broken by: Failed to establish a new connection"
    found = build_failure([retried, "error: command 'gcc' failed"], "lab", ASKED)
    assert found.lines == ("error: command 'gcc' failed",)


def test_what_uv_could_not_fetch_is_shown_with_its_reason():
    """It prints the address in one line and the reason further down; the address says which index was asked."""
    page, reason = "error: Failed to fetch: http://x/torch/", "  cause: tcp connect error"
    found = build_failure([page, "  cause: client error (Connect)", reason], "lab", ASKED)
    assert found.lines == (page, reason)
    assert found.what.endswith(f"(asked: {TORCHS})")


BROKEN = "connection broken by 'NewConnectionError(Failed to establish a new connection: [Errno 111] Connection refused')'"


def tries(package, *, last):
    """pip's tries for a package's page, and what it says in the end."""
    tried = [
        f"WARNING: Retrying (Retry(total={left}, connect=None)) after {BROKEN}: /whl/{package}/"
        for left in (2, 1, 0)
        if left or last
    ]
    none = (
        f"ERROR: Could not find a version that satisfies the requirement {package}==2 (from versions: none)"
    )
    return [*tried, none, f"ERROR: No matching distribution found for {package}==2"]


@pytest.mark.parametrize("package", ["torch", "typing_extensions"])
def test_a_page_that_pip_gave_up_is_not_a_package_that_is_missing(package):
    """pip says the same of both in the end. A page that it did get in the end is no cause."""
    lines = [
        line.replace(f"/{package}/", f"/{package.replace('_', '-')}/") for line in tries(package, last=True)
    ]
    found = build_failure(lines, "lab", ASKED)
    assert "cannot be reached" in found.what
    assert found.lines == (lines[2],)
    assert "cannot be reached" not in build_failure(tries(package, last=False), "lab", ASKED).what
    other = [*tries("einops", last=True)[:3], *tries(package, last=False)[2:]]
    assert "cannot be reached" not in build_failure(other, "lab", ASKED).what


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """The index of a folder with another torch, and one without any."""
    servers = []
    for name in ("torch", "einops"):
        folder = tmp_path_factory.mktemp(name)
        make_wheel(folder, name, "0.1")
        servers.append(WheelServer(folder, address="127.0.0.1", has_bridge=False))
        servers[-1].up()
    yield {"another": servers[0].index_url, "none": servers[1].index_url}
    for server in servers:
        server.down()


@pytest.mark.slow(reason="runs pip and uv")
@pytest.mark.parametrize("by", ["pip", "uv"])
@pytest.mark.parametrize(
    ("index", "what"),
    [
        ("http://127.0.0.1:9/simple", "cannot be reached from there"),
        ("https://nosuch.invalid/simple", "cannot be reached from there"),
        ("none", "the index of torch's builds does not have torch"),
        ("another", "the index of torch's builds does not have this version"),
    ],
)
def test_an_index_out_of_reach_is_not_one_without_the_package(shelf, tmp_path, by, index, what):
    """The words of the real programs: a closed port, a name that does not resolve, an index without torch, and with another."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        missing("uv is not installed: pip install uv")
    url = shelf.get(index, index)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    env = {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "UV_HTTP_RETRIES": "0",
        "NO_COLOR": "1",
        "http_proxy": "",
        "https_proxy": "",
    }
    words = {
        "pip": [sys.executable, "-m", "pip", "install", "--retries", "1", "--timeout", "5"],
        "uv": [uv, "pip", "install", "--python", sys.executable, "--cache-dir", str(tmp_path / "cache")],
    }[by]
    words += ["--target", str(tmp_path / "target"), "--index-url", url, "torch==2.13.0"]
    done = subprocess.run(words, env=env, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    found = build_failure((done.stdout + done.stderr).splitlines(), "lab", Indexes(url, has_pip_conf=True))
    assert found.what.endswith(f"{what} (asked: {url})"), done.stdout + done.stderr
    assert 'torch_index = ""' in found.mend


def test_what_nobody_knows_is_shown_by_its_last_lines():
    """Nothing is made up."""
    found = build_failure([f"line {number}" for number in range(50)], "lab", ASKED)
    assert (found.what, found.lines[0], found.lines[-1]) == (None, "line 35", "line 49")


@pytest.mark.parametrize(
    ("asked", "line", "index", "mend"),
    [
        (Indexes(TORCHS), "No matching distribution found for torch==2.13.0", TORCHS, "torch_index = …"),
        (Indexes(None, has_pip_conf=True), "No matching distribution found for torch==2.13.0", "pip_conf", "torch_index = …"),
        (Indexes(TORCHS), "No matching distribution found for einops", "PyPI", "pip_conf = …"),
        (ASKED, "No matching distribution found for einops", "the index in pip_conf", "pip_conf = …"),
    ],
)  # fmt: skip
def test_the_index_that_was_asked_is_named(asked, line, index, mend):
    """What is there already is not proposed: torch's own index is given up only where there is another."""
    found = build_failure([f"ERROR: {line}"], "lab", asked)
    assert f"(asked: {index}" in found.what.replace("the index in pip_conf", index)
    assert mend in found.mend


def test_the_options_of_a_host_replace_torchs_index():
    """Nothing at all leaves torch to the index of the rest."""
    assert indexes(TORCHS, BuildOptions()) == Indexes(TORCHS)
    assert indexes(TORCHS, BuildOptions(pip_conf="x", torch_index="")) == Indexes(None, has_pip_conf=True)
    assert indexes(TORCHS, BuildOptions(torch_index="https://y")) == Indexes("https://y")
