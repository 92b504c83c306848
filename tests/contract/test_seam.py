"""A new kind of host is a package, its agent's part and a line; test_contract.py runs the whole contract on the toy one."""

import filecmp
from pathlib import Path

from testbed.client import REPOSITORY

HERE = Path(__file__).parent


def test_the_package_with_the_toy_differs_in_its_package_its_agents_part_and_a_line(toy_package):
    """Every other file of the launcher is byte for byte this checkout's."""
    added = [
        path.relative_to(toy_package).as_posix()
        for path in toy_package.rglob("*.*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not _is_same(path, REPOSITORY / path.relative_to(toy_package))
    ]
    assert sorted(added) == [
        "launcher/agent/liveness/toy/__init__.py",
        "launcher/agent/liveness/toy/toy_liveness.py",
        "launcher/backends/kinds.py",
        *(f"launcher/backends/toy/{path.name}" for path in sorted((HERE / "toy").glob("*.py"))),
    ]
    ours, theirs = ((root / "launcher/backends/kinds.py").read_text() for root in (REPOSITORY, toy_package))
    assert len(set(theirs.splitlines()) - set(ours.splitlines())) == 1


def test_a_kind_of_host_has_its_keys_its_lack_its_check_and_its_expectation(toy):
    """Each from its package: a table, a refused verb, a finding of the gate, a row of the probe."""
    client = toy.client
    table = client.project / "launch.toml"
    assert "expected to start a job within a second" in client.ok("probe", "--host", "pit")
    refused = client.run("image", "build", "--host", "pit")
    assert refused.returncode != 0
    assert "a spooler builds nothing" in refused.stderr
    for line, said in (
        ("depth = 12", "a line of 12 jobs is too deep"),
        ("depth = 0", "hosts.pit.depth = 0"),
        ('engine = "docker"', 'not for kind = "toy"'),
        ('runtime = "docker"', "hosts.pit.runtime"),
    ):
        table.write_text(f'[hosts.pit]\nkind = "toy"\n{line}\n')
        done = client.run("--dry-run", "--host", "pit", "--", "true")
        assert done.returncode != 0, line
        assert said in done.stdout + done.stderr, line
    table.write_text("[hosts.pit]\ndepth = 3\n")
    said = client.run("--dry-run", "--host", "pit", "--", "true").stderr
    assert "only for a toy with a spooler" in said
    assert 'if pit is one   kind = "toy"' in said


def _is_same(path, original):
    return original.exists() and filecmp.cmp(path, original, shallow=False)
