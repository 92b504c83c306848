"""A run's host does not answer: each view shows what is here, and says from when it is."""

import json
import time

import pytest


def test_each_view_says_once_when_the_host_last_answered(client, lab):
    """On standard error, in the words of `attach`; with --json too. While the host answers nothing is said."""
    client.script(
        "import launcher_worker as worker\nworker.log(1, loss=0.5)\nprint('hello')\nworker.done(1)\n"
    )
    client.ok("--host", "A", "--", "python", "train.py")
    views = ("logs", "metrics", "plot", "diagnose", "ls", "explain")
    before = {verb: client.run(verb, "last") for verb in views}
    assert not [verb for verb, seen in before.items() if "last answered" in seen.stderr]
    day = time.strftime("A last answered on %Y-%m-%d")
    with lab.away():
        for verb in views:
            for more in ((), ("--json",)):
                seen = client.run(verb, "last", *more)
                assert (seen.returncode, seen.stderr.count(day)) == (0, 1), (verb, seen.stderr)
                assert "is sshd running?" in seen.stderr
                if not more and verb != "ls":
                    assert seen.stdout == before[verb].stdout
        (row,) = json.loads(client.ok("ps", "--json"))["runs"]
        assert row["problem"] is None  # it has ended, and its host is not asked


@pytest.mark.parametrize("path", [(), ("out",)])
def test_ls_lists_what_is_here(client, lab, path):
    """Of a run whose host is away; the files that never came are not shown."""
    client.script(
        "import os, launcher_worker as worker\nos.makedirs('out')\nopen('out/a.txt', 'w').write('a')\n"
        "open('big', 'w').write('b' * 2000)\nworker.done(1)\n"
    )
    client.script(
        'name = "x"\ncommand = ["python", "train.py"]\npull_limit = 1000\noutputs = ["out/", "big"]\n',
        "x.toml",
    )
    client.ok("--host", "A", "--job", "x.toml")
    with lab.away():
        seen = client.run("ls", "last", *path)
        assert (seen.returncode, "out/a.txt" in seen.stdout, "big" in seen.stdout) == (0, True, False), seen
        assert client.run("ls", "last", "big").returncode == 1
