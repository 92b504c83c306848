"""Hosts of both kinds: what each may have, and that a run's record keeps them."""

import json

import pytest

from launcher.errors import BadFileError
from launcher.values.host import KAGGLE, LOCAL, Host
from launcher.values.host_table import read_host
from launcher.values.kaggle_settings import KaggleSettings


def read(table, name="k"):
    text = f"[hosts.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    return read_host(name, table, is_here=False, file="launch.toml", text=text)


def complaint(table):
    with pytest.raises(BadFileError) as caught:
        read(table)
    return str(caught.value)


def test_an_account_needs_no_key_but_its_kind():
    """Whose account it is, the credentials say."""
    host = read({"kind": "kaggle"})
    assert host.kaggle == KaggleSettings()
    assert not host.is_local
    assert (host.kaggle.internet, host.kaggle.session_hours, host.kaggle.keep_kernels) == (True, 8.5, False)
    assert host.kaggle.account is host.kaggle.accelerator is None


def test_the_keys_of_an_account_stand_beside_those_that_every_host_has():
    keys = {"account": "alice", "api": "http://127.0.0.1:8080/v1/", "internet": False, "session_hours": 2}
    table = {"kind": "kaggle", **keys, "accelerator": "None", "keep_kernels": True, "profile": "t4x2"}
    host = read(table)
    assert host.kaggle.api == "http://127.0.0.1:8080/v1"
    assert (host.kaggle.account, host.kaggle.accelerator, host.profile) == ("alice", "None", "t4x2")


@pytest.mark.parametrize(
    "host", [KAGGLE, LOCAL, Host(name="lab", address="lab", port=7), read({"kind": "kaggle"})]
)
def test_a_host_is_the_same_after_its_record_was_read(host):
    """As JSON and as values, which a run's mirror keeps."""
    assert Host.model_validate_json(host.model_dump_json()) == host
    assert Host.model_validate(json.loads(json.dumps(host.model_dump()))) == host


def test_the_record_of_a_machine_has_no_key_that_an_older_version_refuses():
    assert not {"kind", "kaggle"} & Host(name="lab", address="lab").model_dump().keys()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("address", "gpu", "no machine to log in to"),
        ("port", 22, "no machine to log in to"),
        ("root", "~/.launch", "on this machine"),
        ("python", "python3", "Kaggle's image"),
        ("environment", "venv", "requirements"),
        ("env", "venv", "requirements"),
        ("engine", "docker", "own container"),
        ("build", {"base": "x"}, "Kaggle's own"),
        ("variables", "listed", "-e NAME=VALUE"),
    ],
)
def test_a_key_of_machines_is_refused_with_the_reason(key, value, why):
    said = complaint({"kind": "kaggle", key: value})
    assert f"launch.toml: hosts.k.{key}: not for kind" in said
    assert why in said


@pytest.mark.parametrize("key", sorted(KaggleSettings.model_fields))
def test_a_key_of_accounts_is_refused_for_a_machine(key):
    """A forgotten `kind` is the likeliest mistake: the line that is missing is shown."""
    said = complaint({key: "x"})
    assert f"hosts.k.{key}" in said
    assert 'kind = "kaggle"' in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"api": "http://example.org/v1"}, ["hosts.k.api", "in the clear", "line 3"]),
        ({"api": "https://me:secretword@example.org/v1"}, ["hosts.k.api", "KAGGLE_API_TOKEN"]),
        ({"api": "kaggle.com"}, ["https://api.kaggle.com/v1"]),
        ({"session_hours": 13}, ["hosts.k.session_hours = 13", "12"]),
        ({"session_hours": 0}, ["hosts.k.session_hours = 0"]),
        ({"session_hours": "8"}, ["expected a number, got text"]),
        ({"account": "Alice Smith"}, ["www.kaggle.com/NAME"]),
        ({"accelerator": "T4 x 2"}, ["NvidiaTeslaT4"]),
        ({"runtime": "docker"}, ["hosts.k.runtime"]),
        ({"acount": "alice"}, ["did you mean 'account'", "allowed: account, api", "profile"]),
        ({"datasets": ["texts"]}, ["hosts.k.datasets", "OWNER/NAME"]),
        ({"models": ["google/gemma"]}, ["hosts.k.models", "OWNER/MODEL/FRAMEWORK/VARIATION"]),
        ({"kaggle": {}}, ["its keys here"]),
    ],
)
def test_a_wrong_value_is_named_by_key_and_line(table, words):
    said = complaint({"kind": "kaggle", **table})
    assert all(word in said for word in words), said
    assert "secretword" not in said


def test_a_kind_that_does_not_exist_is_named_with_those_that_do():
    said = complaint({"kind": "kagle"})
    assert "hosts.k.kind" in said
    assert "'kaggle'" in said


def test_the_allowed_keys_of_a_machine_are_those_of_its_table():
    """`kaggle` is no key: the settings stand in the table itself."""
    allowed = complaint({"adress": "gpu"}).splitlines()[-1]
    assert "address" in allowed
    assert "kaggle" not in allowed


def test_no_machine_has_kaggles_runtime():
    assert 'kind = "kaggle"' in complaint({"runtime": "kaggle"})


@pytest.mark.parametrize(
    "values", [{"kind": "kaggle"}, {"kaggle": KaggleSettings()}, {"kind": "kaggle", "address": "x"}]
)
def test_a_host_is_of_one_kind(values):
    with pytest.raises(ValueError, match="kaggle"):
        Host(name="k", **values)
