"""Training programs that nobody here wrote, unmodified: one in CI, four more in `make long`; `make scripts` launches all of them. See PROGRAMS.md."""

import sys
from pathlib import Path

import pytest
from programs.catalogue import IN_CI
from programs.launching import launch

pytestmark = pytest.mark.training


@pytest.mark.parametrize(
    "program",
    [pytest.param(one, marks=() if number == 1 else pytest.mark.long) for number, one in enumerate(IN_CI)],
    ids=lambda program: program.name,
)
def test_what_is_told_of_a_program_is_right_or_absent(program, tmp_path):
    """Steps and losses equal a ledger kept inside the program, and its end is judged rightly."""
    outcome = launch(program, tmp_path, Path(sys.prefix))
    assert not outcome.faults, outcome.said
