"""Environments that uv fills, on this machine. Witnesses: the run's own words, and stat."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from testbed.client import missing, until
from testbed.wheels import make_torch, make_wheel

pytestmark = pytest.mark.slow(reason="three launches, each of which makes an environment")


@pytest.fixture
def stock(client, tmp_path, monkeypatch):
    """A folder of wheels, the only one that this machine asks; uv is there."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        missing("uv is not installed: pip install uv")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    (client.home / ".local" / "bin").mkdir(parents=True)
    shutil.copy(uv, client.home / ".local" / "bin" / "uv")
    stock = tmp_path / "stock"
    stock.mkdir()
    make_wheel(stock, "small", "1.0")
    make_wheel(stock, "tiny", "1.0")
    (client.home / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {stock}\n")
    (client.project / "launch.toml").write_text(
        f'[hosts.local.build]\npip_conf = "{client.home}/pip.conf"\ntorch_index = ""\n'
    )
    return stock


def test_uv_fills_environments_from_its_cache(client, stock):
    """The second, which differs in one package, shares the files of the first by hard links. Nothing imports torch."""
    make_torch(stock, "2.13.0+cpu", is_broken=True)
    (client.project / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["small>=1"]\n')
    client.script("import sys, small; print(sys.prefix, small.__file__)")
    out = client.seen("--", "python", "train.py")
    assert "environment from pyproject.toml: small" in out
    assert "(by uv, Python 3" in out
    out = client.seen("--with", "tiny", "--", "python", "train.py")
    assert "environment from pyproject.toml and --with: small, tiny" in out
    envs = sorted((client.home / ".launch" / "envs").glob("*/*"))
    assert len(envs) == 2
    files = [next(env.glob("lib/python*/site-packages/small.py")).stat() for env in envs]
    assert files[0].st_ino == files[1].st_ino, "one file, in both and in uv's cache"
    assert files[0].st_nlink >= 3
    markers = [env / "environment.json" for env in envs]
    until(lambda: all("boot" not in json.loads(one.read_text()) for one in markers), "both on the disk")
    packages = json.loads(markers[0].read_text())["packages"]
    assert [packages["torch"], packages["cuda"], packages["conflicts"]] == ["2.13.0+cpu", None, []]


def test_a_torch_of_your_own_index_is_imported_to_check_it_against_the_card(client, stock, cards):
    """Only the torch itself knows its architectures; one without code for the card is refused, and nothing is left."""
    cards.put("l40s")
    make_torch(stock, "2.13.0+cu130", "13.0", "sm_75 sm_90")
    client.script("")
    done = client.run("--with", "small", "--", "python", "train.py")
    assert done.returncode == 3, done.stderr
    assert "torch 2.13.0+cu130 has no code for capability 8.9: sm_75 sm_90" in done.stderr
    assert not list((client.home / ".launch" / "envs").glob("*/*"))
