"""Our client of Lambda Cloud's service, against the stand-in: each fault is a named reason, and a launch is never made twice."""

import base64
import itertools
import random
import secrets
import traceback
import urllib.request

import pytest
from testbed import lambda_client
from testbed.lambda_schema import ANSWERS, REQUESTS, mistakes

from launcher.errors import (
    AuthRefusedError,
    HostError,
    ServiceError,
    ServiceUnreachableError,
    UnknownOutcomeError,
    UsageError,
)
from launcher.rental.provider import ProviderReason as Reason
from launcher.rental.providers.lambda_api import CODES, meaning_of
from launcher.rental.providers.lambda_cloud import log_in
from launcher.rental.rate_limit import RateLimit
from launcher.rental.renting import LaunchOptions
from launcher.transport.http import service_wire

IMAGE = "lambda-stack-24-04"


def new(**values):
    """Return what a launch is asked for: an intent, and a setup for values that are a setup's."""
    setup = {key: values.pop(key) for key in [*values] if key in LaunchOptions.model_fields}
    return lambda_client.intent(**values), lambda_client.SETUP.model_copy(update=setup)


def test_an_instance_from_launch_to_its_end(lambda_api, lambda_service, sim_clock):
    """It boots, gets its address late, becomes active, and is gone; it costs what was active."""
    (made,) = lambda_api.launch(*new(user_data="#cloud-config\n", image="lambda-stack-24-04"))
    first = lambda_api.instance(made)
    assert (first.word, first.ip, first.name) == ("booting", None, f"launch-{lambda_client.RUN}-abc")
    assert first.nonce == "abc"
    sim_clock.sleep(lambda_service.state.habits.boot_s)
    active = lambda_api.instances()[0]
    assert (active.word, active.region, active.type) == ("active", "us-east-1", "gpu_1x_a10")
    assert active.ip
    sim_clock.sleep(600)
    assert lambda_api.terminate(made)
    assert lambda_api.instances()[0].word == "terminating"
    sim_clock.sleep(lambda_service.state.habits.end_s)
    assert lambda_api.instances() == ()
    assert lambda_api.instance(made) is None
    assert not lambda_api.terminate(made)
    assert lambda_service.state.cents() == 24  # 11 minutes at $1.29 an hour
    assert lambda_service.state.violations == []
    assert "jupyter-secret" not in repr(active)


def test_what_else_an_account_has(lambda_api, lambda_service):
    """Types with prices and free regions, keys, file systems, images: each read as the schema has it."""
    region = {"name": "us-east-1", "description": "Virginia, USA"}
    owner = {"id": "u", "email": "a@example.com", "status": "active"}
    about = {"mount_point": "/lambda/nfs/data", "created": "2026-01-01T00:00:00+00:00", "created_by": owner}
    system = {"id": "fs1", "name": "data", **about, "is_in_use": False, "region": region}
    lambda_service.state.accounts[0].file_systems.append(system)
    types = {offer.type: offer for offer in lambda_api.offers()}
    assert types["gpu_1x_a100"].cents_per_hour == 199
    assert types["gpu_1x_a10"].regions == ("us-east-1", "us-west-1")
    assert types["gpu_1x_h100_pcie"].regions == ()
    lambda_api.add_key("launch", "ssh-ed25519 AAAA launch")
    ours, added = lambda_api.ssh_keys()
    assert (ours.name, added.name) == ("ours", "launch")
    lambda_api.delete_key(added.id)
    assert lambda_api.ssh_keys() == (ours,)
    assert lambda_api.file_systems() == (("data", "us-east-1"),)
    assert {*lambda_api.images()} >= {(IMAGE, "us-east-1"), (IMAGE, "us-west-1")}


@pytest.mark.parametrize("code", CODES)
def test_each_documented_code_has_its_reason(lambda_api, lambda_service, code):
    """The words that come with it do not matter: a launch and a listing say the same reason, and what to do about it."""
    for call, ask in (("launch", lambda: lambda_api.launch(*new())), ("instances", lambda_api.instances)):
        lambda_service.fail(call, "status", status=400, code=code, message="some words")
        with pytest.raises(HostError) as caught:
            ask()
        assert caught.value.reason == CODES[code].reason
        is_open = (call, code) == ("launch", "global/internal-error")
        assert isinstance(caught.value, UnknownOutcomeError) == is_open
        assert is_open or CODES[code].mend in str(caught.value)
        assert isinstance(caught.value, AuthRefusedError) == (code == "global/invalid-api-key")
    assert lambda_service.alive() == []


REFUSALS = [
    (400, "", Reason.BAD_REQUEST, ServiceError),
    (400, "global/of-next-year", Reason.BAD_REQUEST, ServiceError),
    (401, "", Reason.UNAUTHORIZED, AuthRefusedError),
    (403, "", Reason.FORBIDDEN, ServiceError),
    (404, "", Reason.NOT_FOUND, ServiceError),
    (409, "", Reason.CONFLICT, ServiceError),
]


@pytest.mark.parametrize(("status", "code", "reason", "kind"), REFUSALS, ids=str)
def test_a_refusal_without_a_documented_code_goes_by_its_status(
    lambda_api, lambda_service, status, code, reason, kind
):
    """Also as a page of HTML. A launch that was refused is no unsettled one."""
    for call, ask in (("launch", lambda: lambda_api.launch(*new())), ("types", lambda_api.offers)):
        headers = {"Location": lambda_service.base}
        lambda_service.fail(call, "status", status=status, code=code, headers=headers)
        with pytest.raises(kind) as caught:
            ask()
        assert caught.value.reason == reason
        assert not isinstance(caught.value, UnknownOutcomeError)


@pytest.mark.parametrize(
    ("fault", "is_there"),
    [
        ({"kind": "lost"}, True),
        ({"kind": "accepted", "status": 502}, True),
        ({"kind": "accepted", "status": 500, "code": "global/internal-error"}, True),
        ({"kind": "accepted", "status": 400, "code": "global/internal-error"}, True),
        ({"kind": "accepted", "status": 400, "code": "provider/internal-unavailable"}, True),
        ({"kind": "accepted", "status": 408}, True),
        ({"kind": "accepted", "status": 303, "headers": {"Location": "https://192.0.2.1/"}}, True),
        ({"kind": "cut"}, False),
        ({"kind": "status", "status": 503}, False),
        ({"kind": "broken"}, False),
        ({"kind": "answer", "data": {}}, False),
        ({"kind": "answer", "data": {"instance_ids": []}}, False),
        ({"kind": "answer", "data": {"instance_ids": [""]}}, False),
    ],
    ids=str,
)
def test_a_launch_without_a_clear_answer_is_unsettled(lambda_api, lambda_service, fault, is_there):
    """It is made once, whatever comes back; the list tells."""
    lambda_service.fail("launch", **fault)
    with pytest.raises(UnknownOutcomeError, match="may have been accepted"):
        lambda_api.launch(*new())
    assert len(lambda_service.of("launch")) == 1
    assert [one.nonce for one in lambda_api.instances()] == (["abc"] if is_there else [])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "lost"}, Reason.BROKEN_OFF),
        ({"kind": "silent"}, Reason.SILENT),
        ({"kind": "status", "status": 500}, Reason.SERVER_ERROR),
        ({"kind": "status", "status": 400, "code": "provider/internal-unavailable"}, Reason.UPSTREAM),
    ],
    ids=str,
)
def test_a_service_that_does_not_answer_is_unreachable(
    lambda_api, lambda_service, fault, reason, monkeypatch
):
    """Whoever asks for a run's state treats it as a host that does not answer."""
    monkeypatch.setattr(service_wire, "READ_S", 0.3)
    lambda_service.fail("instances", **fault)
    with pytest.raises(ServiceUnreachableError) as caught:
        lambda_api.instances()
    assert caught.value.reason == reason


@pytest.mark.parametrize("data", [None, {}, [{"status": "active"}], [{"id": ""}], ["x"]], ids=str)
def test_a_list_that_cannot_be_read_is_no_empty_list(lambda_api, lambda_service, data):
    """What is paid for would not be seen."""
    lambda_service.fail("instances", "answer", data=data)
    with pytest.raises(ServiceError) as caught:
        lambda_api.instances()
    assert caught.value.reason == Reason.MALFORMED


@pytest.mark.parametrize(
    "fault", [{"kind": "status", "status": 200}, {"kind": "broken"}], ids=["html", "cut"]
)
def test_a_key_is_neither_added_nor_removed_by_an_answer_that_cannot_be_read(
    lambda_api, lambda_service, fault
):
    """A page of a proxy says nothing of the account."""
    (ours,) = lambda_api.ssh_keys()
    for call, ask in (
        ("add_key", lambda: lambda_api.add_key("launch", "ssh-ed25519 AAAA launch")),
        ("delete_key", lambda: lambda_api.delete_key(ours.id)),
    ):
        lambda_service.fail(call, **fault)
        with pytest.raises(ServiceError) as caught:
            ask()
        assert caught.value.reason == Reason.MALFORMED
    assert lambda_api.ssh_keys() == (ours,)


def test_an_instance_with_a_wrong_field_is_still_listed(lambda_api, lambda_service):
    """And a status that was never seen before is kept as it is; a price that is none is no offer."""
    odd = [{"id": "x", "status": "hibernating", "ip": 7, "region": "us", "tags": None}]
    lambda_service.fail("instances", "answer", data=odd)
    (listed,) = lambda_api.instances()
    assert (listed.id, listed.word, listed.ip, listed.nonce) == ("x", "hibernating", None, "")
    good = lambda_service.state.kinds["gpu_1x_a10"].body
    offers = {
        "gpu_1x_a10": {"instance_type": good, "regions_with_capacity_available": []},
        "bad": {"instance_type": {**good, "name": "bad", "price_cents_per_hour": "free"}},
    }
    lambda_service.fail("types", "answer", data=offers)
    assert [offer.type for offer in lambda_api.offers()] == ["gpu_1x_a10"]


def test_the_schema_sees_what_is_wrong(lambda_api, lambda_service):
    """An unknown field, as `quantity` is now, a missing one, and two SSH keys."""
    lambda_api.launch(*new())
    body = lambda_service.of("launch")[0]["body"]
    assert mistakes(body, REQUESTS["launch"]) == []
    assert mistakes({**body, "quantity": 1}, REQUESTS["launch"]) == [".quantity: unknown"]
    assert mistakes({**body, "ssh_key_names": ["a", "b"]}, REQUESTS["launch"])
    assert mistakes({key: body[key] for key in body if key != "region_name"}, REQUESTS["launch"])
    assert mistakes({"instance_ids": "x"}, ANSWERS["launch"])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"type": "gpu_1x_h100_pcie"}, Reason.NO_CAPACITY),
        ({"type": "gpu_9x_b900"}, Reason.NOT_FOUND),
        ({"region": "moon-1"}, Reason.NOT_FOUND),
        ({"ssh_key": "theirs"}, Reason.NOT_FOUND),
        ({"file_systems": ("nothing",)}, Reason.NOT_FOUND),
    ],
    ids=str,
)
def test_a_launch_is_refused_for_its_reason(lambda_api, lambda_service, values, reason):
    """By the stand-in's own judgement. No capacity comes as HTTP 400."""
    with pytest.raises(ServiceError) as caught:
        lambda_api.launch(*new(**values))
    assert caught.value.reason == reason
    assert lambda_service.alive() == []


def test_quotas_and_accounts_that_are_not_active(lambda_api, lambda_service):
    """Each has its reason."""
    (account,) = lambda_service.state.accounts
    account.quota = 0
    with pytest.raises(ServiceError) as caught:
        lambda_api.launch(*new())
    assert caught.value.reason == Reason.QUOTA
    account.is_active = False
    with pytest.raises(ServiceError, match="payment method") as caught:
        lambda_api.instances()
    assert caught.value.reason == Reason.ACCOUNT_INACTIVE


def test_a_call_that_is_refused_for_its_rate_is_made_again_later(lambda_api, lambda_service, sim_clock):
    """As long after as the service asks, or more and more, with a page of HTML too; the sixth refusal is an error."""
    began = sim_clock.now()
    lambda_service.fail("launch", "status", status=429, headers={"Retry-After": "77"})
    lambda_service.fail("launch", "status", status=429, code="global/rate-limited", times=2)
    assert len(lambda_api.launch(*new())) == 1
    waits = [line["time"] for line in lambda_service.of("launch")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(waits)]
    assert waits[0] - began == 0
    assert [gap >= least for gap, least in zip(gaps, (77, 12, 20), strict=True)] == [True, True, True]
    assert sum(gaps) < 200
    assert len(lambda_service.alive()) == 1

    lambda_service.fail("instances", "status", status=429, headers={"Retry-After": "5"}, times=99)
    with pytest.raises(ServiceError) as caught:
        lambda_api.instances()
    assert caught.value.reason == Reason.RATE_LIMIT
    assert len(lambda_service.of("instances")) == 6


def test_nobody_waits_for_hours_in_silence(lambda_api, lambda_service, sim_clock):
    """A longer wait than ten minutes is an error that tells it."""
    lambda_service.fail("instances", "status", status=429, headers={"Retry-After": "7200"})
    began = sim_clock.now()
    with pytest.raises(ServiceError) as caught:
        lambda_api.instances()
    assert (caught.value.reason, caught.value.retry_s) == (Reason.RATE_LIMIT, 7200)
    assert sim_clock.now() - began < 1


def test_back_offs_are_drawn(tmp_path, sim_clock, lambda_service, key):
    """Two machines that were refused together do not come back together."""
    times = []
    for seed in (1, 2):
        api = lambda_client.service(lambda_service.base, key, tmp_path / str(seed), sim_clock)
        api._draw = random.Random(seed)
        lambda_service.fail("images", "status", status=429)
        before = sim_clock.now()
        api.images()
        times.append(sim_clock.now() - before)
        api.close()
    assert times[0] != times[1]


def test_basic_authentication_is_accepted_too(lambda_service, key):
    """As with `curl -u KEY:`; a wrong key is not."""
    for value, status in ((key, 200), ("wrong", 401)):
        basic = base64.b64encode(f"{value}:".encode()).decode()
        request = urllib.request.Request(
            f"{lambda_service.base}/instances", headers={"Authorization": f"Basic {basic}"}
        )
        try:
            with urllib.request.urlopen(request) as answer:
                assert answer.status == status
        except urllib.error.HTTPError as error:
            assert error.code == status  # noqa: PT017
            error.close()
    assert [line["auth"] for line in lambda_service.of("instances")] == ["basic", "basic"]


def test_the_key_shows_nowhere(lambda_service, tmp_path, sim_clock):
    """Not in an error that repeats it, a traceback, a repr, a URL, a file: also one that the service does not know."""
    secret = f"secret_{secrets.token_hex(16)}"
    lambda_service.account("bob", secret)
    api = lambda_client.service(lambda_service.base, secret, tmp_path)
    shown = [repr(api), repr(vars(api)), api.account]
    faults = (
        {"kind": "status", "status": 400, "code": "global/invalid-parameters", "message": f"not {secret}"},
        {"kind": "status", "status": 401, "code": "global/invalid-api-key", "message": f"not {secret}"},
        {"kind": "lost"},
        {"kind": "broken"},
    )
    for call, ask in (("launch", lambda: api.launch(*new())), ("instances", api.instances)):
        for fault in faults:
            lambda_service.fail(call, **fault)
            with pytest.raises(HostError) as caught:
                ask()
            shown += traceback.format_exception(caught.value)
            shown.append(repr(vars(caught.value)))
    lambda_service.state.accounts.pop()
    with pytest.raises(AuthRefusedError) as caught:
        api.instances()
    shown.append(str(caught.value))
    assert not [text for text in shown if secret in text]
    assert not [line for line in lambda_service.calls if secret in repr(line)]
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
    ]


def test_a_key_is_not_sent_in_the_clear(tmp_path, sim_clock):
    """Only to this machine, or over TLS."""
    with pytest.raises(UsageError, match="https"):
        log_in(
            {"LAMBDA_API_KEY": "k"},
            tmp_path,
            RateLimit(tmp_path, "lambda", sim_clock),
            "http://cloud.lambda.ai/api/v1",
        )


def test_provider_codes_come_from_upstream():
    """Whatever follows the prefix; another unknown code has no meaning."""
    assert meaning_of("provider/anything").reason == Reason.UPSTREAM
    assert meaning_of("global/anything") is None
