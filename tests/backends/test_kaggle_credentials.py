"""Whose credentials are used for Kaggle, in Kaggle's own order, and that their values show nowhere."""

import json
import pickle
import secrets
import traceback
from datetime import UTC, datetime, timedelta

import pytest
from testbed.kaggle_service import KaggleService as StandIn

from launcher.backends.kaggle import kaggle_credentials
from launcher.backends.kaggle.kaggle import Account
from launcher.backends.kaggle.kaggle_credentials import KaggleLogin, logins
from launcher.backends.kaggle.kaggle_host import KaggleSettings
from launcher.backends.kaggle.kaggle_kernel import Hours, KernelRef, NewKernel, Quota
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.backends.kaggle.kaggle_log import follow
from launcher.backends.kaggle.kaggle_service import KaggleService, log_in
from launcher.errors import AuthRefusedError, BadFileError, LaunchError, ServiceAuthError
from launcher.transport.http.service_wire import ServiceWire

KEY = {"KAGGLE_USERNAME": "carol", "KAGGLE_KEY": "key-of-carol"}
REF = KernelRef("alice", "launch-toy-1")


@pytest.fixture
def stand_in(tmp_path):
    with StandIn(tmp_path / "service") as stand_in:
        for name in ("alice", "bob", "carol", "dave", "erin"):
            stand_in.account(name)
        yield stand_in


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home" / ".kaggle").mkdir(parents=True)
    return tmp_path / "home"


def write(home, name, content):
    path = home / ".kaggle" / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def oauth(name, token, hours):
    until = datetime.now(UTC) + timedelta(hours=hours)
    return {
        "refresh_token": f"refresh-key-of-{name}",
        "access_token": token,
        "access_token_expiration": until.isoformat(),
        "username": name,
        "scopes": [],
    }


def test_the_order_is_kaggle_s_own(stand_in, home):
    """A token's variable, a token's file, the key's variables, the key's file, OAuth: each wins over those after it."""
    write(home, "access_token", "KGAT_bob\n")
    write(home, "kaggle.json", {"username": "dave", "key": "key-of-dave"})
    write(home, "credentials.json", oauth("erin", "KGAT_erin", 6))
    assert log_in({**KEY, "KAGGLE_API_TOKEN": "KGAT_alice"}, home, stand_in.base).user == "alice"
    assert log_in(KEY, home, stand_in.base).user == "bob"
    (home / ".kaggle" / "access_token").unlink()
    assert log_in(KEY, home, stand_in.base).user == "carol"
    assert log_in({}, home, stand_in.base).user == "dave"
    (home / ".kaggle" / "kaggle.json").unlink()
    assert log_in({}, home, stand_in.base).user == "erin"


def test_each_kind_of_login_is_accepted(stand_in, home, tmp_path):
    """By its name and its way of authentication, as the ledger has it."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "kaggle.json").write_text(json.dumps({"username": "dave", "key": "key-of-dave"}))
    file = write(home, "a-token-somewhere", "KGAT_bob")
    write(home, "access_token.txt", "KGAT_alice")
    expected = [
        ({"KAGGLE_API_TOKEN": str(file)}, "bob", "bearer"),
        ({}, "alice", "bearer"),
        ({"KAGGLE_API_TOKEN": "no-such-token", **KEY}, "carol", "basic"),
        ({"KAGGLE_API_TOKEN": "no-such-token", "KAGGLE_CONFIG_DIR": str(other)}, "dave", "basic"),
        # Kaggle's own client puts variables over the file's values, one by one.
        ({"KAGGLE_API_TOKEN": "no-such-token", **KEY, "KAGGLE_CONFIG_DIR": str(other)}, "carol", "basic"),
    ]
    for variables, user, kind in expected:
        service = log_in(variables, home, stand_in.base)
        service.quota()
        assert (service.user, stand_in.calls("GetAcceleratorQuotaStatistics")[-1]["auth"]) == (user, kind)


def test_the_folder_of_settings_is_found_as_kaggle_finds_it(tmp_path):
    """Without ~/.kaggle it is the XDG one."""
    (tmp_path / ".config" / "kaggle").mkdir(parents=True)
    (tmp_path / ".config" / "kaggle" / "kaggle.json").write_text('{"username": "dave", "key": "k"}')
    assert [login.user for login in logins({}, tmp_path)] == ["dave"]
    assert not list(logins({"XDG_CONFIG_HOME": str(tmp_path / "else")}, tmp_path))


def test_an_oauth_login_that_has_expired_is_renewed_and_its_file_left_alone(stand_in, home):
    """The refresh token gives an access token, which is used."""
    path = write(home, "credentials.json", oauth("erin", "KGAT_old", -1))
    before = path.read_bytes()
    service = log_in({}, home, stand_in.base)
    assert service.user == "erin"
    assert service.quota().gpu_quota is not None
    assert path.read_bytes() == before
    stand_in.state.accounts[-1].is_active = False
    with pytest.raises(ServiceAuthError) as caught:
        log_in({}, home, stand_in.base)
    assert caught.value.reason == Reason.UNAUTHORIZED


def test_without_credentials_the_message_says_what_to_do(stand_in, home):
    """And names the ones that were of no use; nothing is asked of the service that needs them."""
    with pytest.raises(AuthRefusedError, match=r"no credentials here\n.*KAGGLE_API_TOKEN") as caught:
        log_in({}, home, stand_in.base)
    assert caught.value.exit_code == 4
    assert stand_in.calls() == []
    stand_in.state.accounts[0].is_active = False
    with pytest.raises(ServiceAuthError, match="does not know the token of KAGGLE_API_TOKEN"):
        log_in({"KAGGLE_API_TOKEN": "KGAT_alice"}, home, stand_in.base)


@pytest.mark.parametrize("text", ["not json", '{"username": "alice", "key": "S3CRET', "[1]", "\x00"])
def test_a_file_that_cannot_be_read_is_named_and_not_quoted(home, text):
    """Kaggle's own client passes over it in silence."""
    path = write(home, "kaggle.json", text)
    with pytest.raises(BadFileError) as caught:
        list(logins({}, home))
    assert str(path) in str(caught.value)
    assert text not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("secret", ["S3CRET\nX: 1", "S3CRET \r", "S3CRÉT", "S3 CRET"])
def test_what_could_not_stand_in_a_header_is_refused_without_its_value(secret):
    """`requests` would quote it in its error."""
    with pytest.raises(BadFileError) as caught:
        KaggleLogin("token", secret, "KAGGLE_API_TOKEN")
    assert "S3" not in str(caught.value)


def test_a_login_shows_its_origin_alone(stand_in, home):
    """In repr, of itself and of the service; and it cannot be pickled."""
    write(home, "access_token", "KGAT_alice")
    service = log_in({}, home, stand_in.base)
    (login,) = logins({}, home)
    assert "access_token" in repr(login)
    assert "KGAT" not in repr(login) + repr(service) + str(service.__dict__)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(login)


def test_fifty_secrets_of_this_machine_reach_nothing_but_the_header(stand_in, tmp_path, home, monkeypatch):
    """Variables, netrc, kaggle.json, .env: none in a body, link, path, header, error or file over there."""
    planted = [secrets.token_urlsafe(24) for _ in range(50)]
    for number, value in enumerate(planted[:15]):
        monkeypatch.setenv(f"{('HF_TOKEN', 'WANDB_API_KEY', 'KAGGLE_SECRET')[number % 3]}_{number}", value)
    hosts = ("127.0.0.1", "localhost", "api.kaggle.com", "storage.googleapis.com")
    lines = [
        f"machine {host} login ada password {value}" for host, value in zip(hosts, planted[15:], strict=False)
    ]
    lines += [f"machine h{value[:4]} login {value} password {value}" for value in planted[19:29]]
    lines += [f"default login ada password {planted[29]}"]
    (home / ".netrc").write_text("\n".join(lines))
    (home / ".netrc").chmod(0o600)
    more = {f"more{number}": value for number, value in enumerate(planted[31:40])}
    write(home, "kaggle.json", {"username": "alice", "key": planted[30], **more})
    (tmp_path / ".env").write_text("\n".join(f"SECRET_{n}={value}" for n, value in enumerate(planted[40:])))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / ".netrc"))
    monkeypatch.chdir(tmp_path)
    stand_in.state.accounts[0].key = planted[30]
    service = log_in({}, home, stand_in.base)

    said = []

    def fails(method, call, **fault):
        stand_in.fail(method, **fault)
        with pytest.raises(LaunchError) as caught:
            call()
        said.append("".join(traceback.format_exception(caught.value)))

    push = NewKernel(ref=REF, source="open('a', 'w').write('b')", machine="None", timeout_s=60)
    (tmp_path / "data").write_bytes(b"data")
    service.create_dataset("launch-data", [service.upload(tmp_path / "data")])
    fails("SaveKernel", lambda: service.push(push), kind="cut")
    echo = {"error": f"no: {planted[30]} of {service._login.header()}"}
    fails("SaveKernel", lambda: service.push(push), kind="answer", values=echo)
    service.push(push)
    stand_in.wait_for(str(REF), "COMPLETE")
    list(follow(service, REF))
    for file in service.outputs(REF):
        assert b"".join(service.download(file)) == b"b"
        fails("link", lambda file=file: list(service.download(file)), kind="lost")
    message = f"bad key {planted[30]}"
    fails("GetKernel", lambda: service.find(REF), kind="status", status=400, message=message)
    fails("DeleteKernel", lambda: service.delete(REF), kind="answer", values={"errorMessage": message})
    service.delete(REF)

    over_there = [path.read_bytes() for path in (tmp_path / "service").rglob("*") if path.is_file()]
    everything = [*over_there, *(text.encode() for text in said), repr(service).encode()]
    assert len(over_there) > 3
    assert not [value for value in planted for text in everything if value.encode() in text]
    assert {line["auth"] for line in stand_in.calls("link")} == {""}
    assert {line["auth"] for line in stand_in.calls() if line["method"] not in ("link", "upload")} == {
        "basic"
    }


@pytest.mark.parametrize("user", ["../../elsewhere", "a/b", "-x", "x" * 65, "a\nb"])
def test_a_name_of_an_account_is_no_path(stand_in, home, user):
    """It names a folder here; a service may say anything of a token, and a file may hold anything."""
    stand_in.fail("IntrospectToken", "answer", values={"active": True, "username": user})
    with pytest.raises(BadFileError, match="not an account name"):
        log_in({"KAGGLE_API_TOKEN": "KGAT_alice"}, home, stand_in.base)
    with pytest.raises(BadFileError, match="not an account name"):
        log_in({"KAGGLE_USERNAME": user, "KAGGLE_KEY": "key"}, home, stand_in.base)


@pytest.mark.parametrize("seconds", [2**53, 10**12, 86_400_000])
def test_a_service_that_promises_years_is_believed_for_as_long_as_was_asked(stand_in, home, seconds):
    """A huge number ends nothing."""
    stand_in.fail(
        "GenerateAccessToken", "answer", values={"token": "fresh", "userName": "alice", "expiresIn": seconds}
    )
    fresh = KaggleService(
        KaggleLogin("oauth", "old", "a file", "alice"), ServiceWire(stand_in.base)
    ).renewed()
    assert fresh._login.until < datetime.now(UTC) + timedelta(days=1)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "x", "9" * 5000])
def test_a_refill_at_a_time_that_no_calendar_has_is_left_out(time):
    """The hours are shown without it."""
    quota = Quota(quota_refresh_time=time, gpu_quota=Hours(total_time_allowed="9" * 400 + "s"))
    assert quota.refill is None
    assert "refill" not in quota.title


def test_a_login_that_expires_while_a_run_is_followed_is_renewed(stand_in, home, monkeypatch):
    """Sessions are longer than the life of such a token."""
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    write(home, "credentials.json", oauth("alice", "KGAT_alice", 1))
    account = Account(KaggleSettings(api=stand_in.base), "alice")
    assert not account.service.is_out_of_date
    assert account.service is account.service
    assert stand_in.calls("GenerateAccessToken") == []
    monkeypatch.setattr(kaggle_credentials, "MARGIN", timedelta(hours=2))
    stand_in.state.accounts[0].token = "KGAT_no_more"
    account.service.quota()
    assert len(stand_in.calls("GenerateAccessToken")) == 1
