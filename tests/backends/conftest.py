"""Fixtures: the stand-in of Kaggle with the account `alice`, and our client of it."""

import pytest
from testbed.kaggle_service import KaggleService as StandIn

from launcher.backends.kaggle.kaggle import Account
from launcher.backends.kaggle.kaggle_host import KaggleSettings
from launcher.backends.kaggle.kaggle_service import log_in

KEY = {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "key-of-alice"}


@pytest.fixture
def stand_in(tmp_path):
    """The service, up for a test."""
    with StandIn(tmp_path / "service") as stand_in:
        stand_in.account()
        yield stand_in


@pytest.fixture
def kaggle(stand_in, tmp_path):
    """Our client."""
    service = log_in(KEY, tmp_path, stand_in.base)
    yield service
    service.close()


@pytest.fixture
def account(stand_in, tmp_path, monkeypatch):
    """Alice's account, with an empty spool."""
    monkeypatch.setenv("KAGGLE_USERNAME", "alice")
    monkeypatch.setenv("KAGGLE_KEY", "key-of-alice")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("KAGGLE_API_TOKEN", raising=False)
    found = Account(KaggleSettings(api=stand_in.base), "alice")
    found.spool.mkdir(parents=True)
    return found
