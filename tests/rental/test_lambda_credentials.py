"""Whose key is used for Lambda Cloud, from which file, and that its value shows nowhere."""

import os
import pickle

import pytest

from launcher.errors import BadFileError, ServiceAuthError
from launcher.rental.provider import ProviderReason as Reason
from launcher.rental.providers.lambda_cloud import log_in
from launcher.rental.providers.lambda_credentials import LambdaKey, find_key
from launcher.rental.rate_limit import RateLimit

SKYPILOT, OURS = ".lambda_cloud/lambda_keys", ".config/launch/lambda_key"


def write(home, name, text, mode=0o600):
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_variable_then_skypilot_s_file_then_ours(tmp_path):
    """Each wins over those after it."""
    write(tmp_path, SKYPILOT, "# a comment\napi_key = from-skypilot\n")
    write(tmp_path, OURS, "from-ours\n")
    assert find_key({"LAMBDA_API_KEY": " from-variable "}, tmp_path).header() == "Bearer from-variable"
    assert find_key({"LAMBDA_API_KEY": ""}, tmp_path).header() == "Bearer from-skypilot"
    (tmp_path / SKYPILOT).unlink()
    assert find_key({}, tmp_path).header() == "Bearer from-ours"
    elsewhere = {"XDG_CONFIG_HOME": str(tmp_path / "settings")}
    assert find_key(elsewhere, tmp_path) is None
    write(tmp_path, "settings/launch/lambda_key", "api_key='from-settings'\n")
    assert find_key(elsewhere, tmp_path).header() == "Bearer from-settings"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
@pytest.mark.parametrize("name", [SKYPILOT, OURS])
def test_a_file_that_others_can_read_is_refused(tmp_path, name, mode):
    """With the command that mends it."""
    path = write(tmp_path, name, "api_key = some-key-of-mine\n", mode)
    with pytest.raises(BadFileError, match=f"chmod 600 {path}") as caught:
        find_key({}, tmp_path)
    assert "some-key" not in str(caught.value)
    path.chmod(0o400)
    assert find_key({}, tmp_path).origin == str(path)


@pytest.mark.parametrize("text", ["", "api_key =\n", "other = x\n", "two\nlines\n"])
def test_a_file_without_a_key_is_named(tmp_path, text):
    """With what is missing in it."""
    path = write(tmp_path, SKYPILOT, text)
    with pytest.raises(BadFileError, match="api_key = …") as caught:
        find_key({}, tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("secret", ["two words", "línea", "a\nb", "a\rX-Other: b"])
def test_what_could_not_stand_in_a_header_is_not_repeated(tmp_path, secret):
    """It may still be most of a key."""
    with pytest.raises(BadFileError, match="not a key") as caught:
        find_key({"LAMBDA_API_KEY": secret}, tmp_path)
    assert secret not in str(caught.value)


def test_without_a_key_the_next_command_is_said(tmp_path, sim_clock):
    """And where a key is made."""
    with pytest.raises(ServiceAuthError, match="export LAMBDA_API_KEY=…") as caught:
        log_in({}, tmp_path, RateLimit(tmp_path / "pace", "lambda", sim_clock))
    assert caught.value.reason == Reason.NO_CREDENTIALS


def test_a_key_is_in_no_repr_and_is_not_pickled():
    """Its fingerprint stands for it, and differs by service."""
    key = LambdaKey("secret_abc", "here")
    assert "secret_abc" not in f"{key!r}{key}{key.fingerprint('x')}"
    assert key.redact("not secret_abc") == "not ***"
    assert key.fingerprint("https://a") != key.fingerprint("https://b")
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path):
    """Nobody may ever write to it."""
    path = tmp_path / ".lambda_cloud" / "lambda_keys"
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(BadFileError, match="not a regular file"):
        find_key({}, tmp_path)
