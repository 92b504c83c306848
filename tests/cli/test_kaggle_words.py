"""What a person reads of Kaggle before anything runs there: the dry run, the hosts, a probe, the first launch."""

import json
import sys

import pytest
from testbed.kaggle_service import KaggleService as StandIn
from testbed.pty_run import in_terminal, without_style

pytestmark = pytest.mark.slow(reason="most start several commands at a stand-in for the account")

UNTRIED = "never tried against the real service"
QUOTA = "GPU 0 h used, 0 h reserved, 30 h left, refill "


@pytest.fixture
def person(client):
    """A project with a small script, and no credentials."""
    client.script("print('trained')\n")
    return client


@pytest.fixture
def account(person, tmp_path):
    """The same with an account, which is called `k`, at a stand-in for the service."""
    with StandIn(tmp_path / "service") as service:
        service.account()
        person.variables |= {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "key-of-alice"}
        person.script(f'[hosts.k]\nkind = "kaggle"\napi = "{service.base}"\n', "launch.toml")
        yield service


def dry(person, *words, host="kaggle"):
    return person.run("--host", host, *words, "--dry-run", "--", "python", "train.py")


def test_a_dry_run_without_credentials_shows_the_plan_and_what_is_missing(person):
    """Everything but the hours is known here."""
    done = dry(person)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "train on kaggle · 2 x T4 16 GB" in text
    assert "NvidiaTeslaT4, 8.5 h at most" in text
    assert "of 900.0 kB: agent " in text
    assert "hours      unknown: kaggle: no credentials here" in text
    assert "KAGGLE_API_TOKEN" in text
    assert "are expected, as of 20" in text
    assert "not all was checked; nothing was sent" in text


def test_a_short_session_without_a_card_is_told_in_words(account, person):
    """A figure such as 0.006 h, or a machine of the name `None`, says nothing to a person."""
    table = (person.project / "launch.toml").read_text() + 'accelerator = "None"\nsession_hours = 0.05\n'
    person.script(table, "launch.toml")
    text = dry(person, host="k").stdout
    assert "session    without a card, 3 min at most" in text
    assert "a session lasts 3 min at most" in text


def test_a_dry_run_as_json_has_the_sizes_and_the_plans_for_other_cards(person):
    shown = json.loads(dry(person, "--profile", "p100", "--allow-substitute", "--json").stdout)
    script = shown["session"]["script"]
    assert shown["session"]["machine"] == shown["plan"]["session"]["machine"] == "NvidiaTeslaT4"
    assert script["most"] == 900_000 > script["total"] > script["agent"] > script["tree"] > 0
    assert [other["profile"]["name"] for other in shown["plan"]["session"]["others"]] == ["p100"]
    assert (shown["plan"]["runtime"], shown["plan"]["allocation"]["how"]) == ("kaggle", "given")
    assert "card-substituted" in {one["code"] for one in shown["findings"]}
    again = json.loads(dry(person, "--profile", "p100", "--allow-substitute", "--json").stdout)
    assert again == shown


@pytest.mark.long
def test_a_tree_that_a_script_cannot_hold_is_shown_as_a_dataset(person):
    (person.project / "numbers.bin").write_bytes(bytes(range(256)) * 4)
    assert "dataset" not in dry(person).stdout
    import random

    (person.project / "numbers.bin").write_bytes(random.Random(1).randbytes(700_000))
    assert "dataset    code and data, 700.0 kB before it is packed" in dry(person).stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--profile", "p100"), 3, "retired the P100"),
        (("--profile", "titan_rtx"), 3, "--profile t4x2"),
        (("--profile", "t4"), 3, "--profile t4x2"),
        (("--runtime", "docker"), 2, "auto or kaggle"),
        (("--gpus", "some"), 2, "--gpus some"),
    ],
)
def test_what_cannot_be_planned_there_is_refused_with_what_to_type(person, words, code, said):
    done = dry(person, *words)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--secret", "HF_TOKEN"), "cannot be given HF_TOKEN"),
        (("--gpus", "1"), "--gpus 1: a session of kaggle has 2 x T4 16 GB"),
        pytest.param(
            ("--gpus", "GPU-5f2c"),
            "--gpus GPU-5f2c: a session of kaggle has 2 x T4 16 GB",
            marks=pytest.mark.long,
        ),
        (("--adapt", "--precision", "bf16"), "bf16 is excluded on 2 x T4 16 GB"),
    ],
)
def test_a_dry_run_says_what_a_launch_would_refuse(person, words, said):
    done = dry(person, *words)
    assert done.returncode == 3, done.stderr
    assert any(said in line for line in done.stdout.splitlines() if line.startswith("would refuse: ")), (
        done.stdout
    )
    assert "not all was checked" not in done.stdout


def test_two_cards_may_be_asked_for_by_their_number(person):
    assert "not all was checked" in dry(person, "--gpus", "2").stdout


def test_a_substitute_is_for_kaggle_alone(person):
    done = dry(person, "--allow-substitute", host="local")
    assert done.returncode == 2
    assert "launch it without" in done.stderr


def test_without_credentials_nothing_is_launched(person):
    """The message comes at once, and says where a token is made."""
    done = person.run("--host", "kaggle", "--", "python", "train.py")
    assert done.returncode == 4
    assert "no credentials here" in done.stderr
    assert "https://www.kaggle.com/settings" in done.stderr


def test_a_secret_is_refused_before_anything_is_pushed(person, account):
    person.variables["HF_TOKEN"] = "hf_0123456789012345678901234567890"
    done = person.run("--host", "k", "--secret", "HF_TOKEN", "--", "python", "train.py")
    assert done.returncode == 3
    assert "cannot be given HF_TOKEN" in done.stderr
    assert account.calls("SaveKernel") == []


def test_the_hosts_show_an_accounts_hours_beside_machines_that_fail(person, account):
    person.script(
        (person.project / "launch.toml").read_text() + '[hosts.gone]\naddress = "127.0.0.1"\nport = 1\n',
        "launch.toml",
    )
    rows = {row["host"]: row for row in json.loads(person.ok("hosts", "--json"))["hosts"]}
    assert list(rows) == ["local", "k", "gone"]
    assert rows["k"]["quota"].startswith(QUOTA)
    assert (rows["k"]["profile"], rows["k"]["problem"]) == ("t4x2", None)
    assert rows["k"]["facts"]["host_id"] == "kaggle-alice"
    assert (rows["local"]["problem"], rows["local"]["quota"]) == (None, None)
    assert "refuses the connection" in rows["gone"]["problem"]
    text = without_style(in_terminal(person, "hosts", columns=200))
    assert "2 x Tesla T4" in text
    assert QUOTA in text
    assert UNTRIED in text


def test_an_account_that_does_not_answer_fails_nobody_else(person, account):
    account.fail("GetAcceleratorQuotaStatistics", "status", status=503, times=9)
    rows = {row["host"]: row for row in json.loads(person.ok("hosts", "--json"))["hosts"]}
    assert rows["k"]["facts"] is None
    assert "503" in rows["k"]["problem"]
    assert rows["local"]["problem"] is None


def test_kaggle_is_among_the_hosts_once_there_are_credentials(person):
    """Without any nothing is asked of the service; a table for the account takes the place of the name."""
    assert [row["host"] for row in json.loads(person.ok("hosts", "--json"))["hosts"]] == ["local"]
    (person.home / ".kaggle").mkdir()
    (person.home / ".kaggle" / "kaggle.json").write_text('{"username": "alice", "key": "x"}')
    person.script('[hosts.k]\nkind = "kaggle"\napi = "http://127.0.0.1:9/v1"\n', "launch.toml")
    assert [row["host"] for row in json.loads(person.ok("hosts", "--json"))["hosts"]] == ["local", "k"]


def test_a_probe_shows_what_is_expected_and_the_hours(person, account):
    text = person.ok("probe", "--host", "k")
    assert "nothing can be probed before a session" in text
    assert "gpu 1    Tesla T4, capability 7.5, 15,079 MiB" in text
    assert QUOTA in text
    assert UNTRIED in text
    facts = json.loads(person.ok("probe", "--host", "k", "--json"))
    assert facts["quota"].startswith(QUOTA)
    assert len(facts["gpus"]) == 2


def test_the_probe_of_an_account_can_be_saved_for_a_dry_run(person, account):
    (person.project / "probe.json").write_text(person.ok("probe", "--host", "k", "--json"))
    assert "2 x T4 16 GB" in dry(person, "--probe", "probe.json", host="k").stdout


@pytest.mark.long
def test_the_first_launch_says_that_nothing_was_tried_there_and_each_shows_the_hours(person, account):
    """Said once; the hours are shown before each push, of which there is one for each launch."""
    account.habits.python = sys.executable
    table = (person.project / "launch.toml").read_text()
    person.script(f'{table}accelerator = "None"\n', "launch.toml")
    said = []
    for _ in range(2):
        done = person.run("--host", "k", "--", "python", "train.py")
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout + done.stderr)
    assert [UNTRIED in text for text in said] == [True, False]
    assert all(QUOTA in text for text in said)
    assert all("a session lasts 8.5 h at most" in text for text in said)
    assert len(account.calls("SaveKernel")) == 2


@pytest.mark.parametrize(
    ("script", "more", "is_noted"),
    [
        ("print('trained')\n", (), True),
        pytest.param("print('trained')\n", ("--set", "restart=true"), False, marks=pytest.mark.long),
        pytest.param("print('trained')\n", ("--set", "time_limit_minutes=60"), False, marks=pytest.mark.long),
        ("import launcher_worker as worker\nworker.resume_from()\n", (), False),
    ],
)
def test_a_script_that_cannot_go_on_in_a_next_session_is_noted(person, script, more, is_noted):
    person.script(script)
    shown = json.loads(dry(person, *more, "--json").stdout)
    assert ("cannot-go-on" in {one["code"] for one in shown["findings"]}) == is_noted


def test_a_secret_is_refused_before_its_value_is_asked_for(person, account):
    """It would be no use to set it."""
    done = person.run("--host", "k", "--secret", "HF_TOKEN", "--detach", "--", "python", "train.py")
    assert (done.returncode, "cannot be given HF_TOKEN" in done.stderr) == (3, True), done.stderr
    assert "export" not in done.stderr
