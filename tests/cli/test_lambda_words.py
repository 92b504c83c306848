"""What a person reads of Lambda Cloud before anything is rented, and of what is: offers, the dry run, the hosts."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from testbed.client import LAUNCH, until
from testbed.lambda_client import RUN, offer
from testbed.lambda_service import LambdaService as StandIn
from testbed.lambda_state import Type
from testbed.pty_run import in_terminal, without_style
from testbed.screen import Screen
from testbed.sim_clock import WallClock
from testbed.tables import mostly_long

from launcher.rental.ledger import RentalLedger
from launcher.rental.renting import Intent, RentalState

pytestmark = pytest.mark.slow(reason="most start several commands at a stand-in for the account")

UNTRIED = "never tried against the real service"
KEY = "secret_alice_0123456789abcdef"


@pytest.fixture
def person(client):
    """A project with a small script, and no key."""
    client.script("print('trained')\n")
    return client


@pytest.fixture
def service(person):
    """A stand-in for the service with an account, whose key the person has; it is the host `r`, for 8 hours."""
    with StandIn(WallClock()) as service:
        service.account(key=KEY)
        person.variables["LAMBDA_API_KEY"] = KEY
        table(person, service, max_hours=8)
        yield service
        assert service.of("launch") == []
        assert_no_key(person)


def table(person, service, name="r", **keys):
    lines = {"kind": "lambda-cloud", "api": service.base, **keys}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    person.script(f"[hosts.{name}]\n{text}", "launch.toml")


def assert_no_key(person):
    files = [path for path in person.home.parent.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def dry(person, *words):
    return person.run("--host", "r", *words, "--dry-run", "--", "python", "train.py")


def refusals(text):
    return [line for line in text.splitlines() if line.startswith("would refuse")]


# offers


def test_the_offers_by_price_with_the_profile_that_each_means(person, service):
    """A type of a card that no profile names, and one that is rented out, are shown as such."""
    kind = Type("gpu_1x_x900", "X900 (24 GB)", 1, 129, {"us-east-1": 1, "us-west-1": 1})
    service.state.kinds[kind.name] = kind
    rows = [line.split() for line in person.ok("offers", "--host", "r").splitlines()]
    by_type = {row[0]: row for row in rows if row[0].startswith("gpu_")}
    prices = [float(row[row.index("GB") + 1].strip("$")) for row in by_type.values()]
    assert prices == sorted(prices)
    assert by_type["gpu_1x_a100_sxm4"][1:] == [
        "1",
        "x",
        "A100",
        "40",
        "GB",
        "$1.99",
        "a100_40gb",
        "us-east-1",
    ]
    assert by_type["gpu_1x_a10"][-3:] == ["a10_24gb", "us-east-1,", "us-west-1"]
    assert by_type["gpu_1x_x900"][-3:] == ["-", "us-east-1,", "us-west-1"]
    assert by_type["gpu_8x_a100_80gb_sxm4"][1:4] == ["8", "x", "A100"]
    assert by_type["gpu_1x_h100_pcie"][-2:] == ["h100", "-"]
    assert rows[-1][-3:] == ["--profile", "rtx_6000_24gb", "…"]
    assert ["PROFILE", "-:", "no", "profile", "names", "X900:"] in [row[:6] for row in rows]


def test_a_type_with_an_arm_is_said_to_be_one(person, service):
    """With the profile of another card it is not rented, without one only where its type is named; all of them say what it is."""
    kind = Type("gpu_1x_gh200", "GH200 (96 GB)", 1, 229, {"us-east-1": 1})
    service.state.kinds[kind.name] = kind
    text = person.ok("offers", "--host", "r")
    (row,) = [line for line in text.splitlines() if line.startswith("gpu_1x_gh200  ")]
    assert "1 x GH200, Arm" in row
    assert "gpu_1x_gh200: its processor is Arm" in text
    table(person, service, max_hours=4, type="gpu_1x_gh200")
    words, said = ("--profile", "h100"), "gpu_1x_gh200 (1x GH200 (96 GB)) is not H100 80 GB"
    done = dry(person, *words)
    assert said in done.stdout + done.stderr
    assert "its processor is Arm" in done.stdout + done.stderr
    launched = person.run("--host", "r", *words, "--", "python", "train.py")
    assert (launched.returncode, said in launched.stderr) == (3, True), launched.stderr
    done = dry(person)
    assert (done.returncode, "GH200 96 GB" in done.stdout) == (0, True), done.stderr
    assert "its processor is Arm" in done.stdout


def test_the_offers_of_a_profile_are_of_its_cards_in_any_number(person, service):
    shown = json.loads(person.ok("offers", "--host", "r", "--profile", "a100", "--json"))
    assert (shown["kind"], shown["host"]) == ("offers", "r")
    assert [(one["type"], one["profile"], one["cards"]) for one in shown["offers"]] == [
        ("gpu_1x_a100", "a100_40gb", 1),
        ("gpu_1x_a100_sxm4", "a100_40gb", 1),
        ("gpu_8x_a100_80gb_sxm4", "a100_80gb", 8),
    ]
    first = shown["offers"][0]
    assert (first["cents_per_hour"], first["regions"], first["memory_gb"]) == (199, ["us-west-1"], 40)
    assert "no type has L40S 48 GB" in person.ok("offers", "--host", "r", "--profile", "l40s")
    assert json.loads(person.ok("offers", "--host", "r", "--profile", "l40s", "--json"))["offers"] == []


def test_the_offers_need_no_limit_and_no_name_of_a_host(person, service):
    """The first table of that kind is meant, and `--host lambda` too."""
    table(person, service)
    assert "gpu_1x_a10" in person.ok("offers")
    assert json.loads(person.ok("offers", "--host", "lambda", "--json"))["host"] == "r"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--host", "local"), 2, 'no kind = "lambda-cloud"'),
        (("--host", "rr"), 2, "did you mean 'r'?"),
        (("--profile", "a100_41gb"), 2, "did you mean 'a100_40gb'?"),
    ],
)
def test_offers_of_what_is_not_there_are_refused(person, service, words, code, said):
    done = person.run("offers", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert service.of("types") == []


@pytest.mark.parametrize("words", [("offers",), ("offers", "--json")])
def test_without_a_key_the_offers_say_at_once_where_one_is_made(person, words):
    """No table is needed to learn that; nothing is asked of the service."""
    began = time.monotonic()
    done = person.run(*words)
    assert time.monotonic() - began < 1
    assert (done.returncode, done.stdout) == (4, "")
    assert "LAMBDA_API_KEY is not set" in done.stderr
    assert "https://cloud.lambda.ai/api-keys" in done.stderr


def test_without_a_network_the_offers_say_so_at_once(person):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        person.variables["LAMBDA_API_KEY"] = KEY
        person.script(
            f'[hosts.r]\nkind = "lambda-cloud"\napi = "http://127.0.0.1:{port}/api/v1"\n', "launch.toml"
        )
        began = time.monotonic()
        done = person.run("offers")
        assert time.monotonic() - began < 1
    assert (done.returncode, done.stdout) == (4, "")
    assert "listing the instance types" in done.stderr


def test_a_key_that_is_not_taken_is_named_without_its_value(person, service):
    person.variables["LAMBDA_API_KEY"] = "secret_of_nobody"
    done = person.run("offers")
    assert done.returncode == 4
    assert "https://cloud.lambda.ai/api-keys" in done.stderr
    assert "secret_of_nobody" not in done.stderr


# the dry run


def test_a_dry_run_shows_the_price_and_what_it_may_cost(person, service):
    """The plan is for what is expected of the machine; nothing is rented."""
    done = dry(person, "--profile", "a100_40gb", "--yes")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "train on r · A100 40 GB" in text
    assert "rent       gpu_1x_a100 at $1.99/h in us-west-1: at most $15.92 in 8 h" in text
    assert "or         gpu_1x_a100_sxm4 at $1.99/h in us-east-1" in text
    assert "are expected, as of 20" in text
    assert "the checks pass; nothing was rented or sent" in text
    assert refusals(text) == []


def test_a_dry_run_as_json_has_each_choice_and_its_cost(person, service):
    table(person, service, max_hours=8, max_cost=5, type=["gpu_1x_h100_pcie", "gpu_1x_a100"])
    shown = json.loads(dry(person, "--set", "time_limit_minutes=60", "--json").stdout)
    rental = shown["rental"]
    assert [(one["type"], one["regions"]) for one in rental["options"]] == [
        ("gpu_1x_h100_pcie", []),
        ("gpu_1x_a100", ["us-west-1"]),
    ]
    last = rental["options"][1]
    assert (last["profile"], last["cards"], last["cents_per_hour"]) == ("a100_40gb", 1, 199)
    assert last["expected_cents"] == 249  # an hour, and a quarter to boot and set up
    assert last["why_expected"] == "by its time limit of 60 min"
    assert 495 < last["largest_cents"] <= rental["largest_cents"] <= 500
    assert rental["confirm_above_cents"] == 1000
    assert shown["plan"]["profile"]["name"] == "a100_40gb"
    assert {"price", "expected-only"} <= {one["code"] for one in shown["findings"]}
    assert shown["session"] is None


def test_all_cards_of_a_type_are_planned_for(person, service):
    table(person, service, max_hours=1, type="gpu_8x_a100_80gb_sxm4")
    text = dry(person).stdout
    assert "8 x A100 80 GB" in text
    assert any("--yes" in line or "$22.32" in line for line in refusals(text))


@pytest.mark.parametrize(
    ("keys", "words", "said"),
    [
        (
            {"max_hours": 8},
            ("--profile", "a100_40gb"),
            "this may cost $15.92, which is more than confirm_above = 10",
        ),
        ({"max_cost": 3, "confirm_above": 2.5}, (), "this may cost $2."),
        ({"max_hours": 8}, ("--profile", "h100"), "none free of gpu_1x_h100_pcie"),
        ({}, ("--profile", "a100_40gb"), "[hosts.r]   max_hours = 4 "),
        ({"max_cost": 0.01}, ("--profile", "a100_40gb"), "nothing was rented"),
    ],
)
def test_a_dry_run_says_what_a_launch_would_refuse(person, service, keys, words, said):
    table(person, service, **keys)
    done = dry(person, *words)
    assert done.returncode == 3, done.stderr
    assert said in done.stdout
    assert refusals(done.stdout)
    assert "the checks pass" not in done.stdout


@pytest.mark.parametrize(
    ("keys", "words", "code", "said"),
    [
        ({}, (), 3, "[hosts.r]   max_hours = 4 "),
        ({"max_cost": 0.01}, (), 3, "raise the limit"),
        ({"max_hours": 8, "type": "gpu_1x_a100x"}, (), 2, "did you mean 'gpu_1x_a100'"),
        ({"max_hours": 8}, ("--gpus", "GPU-5f2c"), 2, "--gpus 1"),
        ({"max_hours": 8}, ("--rehearse", "--profile", "h100"), 2, "nothing is rented for it"),
        ({"max_hours": 8}, ("--runtime", "kaggle"), 2, 'kind = "kaggle"'),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_to_type(person, service, keys, words, code, said):
    table(person, service, **keys)
    done = dry(person, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_dry_run_without_the_service_has_the_plan_of_a_named_card(person):
    person.script('[hosts.r]\nkind = "lambda-cloud"\nmax_hours = 8\n', "launch.toml")
    done = dry(person, "--profile", "a100_40gb")
    assert done.returncode == 0, done.stderr
    assert "A100 40 GB" in done.stdout
    assert "LAMBDA_API_KEY is not set" in done.stdout
    done = dry(person)
    assert done.returncode == 4
    assert "LAMBDA_API_KEY is not set" in done.stderr


def test_a_ladder_is_explained_for_what_would_be_rented(person, service):
    shown = json.loads(person.ok("explain", "--host", "r", "--job", "sft", "--json"))
    assert shown["profile"] == "rtx_6000_24gb"


@pytest.mark.parametrize(
    "words",
    [
        "probe",
        "gc",
        "image list",
        "image build --job sft",
        "verify --job sft",
    ],
)
def test_there_is_no_machine_without_a_run(person, service, words):
    """Nothing is rented to look at it, and the message says what to type."""
    done = person.run(*words.split(), "--host", "r")
    assert done.returncode == 2, done.stderr
    assert re.search("launch (offers|hosts|drill)", done.stderr)
    assert service.calls == []


# names that only the account knows


@mostly_long(
    ("key", "name", "said", "known"),
    [
        ("region", "us-west", "unknown region, as the account says: did you mean 'us-west-1'?", "us-west-1"),
        ("image", "lambda-stack-22-04", "unknown image, as the account says", "lambda-stack-24-04"),
        ("file_system", "dato", "unknown file system, as the account says: did you mean 'data'?", "data"),
        ("file_system", "data", "it is in us-east-1, and no machine elsewhere", 'region = "us-east-1"'),
        ("key", "hers", "unknown key, as the account says", "ours"),
        ("firewall", "f-2", "unknown firewall, as the account says", "f-1"),
        ("firewall", "f-1", "it is in us-east-1, and no machine elsewhere", 'region = "us-east-1"'),
    ],
    ci=(0, 3, 4, 6),
)
def test_a_name_that_the_account_does_not_know_is_refused_before_a_rent(
    person, service, key, name, said, known
):
    """The dry run says it too: which key, in which file, and which names would do."""
    known_to(service)
    table(person, service, max_hours=4, **{key: name})
    done = dry(person, "--profile", "a100_40gb")
    assert done.returncode == 3, done.stderr
    assert f'launch.toml: hosts.r.{key} = "{name}": {said}' in done.stdout
    assert len(refusals(done.stdout)) == 1
    launched = person.run("--host", "r", "--profile", "a100_40gb", "--", "python", "train.py")
    assert launched.returncode == 3, launched.stderr
    message, mend = launched.stderr.splitlines()[-2:]
    assert f'hosts.r.{key} = "{name}": {said}' in message
    assert known in mend
    assert "nothing was rented" in mend


def test_names_that_the_account_knows_pass(person, service):
    """Also if the service does not tell them just now: the launch finds out."""
    known_to(service)
    names = {"image": "lambda-stack-24-04", "file_system": "data", "key": "ours", "firewall": "f-1"}
    names["identity_file"] = str(key_of_account(service, person.home / "key"))
    table(person, service, max_hours=4, region="us-east-1", **names)
    assert refusals(dry(person, "--profile", "a100_40gb").stdout) == []
    table(person, service, max_hours=4, region="us-west-1", key="hers")
    service.fail("keys", "status", status=503)
    assert refusals(dry(person, "--profile", "a100_40gb").stdout) == []


def key_of_account(service, file, *, phrase=""):
    """Make a key, whose public half the account has as `ours`; return its file."""
    file.parent.mkdir(exist_ok=True, mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", file], check=True)
    (account,) = service.state.accounts
    account.keys["key0"]["public_key"] = file.with_name(f"{file.name}.pub").read_text()
    return file


NO_PRIVATE_HALF = {
    "nowhere": {"key": "ours"},
    "only its public half": {"key": "ours", "identity_file": "~/key"},
    "another one": {"key": "ours", "identity_file": "~/other"},
    "a key that no machine has": {"identity_file": "~/other"},
}


@mostly_long("where", NO_PRIVATE_HALF, ci=(0, 3))
def test_a_key_with_which_nobody_here_could_log_in_is_refused_before_a_rent(person, service, where):
    """The dry run says it too, and what to write."""
    key_of_account(service, person.home / "other")
    key_of_account(service, person.home / "key").unlink()
    table(person, service, max_hours=4, **NO_PRIVATE_HALF[where])
    assert len(refusals(dry(person, "--profile", "a100_40gb").stdout)) == 1
    launched = person.run("--host", "r", "--profile", "a100_40gb", "--", "python", "train.py")
    assert launched.returncode == 3, launched.stderr
    message, mend = launched.stderr.splitlines()[-2:]
    assert "hosts.r." in message
    assert "nothing was rented" in mend
    assert service.of("launch") == []


@pytest.mark.parametrize("where", ["identity_file", "a usual file", "locked", "in ssh-agent"])
def test_a_key_that_can_be_used_here_passes(person, service, where):
    """Nobody is asked for a passphrase by that."""
    known_to(service)
    usual = person.home / ".ssh" / "id_ed25519"
    file = key_of_account(
        service,
        usual if where == "a usual file" else person.home / "key",
        phrase="x" * 9 * (where == "locked"),
    )
    named = {"identity_file": "~/key"} if where in ("identity_file", "locked") else {}
    table(person, service, max_hours=4, key="ours", **named)
    with contextlib.ExitStack() as stack:
        if where == "in ssh-agent":
            socket = str(person.home / "agent")
            agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
            stack.callback(agent.wait)
            stack.callback(agent.terminate)
            until(lambda: os.path.exists(socket), "ssh-agent")
            person.variables["SSH_AUTH_SOCK"] = socket
            env = {**os.environ, "SSH_AUTH_SOCK": socket}
            subprocess.run(["ssh-add", "-q", file], check=True, env=env)
            file.unlink()
        assert refusals(dry(person, "--profile", "a100_40gb").stdout) == []


def known_to(service):
    region = {"name": "us-east-1", "description": "Virginia, USA"}
    (account,) = service.state.accounts
    account.firewalls.append({"id": "f-1", "name": "office", "region": region})
    account.file_systems.append({
        "id": "fs-1", "name": "data", "mount_point": "/lambda/nfs/data", "is_in_use": False, "region": region,
        "created": "2026-01-01T00:00:00+00:00", "created_by": {"id": "u", "email": "alice@example.org", "status": "active"},
    })  # fmt: skip


# the question


@mostly_long(
    ("typed", "code", "said"),
    [
        (None, 130, "nothing was rented"),
        ("n\n", 3, "nothing was rented: you answered no"),
        ("\x04", 1, "nothing was rented"),
    ],
    ids=["interrupt", "no", "end"],
    ci=(0, 1),
)
def test_who_does_not_agree_to_the_cost_reads_that_nothing_was_rented(person, service, typed, code, said):
    words = [*LAUNCH, "--host", "r", "--profile", "a100_40gb", "--", "python", "train.py"]
    env = {**person.env, "TERM": "xterm-256color"}
    with Screen(words, env, person.project, 120, echoes=True) as screen:
        screen.until(lambda lines: lines[-1].startswith("continue?"))
        if typed is None:
            screen.process.send_signal(signal.SIGINT)
        else:
            screen.type(typed)
        lines = screen.to_the_end()
        assert screen.process.returncode == code
    assert any(said in line for line in lines), lines
    assert not any(line.startswith("continue?") and said in line for line in lines)


# another computer


def test_a_stranger_is_never_proposed_to_be_ended(person, service):
    """On another computer, and of several of launcher's none is chosen either: a person names one."""
    (account,) = service.state.accounts
    stranger = service.state.stranger(account, "someone-elses")
    text = person.ok("ps", "--host", "r")
    assert f"{stranger.id}, gpu_1x_a10, us-east-1, booting, not rented by launcher" in text
    assert "launch reconcile --adopt INSTANCE" in text
    assert f"--adopt {stranger.id}" not in text
    for nonce in ("abcdefgh2345", "bcdefghi3456"):
        service.state.stranger(account, f"launch-261122-sft-k3f9w2-{nonce}", {"launch:nonce": nonce})
    assert "launch reconcile --adopt INSTANCE" in person.ok("ps", "--host", "r")


def test_a_computer_without_runs_there_hears_what_the_account_has(person, service):
    """Not `no runs yet` alone: what another computer has rented costs money too."""
    assert "its account has no machine" in person.ok("ps", "--host", "r")
    (account,) = service.state.accounts
    one = service.state.stranger(
        account, "launch-261122-sft-k3f9w2-abcdefgh2345", {"launch:nonce": "abcdefgh2345"}
    )
    text = person.ok("ps", "--host", "r")
    assert "runs of another computer are visible only on that computer" in text
    assert f"{one.id}, gpu_1x_a10, us-east-1, booting, rented by launcher" in text
    assert f"launch reconcile --adopt {one.id}" in text
    assert json.loads(person.ok("ps", "--host", "r", "--json"))["runs"] == []
    del person.variables["LAMBDA_API_KEY"]
    text = person.ok("ps", "--host", "r")
    assert "the account's machines are unknown" in text
    assert "LAMBDA_API_KEY is not set" in text
    assert "api-keys" in text


def test_reconcile_shows_what_it_waits_for_and_for_how_long(person, service):
    """In a terminal the seconds move while a machine is still listed; what it cost is unknown here, since another made it."""
    (account,) = service.state.accounts
    one = service.state.stranger(account, "launch-261122-sft-k3f9w2-abcdefgh2345")
    service.state.habits.end_s = 1
    words = [*LAUNCH, "reconcile", "--adopt", one.id, "--yes"]
    with Screen(words, {**person.env, "TERM": "xterm-256color"}, person.project, 120) as screen:
        for second in ("0:03", "0:04"):
            screen.until(lambda lines, shown=f"  {second}  ending {one.id}": shown in lines[-1])
        lines = screen.to_the_end()
        assert screen.process.returncode == 0
    (row,) = [line.split() for line in lines if line.startswith(one.id) and "ended" in line]
    assert row[1:5] == ["-", "-", "ended", "named"]


@pytest.mark.parametrize("answer", [pytest.param("y", marks=pytest.mark.long), "n"])
def test_a_machine_of_another_computer_is_not_ended_unasked(person, service, answer):
    """An id is soon mistaken: what it is, is said first. The line for cron asks nobody, nor does a dry run."""
    (account,) = service.state.accounts
    one = service.state.stranger(account, "their-training")
    words = ("reconcile", "--adopt", one.id)
    if answer == "n":
        assert "adopted" in person.run(*words, "--dry-run").stdout
        for more in ((), ("--force",), ("--json",)):
            seen = person.run(*words, *more)
            assert (seen.returncode, seen.stdout) == (3, ""), seen.stderr
            assert f"{one.id}: gpu_1x_a10, us-east-1, booting, their-training" in seen.stderr
            assert f"launch reconcile --adopt {one.id} --yes" in seen.stderr
        assert person.run(*words, "--after", "2099-01-01T00:00Z").returncode == 5
        assert service.alive() == [one]
    with Screen([*LAUNCH, *words], {**person.env, "TERM": "xterm-256color"}, person.project, 120) as screen:
        lines = screen.until(lambda lines: lines[-1].startswith("continue?"))
        assert any(
            "not rented from this computer: files that are only on it are lost" in line for line in lines
        )
        screen.type(f"{answer}\n")
        screen.to_the_end()
        assert screen.process.returncode == (0 if answer == "y" else 3)
    assert service.alive() == ([] if answer == "y" else [one])
    if answer == "n":
        assert person.run(*words, "--after", "2020-01-01T00:00Z").returncode == 0
        assert service.alive() == []


# the hosts


def test_an_account_without_a_key_says_what_to_type(person, service):
    """What is expected of a machine that nobody has seen is not shown as if it had been measured."""
    row = next(line for line in person.ok("hosts").splitlines() if line.startswith("r "))
    assert "570.148.08" not in row
    assert "expected of gpu_1x_rtx6000" in row
    del person.variables["LAMBDA_API_KEY"]
    row = next(line for line in person.ok("hosts").splitlines() if line.startswith("r "))
    assert "export LAMBDA_API_KEY=…" in row


def test_a_profile_of_yours_begins_with_the_file_of_another(person):
    """The new file may be there, and empty, as a shell makes it."""
    (person.project / "profiles").mkdir()
    made = person.project / "profiles" / "mine.toml"
    made.touch()
    made.write_text(person.ok("profile", "show", "l40s", "--toml").replace('"l40s"', '"mine"'))
    assert person.ok("profile", "show", "mine").startswith("mine   L40S")
    assert person.run("profile", "show", "l50", "--toml").returncode == 2


def test_the_hosts_show_what_would_be_rented_and_its_price(person, service):
    rows = {row["host"]: row for row in json.loads(person.ok("hosts", "--json"))["hosts"]}
    assert list(rows) == ["local", "r"]
    assert "gpu_1x_rtx6000 in us-west-1 at $0.69/h" in rows["r"]["quota"]
    assert (rows["r"]["profile"], rows["r"]["problem"]) == ("rtx_6000_24gb", None)
    text = without_style(in_terminal(person, "hosts", columns=200))
    assert "at most $5.52 in 8 h" in text
    assert UNTRIED in text
    assert "RENTED FOR" not in text


def test_hosts_of_one_account_are_one_call(person, service):
    """Several tables with their own limits: the offers are asked for once, also if that fails."""
    launch_toml = person.project / "launch.toml"
    one = launch_toml.read_text()
    launch_toml.write_text(
        "".join([one, *(one.replace("hosts.r", f"hosts.r{number}") for number in range(4))])
    )
    rows = {row["host"]: row for row in json.loads(person.ok("hosts", "--json"))["hosts"]}
    assert {rows[name]["quota"] for name in ("r", "r0", "r1", "r2", "r3")} == {rows["r"]["quota"]}
    assert rows["r"]["quota"]
    assert len(service.of("types")) == 1
    service.fail("types", "status", status=503)
    rows = {row["host"]: row for row in json.loads(person.ok("hosts", "--json"))["hosts"]}
    assert [name for name, row in rows.items() if "503" in (row["problem"] or "")] == [
        "r", "r0", "r1", "r2", "r3",
    ]  # fmt: skip


def test_an_account_that_does_not_answer_fails_nobody_else(person, service):
    service.fail("types", "status", status=503)
    rows = {row["host"]: row for row in json.loads(person.ok("hosts", "--json"))["hosts"]}
    assert "503" in rows["r"]["problem"]
    assert rows["local"]["problem"] is None


def rental(ledger, nonce, hours_ago, state=RentalState.READY, hours=8):
    now = time.time()
    began = now - hours_ago * 3600
    one = offer("gpu_1x_a100", 199)
    intent = Intent(
        provider="lambda", account="lambda-1", run=RUN, nonce=nonce, client="laptop", type=one.type,
        region="us-west-1", cents_per_hour=199, time=began, deadline=began + hours * 3600,
    )  # fmt: skip
    lock = ledger.open(intent)
    steps = {RentalState.INTENT: [], RentalState.READY: [RentalState.LAUNCHED, RentalState.READY]}
    for step in steps[state]:
        ledger.step(nonce, step, began, instance="i-1")
    return lock


def test_the_hosts_show_what_is_rented_and_what_nobody_ends(person):
    """One that a process looks after, one that is past its limit, one whose launch got no answer."""
    ledger = RentalLedger(person.home / ".local" / "share" / "launch" / "rentals")
    held = rental(ledger, "aaaaaaaaaaaa", 2)
    for lock in (
        rental(ledger, "bbbbbbbbbbbb", 9),
        rental(ledger, "cccccccccccc", 1, RentalState.INTENT),
        rental(ledger, "dddddddddddd", 0.5),
    ):
        lock.release()
    (person.home / ".local/share/launch/rentals/eeeeeeeeeeee.jsonl").write_text('{"kind": "other"}\n{}\n')
    shown = json.loads(person.ok("hosts", "--json"))
    costs = [one["cents"] for one in shown["rentals"]]
    assert all(least <= cost < least + 9 for cost, least in zip(costs, [1791, 398, 199, 100], strict=True)), (
        costs
    )
    past, kept, unsettled, left = shown["rentals"]
    assert (kept["run"], kept["state"], kept["held"], kept["problem"]) == (RUN, "ready", True, None)
    assert (past["past"], past["held"]) == (True, False)
    assert "past its limit" in past["problem"]
    assert unsettled["state"] == "unsettled"
    may_have_cost = f"nothing or ${unsettled['cents'] / 100:.2f}"
    assert "launch reconcile" in unsettled["problem"]
    assert left["problem"] == "no process here ends it   launch reconcile"  # no run of it can be attached to
    assert [name.rpartition("/")[2] for name in shown["unreadable"]] == ["eeeeeeeeeeee.jsonl"]
    text = person.ok("hosts")
    lines = [line for line in text.splitlines() if line.startswith(RUN)]
    assert [line.rpartition("  ")[2] for line in lines] == ["in use", "in use", "unsettled", "in use"]
    assert [line.split()[-3 if line.endswith("in use") else -2] for line in lines] == [
        "none", "alive", "none", "none",
    ]  # fmt: skip
    assert all(
        f"${one['cents'] / 100:,.2f}" in line for one, line in zip(shown["rentals"], lines, strict=True)
    )
    assert len([line for line in text.splitlines() if line.startswith("! ")]) == 4
    assert may_have_cost in lines[2]
    assert f"{may_have_cost} so far: its launch has no answer" in text
    assert UNTRIED not in text
    held.release()


def test_what_has_ended_is_not_shown(person):
    ledger = RentalLedger(person.home / ".local" / "share" / "launch" / "rentals")
    rental(ledger, "aaaaaaaaaaaa", 2).release()
    ledger.step("aaaaaaaaaaaa", RentalState.ENDED, time.time(), cents=400)
    assert json.loads(person.ok("hosts", "--json"))["rentals"] == []
    assert "RENTED FOR" not in person.ok("hosts")


BATCH = ("batch", "--host", "r", "--max-cost", "9", "--grid", "lr=1,2")


@pytest.mark.parametrize("can_reach", [True, False], ids=["online", "offline"])
@pytest.mark.parametrize(
    "words",
    [
        ("--host", "r", "--", "python", "train.py"),
        ("--host", "r", "--dry-run", "--", "python", "train.py"),
        ("explain", "--host", "r", "--job", "sft"),
        (*BATCH, "--", "python", "train.py", "{lr}"),
        (*BATCH, "--dry-run", "--", "python", "train.py", "{lr}"),
    ],
    ids=["launch", "launch-dry", "explain", "batch", "batch-dry"],
)
def test_a_limit_that_is_missing_is_named_before_anybody_is_asked(person, service, words, can_reach):
    """Without a network, and without a key too, that is the first thing to mend."""
    table(person, service)
    if not can_reach:
        (person.project / "launch.toml").unlink()
        folder = person.home / ".config" / "launch"
        folder.mkdir(parents=True)
        (folder / "hosts.toml").write_text(
            '[hosts.r]\nkind = "lambda-cloud"\napi = "https://no.such.host.invalid/api/v1"\n'
        )
        del person.variables["LAMBDA_API_KEY"]
    done = person.run(*words)
    assert done.returncode == 3, done.stderr
    assert "so max_hours or max_cost is needed" in done.stdout + done.stderr
    assert service.calls == []
