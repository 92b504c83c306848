"""From a batch's file, or a grid, to its items; and every mistake of a file at once, each with its line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import BadFileError, UsageError
from launcher.runs.batch_file import grid_batch, read_batch

HEAD = 'host = "local"\nprofile = "cpu"\njob = "sft"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty project, and an empty home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    return tmp_path


def read(text, **changes):
    """Read a file with this text."""
    Path("sweep.toml").write_text(text)
    return read_batch(Path("sweep.toml"), changes)


def mistakes(text):
    """The lines of the error for a file."""
    with pytest.raises(BadFileError) as caught:
        read(text)
    return str(caught.value).splitlines()


def test_a_matrix_is_multiplied_out_without_what_is_excluded():
    """Each item has the values of its point as its settings, and a name with a number."""
    batch = read(
        f'{HEAD}[settings]\nsteps = 3\n[matrix]\n"settings.learning_rate" = [1e-4, 3e-4]\nseeds = 2\n'
        'exclude = [{ seed = 1, "settings.learning_rate" = 3e-4 }]\n'
    )
    assert [draft.name for draft in batch.drafts] == ["sft-1", "sft-2", "sft-3"]
    assert [[*draft.request.settings] for draft in batch.drafts] == [
        ["steps=3", "settings.learning_rate=0.0001", "seed=0"],
        ["steps=3", "settings.learning_rate=0.0001", "seed=1"],
        ["steps=3", "settings.learning_rate=0.0003", "seed=0"],
    ]


def test_each_run_has_its_own_over_those_of_the_file():
    """Its host, its settings, its job; a command of its own replaces the job."""
    batch = read(
        f'{HEAD}settings = {{ steps = 3 }}\n[[run]]\nname = "a"\nsettings = {{ steps = 5 }}\n'
        '[[run]]\nname = "b"\nhost = ["local", "kaggle"]\nprofile = "t4x2"\ncommand = ["python3", "train.py"]\n'
        "settings = { steps = 9 }\n"
    )
    a, b = batch.drafts
    assert (a.name, a.hosts, a.request.job, a.request.settings) == ("a", ("local",), "sft", ["steps=5"])
    assert (b.hosts, b.request.job, b.request.words) == (("local", "kaggle"), None, ["python3", "train.py"])


def test_a_key_of_the_matrix_may_be_a_word_of_the_command_a_host_or_a_table():
    """`{lr}` is replaced; text is put there as it is."""
    batch = read(
        'profile = "cpu"\ncommand = ["python3", "train.py", "--lr={lr}", "{name}"]\n[matrix]\nlr = [1e-4]\nname = ["x y"]\n'
        'host = ["local", "kaggle"]\nvariables = [{ A = "1" }, { A = "2" }]\n'
    )
    assert {tuple(draft.request.words) for draft in batch.drafts} == {
        ("python3", "train.py", "--lr=0.0001", "x y")
    }
    assert sorted((draft.hosts, *draft.request.settings) for draft in batch.drafts) == [
        (("kaggle",), 'variables.A="1"'),
        (("kaggle",), 'variables.A="2"'),
        (("local",), 'variables.A="1"'),
        (("local",), 'variables.A="2"'),
    ]


def test_all_mistakes_are_told_at_once_each_with_its_line():
    """Of several runs, of the matrix, and of what the jobs refuse."""
    found = mistakes(
        'job = "sft"\nprofile = "cpu"\n[matrix]\n"batch.globl" = [4]\n[[run]]\nname = "a"\nhost = "lab"\n'
        '[[run]]\nname = "b"\nhost = "local"\n[run.settings]\nsteps = "many"\n'
    )
    text = "\n".join(found)
    assert "sweep.toml: run.1: unknown host 'lab'" in text
    assert any("run.1" in line and line.endswith("(line 5)") for line in found)
    assert any(
        "unknown key 'batch.globl': did you mean 'global'" in line and "(line 4)" in line for line in found
    )
    assert any('steps = "many": expected a whole number' in line and "(line 12)" in line for line in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[run]]\nnam = 'a'\n", "unknown key 'run.1.nam': did you mean 'name'?   (line 2)"),
        ("[matrix]\nseed = []\n", "matrix.seed: is empty: nothing would be run   (line 2)"),
        ("[matrix]\nseed = 3\n", "matrix.seed: 3: expected a list of values   (line 2)"),
        ("[matrix]\nseed = [1]\nexclude = [{ seed = 1 }]\n", "leaves no combination: nothing would be run   (line 3)"),
        ("[matrix]\nseed = [1]\nexclude = [{ sed = 1 }]\n", "'sed' is no key of the matrix: seed   (line 3)"),
        ("[[run]]\nname = 'a'\n[[run]]\nname = 'a'\n", 'run.2.name: "a": two runs have this name   (line 4)'),
        ("[matrix]\nseeds = 10001\n", "10,001 items: a batch has at most 10,000"),
        ("[matrix]\na = [1,2,3,4,5,6,7,8,9,10]\nseeds = 1000000\n", "combinations: a batch has at most 10,000 items"),
        ("max_parallel = 0\n", "max_parallel = 0: "),
        ("best = 'loss'\n", "best = "),
        ("profile = 'nope'\n", "unknown profile 'nope'"),
        ("[matrix]\nprecision = [16]\n", "matrix.precision: 16: expected text   (line 2)"),
        ("[matrix]\nwhen = [1979-05-27]\n", "matrix.when: "),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_key_value_and_line(text, words):
    """And nothing else is said."""
    assert words in "\n".join(mistakes(text))


def test_a_grid_is_a_matrix_on_the_command_line():
    """Values are in TOML's notation, or bare words."""
    batch = grid_batch(
        ["settings.learning_rate=1e-4,3e-4", "method=lora,full"], {"profile": "cpu", "job": "sft"}
    )
    assert batch.name == "batch"
    assert [json.loads(draft.as_json)["settings"] for draft in batch.drafts][1:3] == [
        ["settings.learning_rate=0.0001", 'method="full"'],
        ["settings.learning_rate=0.0003", 'method="lora"'],
    ]


@pytest.mark.parametrize("word", ["lr", "=1", "lr=", ""])
def test_a_grid_without_values_is_refused(word):
    """With an example."""
    with pytest.raises(UsageError, match="KEY=V1,V2"):
        grid_batch([word], {})


def test_the_command_line_goes_before_the_file():
    """Hosts, profile and rules may be given there."""
    batch = read(HEAD.replace("local", "lab"), host=["local"], max_parallel=2)
    assert batch.drafts[0].hosts == ("local",)
    assert batch.rules.max_parallel == 2


OPENED = """
import collections, json, sys
from pathlib import Path
opened = collections.Counter()
sys.addaudithook(lambda event, words: opened.update([str(words[0])]) if event == "open" else None)
from launcher.runs.batch_file import read_batch
batch = read_batch(Path("sweep.toml"), {})
print(json.dumps({"items": len(batch.drafts), "opened": opened}))
"""


def test_what_three_hundred_items_share_is_read_once(folder):
    """The profiles, the job, the project's file, the user's hosts and ssh's configuration: as Python itself counts opened files."""
    (folder / "home" / ".ssh").mkdir(parents=True)
    (folder / "home" / ".ssh" / "config").write_text("Host box\n  HostName 127.0.0.1\n")
    (folder / "home" / ".config" / "launch").mkdir(parents=True)
    (folder / "home" / ".config" / "launch" / "hosts.toml").write_text('[hosts.lab]\naddress = "127.0.0.1"\n')
    (folder / "launch.toml").write_text('[hosts.A]\naddress = "127.0.0.1"\n')
    (folder / "one.toml").write_text('name = "one"\ncommand = ["python", "train.py"]\n')
    (folder / "sweep.toml").write_text(
        'host = ["local", "A", "lab", "box"]\nprofile = "cpu"\njob = "one.toml"\n[matrix]\nseeds = 300\n'
    )
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["items"] == 300
    names = {
        name: times for name, times in found["opened"].items() if name.endswith((".toml", "/.ssh/config"))
    }
    assert {Path(name).name for name in names} >= {
        "cpu.toml",
        "a100_80gb.toml",
        "launch.toml",
        "hosts.toml",
        "one.toml",
        "sweep.toml",
        "config",
    }
    assert not {name: times for name, times in names.items() if times > 1}


def test_what_is_to_be_kept_secret_is_refused_before_it_is_on_record(monkeypatch):
    """In a setting, a command or a variable, and the value of a secret in any of them; no message repeats it."""
    token = "hf_" + "abcdefgh" * 4
    monkeypatch.setenv("MY_TOKEN", "kept-from-all-92731")
    said = mistakes(
        'host = "local"\nprofile = "cpu"\n[[run]]\nname = "a"\ncommand = ["python3", "train.py"]\n'
        f'settings = {{ "settings.token" = "{token}" }}\n'
        f'[[run]]\nname = "b"\ncommand = ["python3", "train.py", "{token}"]\n'
        f'[[run]]\nname = "c"\ncommand = ["python3", "train.py"]\nvariables = {{ TOKEN = "{token}" }}\n'
        '[[run]]\nname = "d"\ncommand = ["python3", "train.py", "kept-from-all-92731"]\nsecrets = ["MY_TOKEN"]\n'
    )
    text = "\n".join(said)
    assert "run.1.settings.settings.token: settings.token: it holds a token" in text
    assert "run.2: command: it holds a token" in text
    assert "run.3: variable TOKEN: it holds a token" in text
    assert "run.4: secret MY_TOKEN: its value stands in the job's command" in text
    assert token not in text
    assert "kept-from-all" not in text


def test_what_a_value_of_the_matrix_holds_is_no_hole():
    """It stands in the command as it was written."""
    batch = read(
        'host = "local"\nprofile = "cpu"\ncommand = ["python3", "train.py", "{a}", "{b}"]\n[matrix]\na = ["{b}"]\nb = ["{a}"]\n'
    )
    assert batch.drafts[0].request.words[2:] == ["{b}", "{a}"]
