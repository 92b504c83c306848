"""A fixed part of the generated cases; `make fuzz` runs 100,000 of each."""

import pytest

from fuzz.run import feed
from fuzz.subjects import SUBJECTS

COUNTS = {
    "TOML files": 120, "events": 1000, "records": 200, "job's records": 150, "host answers": 500, "file streams": 150, "ship answers": 200,
    "service answers": 150, "program answers": 300,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """A home of its own, and a working directory that comes back."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SUBJECTS)
def test_no_generated_case_gives_a_traceback(name):
    """Only errors that name the file and what is wrong with it."""
    failures, _, last = feed(name, 0, COUNTS[name])
    assert failures == 0, last


@pytest.mark.slow(reason="files of millions of letters")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 6000 + "]" * 6000, "deep"),
        ("a = " + "9" * 4400, "is not TOML"),
        ("a = " + "9" * 400, "more than 64 bits"),
        ("a" + ".a" * 60 + " = 1", "deep"),
        ("a" + ".a" * 30_000 + " = 1", "deep"),
        ("a = 1\n" * 2 + "#" * (5 << 20), "larger than 4 MB"),
    ],
    ids=["lists", "digits", "number", "key", "long-key", "size"],
)
def test_an_absurd_file_is_named(client, text, said):
    """In one line, with exit 2."""
    client.script(text, "launch.toml")
    done = client.run("ps")
    if done.returncode == 0:
        done = client.run("hosts")
    assert done.returncode == 2, done.stderr
    assert "launch.toml" in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
