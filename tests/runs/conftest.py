"""What the tests of runs share."""

import pytest
from testbed.batches import batches_for
from testbed.used_agent import client, used_agent

__all__ = ["client", "used_agent"]


@pytest.fixture
def made(client, ssh_host):
    """A client with several hosts."""
    with batches_for(client, ssh_host) as batches:
        yield batches
