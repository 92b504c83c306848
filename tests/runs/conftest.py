"""What the tests of runs share."""

import pytest
from testbed.batches import batches_for


@pytest.fixture
def made(client, ssh_host):
    """A client with several hosts."""
    with batches_for(client, ssh_host) as batches:
        yield batches
