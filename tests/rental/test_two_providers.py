"""Two providers in one ledger: each is asked with its own key alone, and what is rented there is ended there.

The witness at the toy's address is a service that notes whatever is sent there; the toy notes the keys that it is called with.
"""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from testbed import lambda_client, toy_cloud
from testbed.lambda_client import RUN, SETUP
from testbed.toy_cloud import ToySettings
from typer.testing import CliRunner

from launcher.cli.app import app_for
from launcher.errors import BadFileError, UsageError
from launcher.rental import provider, records
from launcher.rental.lease.renter import ProviderAccount, open_account
from launcher.rental.ledger import usual_folder
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.records import RentalRecord
from launcher.rental.renting import RentalState
from launcher.rental.service_clock import ServiceClock, clock_of
from launcher.rental.settle_account import TerminationRequest, accounts_of, dismiss, reconcile_all
from launcher.runs.follow.view import NullView
from launcher.runs.rented.api_key_guard import check_key_is_not_sent
from launcher.runs.rented.lost_machines import end_rental
from launcher.values.host import Host
from launcher.values.job import Job

TOY_KEY = "toy_secret_0123456789"
JOB = Job(name="x", command=("python", "train.py"))


@pytest.fixture
def toy_wire():
    """A service that nobody may ask: the toy's calls do not go over the network. `heard` has requests with their headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.heard.append(f"{self.requestline}\n{self.headers}")
            self.send_error(404)

        do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_words):
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.heard = []
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        assert server.heard == []


@pytest.fixture
def toy(monkeypatch, tmp_path, sim_clock, lambda_service, key, toy_wire):
    """The settings of the toy at that service's address; both keys are in the environment."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("LAMBDA_API_KEY", key)
    monkeypatch.setenv("TOY_KEY", TOY_KEY)
    monkeypatch.setattr(ServiceClock, "sleep", lambda _self, seconds: sim_clock.sleep(seconds))
    monkeypatch.setitem(provider.PROVIDERS, "toy", "testbed.toy_cloud")
    settings = ToySettings(api=f"http://127.0.0.1:{toy_wire.server_address[1]}", max_hours=8)
    monkeypatch.setitem(toy_cloud.CLOUDS, settings.api, toy_cloud.Cloud(sim_clock))
    return settings


def rent(settings, account, run):
    """Rent a machine and leave it, as a launch does whose client is killed."""
    records.remember_service(settings)
    offer = next(one for one in account.provider.offers() if one.regions)
    rental, lock = account.rent(offer, offer.regions[0], run, account.clock.now() + 3600, SETUP)
    lock.release()
    machine = Host(name="rented", address="192.0.2.1", user="ubuntu")
    (usual_folder() / rental.nonce).mkdir()
    runs = str(usual_folder())
    records.write(RentalRecord(run=run, nonce=rental.nonce, machine=machine, settings=settings, runs=runs))
    return rental.nonce


def reconciled(tables=(), named=TerminationRequest()):  # noqa: B008 - it is frozen
    """What `launch reconcile` finds and does."""
    return reconcile_all(tables, named, lambda _record: None, NullView(), dry_run=False)


def state(nonce):
    return records.ledger().rental(nonce).state


def test_each_provider_is_asked_with_its_own_key_and_its_machine_ends_there(
    toy, lambda_service, key, tmp_path, sim_clock
):
    cloud = toy_cloud.CLOUDS[toy.api]
    here = LambdaSettings(api=lambda_service.base)
    service = lambda_client.service(lambda_service.base, key, tmp_path, sim_clock)
    first = rent(here, ProviderAccount(service, records.ledger(), sim_clock, "laptop"), RUN)
    second = rent(toy, open_account(toy), f"{RUN}2")
    assert not any(report.is_anything_left for report in reconciled().reports)
    assert (state(first), state(second)) == (RentalState.ENDED, RentalState.ENDED)
    assert lambda_service.alive() == []
    assert all(one.asked_to_end < sim_clock.now() for one in cloud.machines)
    assert {*cloud.sent} == {TOY_KEY}
    assert TOY_KEY not in json.dumps(lambda_service.calls)


def test_a_machine_is_ended_by_its_record_at_the_provider_that_it_names(toy):
    nonce = rent(toy, open_account(toy), RUN)
    (found,) = records.rented()
    end_rental(found, "done", NullView())
    assert (state(nonce), found.record.settings) == (RentalState.ENDED, toy)


def test_a_key_that_cannot_be_read_keeps_no_machine_of_another_provider(toy, monkeypatch, tmp_path):
    nonce = rent(toy, open_account(toy), RUN)
    records.remember_service(LambdaSettings())
    monkeypatch.delenv("LAMBDA_API_KEY")
    file = tmp_path / "xdg_config_home" / "launch" / "lambda_key"
    file.parent.mkdir(parents=True)
    file.write_text("a key that others can read")
    file.chmod(0o644)
    (why,) = reconciled().failed
    assert "can be read by others" in str(why)
    assert state(nonce) is RentalState.ENDED


def test_damaged_addresses_of_one_provider_keep_no_machine_of_another(toy):
    nonce = rent(toy, open_account(toy), RUN)
    (usual_folder() / "services").write_text("no address\n")
    (why,) = reconciled().failed
    assert "cannot be read" in str(why)
    assert state(nonce) is RentalState.ENDED


def test_a_key_that_cannot_be_read_keeps_no_named_machine_of_another_provider(toy, monkeypatch, tmp_path):
    """As by the crontab of another computer, which has no ledger."""
    open_account(toy)
    monkeypatch.setitem(toy_cloud.CLOUDS, ToySettings().api, toy_cloud.CLOUDS[toy.api])
    made = toy_cloud.CLOUDS[toy.api].make(lambda_client.intent(nonce="xxxxxxxxxxxx"))
    monkeypatch.delenv("LAMBDA_API_KEY")
    file = tmp_path / "xdg_config_home" / "launch" / "lambda_key"
    file.parent.mkdir(parents=True)
    file.write_text("a key that others can read")
    file.chmod(0o644)
    assert reconciled(named=TerminationRequest([made.id], is_sure=True)).failed
    assert made.asked_to_end < math.inf


def test_an_id_of_ours_is_not_meant_at_another_account(toy, sim_clock, monkeypatch):
    """A stranger's machine there has the same id."""
    other = ToySettings(api="http://127.0.0.1:1", max_hours=8)
    monkeypatch.setitem(toy_cloud.CLOUDS, other.api, toy_cloud.Cloud(sim_clock))
    strange = toy_cloud.CLOUDS[other.api].make(lambda_client.intent(nonce="", run="x"))
    nonce = rent(toy, open_account(toy), RUN)
    ours = records.ledger().rental(nonce).instance
    assert strange.id == ours
    reconciled([other], TerminationRequest([ours], sim_clock.now() - 1))
    assert strange.asked_to_end == math.inf
    assert state(nonce) is RentalState.ENDED


def test_what_was_ended_is_shown_though_another_account_fails(toy, monkeypatch):
    nonce = rent(toy, open_account(toy), RUN)
    records.remember_service(LambdaSettings())
    monkeypatch.delenv("LAMBDA_API_KEY")
    words = ["reconcile", "--json"]
    shown = CliRunner().invoke(app_for(words), words)
    assert shown.exit_code == 4
    assert [one["verdict"] for one in json.loads(shown.stdout)["things"]] == ["ended"]
    assert "no API key" in shown.stderr
    assert state(nonce) is RentalState.ENDED


def test_an_open_rental_of_an_unknown_provider_is_said(toy, monkeypatch, lambda_service):
    """A newer launcher has rented there: this one can neither end nor dismiss it."""
    nonce = rent(toy, open_account(toy), RUN)
    (usual_folder() / "services-toy").unlink()
    monkeypatch.delitem(provider.PROVIDERS, "toy")
    (left,) = reconciled([LambdaSettings(api=lambda_service.base)]).unknown
    assert left.nonce == nonce
    with pytest.raises(UsageError, match="does not know this provider"):
        dismiss(left)


def test_an_open_rental_without_its_address_is_looked_for_at_its_provider_s_usual_one(toy):
    rent(toy, open_account(toy), RUN)
    (usual_folder() / "services-toy").unlink()
    assert accounts_of([LambdaSettings()], TerminationRequest(), []) == [LambdaSettings(), ToySettings()]


def test_what_names_no_provider_is_lambdas_and_an_older_launcher_reads_nothing_of_another(toy):
    """It read `services` alone, and refused settings with a key that it did not know."""
    rent(toy, open_account(toy), RUN)
    records.remember_service(LambdaSettings())
    assert (usual_folder() / "services").read_text() == f"{LambdaSettings().api}\n"
    (found,) = records.rented()
    path = usual_folder() / found.rental.nonce / records.RECORD
    written = json.loads(path.read_text())
    assert written["settings"]["provider"] == "toy"
    with pytest.raises(ValueError, match="provider"):
        LambdaSettings.model_validate(written["settings"])
    plain = found.record.model_copy(update={"settings": LambdaSettings(max_hours=8)})
    records.write(plain)
    assert json.loads(path.read_text())["settings"] == LambdaSettings(max_hours=8).model_dump(mode="json")
    assert [one.record for one in records.rented()] == [plain]


def test_the_time_of_one_service_is_not_the_other_s(toy, sim_clock):
    """One that is wrong by days ends no rental of the other, and makes none dearer."""
    clock_of("toy").note(sim_clock.now() + 5 * 86_400)
    clock_of("lambda").note(sim_clock.now())
    assert abs(clock_of("lambda").now() - sim_clock.now()) < 60
    assert clock_of("toy").now() - clock_of("lambda").now() > 4 * 86_400


def test_a_record_of_an_unknown_provider_is_not_read_and_its_machine_is_nobody_elses(toy):
    rent(toy, open_account(toy), RUN)
    (found,) = records.rented()
    path = usual_folder() / found.rental.nonce / records.RECORD
    written = path.read_text()
    for damaged in (written.replace('"toy"', '"else"'), written.replace('"toy"', "[]"), '{"settings": null}'):
        path.write_text(damaged)
        assert [*records.rented()] == []
    (usual_folder() / "services-toy").write_text("not an address\n")
    with pytest.raises(BadFileError, match=r"services-toy[\s\S]*https://toy\.example/api"):
        records.accounts()


@pytest.mark.parametrize(
    ("job", "secrets", "word"),
    [
        (JOB, {"TOKEN": f"x{TOY_KEY}"}, "TOKEN"),
        (JOB, {"TOY_KEY": "another"}, "TOY_KEY"),
        (JOB.model_copy(update={"variables": {"A": TOY_KEY}}), {}, "variables"),
    ],
)
def test_the_key_of_each_provider_is_refused_to_a_job(toy, key, job, secrets, word):
    check_key_is_not_sent("cloud", JOB, {"OTHER": "harmless"})
    with pytest.raises(UsageError, match=rf"{word}: holds your API key for toy"):
        check_key_is_not_sent("cloud", job, secrets)
    with pytest.raises(UsageError, match="your API key for lambda"):
        check_key_is_not_sent("cloud", JOB, {"TOKEN": key})


def test_a_secret_with_the_name_of_a_key_is_refused_without_one_here(toy, monkeypatch):
    monkeypatch.delenv("TOY_KEY")
    with pytest.raises(UsageError, match="TOY_KEY"):
        check_key_is_not_sent("cloud", JOB, {"TOY_KEY": "of an env file"})
