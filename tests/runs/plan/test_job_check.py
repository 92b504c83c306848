"""What stops a job on this machine: paths that do not exist, settings that it does not declare. Witness: the run's own files."""

import json

import pytest

pytestmark = pytest.mark.slow(reason="many of these tests start several clients and a run")

JOB = """
name = "aware"
command = ["python", "train.py"]
[settings]
learning_rate = 1.0
hidden = 4
"""
ROWS = '{"prompt": "a", "answer": "b"}\n'


@pytest.fixture
def project(client):
    """A client whose project has data, a model, and a script that prints what it was given."""
    (client.project / "data").mkdir()
    (client.project / "data" / "big.bin").write_text(ROWS)
    (client.project / "models" / "tiny").mkdir(parents=True)
    (client.project / "models" / "tiny" / "config.json").write_text("{}")
    client.script(
        "import json, launcher_worker as worker\nknobs = worker.knobs()\n"
        "print('given', json.dumps([knobs.data.get('train'), knobs.model]))\n"
    )
    client.script(JOB, "aware.toml")
    return client


def refused(client, *words):
    """Return what a launch and a dry run say of a job that cannot run; nothing of it is left, and no host was asked."""
    done = client.run("--host", "local", *words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.startswith("refused before anything was sent: ")
    assert "connect" not in done.stderr
    assert not list((client.home / ".launch" / "runs").glob("*"))
    assert not client.runs.exists()
    said = done.stderr.removeprefix("refused before anything was sent: ")
    preview = client.planned("--profile", "cpu", *words)
    assert f"would refuse: {said.rstrip()}\n" in preview
    assert "the checks pass" not in preview
    return said


def planned(client, *words):
    """Return the plan of a dry run, and the codes of what it finds."""
    printed = json.loads(client.planned("--json", "--profile", "cpu", *words))
    return printed["plan"], {finding["code"]: finding for finding in printed["findings"]}


@pytest.mark.parametrize(
    ("key", "written", "expected"),
    [
        ("data.train", "data/big.bin", ("local", "./data/big.bin")),
        pytest.param("data.eval", "data/big.bin", ("local", "./data/big.bin"), marks=pytest.mark.long),
        ("data.train", "data", ("local", "./data")),
        pytest.param("model", "models/tiny", ("local", "./models/tiny"), marks=pytest.mark.long),
        ("model", "hub:models/tiny", ("name", "models/tiny")),
        ("data.train", "host:/data/big.bin", ("host", "/data/big.bin")),
        ("model", "Qwen/Qwen2.5-0.5B", ("name", "Qwen/Qwen2.5-0.5B")),
        pytest.param("model", "org/models", ("name", "org/models"), marks=pytest.mark.long),
        ("model", "whisper.cpp", ("name", "whisper.cpp")),
        pytest.param(
            "data.train", "s3://bucket/x.jsonl", ("name", "s3://bucket/x.jsonl"), marks=pytest.mark.long
        ),
        ("data.train", "hub:org/x.jsonl", ("name", "org/x.jsonl")),
    ],
)
def test_what_exists_here_is_a_path_and_everything_else_a_name(project, key, written, expected):
    """Without a mark as well; a name that could be the hub's stays one."""
    plan, findings = planned(project, "--set", f"{key}={written}", "--", "python", "train.py")
    source = plan["model"] if key == "model" else plan["data"][key.removeprefix("data.")]
    assert (source["kind"], source["value"]) == expected
    assert not [finding for finding in findings.values() if finding["level"] == "refuse"]


def test_a_folder_that_is_named_like_a_model_of_the_hub_is_said_to_be_taken(project):
    """The note names the other spelling; a path that is marked as one needs no note."""
    found = planned(project, "--set", "model=models/tiny", "--", "true")[1]["path-here"]
    assert str(project.project / "models" / "tiny") in found["message"]
    assert "model=hub:models/tiny" in found["mend"]
    assert "path-here" not in planned(project, "--set", "model=./models/tiny", "--", "true")[1]


def test_an_unmarked_path_travels_and_the_script_opens_it(project):
    """Byte for byte, at the place that the script is given."""
    words = ("--set", "data.train=data/big.bin", "--set", "model=models/tiny")
    run = project.detached("--host", "local", *words, "--", "python", "train.py")
    project.run("attach", run)
    work = project.home / ".launch" / "runs" / run / "work"
    assert (work / "data" / "train" / "big.bin").read_text() == ROWS
    given = [f"{work}/data/train/big.bin", f"{work}/data/model/tiny"]
    assert f"given {json.dumps(given)}" in project.ok("logs", run)


def test_a_path_in_a_file_is_relative_to_the_file(project):
    """One that lies in the working folder instead is named as the file must write it."""
    (project.project / "deep").mkdir()
    project.script('name = "x"\ncommand = ["true"]\ndata = { train = "own.bin" }\n', "deep/own.toml")
    (project.project / "deep" / "own.bin").touch()
    assert planned(project, "--job", "deep/own.toml")[0]["data"]["train"]["value"] == "./own.bin"
    project.script('name = "x"\ncommand = ["true"]\ndata = { train = "data/big.bin" }\n', "deep/far.toml")
    (project.project / "far").mkdir()
    said = refused(project, "--job", "deep/far.toml", "--set", "code=far")
    assert 'paths in deep/far.toml are relative to its folder   data.train = "../data/big.bin"' in said


def test_a_path_below_the_code_is_left_to_the_script(project):
    """It travels with the code, and the script stands there."""
    (project.project / "deep").mkdir()
    project.script('name = "x"\ncommand = ["true"]\ndata = { train = "data/big.bin" }\n', "deep/code.toml")
    plan, findings = planned(project, "--job", "deep/code.toml")
    assert (plan["data"]["train"], findings) == ({"kind": "name", "value": "data/big.bin"}, {})


@pytest.mark.parametrize(
    ("key", "written", "parts"),
    [
        ("data.train", "./nothere.jsonl", ["does not exist here", "host:/PATH"]),
        pytest.param("data.train", "/no/where", ["host:/no/where"], marks=pytest.mark.long),
        ("data.train", "~/nowhere", ["host:~/nowhere"]),
        ("data.train", "~nobody-here/x", ["does not exist here"]),
        ("data.train", "data/bih.bin", ["did you mean 'data/big.bin'?", "hub:data/bih.bin"]),
        ("teacher", "models/tino", ["did you mean 'models/tiny'?", "hub:models/tino"]),
        pytest.param("data.train", "data/big.bi", ["did you mean 'data/big.bin'?"], marks=pytest.mark.long),
        ("data.eval", "no.jsonl", ["hub:no.jsonl"]),
        pytest.param("data.eval", "data/raw/", ["does not exist here"], marks=pytest.mark.long),
        ("model", "./models/tino", ["did you mean './models/tiny'?"]),
        ("data.train", "/dev/null", ["is neither a file nor a folder"]),
    ],
)
def test_a_path_that_does_not_exist_here_is_refused(project, key, written, parts):
    """By a launch and by a dry run in the same words: key, value, the nearest name, and how to write it."""
    said = refused(project, "--set", f"{key}={written}", "--", "python", "train.py")
    assert said.startswith(f'{key} = "{written}"')
    assert [part for part in parts if part not in said] == []


def test_explain_says_what_a_launch_would_refuse(project):
    """The ladder is shown all the same: nothing is sent."""
    words = ("explain", "--profile", "titan_rtx", "--job", "sft", "--set", "model=./nowhere")
    assert 'would refuse: model = "./nowhere"' in project.ok(*words)
    (finding,) = json.loads(project.ok(*words, "--json"))["findings"]
    assert (finding["level"], finding["code"]) == ("refuse", "no-such-path")


def test_a_folder_with_nothing_of_a_model_is_refused_where_transformers_would_read_it(project):
    """A checkpoint below it is named; a job that asks for no transformers may read what it likes."""
    transformers = ("--set", 'requirements=["transformers"]', "--set", "model=./out", "--", "true")
    out = project.project / "out"
    out.mkdir()
    (out / "README").touch()
    said = refused(project, *transformers)
    assert "holds no config.json" in said
    assert "no-model-there" not in planned(project, "--set", "model=./out", "--", "true")[1]
    (out / "checkpoint-100").mkdir()
    (out / "checkpoint-100" / "config.json").touch()
    found = planned(project, *transformers)[1]["no-model-there"]
    assert (found["level"], "model=./out/checkpoint-100" in found["mend"]) == ("note", True)
    (out / "weights.pt").touch()
    assert "no-model-there" not in planned(project, *transformers)[1]


def test_a_setting_that_the_job_does_not_declare_is_refused(project):
    """With the nearest and all of them; a job of words declares none."""
    said = refused(project, "--job", "aware.toml", "--set", "settings.learing_rate=3")
    assert said.startswith("settings.learing_rate: aware.toml declares no such setting")
    assert "did you mean 'learning_rate'?" in said
    assert "declared: learning_rate, hidden" in said
    assert planned(project, "--job", "aware.toml", "--set", "settings.hidden=8")[1] == {}
    assert list(planned(project, "--set", "settings.learing_rate=3", "--", "true")[1]) == ["setting-ignored"]


def test_a_setting_of_verify_that_the_job_does_not_declare_is_refused(project):
    """It would replace nothing, and trials would run with what was to be replaced."""
    said = refused(project, "--job", "aware.toml", "--set", "verify.hiden=8")
    assert said.startswith("verify.hiden: aware.toml declares no such setting: did you mean 'hidden'?")
    assert planned(project, "--job", "aware.toml", "--set", "verify.hidden=8")[1] == {}
    with (project.project / "aware.toml").open("a") as file:
        file.write("\n[verify]\nhiden = 8\n")
    assert refused(project, "--job", "aware.toml").startswith("verify.hiden: ")


def test_a_resumed_run_takes_the_settings_of_its_parent_alone(project):
    """Its own settings are what it was launched with."""
    run = project.detached("--host", "local", "--job", "aware.toml")
    project.run("attach", run)
    before = sorted(path.name for path in (project.home / ".launch" / "runs").iterdir())
    done = project.run("resume", run, "--set", "settings.hiden=8")
    assert done.returncode == 3
    assert "settings.hiden" in done.stderr
    assert "did you mean 'hidden'?" in done.stderr
    assert sorted(path.name for path in (project.home / ".launch" / "runs").iterdir()) == before
