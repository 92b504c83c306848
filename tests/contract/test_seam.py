"""A new runtime is two small files and a line; test_contract.py runs the whole contract on the toy one."""

import filecmp
from pathlib import Path

import pytest
from testbed.client import REPOSITORY

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["toy_runtime.py", "toy_liveness.py"])
def test_a_runtime_and_its_fate_have_at_most_60_lines_each(name):
    """Docstrings and blank lines count."""
    assert len((HERE / name).read_text().splitlines()) <= 60


def test_the_package_with_the_toy_differs_in_two_files_and_a_line(toy_package):
    """Every other file of the launcher is byte for byte this checkout's."""
    added = [
        path.relative_to(toy_package).as_posix()
        for path in toy_package.rglob("*.*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not _is_same(path, REPOSITORY / path.relative_to(toy_package))
    ]
    assert sorted(added) == [
        "launcher/agent/liveness/toy.py",
        "launcher/backends/kinds.py",
        "launcher/backends/toy/toy_runtime.py",
    ]
    ours, theirs = ((root / "launcher/backends/kinds.py").read_text() for root in (REPOSITORY, toy_package))
    assert len(set(theirs.splitlines()) - set(ours.splitlines())) == 1


def _is_same(path, original):
    return original.exists() and filecmp.cmp(path, original, shallow=False)
