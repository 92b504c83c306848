"""What is said of a session whose files were not as it had printed them."""

import pytest

from launcher.backends.spool.segments import _differing
from launcher.backends.spool.spool import OutputChanges


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        ((), ""),
        (("record/0002/heartbeat", "record/0002/state.json", "record/0002/attempt.json"), ""),
        (
            ("record/0002/heartbeat", "record/0002/events.jsonl"),
            "record/0002/events.jsonl differs from its printed copy",
        ),
        (("record/0002/log.txt",), "record/0002/log.txt differs from its printed copy"),
    ],
)
def test_only_a_file_that_grows_can_differ_from_what_was_printed(replaced, words):
    """One that is replaced whole may be newer at the end than its last print."""
    assert _differing(OutputChanges((), replaced, {})) == words
