"""Fixtures: the stand-in of Kaggle with the account `alice`, and our client of it."""

import pytest
from testbed.kaggle_service import KaggleService as StandIn

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
