"""What is rented for a launch: what will do, its price in words, the question above a limit, and all that before any rent."""

import json
import socket

import pytest
from testbed.lambda_service import LambdaService as StandIn
from testbed.profiles import profile
from testbed.sim_clock import WallClock

from launcher.backends.base.rental_choice import choose, earlier_run, offering_host, offers
from launcher.backends.lambda_cloud.lambda_cloud_host import LambdaCloudHost
from launcher.copy.request import Request
from launcher.errors import CardBusyError, RefusedError, ServiceAuthError, ServiceUnreachableError, UsageError
from launcher.rental import price
from launcher.rental.offers import OfferFilter
from launcher.rental.price import Expected, hours_text
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.renting import InstanceOffer
from launcher.runs.follow.view import NullView
from launcher.runs.launch.launching import wanted_of
from launcher.runs.launch.resolved_request import understand
from launcher.runs.rented.rental_agreement import agree
from launcher.values.host import LOCAL
from launcher.values.job import Job

EAST, WEST = "us-east-1", "us-west-1"
JOB = Job(name="sft", command=("python", "train.py"))
A100 = profile("a100_40gb")


def one(name, cents_per_hour, *regions, memory_gb=40, card="A100", cards=1):
    about = {"title": name, "card": card, "cards": cards, "memory_gb": memory_gb}
    return InstanceOffer(type=name, **about, cents_per_hour=cents_per_hour, regions=regions)


OFFERS = (
    one("gpu_1x_a100", 199, WEST),
    one("gpu_1x_a100_sxm4", 229, EAST),
    one("gpu_1x_h100", 329, card="H100", memory_gb=80),
)


def host(**keys):
    return LambdaCloudHost(name="r", lambda_cloud=LambdaSettings(**{"max_hours": 8, **keys}))


def chosen(*named, gpus=None, offered=OFFERS, earlier=None, job=JOB, **keys):
    profiles = [profile(name) for name in named]
    if earlier is None:
        return choose(host(**keys), profiles, gpus, job, offered)
    return price.priced("r", host(**keys).lambda_cloud, offered, OfferFilter(profiles), earlier)


class Watching(NullView):
    """Keeps what is shown, and answers questions."""

    def __init__(self, answer=None):
        self.answer, self.shown, self.asked = answer, [], []

    def agrees(self, question):
        """Answer."""
        self.asked.append(question)
        return self.answer

    def note(self, text):
        """Keep it."""
        self.shown.append(text)

    def finding(self, finding):
        """Keep it."""
        self.shown.append(finding.message)

    def head(self, plan):
        """Keep it."""
        self.shown.append(f"plan for {plan.profile.title} on {plan.host}")


def test_what_is_planned_for_is_the_first_that_is_free():
    """What is tried begins there too; the most that it may cost is that of the dearest."""
    choice = chosen("a100_40gb", region=[EAST])
    assert choice.first.offer.type == "gpu_1x_a100_sxm4"
    assert [(found.priced.offer.type, found.region) for found in choice.candidates()] == [
        ("gpu_1x_a100_sxm4", EAST)
    ]
    assert choice.cost.largest == 8 * 229
    assert [found.offer.type for found in choice.found] == ["gpu_1x_a100", "gpu_1x_a100_sxm4"]


def test_without_any_free_the_plan_is_still_made_and_the_wait_is_the_callers():
    choice = chosen("h100")
    assert choice.first.offer.type == "gpu_1x_h100"
    with pytest.raises(CardBusyError):
        choice.candidates()
    assert "none free just now, at $3.29/h" in choice.words


def test_the_price_in_words():
    choice = chosen("a100_40gb", earlier=lambda _profile: Expected(2, "as run k3f9w2 took"))
    assert choice.words == (
        "gpu_1x_a100 in us-west-1 at $1.99/h: expected $3.98 (as run k3f9w2 took), at most $15.92 in 8 h; "
        "else gpu_1x_a100_sxm4 at $2.29/h, at most $18.32"
    )
    unknown = chosen("h100", offered=[one("gpu_1x_h100", 329, EAST, card="H100", memory_gb=80)]).words
    assert unknown == "gpu_1x_h100 in us-east-1 at $3.29/h: duration unknown, at most $26.32 in 8 h"


def test_a_limit_of_the_jobs_time_is_what_is_expected_if_no_run_tells():
    job = JOB.model_copy(update={"time_limit_minutes": 60})
    assert "expected $2.49 (by its time limit of 60 min)" in chosen("a100_40gb", job=job).words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(900, "15 min"), (3600, "1 h"), (5400, "90 min"), (28_800, "8 h"), (18_060, "5 h 1 min")],
)
def test_a_time_is_said_as_a_price_is_for_it(seconds, text):
    assert hours_text(seconds) == text


def test_how_long_it_takes_is_learnt_from_the_last_run_on_that_card(client, monkeypatch):
    """Of that job, which succeeded; with a quarter of an hour to boot and set up."""
    monkeypatch.setenv("HOME", str(client.home))
    monkeypatch.chdir(client.project)
    cpu = profile("cpu")
    assert earlier_run("quick", cpu) is None
    client.run("--name", "quick", "--", "python", "-c", "raise SystemExit(3)")
    assert earlier_run("quick", cpu) is None
    client.ok("--name", "quick", "--", "python", "-c", "pass")
    run = max(
        (path for path in client.runs.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
    )
    found = earlier_run("quick", cpu)
    assert 0.25 <= found.hours < 0.27
    assert found.why == f"as long as run {run.name.rpartition('-')[2]}, and 15 min for boot and downloads"
    assert earlier_run("quick", A100) is None
    assert earlier_run("other", cpu) is None


def test_a_later_offer_is_taken_only_at_the_price_that_was_agreed_to():
    """A type that has become dearer, or is offered no more, is free nowhere; one that has become free is taken."""
    choice = chosen("a100_40gb")
    later = choice.renewed([one("gpu_1x_a100", 200, WEST), one("gpu_1x_a100_sxm4", 228, WEST, EAST)])
    assert [(found.priced.offer.type, found.region) for found in later.candidates()] == [
        ("gpu_1x_a100_sxm4", WEST),
        ("gpu_1x_a100_sxm4", EAST),
    ]
    assert later.cost.largest == choice.cost.largest
    assert later.profile_of("gpu_1x_a100_sxm4") == A100
    with pytest.raises(CardBusyError):
        choice.renewed([one("gpu_1x_a10", 1, EAST)]).candidates()


@pytest.mark.parametrize(("gpus", "types"), [("1", ["gpu_1x_a100"]), ("8", ["gpu_8x_a100"])])
def test_the_number_of_cards_chooses_the_type(gpus, types):
    offered = (*OFFERS[:1], one("gpu_8x_a100", 1592, EAST, cards=8))
    choice = chosen("a100_40gb", gpus=gpus, offered=offered)
    assert [found.offer.type for found in choice.found] == types
    assert choice.first.profile.count == int(gpus)


def test_cards_that_are_not_rented_yet_have_no_ids():
    with pytest.raises(UsageError, match="--gpus 1"):
        chosen("a100_40gb", gpus="GPU-5f2c")


# the question


def test_a_small_cost_is_not_asked_about():
    view = Watching()
    chosen("a100_40gb", max_hours=4).cost.confirm(view.agrees, "nothing was rented")
    assert view.asked == []


def test_above_the_limit_a_person_is_asked_and_a_script_is_refused():
    """The largest cost counts, whichever type it is."""
    choice = chosen("a100_40gb", confirm_above=16)
    assert choice.first.largest <= 1600 < choice.cost.largest
    yes, no, nobody = Watching(answer=True), Watching(answer=False), Watching()
    choice.cost.confirm(yes.agrees, "nothing was rented")
    assert "$18.32" in yes.asked[0]
    with pytest.raises(RefusedError, match="nothing was rented: you answered no") as caught:
        choice.cost.confirm(no.agrees, "nothing was rented")
    assert caught.value.exit_code == 3
    with pytest.raises(RefusedError, match="launch --yes"):
        choice.cost.confirm(nobody.agrees, "nothing was rented")


def test_with_nothing_to_agree_to_everything_is_asked_about():
    assert chosen("a100_40gb", max_hours=0.5, confirm_above=0).cost.question is not None


# before any rent


@pytest.fixture
def account(tmp_path, monkeypatch):
    """The service with an account and its key here; `r` in launch.toml is a host of it, with the keys that are given."""
    home, project = tmp_path / "home", tmp_path / "project"
    for path in (home, project):
        path.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(project)
    (project / "train.py").write_text("print('trained')\n")
    with StandIn(WallClock()) as service:
        monkeypatch.setenv("LAMBDA_API_KEY", service.account().key)

        def write(**keys):
            lines = [f"{key} = {value}" for key, value in keys.items()]
            table = ["[hosts.r]", 'kind = "lambda-cloud"', f'api = "{service.base}"', *lines, ""]
            (project / "launch.toml").write_text("\n".join(table))

        service.write = write
        yield service
        assert service.of("launch") == []


def agreed(view, **values):
    request = Request("r", words=["python", "train.py"], **values)
    return agree(wanted_of(understand(request), request), view)[0]


def test_the_plan_and_the_price_are_shown_before_the_question(account):
    """At the first rent of a client it is said that nothing was tried there."""
    account.write(max_hours=8)
    view = Watching(answer=True)
    choice = agreed(view, profile="a100_40gb")
    assert choice.first.offer.type == "gpu_1x_a100"
    assert view.shown[0] == "plan for A100 40 GB on r"
    said = "\n".join(view.shown)
    assert "are expected, as of" in said
    assert "never tried against the real service" in said
    assert "at most $15.92 in 8 h" in view.shown[-1]
    assert len(view.asked) == 1


@pytest.mark.parametrize(
    ("keys", "values", "words"),
    [
        ({}, {}, "max_hours or max_cost is needed"),
        ({"max_cost": 0.01}, {}, "nothing was rented"),
        ({"max_cost": 0.01}, {"is_sure": True}, "nothing was rented"),
        ({"max_hours": 24}, {}, "nothing was rented: .*--yes"),
        ({"max_hours": 1}, {"gpus": "3"}, "no type has 3 cards"),
    ],
)
def test_what_is_not_agreed_to_is_not_rented(account, keys, values, words):
    account.write(**keys)
    with pytest.raises(RefusedError, match=f"(?s){words}") as caught:
        agreed(Watching(), **values)
    assert caught.value.exit_code == 3
    assert {line["call"] for line in account.calls} == ({"types"} if keys else set())


def test_a_small_limit_needs_no_answer(account):
    account.write(max_cost=5)
    view = Watching()
    assert agreed(view).cost.largest <= 500
    assert view.asked == []
    account.write(max_hours=24)
    assert agreed(view, is_sure=True).cost.largest > 1000
    assert view.asked == []


def test_what_the_service_does_not_tell_is_an_error_of_the_host(account, monkeypatch):
    account.write(max_hours=1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = LambdaCloudHost(
            name="r",
            lambda_cloud=LambdaSettings(api=f"http://127.0.0.1:{nobody.getsockname()[1]}/api/v1"),
        )
        with pytest.raises(ServiceUnreachableError):
            offers(gone)
    monkeypatch.delenv("LAMBDA_API_KEY")
    with pytest.raises(ServiceAuthError, match="LAMBDA_API_KEY"):
        agreed(Watching())


def test_the_host_whose_offers_are_meant(account):
    account.write(max_hours=1)
    assert offering_host(None).name == offering_host("lambda").name == offering_host("r").name == "r"
    with pytest.raises(UsageError, match="it rents no machines"):
        offering_host(LOCAL.name)


def test_the_runs_of_a_host_are_those_on_machines_that_were_rented_for_it(lambda_cloud):
    """Each verb finds them by the host's name, though each had a machine of its own, which is gone."""
    client = lambda_cloud.client
    client.script("print('trained')\n")
    client.ok("--host", "local", "--name", "here", "--", "python", "train.py")
    client.ok(
        "--host",
        "rented",
        "--profile",
        "a100_40gb",
        "--name",
        "there",
        "--",
        "python3",
        "-c",
        "print('on it')",
    )
    rows = json.loads(client.ok("ps", "--host", "rented", "--json"))["runs"]
    assert [(row["job"], row["host"], row["state"]) for row in rows] == [("there", "rented", "succeeded")]
    assert "on it" in client.ok("logs", "last", "--host", "rented")
    missing = client.run("logs", "here", "--host", "rented")
    assert missing.returncode == 2
    assert "rented: no run 'here'" in missing.stderr
