"""From names to values: where a host, a job or a setting comes from, and what is said where it cannot be found."""

import json
import re
from pathlib import Path

import pytest

from launcher.base.resources import data_folder
from launcher.config import resolve
from launcher.config.lookup import Lookup
from launcher.errors import BadFileError, LaunchError, UnknownNameError, UsageError
from launcher.values.software.image import Build


@pytest.fixture
def person(tmp_path, monkeypatch):
    """A home and a project of one's own, without a file; writes one by its path below either."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(project)

    def write(path, text):
        place = home / path.removeprefix("~/") if path.startswith("~/") else project / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    return write


def complaint(kind, ask, *words):
    with pytest.raises(kind) as caught:
        ask(*words)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_without_a_file_the_host_is_this_machine(person):
    """`launch` alone needs no configuration."""
    assert Lookup().host(None).is_local
    assert Lookup().host("local").is_local


def test_a_host_of_the_project_beats_one_of_the_person(person):
    """launch.toml first, then ~/.config/launch/hosts.toml; other hosts of either stay."""
    person(
        "~/.config/launch/hosts.toml", '[hosts.lab]\naddress = "old"\nport = 7\n[hosts.mine]\naddress = "m"\n'
    )
    person("launch.toml", '[hosts.lab]\naddress = "new"\n')
    assert (Lookup().host("lab").address, Lookup().host("lab").port) == ("new", None)
    assert Lookup().host("mine").address == "m"


def test_xdg_config_home_moves_the_users_folder(person, tmp_path, monkeypatch):
    person("~/.config/launch/hosts.toml", '[hosts.old]\naddress = "o"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    hosts_file = tmp_path / "settings" / "launch" / "hosts.toml"
    hosts_file.parent.mkdir(parents=True)
    hosts_file.write_text('[hosts.lab]\naddress = "l"\n')
    assert set(Lookup().hosts) == {"lab", "local"}
    with pytest.raises(UnknownNameError, match=re.escape(f"launch.toml, {hosts_file}, ~/.ssh/config")):
        Lookup().host("lamda")


def test_the_projects_default_host_is_meant_where_none_is_named(person):
    """`host` in launch.toml names it; a name on the command line beats it."""
    person("launch.toml", 'host = "lab"\n[hosts.lab]\naddress = "x"\n')
    assert Lookup().host(None).name == "lab"
    assert Lookup().host("local").name == "local"


def test_an_alias_of_the_ssh_config_needs_no_table(person):
    """Every plain name behind `Host` is a host; patterns are not."""
    person("~/.ssh/config", "Host box big-box\n  HostName 10.0.0.1\nhost other\nHost *\nHost !no we?rd\n")
    assert [Lookup().host(name).address for name in ("box", "big-box", "other")] == [
        "box",
        "big-box",
        "other",
    ]
    complaint(UnknownNameError, Lookup().host, "we?rd")


def test_a_table_without_an_address_is_an_alias_with_keys(person):
    """`[hosts.box]` adds our keys to what ssh knows of `box`."""
    person("launch.toml", '[hosts.box]\nroot = "/big"\n')
    assert (Lookup().host("box").address, Lookup().host("box").root) == ("box", "/big")


@pytest.mark.parametrize(
    ("word", "user", "address"),
    [
        ("me@box", "me", "box"),
        ("me@box.lab.org", "me", "box.lab.org"),
        ("10.0.0.7", None, "10.0.0.7"),
        ("a.b", None, "a.b"),
    ],
)
def test_an_address_needs_no_file_at_all(person, word, user, address):
    """`user@machine`, a name with dots or an IP is gone to as it stands."""
    host = Lookup().host(word)
    assert (host.name, host.user, host.address) == (word, user, address)


@pytest.mark.parametrize(
    ("word", "user", "address", "port"),
    [
        ("me@box.lab.org:2222", "me", "box.lab.org", 2222),
        ("box:22", None, "box", 22),
        ("me@[fe80::1]:2222", "me", "fe80::1", 2222),
    ],
)
def test_an_address_may_have_a_port(person, word, user, address, port):
    """As rsync and scp write it."""
    host = Lookup().host(word)
    assert (host.name, host.user, host.address, host.port) == (word, user, address, port)


@pytest.mark.parametrize("word", ["lbmda", "a b", "-oProxyCommand=x", "me@", "me@-x", "a;b", "me@a b", "x\n"])
def test_an_unknown_host_is_named_with_the_nearest_and_all_known(person, word):
    """What was looked in, a guess, and the list; nothing that ssh could take for an option passes."""
    person("launch.toml", '[hosts.lambda]\naddress = "x"\n')
    person("~/.ssh/config", "Host box\n")
    said = complaint(UnknownNameError, Lookup().host, word)
    assert f"unknown host '{word}'" in said
    assert "known: box, kaggle, lambda, local" in said
    assert ("did you mean 'lambda'?" in said) == (word == "lbmda")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hots = 1\n", ["launch.toml", "'hots'", "allowed", "hosts"]),
        ("host = 3\n", ["launch.toml", "host", "text"]),
        ("hosts = 3\n", ["launch.toml", "hosts"]),
        ("[hosts]\nlab = 3\n", ["launch.toml", "hosts.lab"]),
        ("[hosts.lab]\nport = 99999\n", ["launch.toml", "hosts.lab.port", "99999", "line 2"]),
        ("[hosts.lab]\nadress = 'x'\n", ["launch.toml", "hosts.lab.adress", "did you mean 'address'"]),
        ("[hosts.lab]\nname = 'x'\n", ["launch.toml", "hosts.lab.name"]),
        ("[hosts.lab\n", ["launch.toml", "TOML", "line 1"]),
        ("[hosts.lab]\naddress = '-oProxyCommand=x'\n", ["launch.toml", "hosts.lab.address"]),
        ("[hosts.lab]\nroot = ''\n", ["launch.toml", "hosts.lab.root", "absolute path"]),
        ("[hosts.local]\nroot = 'runs/here'\n", ["launch.toml", "hosts.local.root", "absolute path"]),
    ],
    ids=lambda value: value.strip() if isinstance(value, str) else "",
)
def test_a_mistake_in_the_project_file_is_named(person, text, parts):
    """File, key, value, and what is allowed."""
    person("launch.toml", text)
    said = complaint(BadFileError, Lookup().host, None)
    assert [part for part in parts if part not in said] == []


def test_a_project_file_that_cannot_be_one_is_not_passed_over(person):
    """A job that is meant for another host must not run here because its table was not read."""
    Path("launch.toml").mkdir()
    assert "launch.toml: is not a regular file" in complaint(BadFileError, lambda: Lookup().project)
    Path("launch.toml").rmdir()
    Path("launch.toml").symlink_to("nowhere")
    assert "launch.toml: is not a regular file" in complaint(BadFileError, Lookup().host, None)


def test_a_mistake_in_the_persons_file_names_that_file(person):
    """Two files may hold hosts; the message says which."""
    path = person("~/.config/launch/hosts.toml", "host = 'x'\n")
    assert str(path) in complaint(BadFileError, Lookup().host, None)


def job_file(steps):
    return f'name = "sft"\ncommand = ["python", "x.py"]\nsteps = {steps}\n'


def test_a_job_is_looked_for_here_then_with_the_person_then_with_us(person):
    """jobs/ of the working directory beats ~/.config/launch/jobs beats ours, by name."""
    ours = resolve.task("sft", [], [], None)
    assert ours.base == data_folder("jobs").resolve()
    person("~/.config/launch/jobs/sft.toml", job_file(11))
    assert resolve.task("sft", [], [], None).job.steps == 11
    person("jobs/sft.toml", job_file(22))
    assert resolve.task("sft", [], [], None).job.steps == 22


def test_a_job_is_also_a_path(person):
    """A name with a slash or `.toml` is the file itself, and its paths are relative to it."""
    path = person("deep/my.toml", job_file(33))
    task = resolve.task("deep/my.toml", [], [], None)
    assert (task.job.steps, task.base) == (33, path.parent.resolve())


def test_no_job_named_is_the_projects_else_our_demo_said_aloud(person):
    """The default is never taken in silence."""
    assert (said := resolve.task(None, [], [], None).said)
    assert "sft" in said
    person("launch.toml", 'job = "mine"\n')
    person("jobs/mine.toml", job_file(7))
    task = resolve.task(None, [], [], None)
    assert (task.job.steps, task.said) == (7, None)


@pytest.mark.parametrize("name", ["sfft", "nowhere.toml", "no/where"])
def test_a_job_that_is_not_there_is_a_usage_error(person, name):
    """A name gets a guess, a path its own words."""
    said = complaint(UsageError, resolve.task, name, [], [], None)
    assert name in said
    assert ("did you mean 'sft'?" in said) == (name == "sfft")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "train.py", "--lr", "1"], "train"),
        (["./Run Me.sh"], "run-me"),
        (["torchrun", "--nproc", "2", "my/Fine_Tune.py"], "fine_tune"),
        (["..."], "job"),
        (["名前"], "job"),
        (["x" * 99], "x" * 24),
    ],
)
def test_words_are_a_job_named_after_their_program(person, words, name):
    """The words are the command as they are; the name is safe in a path."""
    job = resolve.task(None, words, [], None).job
    assert (job.name, job.command) == (name, tuple(words))


def test_a_job_and_words_at_once_are_refused(person):
    """Two jobs in one line are a mistake, not a precedence."""
    assert "--job" in complaint(UsageError, resolve.task, "sft", ["python", "x.py"], [], None)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1e-4", 1e-4),
        ("true", True),
        ("cosine", "cosine"),
        ("'3'", "3"),
        ("org/model-7b", "org/model-7b"),
        ("a=b", "a=b"),
        ("", ""),
        ("2024-01-01", "2024-01-01"),
        ("9" * 18, int("9" * 18)),
        (f'"{"9" * 25}"', "9" * 25),
    ],
)
def test_a_setting_has_the_type_that_it_is_written_in(person, written, value):
    """TOML's notation; a bare word is text."""
    found = resolve.task(None, ["x"], [f"settings.k={written}"], None).job.settings["k"]
    assert (found, type(found)) == (value, type(value))


def test_a_whole_number_that_does_not_fit_is_not_taken_for_text(person):
    """TOML's whole numbers have 64 bits: the error says how to write it as text."""
    said = complaint(UsageError, resolve.task, None, ["x"], [f"settings.k={'9' * 25}"], None)
    assert "more than 64 bits" in said
    assert f"""--set 'settings.k="{"9" * 25}"'""" in said


def test_set_reaches_keys_in_tables_and_adds_tables(person):
    """`batch.global`, `data.train` and new settings, over what the file says."""
    changes = [
        "batch.global=32",
        "data.train=./my.jsonl",
        "settings.learning_rate=1",
        "steps=5",
        "model=org/name",
    ]
    job = resolve.task("sft", [], changes, None).job
    assert (job.batch.global_size, job.data.train, job.steps, job.model) == (32, "./my.jsonl", 5, "org/name")
    assert (job.settings["learning_rate"], job.settings["scheduler"]) == (1, "cosine")


def test_the_last_of_two_settings_stands_and_a_name_of_its_own_beats_the_files(person):
    """As on any command line."""
    job = resolve.task("sft", [], ["steps=1", "steps=2"], "mine").job
    assert (job.steps, job.name) == (2, "mine")


@pytest.mark.parametrize(
    "setting",
    ["steps", "=3", "a b=3", "steps.x=3", ".=3", "a..b=3", "settings=3", "steps=three", "steps=0", "nope=1", "batch.size=3",
     "settings.x=[1]", "name=../up", "command=x", "settings.x.y=1", "-=1", "steps=nan"],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_a_usage_error(person, setting):
    """The key is named; nothing is guessed."""
    said = complaint(UsageError, resolve.task, "sft", [], [setting], None)
    assert setting.partition("=")[0].removesuffix(".y") in said


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_a_setting_that_json_cannot_hold_is_refused_or_planned(person, client, value):
    """A non-finite number in a setting is a mistake with a name, or a part of the plan; never a crash."""
    done = client.run("--dry-run", "--json", "--profile", "cpu", "--set", f"settings.x={value}", "--", "true")
    if done.returncode:
        assert done.returncode == 2
        assert "settings.x" in done.stderr
    else:
        json.loads(done.stdout, parse_constant=lambda token: pytest.fail(token))


@pytest.mark.parametrize("code", ["nowhere", "../nowhere", "job.toml"])
def test_code_that_is_no_folder_is_named(person, code):
    """The key, the value, and where it was looked for."""
    person("job.toml", job_file(1) + f'code = "{code}"\n')
    said = complaint(BadFileError, resolve.task, "job.toml", [], [], None)
    assert f'code = "{code}"' in said


def test_an_unknown_profile_is_named_with_the_nearest(person):
    """Cards are known by their file's name."""
    assert "did you mean 'titan_rtx'?" in complaint(UnknownNameError, Lookup().profile, "titan_rx")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("4090", "rtx_4090_24gb"),
        ("RTX 3090", "rtx_3090_24gb"),
        ("h100_80gb", "h100"),
        ("m3", "mps"),
        ("m4 max", "mps"),
    ],
)
def test_an_unknown_profile_is_matched_by_a_part_of_a_cards_name_or_title(person, word, name):
    """Before the nearest by letters; the advice holds for every command."""
    said = complaint(UnknownNameError, Lookup().profile, word)
    assert f"did you mean '{name}'?" in said
    assert "--gpus" not in said


@pytest.mark.parametrize("value", ["on", "1"])
def test_another_word_for_checkpointing_is_answered_in_one_line(person, value):
    """The type is a union, and each of its parts has an error."""
    said = complaint(BadFileError, resolve.task, "sft", [], [f"checkpointing={value}"], None)
    assert said.endswith('expected true, false or "auto"')
    assert len(said.splitlines()) == 1


def test_a_profile_of_ones_own_replaces_ours_and_must_be_called_as_its_file(person):
    """profiles/ of the working directory come first."""
    person("profiles/cpu.toml", 'name = "cpu"\ntitle = "Mine"\nkind = "cpu"\n')
    assert Lookup().profile("cpu").title == "Mine"
    person("profiles/other.toml", 'name = "cpu"\ntitle = "Mine"\nkind = "cpu"\n')
    assert "other" in complaint(LaunchError, Lookup().profile, "cpu")


@pytest.mark.parametrize("setting", ["code=other", "code='other'", "code=./other"])
def test_code_by_set_is_the_folder_that_travels_from_where_one_stands(person, setting):
    """Over what the file says, and relative to the command line, not to the file."""
    other = person("other/x.py", "").parent
    person("deep/own/x.py", "")
    person("deep/job.toml", job_file(1) + 'code = "own"\n')
    assert resolve.task("deep/job.toml", [], [setting], None).code == other
    assert resolve.task("deep/job.toml", [], ["steps=2"], None).code == other.parent / "deep" / "own"
    assert resolve.task(None, ["x"], [setting], None).code == other


def test_code_by_set_that_is_no_folder_is_named(person):
    """The key, the value, and that the command line says it."""
    said = complaint(BadFileError, resolve.task, "sft", [], ["code=nowhere"], None)
    assert "--set" in said
    assert 'code = "nowhere"' in said
    assert "code = 3" in complaint(BadFileError, resolve.task, "sft", [], ["code=3"], None)


@pytest.mark.parametrize("environment", [".venv", "venvs/torch", "./.venv/bin/python", "../venv"])
def test_an_environment_here_is_relative_to_the_file_that_says_it(person, environment):
    """The agent stands elsewhere; a link to an interpreter is left a link, for it is how a venv is found."""
    folder = person(".venv/bin/python", "").parent.parent.parent
    person("launch.toml", f'[hosts.local]\nenvironment = "{environment}"\n')
    assert Lookup().host("local").environment == str(folder / environment)


def test_an_environment_of_the_persons_file_is_relative_to_that(person):
    """Wherever one stands."""
    path = person("~/.config/launch/hosts.toml", '[hosts.local]\nenvironment = "./venv"\n')
    assert Lookup().host("local").environment == str(path.parent / "venv")


@pytest.mark.parametrize("environment", ["python3.12", "~/venv", "~other/venv", "/opt/venv"])
def test_an_environment_that_is_a_program_or_a_whole_path_stays(person, environment):
    """Here as on any host."""
    person(
        "launch.toml",
        f'[hosts.local]\nenvironment = "{environment}"\n[hosts.lab]\nenvironment = "{environment}"\n',
    )
    assert Lookup().host("local").environment == Lookup().host("lab").environment == environment


def test_the_old_name_of_a_hosts_environment_is_still_read(person):
    """`env` was its name; a file that gives both names is a mistake, whose message says which to remove."""
    person("launch.toml", '[hosts.lab]\nenv = "/opt/venv"\n')
    assert Lookup().host("lab").environment == "/opt/venv"
    person("launch.toml", '[hosts.lab]\nenv = "/opt/old"\nenvironment = "/opt/venv"\n')
    said = complaint(BadFileError, Lookup().host, "lab")
    assert said == "launch.toml: hosts.lab: `env` is the old name of `environment`: remove `env`   (line 1)"


@pytest.mark.parametrize("environment", ["./venv", "venvs/torch", "../venv"])
def test_a_relative_environment_elsewhere_is_a_mistake(person, environment):
    """It could be relative to nothing that one sees."""
    person("launch.toml", f'[hosts.lab]\nenvironment = "{environment}"\n')
    said = complaint(BadFileError, Lookup().host, "lab")
    assert f'launch.toml: hosts.lab.environment = "{environment}": expected an absolute path, ~/…' in said


def test_the_files_of_a_build_are_relative_to_the_file_that_names_them(person, tmp_path):
    """A project's lie in it, a person's in theirs; `~` and absolute paths are what they are."""
    person(
        "~/.config/launch/hosts.toml", '[hosts.mine.build]\npip_conf = "pip.conf"\nca_bundle = "~/ca.pem"\n'
    )
    person(
        "launch.toml", '[hosts.lab.build]\nbase = "python:3"\npip_conf = "pip.conf"\nca_bundle = "/ca.pem"\n'
    )
    assert Lookup().host("lab").build == Build(
        base="python:3", pip_conf=str(tmp_path / "project" / "pip.conf"), ca_bundle="/ca.pem"
    )
    mine = Lookup().host("mine").build
    assert mine.pip_conf == str(tmp_path / "home" / ".config" / "launch" / "pip.conf")
    assert mine.ca_bundle == str(tmp_path / "home" / "ca.pem")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            '[hosts.lab.build]\npip_config = "x"',
            "unknown key 'hosts.lab.build.pip_config': did you mean 'pip_conf'?",
        ),
        (
            '[hosts.lab.build]\nbase = "Not An Image"',
            'hosts.lab.build.base = "Not An Image": expected an image',
        ),
        ('[hosts.lab.build]\nnetwork = "bridge"', 'hosts.lab.build.network = "bridge"'),
        ('[hosts.lab.build]\ntorch_index = "./x"', 'hosts.lab.build.torch_index = "./x": expected the URL'),
        (
            '[hosts.lab.build]\ntorch_index = "https://me:hunter2@x/y"',
            "hosts.lab.build.torch_index holds a user",
        ),
        (
            '[hosts.lab]\nengine = "dokcer"',
            'hosts.lab.engine = "dokcer": expected docker, podman, or the absolute',
        ),
        ('[hosts.lab]\nengine = "run/docker.sock"', "expected docker, podman, or the absolute path"),
        ('[hosts.lab]\nsudo = "yes"', 'hosts.lab.sudo = "yes": expected true or false'),
        ('[hosts.lab]\nruntime = "podman"', 'hosts.lab.runtime = "podman"'),
    ],
)
def test_a_mistake_about_containers_is_told_by_file_and_key(person, table, said):
    """A credential is not repeated."""
    person("launch.toml", table)
    message = complaint(BadFileError, Lookup().host, "lab")
    assert f"launch.toml: {said}" in message or said in message
    assert "hunter2" not in message


def test_a_users_own_template_comes_first(person):
    """The working directory's, then the person's, then ours."""
    assert resolve.template()[1] == data_folder("images") / "Dockerfile"
    own = person("~/.config/launch/images/Dockerfile", "FROM own")
    assert resolve.template() == ("FROM own", own)
    person("images/Dockerfile", "FROM here")
    assert resolve.template()[0] == "FROM here"


def test_kaggle_needs_no_table(person):
    """The account is that of the credentials; nothing is asked of it here."""
    host = Lookup().host("kaggle")
    assert host.kaggle is not None
    assert not host.is_local
    assert "kaggle" not in Lookup().hosts


def test_an_alias_or_a_table_that_is_called_kaggle_stays_what_it_is(person):
    person("~/.ssh/config", "Host kaggle\n  HostName gpu.example.org\n")
    assert Lookup().host("kaggle").address == "kaggle"
    person("launch.toml", '[hosts.kaggle]\nkind = "kaggle"\naccount = "alice"\n')
    assert Lookup().host("kaggle").kaggle.account == "alice"
    person("launch.toml", '[hosts.kaggle]\naddress = "elsewhere"\n')
    assert Lookup().host("kaggle").address == "elsewhere"


def test_a_runtime_of_machines_is_not_for_kaggle(person):
    """It is the same mistake in a file and on a command line."""
    said = complaint(BadFileError, resolve.with_runtime, Lookup().host("kaggle"), "docker")
    assert "--runtime docker" in said
    assert "auto or kaggle" in said


def test_a_projects_file_sends_nobodys_credentials_to_another_service(person):
    """A launch.toml may come from someone else; this machine's own ports are a stand-in's."""
    table = '[hosts.k]\nkind = "kaggle"\napi = "https://example.org/v1"\n'
    person("launch.toml", table)
    said = complaint(BadFileError, lambda: Lookup().hosts)
    assert "hosts.k.api" in said
    assert "~/.config/launch/hosts.toml" in said
    person("launch.toml", table.replace("https://example.org", "http://127.0.0.1:8080"))
    assert Lookup().host("k").kaggle.api == "http://127.0.0.1:8080/v1"
    person("launch.toml", "")
    person("~/.config/launch/hosts.toml", table)
    assert Lookup().host("k").kaggle.api == "https://example.org/v1"


def test_lambda_needs_a_table_because_it_costs_money(person):
    """The error has the lines to write; with them it is a host."""
    said = complaint(UnknownNameError, Lookup().host, "lambda")
    lines = [line.strip() for line in said.splitlines()]
    table = "\n".join(lines[lines.index("[hosts.lambda]") :][:3])
    assert "~/.config/launch/hosts.toml" in said
    person("~/.config/launch/hosts.toml", table)
    host = Lookup().host("lambda")
    assert (host.kind, host.lambda_cloud.max_hours) == ("lambda-cloud", 4)


def test_an_alias_or_a_table_that_is_called_lambda_stays_what_it_is(person):
    person("~/.ssh/config", "Host lambda\n  HostName gpu.example.org\n")
    assert Lookup().host("lambda").address == "lambda"
    person("launch.toml", '[hosts.lambda]\nkind = "lambda-cloud"\nmax_cost = 20\n')
    assert Lookup().host("lambda").lambda_cloud.max_cents == 2000
    person("launch.toml", '[hosts.lambda]\naddress = "elsewhere"\n')
    assert Lookup().host("lambda").address == "elsewhere"


@pytest.mark.parametrize(
    ("line", "key"), [('api = "https://example.org/v1"', "api"), ("confirm_above = 11", "confirm_above")]
)
def test_a_projects_file_says_neither_where_the_key_goes_nor_what_is_spent_unasked(person, line, key):
    """It may come from someone else; in one's own file both are fine."""
    table = f'[hosts.r]\nkind = "lambda-cloud"\n{line}\n'
    person("launch.toml", table)
    said = complaint(BadFileError, Lookup().host, "r")
    assert f"launch.toml: hosts.r.{key}" in said
    assert "~/.config/launch/hosts.toml" in said
    person("launch.toml", "")
    person("~/.config/launch/hosts.toml", table)
    assert Lookup().host("r").lambda_cloud is not None


def test_a_table_in_a_folder_above_is_pointed_to(tmp_path, monkeypatch):
    """launch.toml counts in its own folder only. From a folder below, the message names it."""
    below = tmp_path / "a project" / "src"
    below.mkdir(parents=True)
    (below.parent / "launch.toml").write_text('[hosts.lab]\naddress = "10.0.0.1"\n')
    monkeypatch.chdir(below)
    with pytest.raises(UnknownNameError) as error:
        Lookup().host("lab")
    assert f"cd '{below.parent}'" in str(error.value)


def test_a_host_that_resembles_none_is_told_how_to_be_made(monkeypatch, tmp_path):
    """Half the letters of `local` resemble nothing. If a name is close, also in the other case, it is suggested instead."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="--host USER@MACHINE") as error:
        Lookup().host("lab")
    assert "did you mean" not in str(error.value)
    (tmp_path / "launch.toml").write_text('[hosts.LAB]\naddress = "10.0.0.1"\n')
    with pytest.raises(UnknownNameError, match=r"\[hosts\.qqqqq\]"):
        Lookup().host("qqqqq")
    with pytest.raises(UnknownNameError, match="did you mean 'LAB'") as error:
        Lookup().host("lab")
    assert "a new one" not in str(error.value)
