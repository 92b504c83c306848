"""From a batch's file, or a grid, to its items; and every mistake of a file at once, each with its line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.batch.input.batch_file import grid_batch, read_batch
from launcher.errors import BadFileError, RefusedError, UsageError

HEAD = 'host = "local"\nprofile = "cpu"\njob = "sft"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty project, and an empty home."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (project / "train.py").touch()
    return project


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


def ordered(*runs, host="hive"):
    """A file whose runs, named a, b and so on, have these keys; `hive` is a cluster."""
    Path("launch.toml").write_text('[hosts.hive]\nkind = "slurm"\naddress = "h"\n')
    tables = (f'[[run]]\nname = "{name}"\n{keys}\n' for name, keys in zip("abc", runs, strict=False))
    return f'host = "{host}"\nprofile = "cpu"\njob = "sft"\n' + "".join(tables)


def test_a_run_may_start_after_all_items_of_another_one():
    """In the queue they have the names of items."""
    batch = read(ordered("", 'after = "a"', 'after = ["b:any", "a"]') + "[matrix]\nseeds = 2\n")
    after = {draft.name: [*draft.request.after] for draft in batch.drafts}
    assert after["a-1"] == after["a-2"] == []
    assert after["b-1"] == after["b-2"] == ["a-1:ok", "a-2:ok"]
    assert after["c-2"] == ["b-1:any", "b-2:any", "a-1:ok", "a-2:ok"]


@pytest.mark.parametrize(
    ("runs", "host", "said"),
    [
        (('after = "b"', ""), "hive", 'run.1.after: "b": no run before this one has this name'),
        (("", 'after = "b"'), "hive", 'run.2.after: "b": no run before'),
        (("", 'after = "nobody"'), "hive", 'run.2.after: "nobody": no run before'),
        (("", 'after = "a"'), "local", 'run.2.after: "a": only a Slurm cluster starts a run after another'),
        (("", 'after = "a"\nhost = "local"'), "hive", 'run.2.after: "a": only a Slurm cluster'),
        (("", 'after = "a:soon"'), "hive", "run.2.after"),
    ],
)
def test_an_order_that_slurm_cannot_keep_is_a_mistake(runs, host, said):
    assert any(said in line for line in mistakes(ordered(*runs, host=host)))


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
    assert any("run.1.host: unknown host 'lab'" in line and line.endswith("(line 7)") for line in found)
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
        ("best = 'loss'\n", 'best = "loss": expected METRIC:min or METRIC:max, e.g. eval_loss:min   (line 1)'),
        ("name = 'A'\n", 'name = "A": expected small letters, digits, and . _ - between, 48 at most   (line 1)'),
        ("", "is empty: expected at least a job or a command"),
        ("host = []\n", "host: is empty: it would run nowhere   (line 1)"),
        ("command = []\n", "command: is empty: nothing would be run   (line 1)"),
        ("[matrix]\n", "matrix: is empty: nothing would be multiplied   (line 1)"),
        ("job = 'sft'\n[[run]]\njob = 'sft'\ncommand = ['ls']\n", "run.1.command: there is a job too: give one of them   (line 4)"),
        ("variables = { A = 1 }\n", "variables.A = 1: expected text, got a whole number   (line 1)"),
        ("[matrix]\nseeds = 2\nseed = [7]\n", "matrix.seed: 'seed' is set by matrix.seeds too: give it once   (line 3)"),
        ("[matrix]\nprecision = ['bf17']\n", "matrix.precision: \"bf17\": expected auto, bf16, bf16-weights, fp16, fp32: did you mean 'bf16'?   (line 2)"),
        ("job = 'sft'\n[settings]\nstepps = 4\n", "settings.stepps: a job has no key 'stepps': did you mean 'steps'?   (line 3)"),
        ("[matrix]\nhost = [1]\n", "matrix.host: 1: expected text   (line 2)"),
        ("[matrix]\nprofile = [['cpu']]\n", 'matrix.profile: ["cpu"]: expected text   (line 2)'),
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


@pytest.mark.parametrize("word", ["lr", "=1", "lr=", "", "lr=1,,2", "lr=1,", "seeds=1,2"])
def test_a_grid_without_values_is_refused(word):
    """With an example."""
    with pytest.raises(UsageError, match=r"expected KEY=V1,V2|expected one number"):
        grid_batch([word], {})


def test_the_command_line_goes_before_the_file():
    """Hosts, profile and rules may be given there."""
    batch = read(HEAD.replace("local", "lab"), host=["local"], max_parallel=2)
    assert batch.drafts[0].hosts == ("local",)
    assert batch.rules.max_parallel == 2


COMMAND = 'profile = "cpu"\ncommand = ["python", "train.py", "--lr", "{lr}"]\n'
"""A batch of a script that asks the worker for nothing."""


def test_mistakes_of_all_kinds_are_told_at_once(monkeypatch):
    """An unknown key, host and profile, an empty list, a script that is not there, a secret that is not set."""
    monkeypatch.delenv("NOT_SET", raising=False)
    text = "\n".join(
        mistakes(
            'host = ["local", "lokal"]\nprofile = "cpuu"\ncommand = ["python", "trian.py"]\n\n'
            'secrets = ["NOT_SET"]\n[settings]\nstepps = 4\nsteps = "x"\n[matrix]\nseed = []\n'
        )
    )
    for words in (
        "matrix.seed: is empty: nothing would be run   (line 10)",
        "settings.stepps: a job has no key 'stepps': did you mean 'steps'?   (line 7)",
        'settings.steps: steps = "x": expected a whole number, got text   (line 8)',
        "host: unknown host 'lokal'",
        "profile: unknown profile 'cpuu'",
        "command: 'trian.py' does not exist in",
        "secrets: secret NOT_SET: it is not set here   (line 5)",
    ):
        assert f"sweep.toml: {words}" in text, text
    assert "--set" not in text.replace("--set code", "")


def test_what_launch_refuses_is_refused_before_anything_is_queued():
    """With its exit code, if nothing else is wrong."""
    with pytest.raises(RefusedError, match=r"command: 'trian.py' does not exist .*: did you mean 'train.py'"):
        read('profile = "cpu"\ncommand = ["python", "trian.py"]\n')
    with pytest.raises(RefusedError, match=r"matrix.settings.lerning_rate: .* declares no such setting"):
        read(f'{HEAD}[matrix]\n"settings.lerning_rate" = [1]\n')


def test_a_host_that_refuses_an_item_is_a_mistake_only_if_no_other_takes_it():
    """Kaggle has no such card, and this machine is asked later."""
    text = 'profile = "l40s"\njob = "sft"\n'
    with pytest.raises(RefusedError, match="kaggle has no L40S"):
        read(f'host = "kaggle"\n{text}')
    assert read(f'host = ["kaggle", "local"]\n{text}').drafts[0].hosts == ("kaggle", "local")


def test_a_key_that_the_matrix_has_not_is_named_with_the_nearest():
    """Once: the key of the matrix that is meant is no second mistake."""
    text = "\n".join(mistakes(f"{COMMAND}[matrix]\nlrr = [1]\n"))
    assert "command: {lr}: the matrix has no key 'lr': did you mean 'lrr'?   (line 2)" in text
    assert "matrix.lrr" not in text
    assert "allowed" not in text
    text = "\n".join(mistakes(COMMAND))
    assert "{lr}: the matrix has no key 'lr'   (line 2)" in text


def test_what_looks_like_a_key_and_is_none_is_left_alone():
    """Doubled braces, a shell's variable, a count of a pattern."""
    batch = read(
        'profile = "cpu"\ncommand = ["python", "train.py", "{{lr}}", "${lr}", "\\\\d{3}", "{lr}"]\n[matrix]\nlr = [5]\n'
    )
    assert batch.drafts[0].request.words[2:] == ["{lr}", "${lr}", "\\d{3}", "5"]


def test_a_table_sets_several_keys_also_those_of_the_command():
    """Under any name; under that of a table of a job its keys are that table's."""
    batch = read(
        f"{COMMAND}settings = {{ steps = 3 }}\n[matrix]\npoint = [{{ lr = 1, seed = 5 }}, {{ lr = 2, seed = 6 }}]\n"
        "batch = [{ global = 8, micro = 2 }]\nexclude = [{ lr = 2, seed = 6 }]\n"
    )
    (draft,) = batch.drafts
    assert draft.request.words[-1] == "1"
    assert draft.request.settings == ["steps=3", "seed=5", "batch.global=8", "batch.micro=2"]
    assert draft.values == {"lr": 1, "seed": 5, "batch.global": 8, "batch.micro": 2}
    assert "matrix.seed: 'seed' is set by matrix.lr too" in "\n".join(
        mistakes(f"{COMMAND}[matrix]\nlr = [{{ lr = 1, seed = 5 }}]\nseed = [1]\n")
    )


def test_a_value_that_reaches_no_script_is_noted(folder):
    """Not where the script asks the worker, and not where the command names it."""
    text = f"{COMMAND}[matrix]\nlr = [1, 2]\nseed = [1, 2]\n"
    (note,) = read(text).notes
    assert note.startswith("sweep.toml: matrix.seed: the command has no {seed}")
    assert note.endswith("so the value does not reach it   (line 5)")
    assert read(text.replace('"{lr}"', '"{lr}", "{seed}"')).notes == ()
    (folder / "train.py").write_text("import launcher_worker\n")
    assert read(text).notes == ()


def test_values_that_are_twice_and_exclusions_of_nothing_are_noted():
    """Both are likely slips, and neither is wrong."""
    notes = read(f"{COMMAND}[matrix]\nlr = [1e-4, 1E-4, 3]\nexclude = [{{ lr = 5 }}, {{ lr = 3 }}]\n").notes
    assert notes == (
        "sweep.toml: matrix.lr: 0.0001 is listed 2 times, so it is run 2 times   (line 4)",
        "sweep.toml: matrix.exclude: no combination has lr = 5, so this excludes nothing   (line 5)",
    )


def test_what_is_large_is_to_be_agreed_to_for_each_host(folder):
    """Not again where it has been; the sizes of what is new are in the question."""
    with (folder / "big").open("wb") as file:
        file.truncate(230_000_000)
    batch = read(f'host = ["local", "kaggle"]\n{COMMAND}[matrix]\nlr = [1, 2]\n')
    assert [one.host for one in batch.large] == ["local", "kaggle"]
    assert "230.0 MB, would be sent to local for the first time" in batch.large[0].finding.message
    assert batch.large[0].finding.mend.startswith("launch batch --yes")
    (folder / ".launchignore").write_text("big\n")
    assert read(f"{COMMAND}[matrix]\nlr = [1]\n").large == ()


def test_a_grid_joins_the_values_of_a_key_that_is_given_again():
    """And `seeds=3` is what it is in a file."""
    grid = grid_batch(["seed=1", "seed=2,3"], {"profile": "cpu", "job": "sft"})
    assert [draft.values["seed"] for draft in grid.drafts] == [1, 2, 3]
    grid = grid_batch(["seeds=3"], {"profile": "cpu", "job": "sft"})
    assert [draft.values["seed"] for draft in grid.drafts] == [0, 1, 2]


def test_mistakes_of_a_command_line_speak_of_its_options():
    """There is no file, and no line."""
    with pytest.raises(UsageError) as caught:
        grid_batch(["lrr=1", "other=1"], {"profile": "cpuu", "command": ["python", "train.py", "{lr}"]})
    text = str(caught.value)
    assert text.startswith("the command after --: {lr}: the matrix has no key 'lr'")
    assert "\n--grid other: the command has no {other}" in text
    assert "\n--profile: unknown profile 'cpuu'" in text


OPENED = """
import collections, json, sys
from pathlib import Path
opened = collections.Counter()
sys.addaudithook(lambda event, words: opened.update([str(words[0])]) if event == "open" else None)
from launcher.batch.input.batch_file import read_batch
batch = read_batch(Path("sweep.toml"), {})
print(json.dumps({"items": len(batch.drafts), "opened": opened}))
"""


def test_what_three_hundred_items_share_is_read_once(folder):
    """The profiles, the job, the project's file, the user's hosts and ssh's configuration: as Python itself counts opened files."""
    home = folder.parent / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host box\n  HostName 127.0.0.1\n")
    (home / ".config" / "launch").mkdir(parents=True)
    (home / ".config" / "launch" / "hosts.toml").write_text('[hosts.lab]\naddress = "127.0.0.1"\n')
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
    travels = 1  # what is in the folder is read once more, for private keys, before it would travel
    assert not {
        name: times
        for name, times in names.items()
        if times > 1 + travels * (Path(name).parent in (folder, Path()))
    }


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
    assert "run.1.settings.settings.token: it holds a token" in text
    assert "run.2.command: it holds a token" in text
    assert "run.3: variable TOKEN: it holds a token" in text
    assert "run.4.secrets: secret MY_TOKEN: its value is in the job's command" in text
    assert token not in text
    assert "kept-from-all" not in text


def test_what_a_value_of_the_matrix_holds_is_no_hole():
    """It stands in the command as it was written."""
    batch = read(
        'host = "local"\nprofile = "cpu"\ncommand = ["python3", "train.py", "{a}", "{b}"]\n[matrix]\na = ["{b}"]\nb = ["{a}"]\n'
    )
    assert batch.drafts[0].request.words[2:] == ["{b}", "{a}"]


def test_the_best_needs_a_metric_for_whose_files_come_home():
    """Otherwise none of them would."""
    found = mistakes(f'{HEAD}artifacts = "best"\n')
    assert 'artifacts: "best": needs the key best, which defines the best run   (line 4)' in found[0]
    assert read(f'{HEAD}artifacts = "best"\n', best="loss:min").rules.artifacts == "best"


def test_a_word_that_is_misspelt_in_the_command_is_one_mistake():
    """The key that is meant is none of its own."""
    found = mistakes(
        'profile = "cpu"\ncommand = ["python", "train.py", "{lrr}"]\n[matrix]\nlr = [1]\nother = [1]\n'
    )
    assert [line for line in found if "'lr'" in line] == [
        "sweep.toml: command: {lrr}: the matrix has no key 'lrr': did you mean 'lr'?   (line 2)"
    ]
    assert any(line.startswith("sweep.toml: matrix.other: the command has no {other}") for line in found)


def test_a_mistake_about_a_secret_names_what_a_batch_has(monkeypatch):
    """Neither an option of `launch` alone, nor a command that has no batch."""
    monkeypatch.delenv("NOT_SET", raising=False)
    token = "hf_" + "a1B2" * 8
    found = "\n".join(mistakes(f'{HEAD}secrets = ["NOT_SET"]\nvariables = {{ HF_TOKEN = "{token}" }}\n'))
    assert "set it   export NOT_SET=…" in found
    assert 'export HF_TOKEN=…     then   secrets = ["HF_TOKEN"]' in found
    assert "--env-file" not in found
    assert "launch -s" not in found
    assert token not in found
