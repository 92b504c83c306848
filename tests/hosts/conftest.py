"""Fixtures: the stand-ins of Kaggle and Lambda Cloud with the account `alice`, and our clients of them."""

import pytest
from testbed import lambda_client
from testbed.kaggle_service import KaggleService as StandIn
from testbed.lambda_service import LambdaService as LambdaStandIn
from testbed.sim_clock import SimClock

from launcher.hosts.kaggle_service import log_in

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
def sim_clock(tmp_path):
    """A clock that moves when someone sleeps by it."""
    return SimClock(tmp_path / "clock")


@pytest.fixture
def lambda_service(sim_clock):
    """Lambda Cloud's stand-in, by that clock, up for a test, with the account `alice`."""
    with LambdaStandIn(sim_clock) as stand_in:
        stand_in.account()
        yield stand_in


@pytest.fixture
def key(lambda_service):
    """The key of that account."""
    return lambda_service.state.accounts[0].key


@pytest.fixture
def lambda_api(lambda_service, key, tmp_path):
    """Our client of that service."""
    service = lambda_client.service(lambda_service.base, key, tmp_path)
    yield service
    service.close()


@pytest.fixture
def renter(lambda_service, key, tmp_path):
    """A renter at that service, whose ledger is empty."""
    return lambda_client.renter(lambda_service.base, key, tmp_path)
