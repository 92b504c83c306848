"""Fixtures: the stand-in of Lambda Cloud with the account `alice`, and our clients of it."""

import pytest
from testbed import lambda_client
from testbed.lambda_service import LambdaService as LambdaStandIn
from testbed.sim_clock import SimClock


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
