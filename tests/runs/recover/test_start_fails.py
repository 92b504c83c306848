"""A start that fails: what is left of it here."""

import pytest

from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, ConnectionLostError, EngineError
from launcher.runs.launch.launching import _start
from launcher.transport.channel import AgentReply
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host

CASES = [
    (EngineError("there", "no"), True, False),
    (AgentError("there", "no-start", "no"), True, False),
    (EngineError("there", "silent"), False, True),
    (ConnectionLostError("there", "gone"), True, True),
]


class Failing:
    """A runtime whose start fails; its host clears the run away, or holds it."""

    host = "there"

    def __init__(self, error, is_taken):
        self.client, self._error, self._is_taken = HostClient(self), error, is_taken

    def start(self, _run):
        """Fail."""
        raise self._error

    def after_refusal(self, _error):
        """Return None, as where no scheduler refuses."""

    def is_limit(self, _error):
        """Return False, as where no scheduler has limits."""
        return False

    def call(self, _verb, _payload=b"", **_args):
        """Tell what becomes of the run."""
        return AgentReply({"taken": self._is_taken}, b"")


@pytest.mark.parametrize(("error", "is_taken", "stays"), CASES)
def test_a_mirror_stays_only_of_a_run_that_its_host_may_have(tmp_path, error, is_taken, stays):
    """`ps` would tell of it as gone, for ever."""
    local_copy = LocalCopy("0101-x-abcd", tmp_path)
    local_copy.bind_seen(Host(name="there"), "", None)
    with pytest.raises(type(error)):
        _start(Failing(error, is_taken), local_copy)
    assert local_copy.folder.exists() is stays
